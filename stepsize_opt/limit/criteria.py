"""By what a metric H is judged: det(H)^{1/d}, or the largest t with H ⪰ tM⁻¹ (M = I for ``euclidean``)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigvalsh

from stepsize_opt.inputs import Symmetric, check_positive_definite, dimensions, positive_number, read_matrix
from stepsize_opt.proofs import Unproved
from stepsize_solvers.programs import Matrix

CRITERIA = ("det", "euclidean", "linear")
# What iterations and numbers sent are multiples of.
UNITS = {"det": "2Δ⁰/ε²", "euclidean": "2Δ⁰/ε²", "linear": "log(Δ⁰/accuracy)"}

# M ⪯ L is asked for up to this relative excess: M and L computed in two ways differ by the rounding of both.
EXCESS = 1e-6
SMALLEST_BUDGET = 1e-100  # below it underflow counts beside products with D ≈ (k/d)L⁻¹


def read_budget(k: object, d: int) -> float:
    """k, a number of at most d; raises ValueError or TypeError for any other."""
    budget = positive_number("k", k)
    if budget > d:
        msg = f"k must be at most d={d}, got {k}: with d numbers a round the step L⁻¹∇f itself can be sent"
        raise ValueError(msg)
    return budget


def unproved(k: float, reason: str) -> Unproved:
    """The error for a D that float64 does not prove: a tiny budget is named before anything else."""
    if k < SMALLEST_BUDGET:
        reason = f"k must be at least {SMALLEST_BUDGET}, got {k}: for less nothing can be proved in float64"
    return Unproved(reason)


def read_floor(criterion: object, lower: Any, d: int) -> Symmetric | float | None:
    """M of the criterion, a d×d matrix or a number μ that stands for μI; None for one that judges det H.

    Raises ValueError or TypeError for a ``lower`` that does not go with the criterion.
    """
    if (lower is None) == (criterion == "linear"):
        msg = "lower is the M ⪯ ∇²f of criterion='linear': a matrix or a number μ > 0, "
        raise ValueError(msg + ("which it needs" if lower is None else f"and criterion={criterion!r} takes none"))
    if lower is None:
        return 1.0 if criterion == "euclidean" else None
    if dimensions(lower) == 0:
        return positive_number("lower", lower[()] if isinstance(lower, np.ndarray) else lower)
    M = read_matrix("lower", lower)
    if M.shape[0] != d:
        msg = f"lower is {M.shape[0]}×{M.shape[0]} but L is {d}×{d}"
        raise ValueError(msg)
    return M


def check_lower(M: Matrix | float, L: Matrix) -> None:
    """Raise ValueError unless 0 ≺ M ⪯ L for the M of ``linear``."""
    floor = M * np.eye(len(L)) if isinstance(M, float | int) else M
    if not isinstance(M, float | int):
        check_positive_definite("lower", floor, "criterion='linear' needs M ≻ 0")
    scale = 1.0 / np.sqrt(L.diagonal())
    top = float(eigvalsh(scale[:, None] * floor * scale, scale[:, None] * L * scale)[-1])
    if not top <= 1.0 + EXCESS:
        factor = f"{top:.6g}" if top > 1.001 else f"1 + {top - 1.0:.1g}"
        msg = f"lower must satisfy M ⪯ L, because ∇²f lies between both, but M exceeds L by a factor of {factor}"
        raise ValueError(msg)
