"""Preconditioned conjugate gradients, stopped in the norm that matters to the interior-point step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from stepsize_solvers.numerics.linalg import Array


class Operator(Protocol):
    """A symmetric positive definite map with a preconditioner that multiplies entry by entry."""

    @property
    def preconditioner(self) -> Array: ...
    @property
    def T(self) -> Array: ...
    def __call__(self, Y: Array) -> Array: ...
    def inner(self, Y: Array, Y2: Array) -> float: ...


def conjugate_gradients(
    A: Operator, b: Array, tolerance: float, max_iterations: int, add_step: Callable[[float, Array], None]
) -> int:
    """Solve A y = b to ‖(b − Ay)_ij/√T_ij‖ ≤ tolerance; returns the number of iterations.

    Dividing by √T_ij = √(tᵢtⱼ) is the Nesterov–Todd scaling of a residual of F, so the tolerance bounds the error of
    the complementarity products whatever the spread of t; a tolerance relative to ‖b‖ does not.  ``add_step`` is told
    the steps a·p that add up to y, after A was applied to the direction p: the caller sums what it needs of y.
    """
    residual = b.copy()
    inverse_T = 1.0 / A.T
    squared = tolerance * tolerance
    z = A.preconditioner * residual
    rho = A.inner(residual, z)
    direction = z.copy()
    k = 0
    while k < max_iterations and A.inner(residual, inverse_T * residual) > squared:
        image = A(direction)
        curvature = A.inner(direction, image)
        if not curvature > 0.0:  # rounding has the last word; the best point so far is kept
            break
        step = rho / curvature
        add_step(step, direction)
        residual -= step * image
        z = A.preconditioner * residual
        rho_next = A.inner(residual, z)
        direction *= rho_next / rho
        direction += z
        rho = rho_next
        k += 1
    return k
