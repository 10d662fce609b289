"""What is proved of tensors: L of linear heads, and stepsizes that were rounded."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepsize_opt.goals import GoalName
from stepsize_opt.inputs.checks import check_dense, check_one_of, positive_number, whole_number
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.methods import Method
from stepsize_opt.node import certify
from stepsize_opt.problems import linear_smoothness, softmax_curvature
from stepsize_opt.sketches.base import Sketch
from stepsize_solvers.programs import Matrix

# Rounding a scaled D moves it again; a few times the largest relative rounding error of the dtype makes room for it.
_ATTEMPTS = 6

# At most this is the second derivative of the loss of one output, for ``beta`` = 1 where it has one.
_CURVATURES: dict[type, float] = {
    nn.BCEWithLogitsLoss: 0.25,
    nn.MSELoss: 2.0,
    nn.HuberLoss: 1.0,
    nn.SmoothL1Loss: 1.0,
}


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
        msg = f"no proved bound on the curvature of {loss!r}, only of {known}"
        raise TypeError(msg)
    if loss.reduction != "mean" or any(getattr(loss, name, None) is not None for name in ("weight", "pos_weight")):
        msg = f"the curvature is known for reduction='mean' and no weights, got {loss!r}"
        raise ValueError(msg)
    return K


def certified_cast(
    D: Any,
    L: Any,
    sketch: Sketch,
    dtype: torch.dtype = torch.float32,
    *,
    algorithm: str | Method = "det-CGD1",
    goal: GoalName = "paper",
) -> torch.Tensor:
    """D rounded to ``dtype`` and scaled back until its guarantee is proved for exactly the numbers returned.

    Parameters
    ----------
    D : array-like or sparse matrix of shape (d, d)
        Stepsize matrix, such as ``result.D``.
    L : array-like or sparse matrix of shape (d, d), LowRankPlusDiagonal or EstimatedSmoothness
        As in ``certify``.
    sketch, algorithm
        As in ``certify``.
    dtype
        ``torch.float32``, or another floating dtype.
    goal
        ``"paper"``: T(D) ⪯ D is proved; ``"descent"``: H = 2D − T(D) ≻ 0 is, for a D of the goal ``descent``,
        ``euclidean`` or ``linear``, which need not satisfy the condition.

    Raises
    ------
    ValueError, TypeError
        For a D that is not a symmetric matrix, or has numbers beyond ``dtype``;
        when ``dtype`` is so coarse that no multiple of the rounded D is proved (bfloat16 and a large condition number).

    Notes
    -----
    The certificate is about the update in exact arithmetic.  That gradients and steps are rounded, too, is outside it.

    Examples
    --------
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> from stepsize_opt.torch import certified_cast
    >>> L = [[2.0, 1.0], [1.0, 3.0]]
    >>> certified_cast(optimal_stepsize(L, RandK(2, 1)).D, L, RandK(2, 1)).dtype
    torch.float32
    """
    check_one_of("goal", goal, ("paper", "descent"))
    exact = dense(read_matrix("D", D))
    unit = float(torch.finfo(dtype).eps)
    scale = 1.0
    for attempt in range(_ATTEMPTS):
        rounded = torch.tensor(scale * exact, dtype=dtype)
        if not rounded.isfinite().all():
            msg = f"D has numbers beyond the range of {dtype}; scale the loss, or keep the parameters in float64"
            raise ValueError(msg)
        check = certify(rounded.to(torch.float64).numpy(), L, sketch, algorithm=algorithm, goal=goal)
        if check.feasible:
            return rounded
        if not check.largest_scale > 0.0:
            break
        scale *= min(1.0, check.largest_scale) * (1.0 - 2.0**attempt * unit)
    is_diagonal = np.count_nonzero(exact) == np.count_nonzero(exact.diagonal())
    remedies = ["keep the parameters in float64"] if dtype != torch.float64 else ["check that D is positive definite"]
    remedies += [] if is_diagonal else ["use a diagonal D"]
    msg = f"no multiple of D rounded to {dtype} could be proved; {', or '.join(remedies)}"
    raise ValueError(msg)
