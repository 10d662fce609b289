"""The budget k of a limit: reading it, and the error for one that float64 cannot serve."""

from __future__ import annotations

from stepsize_opt.inputs import positive_number
from stepsize_opt.proofs import Unproved

SMALLEST_BUDGET = 1e-100  # below it underflow counts beside products with D ≈ (k/d)L⁻¹


def read_budget(k: object, d: int) -> float:
    """Return k as a float; raise ValueError or TypeError unless 0 < k ≤ d."""
    budget = positive_number("k", k)
    if budget > d:
        msg = f"k must be at most d={d}, got {k}: with d floats per round the step L⁻¹∇f itself can be sent"
        raise ValueError(msg)
    return budget


def unproved(k: float, reason: str) -> Unproved:
    """Return the error for a D that float64 does not prove: a tiny budget is named before anything else."""
    if k < SMALLEST_BUDGET:
        reason = f"k must be at least {SMALLEST_BUDGET}, got {k}: for less nothing can be proved in float64"
    return Unproved(reason)
