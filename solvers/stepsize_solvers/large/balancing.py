"""Diagonal stepsizes for an M without negative entries: matrix balancing.

Let y > 0 satisfy y∘(My) = 1 and let x = y∘y.  N = Diag(y) M Diag(y) has N1 = 1 and no negative entry, so that
λmax(N) = 1 (Perron, Frobenius): x is feasible.  Q = y has MQ = 1/y and QᵀMQ = d: the bound of the package is
Σ log x_j itself, and x is optimal.

y minimises the convex ½yᵀMy − Σ log y_j.  For relative changes y(1 + h) its gradient is N1 − 1 and its Hessian I + N,
whose eigenvalues lie in [1, 2] near the solution: conjugate gradients need few products with M, and nothing else of M
is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.numerics import Bounds, Limits, Progress, conjugate_gradients
from stepsize_solvers.programs import Matrix, Status, Vector

MOST_STEPS = 200
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

    @property
    def multiplier(self) -> Vector:
        return self.y

    @property
    def Q(self) -> Matrix:
        return np.asarray(self.y[:, None])


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
            y, image = _newton(times, y, ratio, progress)
        progress.steps += 1


def _bounds(y: Vector, ratio: Vector) -> Bounds:
    """With x = y∘y/max(N1) feasible and Q = y."""
    d, total = len(y), 2.0 * math.fsum(np.log(y))
    logs = np.log(ratio)
    upper = d * math.log(float(ratio.mean())) - 2.0 * math.fsum(logs) + total
    return Bounds(total - d * float(logs.max()), upper)


@dataclass(frozen=True, eq=False)
class _Hessian:
    """I + N, which needs no preconditioner."""

    times: Callable[[Vector], Vector]
    y: Vector

    def __call__(self, h: Vector) -> Vector:
        return np.asarray(h + self.y * self.times(self.y * h))

    def precondition(self, h: Vector) -> Vector:
        return h

    def inner(self, h: Vector, other: Vector) -> float:
        return float(h @ other)


def _newton(
    times: Callable[[Vector], Vector], y: Vector, ratio: Vector, progress: Progress[BalancedPoint]
) -> tuple[Vector, Vector]:
    """The point after a damped Newton step (I + N)h = 1 − N1, and M times it."""
    residual = 1.0 - ratio
    before = float(residual @ residual)
    enough = 1e-4 * min(1.0, before) * before  # quadratic convergence where the residual is small
    hessian = _Hessian(times, y)
    h = conjugate_gradients(hessian, residual, lambda _, size: size <= enough, _MOST_PRODUCTS, progress.work)
    gradient = ratio - 1.0
    length = min(1.0, 0.9 / max(-float(h.min()), 1e-300))
    value, slope = 0.5 * float(ratio.sum()), float(gradient @ h)
    while length > 1e-6:
        moved = y * (1.0 + length * h)
        image = times(moved)
        # ½yᵀMy − Σ log y, with the logarithms relative to those of the old point
        new_value = 0.5 * float(moved @ image) - float(np.log1p(length * h).sum())
        if new_value <= value + 0.1 * length * slope + 1e-13 * len(y):
            return moved, image
        length *= 0.5
    return y, times(y)
