"""Preconditioned conjugate gradients, stopped in the norm that matters to the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stepsize_solvers.numerics.linalg import Array


class Operator(Protocol):
    """A symmetric positive definite map in an inner product, with an approximation of its inverse."""

    def __call__(self, Y: Array) -> Array: ...
    def precondition(self, Y: Array) -> Array: ...
    def inner(self, Y: Array, Y2: Array) -> float: ...


def conjugate_gradients(
    A: Operator,
    b: Array,
    finished: Callable[[Array], bool],
    max_iterations: int,
    add_step: Callable[[float, Array], None],
) -> int:
    """Solve A y = b until ``finished(b − Ay)``; returns the number of iterations.

    ``add_step`` is told the steps a·p that add up to y, after A was applied to the direction p: the caller sums what it
    needs of y.
    """
    residual = b.copy()
    z = A.precondition(residual)
    rho = A.inner(residual, z)
    direction = z.copy()
    k = 0
    while k < max_iterations and not finished(residual):
        image = A(direction)
        curvature = A.inner(direction, image)
        if not curvature > 0.0:  # by rounding only; the sum so far is as good as it gets
            break
        step = rho / curvature
        add_step(step, direction)
        residual -= step * image
        z = A.precondition(residual)
        rho_next = A.inner(residual, z)
        direction *= rho_next / rho
        direction += z
        rho = rho_next
        k += 1
    return k


def within_scaled_tolerance(A: Operator, T: Array, tolerance: float) -> Callable[[Array], bool]:
    """Whether ‖r_ij/√T_ij‖ ≤ tolerance for a residual r.

    Dividing by √T_ij = √(tᵢtⱼ) is the Nesterov–Todd scaling of a residual of F, so the tolerance bounds the error of
    the complementarity products whatever the spread of t; a tolerance relative to ‖b‖ does not.
    """
    inverse_T = 1.0 / T
    squared = tolerance * tolerance
    return lambda residual: not A.inner(residual, inverse_T * residual) > squared
