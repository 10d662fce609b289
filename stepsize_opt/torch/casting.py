"""Stepsizes in a smaller dtype, proved for the numbers that are left."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepsize_opt.goals import GoalName
from stepsize_opt.inputs import check_one_of, dense, read_matrix
from stepsize_opt.methods import Method
from stepsize_opt.node import certify
from stepsize_opt.sketches import Sketch

# Rounding a scaled D moves it again; a few times the largest relative rounding error of the dtype makes room for it.
_ATTEMPTS = 6


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
    D
        Stepsize matrix, d×d, such as ``result.D``.
    L, sketch, algorithm
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
