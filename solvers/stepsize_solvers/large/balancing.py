"""Matrix balancing: the y > 0 with y∘(My) = w, which minimises the convex ½yᵀMy − Σ w_j log y_j.

For relative changes y(1 + h) the gradient is N1 − w and the Hessian Diag(w) + N, N = Diag(y) M Diag(y).  Where w ≥ 1
the function is self-concordant: the step 1/(1 + δ), δ the Newton decrement, always descends, and a line search
lengthens it.  The fixed point y = √(y∘w/My) contracts from anywhere as long as My > 0.

*Diagonal stepsizes for an M without negative entries.*  Let y∘(My) = 1 and x = y∘y.  N has N1 = 1 and no negative
entry, so that λmax(N) = 1 (Perron, Frobenius): x is feasible.  Q = y has MQ = 1/y and QᵀMQ = d: the bound of the
package is Σ log x_j itself, and x is optimal.
The eigenvalues of I + N lie in [1, 2] near the solution: conjugate gradients need few products with M, and nothing else
of M is used.

*Theorem B* balances a dense M ≻ 0 of any signs with other weights (``stepsize_solvers.closed_forms``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.closed_forms import balancing_length
from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.programs import Status, Vector

_PATIENCE = 5  # points without a narrower interval: the rest is rounding
_MARGIN = 1e-4  # of the tolerance: the last steps converge quadratically and cost next to nothing
_MOST_PRODUCTS = 60  # of one Newton step; the condition number of I + N is near two where it matters


@dataclass(frozen=True, eq=False)
class BalancedPoint:
    """y with x = y∘y/max(y∘My), which is feasible, and Q = y."""

    y: Vector
    largest: float

    @property
    def x(self) -> Vector:
        return np.asarray(self.y * self.y / self.largest)


def solve_balanced(
    times: Callable[[Vector], Vector], diagonal: Vector, limits: Limits
) -> tuple[Status, Progress[BalancedPoint]]:
    """Balance the matrix with the products ``times`` and the given diagonal, all of whose entries are nonnegative."""
    progress: Progress[BalancedPoint] = Progress(len(diagonal), limits, _MARGIN, _PATIENCE)
    return progress.run(lambda: _balance(times, diagonal, progress)), progress


def _balance(times: Callable[[Vector], Vector], diagonal: Vector, progress: Progress[BalancedPoint]) -> Status:
    y = 1.0 / np.sqrt(diagonal)
    image = times(y)
    while True:
        ratio = y * image  # N1
        if not (np.isfinite(ratio).all() and ratio.min() > 0.0):
            return Status.INACCURATE
        largest = float(ratio.max())
        point, spread = BalancedPoint(y, largest), largest - float(ratio.min())
        status = progress.examine(point, _bounds(y, ratio), {"spread": f"{spread:.1e}"})
        if status is not None:
            return status
        if spread > 0.5:
            # One round of the fixed point y = √(y/My), which contracts from anywhere.
            y = np.sqrt(y / image)
            image = times(y)
        else:
            y, image = _newton(times, y, image, progress)
        progress.steps += 1


def _bounds(y: Vector, ratio: Vector) -> Bounds:
    """With x = y∘y/max(N1) feasible and Q = y."""
    d, total = len(y), 2.0 * math.fsum(np.log(y))
    logs = np.log(ratio)
    upper = d * math.log(float(ratio.mean())) - 2.0 * math.fsum(logs) + total
    return Bounds(total - d * float(logs.max()), upper)


@dataclass(frozen=True, eq=False)
class _Hessian(Operator):
    """I + N, which needs no preconditioner."""

    times: Callable[[Vector], Vector]
    y: Vector

    def __call__(self, h: Vector) -> Vector:
        return np.asarray(h + self.y * self.times(self.y * h))

    def precondition(self, h: Vector) -> Vector:
        return h


def _newton(
    times: Callable[[Vector], Vector], y: Vector, image: Vector, progress: Progress[BalancedPoint]
) -> tuple[Vector, Vector]:
    """The point after a damped Newton step (I + N)h = 1 − N1, and M times it."""
    residual = 1.0 - y * image
    before = float(residual @ residual)
    enough = 1e-4 * min(1.0, before) * before  # quadratic convergence where the residual is small
    hessian = _Hessian(times, y)
    h = conjugate_gradients(hessian, residual, lambda _, size: size <= enough, _MOST_PRODUCTS, progress.work)
    change = y * h
    change_of_image = times(change)
    length = balancing_length(
        np.ones_like(y), h, float(residual @ h), float(change @ image), float(change @ change_of_image)
    )
    return y + length * change, image + length * change_of_image
