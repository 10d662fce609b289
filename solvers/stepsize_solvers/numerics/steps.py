"""Step length: the largest a ∈ (0, 1] for which a matrix path stays positive definite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from stepsize_solvers.numerics.linalg import cholesky
from stepsize_solvers.programs import Matrix

# Bisection ends when the bracket is this narrow; the fraction to the boundary below hides what is left.
_RESOLUTION = 0.04
_MAX_TRIALS = 12


def polynomial_is_positive(coefficients: Sequence[Matrix], a: float) -> bool:
    """Whether Σ_k aᵏ M_k is numerically positive definite (one matrix or a stack)."""
    M = coefficients[0].copy()
    power = 1.0
    for coefficient in coefficients[1:]:
        power *= a
        M += power * coefficient
    # One by one: numpy's factorisation of a stack takes ten times as long as LAPACK's of a small matrix.
    return all(cholesky(member) is not None for member in (M if M.ndim > 2 else (M,)))


def largest_step(paths: Sequence[Sequence[Matrix]]) -> float:
    """The largest a ≤ 1, up to a few per cent from below, with every polynomial path positive definite at a.

    Each path starts from the length that the paths before it allow.  The constraint is concave along a straight step
    and the other two paths are linear, so a shorter step cannot leave them; along an arc it could, and the new point,
    which is factorised anyway, decides.
    """
    a = 1.0
    for path in paths:
        a = bisect_step(partial(polynomial_is_positive, path), a)
    return a


def bisect_step(inside: Callable[[float], bool], longest: float) -> float:
    """The largest tested a ∈ (0, longest] that is inside; 0 when none was."""
    if longest == 0.0 or inside(longest):
        return longest
    low, high = 0.0, longest
    for _ in range(_MAX_TRIALS):
        a = 0.5 * (low + high)
        if inside(a):
            low = a
        else:
            high = a
        if low > 0.0 and high - low < _RESOLUTION * high:
            break
    return low


def identity_path(X: Matrix) -> list[Matrix]:
    """The path I + aX."""
    return [np.eye(X.shape[-1], dtype=X.dtype), X]
