"""Where L comes from: proved for linear heads, estimated for other models."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag, eigvalsh
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

from stepsize_opt.inputs import EstimatedSmoothness, check_dense, positive_number, whole_number
from stepsize_opt.problems import linear_smoothness, softmax_curvature
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_opt.torch.workers import Workers
from stepsize_solvers.programs import Matrix, Vector

# Directions whose Hessian products are computed together.
_COLUMNS = 64
# Of the largest eigenvalue: curvature of an estimate below it is replaced by it, so that L̂ is positive definite.  A
# larger floor shortens the steps along flat directions, where an estimate is least reliable, and so lowers the margin.
_FLOORS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)

# At most this is the second derivative of the loss of one output, for ``beta`` = 1 where it has one.
_CURVATURES: dict[type, float] = {
    nn.BCEWithLogitsLoss: 0.25,
    nn.MSELoss: 2.0,
    nn.HuberLoss: 1.0,
    nn.SmoothL1Loss: 1.0,
}

Parameters = Mapping[str, Tensor]


def head_smoothness(
    features: Tensor, loss: nn.Module, outputs: int, *, bias: bool = False, ridge: float = 0.0
) -> Matrix:
    """L of ``loss(head(features), targets) + ridge/2 ‖x‖²`` for a linear head on frozen features, by proof.

    With z = head(a) for a row a of features, the Hessian of the loss in z is at most K for every target, be it a class
    or, for cross-entropy, a distribution over classes.  So, up to rounding,
    L = K ⊗ FᵀF/n + ridge·I.  K is ½(I − 11ᵀ/C) for softmax and cross-entropy (Böhning, 1992), and for the means over
    the C outputs that PyTorch's losses take ¼I/C for logistic, 2I/C for squared, I/C for Huber and smooth-L1 losses
    (divided by ``beta`` for the latter).

    Parameters
    ----------
    features
        F, shape (n, p): the rows that the loss is a mean over.  Rows that ``ignore_index`` leaves out of that mean do
        not belong to them; with them L would be too small.
    loss
        ``nn.CrossEntropyLoss``, ``BCEWithLogitsLoss``, ``MSELoss``, ``HuberLoss`` or ``SmoothL1Loss`` with
        ``reduction="mean"`` and without weights.
    outputs
        Their number C.
    bias
        Whether the head has one.
    ridge
        The weight decay of the loss, 0 or more.

    Returns
    -------
    L in float64, in the order of ``nn.Linear.parameters()``, the weight (C×p) row by row, then the bias.

    Raises
    ------
    ValueError, TypeError
        For another loss (a subclass may compute anything), features that are not a finite matrix or too large for
        float64, or a negative ridge.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import head_smoothness
    >>> head_smoothness(torch.eye(2), torch.nn.MSELoss(), 1, ridge=0.5).tolist()
    [[1.5, 0.0], [0.0, 1.5]]
    """
    if not isinstance(features, Tensor) or features.is_complex():
        msg = f"features must be a tensor of real numbers, got {type(features).__name__}"
        raise TypeError(msg)
    F = features.detach().to(torch.float64).cpu().numpy()
    if F.ndim != 2 or not F.size or not np.isfinite(F).all():
        msg = f"features must be a matrix of finite numbers, one row for each example, got shape {tuple(F.shape)}"
        raise ValueError(msg)
    if ridge != 0.0:
        positive_number("ridge", ridge)
    C = whole_number("outputs", outputs)
    if bias:
        F = np.hstack([F, np.ones((len(F), 1))])
    check_dense("L of the head", C * F.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # the result is looked at below
        L = linear_smoothness(loss_curvature(loss, C), F.T @ F / len(F), bias=bias)
    L = L + ridge * np.eye(len(L))
    if not np.isfinite(L).all():
        msg = "the features are so large that L is beyond float64; scale them"
        raise ValueError(msg)
    return np.asarray(L)


def loss_curvature(loss: Any, C: int) -> Matrix:
    """K, an upper bound on the Hessian of the loss in its C arguments; raises TypeError or ValueError for others."""
    kind = type(loss)  # a subclass may compute something else
    if kind is nn.CrossEntropyLoss:
        K = softmax_curvature(C)
    elif kind in _CURVATURES and getattr(loss, "beta", 1.0) > 0.0:
        K = np.asarray(_CURVATURES[kind] / (C * getattr(loss, "beta", 1.0)) * np.eye(C))
    else:
        known = ", ".join(f"nn.{one.__name__}()" for one in (nn.CrossEntropyLoss, *_CURVATURES))
        msg = (
            f"no proved bound on the curvature of {loss!r}, only of {known}; estimate_smoothness measures one that is "
            "not proved"
        )
        raise TypeError(msg)
    if loss.reduction != "mean" or any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight")):
        msg = f"the curvature is known for reduction='mean' and no weights, got {loss!r}"
        raise ValueError(msg)
    return K


def estimate_smoothness(
    objective: Callable[[Parameters], Tensor],
    points: Sequence[Parameters],
    held_out: Sequence[Parameters],
    *,
    blocks: Sequence[Sequence[str]] | None = None,
    floor: float | None = None,
    rank: int | None = None,
    process_group: Any = None,
) -> EstimatedSmoothness:
    """An L̂ of any twice differentiable loss from Hessian-vector products; not proved, and labelled so everywhere.

    The Hessians at ``points`` are measured exactly, their negative curvature is dropped, and L̂ is their mean times a
    margin.  The margin is the smallest number of at least 1 that makes L̂ bound all the Hessians at the points
    ``held_out``, which the mean has not seen.  Between and beyond all these points nothing is known.

    Parameters
    ----------
    objective
        The loss as a function of the parameters by name, such as
        ``lambda x: loss(torch.func.functional_call(model, x, (inputs,)), targets)``.
    points, held_out
        Parameters to measure at, by name, along a short run, say.  Copies: ``dict(model.named_parameters())`` changes
        with the model, ``{name: p.detach().clone() for name, p in model.named_parameters()}`` does not.
    blocks
        Names of the parameters of each layer: L̂ is then block-diagonal, and its m blocks are those of the Hessian times
        m, because a positive semidefinite H is at most m times its block diagonal.  None is one block.
    floor
        Curvature below this part of the largest eigenvalue, in (0, 1], is replaced by it.  None: the one from 10⁻⁴ to
        10⁻¹ with the smallest trace of L̂, margin included.
    rank
        For 10⁴ parameters and more: L̂ is UUᵀ + aI with so many columns of U, by ``2 rank`` Hessian–vector products
        (Lanczos) at each point; the d×d matrix is not formed.  Without ``blocks`` and ``floor``.
    process_group
        As in ``compress``: the objective is the mean over the processes, all of which make this call with equal points.
        They send a triangle of each Hessian, or each product.

    Returns
    -------
    EstimatedSmoothness, in the order of the blocks, or of ``points[0]``, each parameter row by row.

    Raises
    ------
    ValueError
        Without points, for points that share their tensors or differ in names or shapes or between processes, for
        blocks that are not a partition of the parameters, where a Hessian is not finite or a block has no positive
        curvature.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import estimate_smoothness
    >>> points = [{"x": torch.full((2,), t, dtype=torch.float64)} for t in (0.0, 0.5)]
    >>> estimate = estimate_smoothness(lambda point: torch.cosh(point["x"]).sum(), points[:1], points[1:])
    >>> round(estimate.margin, 4), estimate.certified  # cosh(½), the larger of the two Hessians
    (1.1276, False)
    """
    names, workers = _names(points, held_out), Workers.of(process_group)
    tensors = [point[name] for point in (*points, *held_out) for name in names]
    if not workers.equal(*tensors, device=tensors[0].device):
        msg = "points and held_out must be equal on all processes; broadcast them from the first"
        raise ValueError(msg)
    if rank is not None:
        if blocks is not None or floor is not None:
            msg = "rank= is for all parameters together and has no floor; leave out blocks and floor"
            raise ValueError(msg)
        return _low_rank_estimate(objective, points, held_out, whole_number("rank", rank), workers)
    if floor is not None and not positive_number("floor", floor) <= 1.0:
        msg = f"floor must be in (0, 1], got {floor!r}"
        raise ValueError(msg)
    groups = [names] if blocks is None else [list(block) for block in blocks if len(block)]
    if sorted(name for group in groups for name in group) != sorted(names):
        msg = f"blocks must name each parameter once: {names}, got {groups}"
        raise ValueError(msg)
    m = len(groups)
    seen = [[_hessian(objective, point, group, workers) for group in groups] for point in points]
    values, tops, vectors = [], [], []
    for b, group in enumerate(groups):
        w, V = np.linalg.eigh(np.mean([_positive_part(hessians[b]) for hessians in seen], axis=0))
        if not w[-1] > 0.0:
            msg = f"no Hessian has positive curvature in {', '.join(group)}; measure at other points"
            raise ValueError(msg)
        values.append(m * w)
        tops.append(np.full(len(w), m * w[-1]))
        vectors.append(V)
    order, V = [name for group in groups for name in group], np.asarray(block_diag(*vectors))
    held = [V.T @ _hessian(objective, point, order, workers) @ V for point in held_out]
    w, top = np.concatenate(values), np.concatenate(tops)
    tried = [_floored(w, top, one, held) for one in (_FLOORS if floor is None else [floor])]
    best = min(tried, key=lambda one: one.margin * one.values.sum())
    curvature = (V * best.values) @ V.T
    blocks_text = f"{m} block{'s' if m > 1 else ''}"
    words = f"{len(points)} Hessians, {blocks_text}, floor {best.floor:g}, held-out check at {len(held_out)} points"
    return EstimatedSmoothness(0.5 * (curvature + curvature.T), best.margin, words)


@dataclass(frozen=True, eq=False)
class _Floored:
    """Eigenvalues of an estimate, each at least ``floor`` of the largest, and the margin of the held-out check."""

    floor: float
    values: Vector
    margin: float


def _floored(w: Vector, top: Vector, floor: float, held_out: Sequence[Matrix]) -> _Floored:
    """Raise eigenvalues to the floor; ``held_out`` are Hessians in the basis of the eigenvectors."""
    values = np.maximum(w, floor * top)
    roots, last = 1.0 / np.sqrt(values), len(w) - 1
    scaled = (roots[:, None] * H * roots for H in held_out)
    largest = [float(eigvalsh(H, subset_by_index=(last, last))[0]) for H in scaled]
    return _Floored(floor, values, max(1.0, *largest))


def _names(points: Sequence[Parameters], held_out: Sequence[Parameters]) -> list[str]:
    """The names of the parameters; raises ValueError for points that cannot be what was meant."""
    places: set[tuple[int, ...]] = set()
    for kind, group in (("points", points), ("held_out", held_out)):
        if isinstance(group, Mapping) or not group:
            msg = f"{kind} must be a list of at least one point, each a dict of tensors by name"
            raise ValueError(msg)
        for i, point in enumerate(group):
            if {name: x.shape for name, x in point.items()} != {name: x.shape for name, x in points[0].items()}:
                msg = f"{kind}[{i}] has other names or shapes than points[0]"
                raise ValueError(msg)
            place = tuple(point[name].data_ptr() for name in points[0])
            if place in places:
                msg = f"{kind}[{i}] is in the memory of another point; pass copies, p.detach().clone() of each p"
                raise ValueError(msg)
            places.add(place)
    return list(points[0])


def _products(
    objective: Callable[[Parameters], Tensor], point: Parameters, names: Sequence[str]
) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The parameters ``names`` as a vector, and products of the Hessian in them with a vector, the others fixed."""
    fixed = {name: value.detach() for name, value in point.items()}
    shapes = {name: fixed[name].shape for name in names}
    sizes = [fixed[name].numel() for name in names]
    x = torch.cat([fixed[name].reshape(-1) for name in names])

    def flat(vector: Tensor) -> Tensor:
        parts = {n: v.view(shapes[n]) for n, v in zip(names, torch.split(vector, sizes), strict=True)}
        return objective({**fixed, **parts})

    return x, lambda direction: jvp(grad(flat), (x,), (direction,))[1]


def _hessian(
    objective: Callable[[Parameters], Tensor], point: Parameters, names: Sequence[str], workers: Workers
) -> Matrix:
    """The Hessian, by products with unit vectors, and its mean over the processes; float64."""
    x, product = _products(objective, point, names)
    check_dense("the Hessian", x.numel())
    unit = torch.eye(x.numel(), dtype=x.dtype, device=x.device)
    rows = torch.cat([vmap(product)(part) for part in torch.split(unit, _COLUMNS)]).detach()
    H = workers.symmetric_means([0.5 * (rows + rows.T)], x.dtype, x.device)[0].to(torch.float64).numpy()
    if not np.isfinite(H).all():
        msg = "a Hessian has NaN or infinite entries; measure at other points"
        raise ValueError(msg)
    return H


def _positive_part(H: Matrix) -> Matrix:
    """The smallest positive semidefinite matrix with the same eigenvectors above H."""
    w, V = np.linalg.eigh(H)
    return np.asarray((V * np.maximum(w, 0.0)) @ V.T)


# ---------------------------------------------------------------- low rank


def _low_rank_estimate(
    objective: Callable[[Parameters], Tensor],
    points: Sequence[Parameters],
    held_out: Sequence[Parameters],
    rank: int,
    workers: Workers,
) -> EstimatedSmoothness:
    """UUᵀ + aI of the mean Hessian, with the margin that products at the points held out show."""
    at_points, at_held_out = (
        [_products(objective, point, list(points[0])) for point in group] for group in (points, held_out)
    )
    x = at_points[0][0]

    def mean(v: Tensor) -> Tensor:
        return workers.mean(sum(product(v).detach() for _, product in at_points) / len(at_points))  # type: ignore[arg-type]

    vectors, sizes, rest = largest_curvature(mean, len(x), rank, x.dtype, x.device)
    least = max(rest, _FLOORS[0] * (rest + sizes[0]))
    sizes, rest = np.maximum(sizes + rest - least, 0.0), least
    V = torch.as_tensor(vectors).to(x)
    shrink = torch.as_tensor(np.sqrt(rest / (rest + sizes)) - 1.0).to(x)

    def root(v: Tensor) -> Tensor:
        """L̂^−½ v."""
        return (v + V @ (shrink * (v @ V))) / rest**0.5

    def largest(product: Callable[[Tensor], Any]) -> float:
        """The largest eigenvalue of L̂^−½HL̂^−½ for a Hessian H."""
        values, _ = _lanczos(
            lambda v: root(workers.mean(product(root(v)).detach())), len(x), 2 * rank, x.dtype, x.device
        )
        return float(values[-1])

    margin = max(1.0, *(largest(product) for _, product in at_held_out))
    words = f"{len(points)} Hessians, rank {len(sizes)}, held-out check at {len(held_out)} points by products"
    return EstimatedSmoothness(LowRankPlusDiagonal(vectors * np.sqrt(sizes), rest), margin, words)


def largest_curvature(
    product: Callable[[Tensor], Tensor], d: int, rank: int, dtype: torch.dtype, device: Any
) -> tuple[Matrix, Vector, float]:
    """V, s and a with VDiag(s)Vᵀ + aI of the ``rank`` largest |eigenvalues| of H and a the next; numpy.

    Raises ValueError where the Hessian is zero or not finite.
    """
    values, vectors = _lanczos(product, d, min(2 * rank, d), dtype, device)
    order = np.argsort(-np.abs(values))[: min(rank, len(values) - 1) + 1]
    sizes = np.abs(values[order])
    if not np.isfinite(sizes).all() or not sizes[-1] > 0.0:
        msg = "the Hessian at these parameters is zero or not finite; measure at others"
        raise ValueError(msg)
    return vectors[:, order[:-1]], sizes[:-1] - sizes[-1], float(sizes[-1])


def _lanczos(
    product: Callable[[Tensor], Tensor], d: int, steps: int, dtype: torch.dtype, device: Any
) -> tuple[Any, Any]:
    """Ritz values and vectors, with full reorthogonalisation; numpy, float64."""
    start = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    basis = [(start / start.norm()).to(device)]
    diagonal, beside = [], []
    for _ in range(steps):
        w = product(basis[-1])
        diagonal.append(float(w @ basis[-1]))
        Q = torch.stack(basis)
        for _ in range(2):
            w = w - (Q @ w) @ Q
        beside.append(float(w.norm()))
        if not beside[-1] > 1e-6 * max(map(abs, [*diagonal, *beside])):
            break
        basis.append(w / beside[-1])
    n = len(diagonal)
    values, Y = np.linalg.eigh(np.diag(diagonal) + np.diag(beside[: n - 1], 1) + np.diag(beside[: n - 1], -1))
    return values, torch.stack(basis[:n], dim=1).double().cpu().numpy() @ Y
