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
from functools import cached_property

import numpy as np

from stepsize_solvers.closed_forms import balancing_length
from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress, Work
from stepsize_solvers.programs import Status, Vector

_PATIENCE = 5  # points without a narrower interval: the rest is rounding
_MARGIN = 1e-4  # of the tolerance: the last steps converge quadratically and cost next to nothing
_MOST_PRODUCTS = 60  # of one Newton step; the condition number of I + N is near two where it matters


@dataclass(frozen=True, eq=False)
class BalancedPoint:
    """y with its image My; x = y∘y/max(N1), which is feasible, and Q = y."""

    y: Vector
    image: Vector

    @cached_property
    def ratio(self) -> Vector:
        """N1."""
        return self.y * self.image

    @property
    def is_positive(self) -> bool:
        """Whether N1 > 0, and finite."""
        return bool(np.isfinite(self.ratio).all() and self.ratio.min() > 0.0)

    @property
    def x(self) -> Vector:
        return np.asarray(self.y * self.y / float(self.ratio.max()))

    @property
    def spread(self) -> float:
        return float(self.ratio.max()) - float(self.ratio.min())

    @property
    def bounds(self) -> Bounds:
        d, total = len(self.y), 2.0 * math.fsum(np.log(self.y))
        logs = np.log(self.ratio)
        upper = d * math.log(float(self.ratio.mean())) - 2.0 * math.fsum(logs) + total
        return Bounds(total - d * float(logs.max()), upper)

    @property
    def details(self) -> dict[str, str]:
        return {"spread": f"{self.spread:.1e}"}


def solve_balanced(
    times: Callable[[Vector], Vector], diagonal: Vector, limits: Limits
) -> tuple[Status, Progress[BalancedPoint]]:
    """Balance the matrix with the products ``times`` and the given diagonal, all of whose entries are nonnegative."""
    progress: Progress[BalancedPoint] = Progress(len(diagonal), limits, _MARGIN, _PATIENCE)

    def at(y: Vector) -> BalancedPoint | None:
        p = BalancedPoint(y, times(y))
        return p if p.is_positive else None

    def next_point(p: BalancedPoint) -> BalancedPoint | None:
        """One round of the fixed point y = √(y/My), which contracts from anywhere, or near the end Newton's step."""
        if p.spread > 0.5:
            return at(np.sqrt(p.y / p.image))
        new = _newton(times, p, progress.work)
        return new if new.is_positive else None

    def run() -> Status:
        return progress.follow(at(1.0 / np.sqrt(diagonal)), lambda p: p.bounds, lambda p: p.details, next_point)

    return progress.run(run), progress


@dataclass(frozen=True, eq=False)
class _Hessian(Operator):
    """I + N, which needs no preconditioner."""

    times: Callable[[Vector], Vector]
    y: Vector

    def __call__(self, h: Vector) -> Vector:
        return np.asarray(h + self.y * self.times(self.y * h))

    def precondition(self, h: Vector) -> Vector:
        return h


def _newton(times: Callable[[Vector], Vector], p: BalancedPoint, work: Work) -> BalancedPoint:
    """The point after a damped Newton step (I + N)h = 1 − N1."""
    residual = 1.0 - p.ratio
    before = float(residual @ residual)
    enough = 1e-4 * min(1.0, before) * before  # quadratic convergence where the residual is small
    hessian = _Hessian(times, p.y)
    h = conjugate_gradients(hessian, residual, lambda _, size: size <= enough, _MOST_PRODUCTS, work)
    change = p.y * h
    change_of_image = times(change)
    length = balancing_length(
        np.ones_like(p.y), h, float(residual @ h), float(change @ p.image), float(change @ change_of_image)
    )
    return BalancedPoint(p.y + length * change, p.image + length * change_of_image)
