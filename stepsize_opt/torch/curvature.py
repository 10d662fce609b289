"""An estimate of L for a model of which no L is proved: a low rank plus a number, by Lanczos' method.

It takes products of the Hessian with vectors, each of them averaged over the processes.  The number is the smallest of
the |eigenvalues| that are kept.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepsize_opt.inputs.checks import real_number, whole_number
from stepsize_opt.inputs.matrices import EstimatedSmoothness
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_opt.torch.head import as_it_was, batches, trained, unwrapped, work_dtype
from stepsize_opt.torch.workers import Workers
from stepsize_solvers.programs import Matrix, Vector

# Examples that are used at most on each process.
_EXAMPLES = 4096


def estimate_smoothness(
    model: nn.Module, loss: Any, data: Any, *, rank: int = 4, weight_decay: float = 0.0, process_group: Any = None
) -> EstimatedSmoothness:
    """L̂ = UUᵀ + aI from the Hessian at the present parameters; not proved, and labelled so everywhere.

    U has the eigenvectors of the ``rank`` eigenvalues of largest size, and a is the next of them.  At other parameters
    nothing is known.  Each process sends up to ``2 rank`` dense gradients.

    Parameters
    ----------
    model
        As in ``compress``, used in evaluation mode.
    loss : callable
        As in ``compress``.
    data : pair of torch.Tensor, DataLoader or list of such pairs
        As in ``compress``; the first 4096 examples of a process are used.
    rank
        The number of columns of U.
    weight_decay
        As in ``compress``.
    process_group : torch.distributed.ProcessGroup, optional
        As in ``compress``.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described, or where the Hessian is zero or not finite.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import estimate_smoothness
    >>> _ = torch.manual_seed(0)
    >>> model, inputs, labels = torch.nn.Linear(9, 2), torch.randn(50, 9), torch.randint(0, 2, (50,))
    >>> estimate_smoothness(model, torch.nn.CrossEntropyLoss(), (inputs, labels), rank=2)
    EstimatedSmoothness(d=20, margin=1, source='rank 2 + scalar of the Hessian', certified=False)
    """
    net, workers = unwrapped(model), Workers.of(process_group)
    params = list(trained(net).values())
    pairs = list(_first(batches(data, params[0]), _EXAMPLES))
    dtype, sizes = work_dtype(params[0]), [p.numel() for p in params]
    examples = sum(len(inputs) for inputs, _ in pairs)

    def product(v: Vector) -> Vector:
        given = torch.from_numpy(v).to(params[0].device, dtype)
        parts = [part.view_as(p) for p, part in zip(params, torch.split(given, sizes), strict=True)]
        total = torch.zeros_like(given)
        for inputs, targets in pairs:
            g = torch.autograd.grad(loss(net(inputs), targets), params, create_graph=True)
            along: Any = sum((a * b).sum() for a, b in zip(g, parts, strict=True))
            total += torch.cat([h.reshape(-1) for h in torch.autograd.grad(along, params)]) * len(inputs)
        return np.asarray(workers.mean(total / examples).double().cpu())

    with as_it_was(net, params[0]), torch.enable_grad():
        net.eval()
        vectors, values, rest = _largest(product, sum(sizes), whole_number("rank", rank))
    L = LowRankPlusDiagonal(vectors * np.sqrt(values), rest + real_number("weight_decay", weight_decay))
    return EstimatedSmoothness(L, 1.0, f"rank {len(values)} + scalar of the Hessian")


def _first(data: Iterator[tuple[Tensor, Tensor]], examples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first examples; raises ValueError where there are none."""
    left = examples
    for inputs, targets in data:
        yield inputs[:left], targets[:left]
        left -= len(inputs)
        if left <= 0:
            return
    if left == examples:
        msg = "data has no examples"
        raise ValueError(msg)


def _largest(product: Callable[[Vector], Vector], d: int, rank: int) -> tuple[Matrix, Vector, float]:
    """V, s and a with VDiag(s)Vᵀ + aI of the ``rank`` largest |eigenvalues| of H and a the next.

    Raises ValueError where the Hessian is zero or not finite.
    """
    Q, products = _krylov(product, d, min(2 * rank, d))
    T = Q @ products.T
    if np.isfinite(T).all():
        values, Y = np.linalg.eigh(0.5 * (T + T.T))
        order = np.argsort(-np.abs(values))[: min(rank, len(values) - 1) + 1]
        sizes = np.abs(values[order])
        if sizes[-1] > 0.0:
            return Q.T @ Y[:, order[:-1]], sizes[:-1] - sizes[-1], float(sizes[-1])
    msg = "the Hessian at these parameters is zero or not finite; measure at others"
    raise ValueError(msg)


def _krylov(product: Callable[[Vector], Vector], d: int, steps: int) -> tuple[Matrix, Matrix]:
    """Orthonormal rows of Lanczos' method, with full reorthogonalisation, and their products with H."""
    w = torch.randn(d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    rows: list[Vector] = []
    products: list[Vector] = []
    while len(rows) < steps:
        rows.append(w / np.linalg.norm(w))
        products.append(product(rows[-1]))
        Q, w = np.array(rows), products[-1]
        for _ in range(2):
            w = w - (Q @ w) @ Q
        if not np.linalg.norm(w) > 1e-6 * max(np.linalg.norm(one) for one in products):
            break
    return np.array(rows), np.array(products)
