"""Preconditioned conjugate gradients, stopped in the norm that matters to the caller; for one system or a stack.

The numbers of a stack, inner products and step lengths, are arrays that multiply it; those members that are finished
stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from stepsize_solvers.numerics.linalg import Array, every


class Operator(Protocol):
    """A symmetric positive definite map in an inner product, with an approximation of its inverse."""

    def __call__(self, Y: Array) -> Array: ...
    def precondition(self, Y: Array) -> Array: ...
    def inner(self, Y: Array, Y2: Array) -> Any: ...


def _quotient(a: Any, b: Any, done: Any) -> Any:
    """a/b, and 0 for those members of a stack that are done, and where b has underflowed."""
    if isinstance(a, float):
        return a / b if b != 0.0 else 0.0
    return np.divide(a, b, out=np.zeros_like(a), where=~done)


def _opposite(holds: Any) -> Any:
    return ~holds if isinstance(holds, np.ndarray) else not holds


def conjugate_gradients(
    A: Operator,
    b: Array,
    finished: Callable[[Array], Any],
    max_iterations: int,
    add_step: Callable[[Any, Array], None],
) -> int:
    """Solve A y = b until ``finished(b − Ay)``; returns the number of iterations.

    ``add_step`` is told the steps a·p that add up to y, after A was applied to the direction p: the caller sums what it
    needs of y.
    """
    residual = b.copy()
    z = A.precondition(residual)
    rho = A.inner(residual, z)
    direction = z.copy()
    done = finished(residual)
    k = 0
    while k < max_iterations and not every(done):
        image = A(direction)
        curvature = A.inner(direction, image)
        done = done | _opposite(curvature > 0.0)  # by rounding only; the sum so far is as good as it gets
        if every(done):
            break
        step = _quotient(rho, curvature, done)
        add_step(step, direction)
        residual -= step * image
        z = A.precondition(residual)
        rho_next = A.inner(residual, z)
        direction *= _quotient(rho_next, rho, done)
        direction += z
        rho = rho_next
        done = done | finished(residual)
        k += 1
    return k


def within_scaled_tolerance(A: Operator, T: Array, tolerance: Any) -> Callable[[Array], Any]:
    """Whether ‖r_ij/√T_ij‖ ≤ tolerance for a residual r.

    Dividing by √T_ij = √(tᵢtⱼ) is the Nesterov–Todd scaling of a residual of F, so the tolerance bounds the error of
    the complementarity products whatever the spread of t; a tolerance relative to ‖b‖ does not.
    """
    inverse_T = 1.0 / T
    squared = tolerance * tolerance
    return lambda residual: _opposite(A.inner(residual, inverse_T * residual) > squared)
