"""The largest log det G(D), G = aD − 𝒬(DBD): damped Newton steps to the analytic centre of {G ⪰ 0}.

With Y = G⁻¹ the gradient of log det G is g = Π(aY − (BDR + RDB)), R = 𝒬*(Y).  For every D of the pattern

    ⟨Y, aD − 𝒬(DBD)⟩ ≤ ⟨Y, G⟩ + loss,      loss = max_X ⟨g, X⟩ − ⟨R, XBX⟩ = ½⟨g, K⁻¹g⟩,   K[X] = BXR + RXB,

because the left-hand side is a concave quadratic in D.  With CᵀBC = I and CᵀRC = Diag(ρ) the loss is
Σ g̃_ij²/(2(ρᵢ + ρⱼ)), g̃ = CᵀgC.  So, q = d + loss being the right-hand side,

    log det G(D*) ≤ d log(q/d) + log det G(D).

Newton's system is A = K + G′*(Ỹ G′[·] Ỹ): K is the curvature of −𝒬(DBD), the rest that of the logarithm.  It is
solved by conjugate gradients, preconditioned by the diagonal of A with 𝒬 replaced by a multiple β of the identity,
B̃ᵢR̃ⱼ + B̃ⱼR̃ᵢ + (a − β(B̃ᵢ + B̃ⱼ))² ỸᵢỸⱼ of diagonal entries: three to five iterations reduce the residual tenfold, and
a step needs a few more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.interior.frame import Frame
from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.linalg import (
    Array,
    cholesky,
    log_det_from_cholesky,
    lower_solve,
    sym,
    triangular_inverse,
)
from stepsize_solvers.numerics.progress import Bounds, Progress, Work
from stepsize_solvers.programs import Family, Matrix, Pattern, Status

# What a step leaves of the gradient, in the norm of the preconditioner, near the end and far from it: ten times as much
# costs a step more on half of 11 problems (d = 5 to 100), and a call as long or up to a seventh longer.
_REDUCTION = 0.01
_ROUGH_REDUCTION = 0.1
_MOST_ITERATIONS = 200
# Far above the tolerance a cheap estimate of the loss is enough.
_FAR = 30.0
# Below this decrement Newton's full step stays inside and converges quadratically.
_CLOSE = 0.25
# Beyond it the step goes to where the objective rises by at most this fraction of its first slope.
_FLAT = 0.2
_TRIALS = 40  # of a step length; two or three are usual


@dataclass(frozen=True, eq=False)
class MetricPoint:
    """A point with G ≻ 0, in the basis of its frame."""

    D: Matrix
    frame: Frame
    Gt: Matrix
    root: Matrix  # the inverse of the Cholesky factor of G̃
    log_det: float  # of G

    @staticmethod
    def of(family: Family, pattern: Pattern, D: Matrix) -> MetricPoint | None:
        """The point at D; None unless D and G are numerically positive definite."""
        frame = Frame.of(family, pattern, D)
        if frame is None:
            return None
        Gt = frame.value
        K = cholesky(Gt)
        if K is None:
            return None
        return MetricPoint(D, frame, Gt, triangular_inverse(K), frame.log_det + log_det_from_cholesky(K))

    @property
    def d(self) -> int:
        return len(self.D)

    @cached_property
    def Yt(self) -> Matrix:
        """Ỹ = G̃⁻¹."""
        return np.asarray(self.root.T @ self.root)

    @property
    def Y(self) -> Matrix:
        """G⁻¹."""
        return self.frame.dual(self.Yt)

    @cached_property
    def Rt(self) -> Matrix:
        """R̃."""
        return self.frame.coimage(self.Yt)

    @cached_property
    def gradient(self) -> Matrix:
        """g in the basis, G′*[Ỹ]."""
        return self.frame.project(self.frame.a * self.Yt - self.frame.twice(self.Rt))

    @property
    def rough_loss(self) -> float:
        """The loss with R̃ and B̃ replaced by their diagonals: its size at the cost of a sum."""
        outer = np.multiply.outer(self.frame.diagonal, np.diagonal(self.Rt))
        return 0.5 * float(np.sum(self.gradient**2 / (outer + outer.T)))

    @cached_property
    def loss(self) -> float:
        """½⟨g, K⁻¹g⟩."""
        return self.frame.loss(self.Rt, self.gradient)

    def bounds(self, loss: float) -> Bounds:
        """The interval of log det G; ``loss`` is the one above, or larger."""
        return Bounds(self.log_det, self.log_det + self.d * math.log1p(loss / self.d))


@dataclass(frozen=True, eq=False)
class KrylovSystem(Operator):
    """A by conjugate gradients."""

    p: MetricPoint

    @cached_property
    def inverse(self) -> Matrix:
        """That of the diagonal of A, nearly."""
        frame = self.p.frame
        b, r, y = frame.diagonal, np.diagonal(self.p.Rt), np.diagonal(self.p.Yt)
        outer = np.multiply.outer(b, r)
        damping = frame.a - frame.Q.effective_beta * (b[:, None] + b)
        return np.asarray(1.0 / (outer + outer.T + damping**2 * np.multiply.outer(y, y)))

    def __call__(self, X: Array) -> Array:
        p = self.p
        return p.frame.coslope(sym(p.Yt @ p.frame.slope(X) @ p.Yt)) + p.frame.cross(X, p.Rt)

    def precondition(self, Y: Array) -> Array:
        return self.p.frame.project(self.inverse * Y)

    def solve(self, rhs: Matrix, floor: float, far: bool, work: Work) -> Matrix:
        """A⁻¹·rhs; ``far``: whether the step is one of those that approach, for which a rough direction will do.

        ``floor``: a squared residual in the norm of the preconditioner that need not be reduced any further.
        """
        reduction = _ROUGH_REDUCTION if far else _REDUCTION
        first = self.inner(rhs, self.precondition(rhs))
        enough = max(reduction**2 * first, min(floor, 0.5 * first))  # one iteration at least
        return conjugate_gradients(self, rhs, lambda _, rho: rho <= enough, _MOST_ITERATIONS, work)


@dataclass
class DampedNewton:
    """One solve; decrement, length: of the last step."""

    family: Family
    pattern: Pattern
    progress: Progress[MetricPoint]
    decrement: float = math.inf
    length: float = 0.0

    def run(self, D: Matrix) -> Status:
        """Newton steps from D until the gap is certified or a limit is reached; INACCURATE after a breakdown."""
        start = MetricPoint.of(self.family, self.pattern, D)
        return self.progress.follow(start, self.bounds, self.details, self.next)

    def bounds(self, p: MetricPoint) -> Bounds:
        """The interval of log det G; without an upper end while the loss is far above what is asked for."""
        far = p.rough_loss > _FAR * self.progress.limits.tol * p.d
        return p.bounds(math.inf if far else p.loss)

    def details(self, p: MetricPoint) -> dict[str, str]:
        return {"decrement": f"{self.decrement:.2e}", "step": f"{self.length:.3f}"}

    def next(self, p: MetricPoint) -> MetricPoint | None:
        """The point after one step; None when no step goes up."""
        # The loss after the step is about half of this, or a few times as much.
        floor = 0.1 * self.progress.limits.tol * p.d
        X = KrylovSystem(p).solve(p.gradient, floor, self.decrement > 1.0, self.progress.work)
        self.decrement = math.sqrt(max(float(np.vdot(p.gradient, X)), 0.0))
        self.length = _length(p, X, self.decrement)
        if self.length == 0.0:
            return None
        return MetricPoint.of(self.family, self.pattern, p.D + p.frame.change(self.length * X))


def _length(p: MetricPoint, X: Matrix, decrement: float) -> float:
    """The maximiser of the objective along the step, roughly; 0 when no step goes up."""
    if decrement < _CLOSE:
        return 1.0
    first, second = p.frame.slope(X), p.frame.bend(X)
    a, low, high = 1.0, 0.0, math.inf
    for _ in range(_TRIALS):
        K = cholesky(p.Gt + a * first + (a * a) * second)
        if K is None:
            high, a = a, 0.5 * (low + a)
            continue
        along = lower_solve(K, lower_solve(K, first + (2.0 * a) * second).T)
        slope = float(np.trace(along))
        if abs(slope) <= _FLAT * decrement**2:  # which is the slope at 0
            return a
        low, high = (a, high) if slope > 0.0 else (low, a)
        curvature = float(np.vdot(along, along)) - 2.0 * float(np.trace(lower_solve(K, lower_solve(K, second).T)))
        a += slope / curvature
        if not low < a < high:
            a = 0.5 * (low + high) if high < math.inf else 2.0 * low
    return low
