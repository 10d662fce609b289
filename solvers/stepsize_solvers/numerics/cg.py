"""Preconditioned conjugate gradients, stopped in the norm that matters to the caller, or at the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from stepsize_solvers.numerics.linalg import Array
from stepsize_solvers.numerics.progress import Work


class Operator(Protocol):
    """A symmetric positive definite map in an inner product, with an approximation of its inverse."""

    def __call__(self, Y: Array, /) -> Array: ...
    def precondition(self, Y: Array, /) -> Array: ...
    def inner(self, Y: Array, Y2: Array, /) -> float: ...


def conjugate_gradients(
    A: Operator,
    b: Array,
    finished: Callable[[Array, float], bool],
    most: int,
    work: Work | None = None,
    add_step: Callable[[float, Array], None] | None = None,
) -> Array:
    """Return y with A y = b up to ``finished(residual, ⟨residual, preconditioned residual⟩)``.

    ``work`` counts the iterations; raises OutOfTime at its deadline.  With ``add_step`` the caller sums what it needs,
    and y is not: it is told the steps a·p that add up to y, after A was applied to the direction p.
    """
    y = np.zeros_like(b)
    residual = b.copy()
    z = A.precondition(residual)
    rho = A.inner(residual, z)
    direction = z.copy()
    for _ in range(most):
        if finished(residual, rho):
            break
        if work is not None:
            work.count_iteration()
        image = A(direction)
        curvature = A.inner(direction, image)
        if not curvature > 0.0:  # by rounding only; the sum so far is as good as it gets
            break
        step = rho / curvature
        if add_step is None:
            y += step * direction
        else:
            add_step(step, direction)
        residual -= step * image
        z = A.precondition(residual)
        rho, last = A.inner(residual, z), rho
        direction *= rho / last if last != 0.0 else 0.0
        direction += z
    return y


def within_scaled_tolerance(A: Operator, T: Array, tolerance: float) -> Callable[[Array, float], bool]:
    """Whether ‖r_ij/√T_ij‖ ≤ tolerance for a residual r.

    Dividing by √T_ij = √(tᵢtⱼ) is the Nesterov–Todd scaling of a residual of F, so the tolerance bounds the error of
    the complementarity products whatever the spread of t; a tolerance relative to ‖b‖ does not.
    """
    inverse_T = 1.0 / T
    squared = tolerance * tolerance
    return lambda residual, _: not A.inner(residual, inverse_T * residual) > squared
