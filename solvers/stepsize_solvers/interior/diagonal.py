"""Diagonal stepsizes under a Hadamard map: d unknowns, a d×d multiplier and direct primal–dual steps.

For D = X = Diag(x) and 𝒬(M) = P∘M the constraint is XMX ⪯ X with M = P∘B, that is N ⪯ I for N = X^½MX^½.  The same set
is X ⪯ M⁻¹, linear in x.  Let Y = X^½ZX^½ for a multiplier Z ⪰ 0 of that.  The points of the central path satisfy

    diag(Y) = 1,      (N⁻¹ − I) Y = νI,

so that Y = νV with V = (I − N)⁻¹ − I, and ν = 0 at the optimum.  For relative changes x(1 + h) and a change ΔY of Y,
the linearised equations (1 + h)∘diag(Y + ΔY) = 1 and (N⁻¹ − I − Diag(h))(Y + ΔY) = νI give

    (Diag(diag Y) + V∘Y) h = 1 − ν diag(V),      ΔY = νV − Y + V Diag(h) Y, made symmetric.

Helmberg, Rendl, Vanderbei and Wolkowicz (1996) use the same direction for the relaxation of max-cut.  As in Mehrotra's
method, a predictor (h₀, ΔY₀) for ν = 0 tells how small the next ν may be, and the step itself takes into account the
products of changes that the linearisation drops: −(V∘ΔY₀)h₀ − h₀∘diag(ΔY₀) on the right, and V Diag(h₀)ΔY₀ in ΔY.

Y ⪰ 0 is a dual of XMX ⪯ X for every x; with it the certificate's bound at the reference D reads

    d log(Σ(YN)ⱼⱼ/d) − Σ log(2(YN)ⱼⱼ − Yⱼⱼ) + Σ log xⱼ,

and x/λmax(N) is feasible.

Newton's method for the barrier log det(I − N) alone is the special case Y = νV.  After ν is reduced it ends next to
the boundary, from where it returns in short steps, the more of them the more eigenvalues of N tend to one: it takes 67,
117 and 174 steps for the leading blocks of 200, 400 and 800 coordinates of a network's L (rand-k, k = d/20), and this
method 10, 11 and 12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics.linalg import cholesky, smallest_eigenvalue, smallest_eigenvalue_from_factor
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Matrix, Status, Vector, add_to_diagonal

_PATIENCE = 10  # ordinary problems take 5 to 12 steps, ill-conditioned ones at a tolerance of 1e-9 up to 20
_MARGIN = 0.5  # of the tolerance: what the proof loses by rounding needs room
_START = 0.95  # of the largest feasible multiple
# The smallest eigenvalues of Y tend to zero.  Each step raises all of them by this fraction of the tolerance, so that
# rounding does not make Y indefinite; the bound grows by no more than that for each coordinate.
_LIFT = 0.01
_LAST = 0.2  # of the tolerance: the smallest ν aimed at
# The next ν is the share of μ that the predictor leaves, to this power.  Powers of 1.25, 2 and 3 take more steps.
_POWER = 1.5
_LARGEST_FALL = 0.95  # of an entry of x in one step
# Lengths tried are 1, 0.8, 0.8², …; a step that had to be cut ends a little before the boundary.
_CUT = 0.8
_BACK = 0.9
_SHORTEST = 1e-4
# Where a predictor that was cut asked for an x many times as large, its products of changes point the wrong way, and
# the step ends at once.  A shorter step than this is compared with one that leaves them out: without that 9 of 1 500
# random matrices with d = 4 and the identity sketch broke down.
_SHORT = 0.3
_SMALLEST = float(np.finfo(float).tiny)


def _scaled(M: Matrix, factors: Vector) -> Matrix:
    """Diag(factors)^½ M Diag(factors)^½."""
    root = np.sqrt(factors)
    return M * np.multiply.outer(root, root)


def _factor(N: Matrix) -> Matrix | None:
    """The Cholesky factor of I − N; None unless N ≺ I."""
    S = -N
    add_to_diagonal(S, 1.0)
    return cholesky(S)


def _resolvent(K: Matrix) -> Matrix:
    """V = (KKᵀ)⁻¹ − I."""
    lower, _ = lapack.dpotri(K, 1)  # lower; above the diagonal the zeros of K stay
    full = np.asarray(lower + lower.T)
    add_to_diagonal(full, -1.0 - lower.diagonal())
    return full


@dataclass(frozen=True, eq=False)
class RelativeStep:
    """The relative change h of x and the change of Y."""

    h: Vector
    dY: Matrix


@dataclass(frozen=True, eq=False)
class DiagonalPoint:
    """x with N, the Cholesky factor K of I − N, and Y ≻ 0."""

    x: Vector
    N: Matrix
    K: Matrix
    Y: Matrix

    @staticmethod
    def central(M: Matrix, x: Vector) -> DiagonalPoint | None:
        """The point of x with Y = νV for the ν that makes diag(Y) one on average; None unless N ≺ I."""
        N = _scaled(M, x)
        K = _factor(N)
        if K is None:
            return None
        V = _resolvent(K)
        return DiagonalPoint(x, N, K, V * (len(x) / float(V.trace())))

    @cached_property
    def V(self) -> Matrix:
        return _resolvent(self.K)

    @cached_property
    def image(self) -> Vector:
        """diag(YN)."""
        return np.asarray(np.einsum("ij,ij->i", self.Y, self.N))

    @cached_property
    def mu(self) -> float:
        """ν of a central point, and an average of it elsewhere: there (I − N)Y = νN."""
        return float(self.Y.trace() - self.image.sum()) / float(self.N.trace())

    @cached_property
    def bounds(self) -> Bounds:
        d = len(self.x)
        large = d > Sizes.LANCZOS
        top = 1.0 - smallest_eigenvalue_from_factor(self.K) if large else -smallest_eigenvalue(-self.N)
        log_det = float(np.log(self.x).sum())
        upper, slope, energy = math.inf, 2.0 * self.image - self.Y.diagonal(), float(self.image.sum())
        if slope.min() > 0.0:
            upper = d * math.log(energy / d) - float(np.log(slope).sum()) + log_det
        return Bounds(log_det - d * math.log(top), upper, 1.0 / top, d / max(energy, _SMALLEST))

    @property
    def D(self) -> Matrix:
        return np.diag(self.x)

    @property
    def Z(self) -> Matrix:
        return _scaled(self.Y, 1.0 / self.x)


@dataclass(frozen=True, eq=False)
class _Newton:
    """The linear system of a point, factorised."""

    point: DiagonalPoint
    factor: Matrix

    @staticmethod
    def of(point: DiagonalPoint) -> _Newton | None:
        """None when the matrix is not numerically positive definite."""
        H = point.V * point.Y
        add_to_diagonal(H, point.Y.diagonal())
        factor = cholesky(H)
        return None if factor is None else _Newton(point, factor)

    def step(self, nu: float, predictor: RelativeStep | None = None) -> RelativeStep:
        V, Y = self.point.V, self.point.Y
        right = 1.0 - nu * V.diagonal()
        if predictor is not None:
            right -= (V * predictor.dY) @ predictor.h + predictor.h * predictor.dY.diagonal()
        h = np.asarray(lapack.dpotrs(self.factor, right, 1)[0])
        changes = h[:, None] * Y
        if predictor is not None:
            changes += predictor.h[:, None] * predictor.dY
        half = 0.5 * (V @ changes)
        return RelativeStep(h, half + half.T + nu * V - Y)


@dataclass
class _Path:
    """The path of M to a tolerance; length: of the last step."""

    M: Matrix
    tol: float
    length: float = 0.0

    def moved(self, p: DiagonalPoint, step: RelativeStep, length: float) -> DiagonalPoint | None:
        """The point after a step of the given length; None where N ≺ I or Y ≻ 0 fails."""
        growth = 1.0 + length * step.h
        x = p.x * growth
        N = _scaled(self.M, x)
        K = _factor(N)
        if K is None:
            return None
        Y = p.Y + length * step.dY
        add_to_diagonal(Y, _LIFT * self.tol)
        return None if cholesky(Y) is None else DiagonalPoint(x, N, K, _scaled(Y, growth))

    def furthest(self, p: DiagonalPoint, step: RelativeStep) -> tuple[DiagonalPoint | None, float]:
        """The point after the longest step tried that is inside, and its length."""
        length = min(1.0, _LARGEST_FALL / max(-float(step.h.min()), _SMALLEST))
        while length > _SHORTEST:
            moved = self.moved(p, step, length)
            if moved is not None:
                return moved, length
            length *= _CUT
        return None, 0.0

    def next(self, p: DiagonalPoint) -> DiagonalPoint | None:
        """The point after one step; None when rounding allows no step."""
        newton = _Newton.of(p)
        if newton is None:
            return None
        predictor = newton.step(0.0)
        predicted, _ = self.furthest(p, predictor)
        left = 1.0 if predicted is None else min(max(predicted.mu / p.mu, 0.0), 1.0)
        nu = max(left**_POWER * p.mu, _LAST * self.tol)
        step = newton.step(nu, predictor)
        moved, self.length = self.furthest(p, step)
        if self.length < _SHORT:
            plain = newton.step(nu)
            other = self.furthest(p, plain)
            if other[1] > self.length:
                step, (moved, self.length) = plain, other
        if moved is None or self.length == 1.0:
            return moved
        self.length *= _BACK
        return self.moved(p, step, self.length)


def solve_diagonal(
    M: Matrix,
    limits: Limits,
    start: Vector | None = None,
) -> tuple[Status, Progress[DiagonalPoint]]:
    """Follow the central path until the certified gap is within the tolerance."""
    x = 1.0 / np.diagonal(M) if start is None else np.array(start)
    x *= _START / -smallest_eigenvalue(-_scaled(M, x))
    progress: Progress[DiagonalPoint] = Progress(len(M), limits, _MARGIN, _PATIENCE)
    path = _Path(M, limits.tol)
    first = DiagonalPoint.central(M, x)

    def details(p: DiagonalPoint) -> dict[str, str]:
        return {"mu": f"{p.mu:.2e}", "step": f"{path.length:.3f}"}

    return progress.run(lambda: progress.follow(first, lambda p: p.bounds, details, path.next)), progress
