"""The largest t with G(D) = aD − 𝒬(DBD) ⪰ tE: a primal-dual path of predictor-corrector steps.

With F = G(D) − tE ⪰ 0 and its multiplier Z, KKT is G′*[Z] = 0, ⟨Z, E⟩ = 1, ZF = 0.  With the curvature
K[X] = BXR + RXB, R = 𝒬*(Z), and the Nesterov–Todd scaling W of (F, Z) a step solves

    K X − G′*[dZ] = r,      G′[X] − E dt + W dZ W = c,      ⟨E, dZ⟩ = 0,

where r = G′*[Z] and c is the distance from the centre: one system, two right-hand sides (predictor and corrector).
The corrector takes the second-order terms of all equations: of the product ZF, of −𝒬(XBX) in F and of
−(B X dR + dR X B) in r.  For every Z ⪰ 0 the optimum is bounded by

    t* ≤ t + (⟨Z, F⟩ + ½⟨r, K⁻¹r⟩)/⟨Z, E⟩,

because ⟨Z, G(D)⟩ is a concave quadratic in D with gradient r and curvature −K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.numerics import (
    Array,
    Bounds,
    Counters,
    Progress,
    Scaling,
    largest_step,
    nesterov_todd,
    sym,
)
from stepsize_solvers.programs import Family, Matrix, Status

# Fraction of the way to the boundary, and the least v² relative to the mean that a new point may have.
_STEP_FRACTION = 0.95
_NEIGHBOURHOOD = 1e-4
# The largest share that the loss may have beside Σ⟨Z, F⟩, and by what factor it may grow where it has more.  Without
# this, a long first step may end so far from the path that twenty steps of a thousandth to a tenth have to follow.
_LOSS_SHARE = 0.01
_LOSS_GROWTH = 3.0
# A step shorter than the first is taken wherever it leads, and one shorter than the second is none.
_SHORT = 0.05
_SHORTEST = 1e-4
# Accuracy of the systems relative to what they aim at: the predictor's only says how much to centre.
_ACCURACY = 1.2
_PREDICTOR_ACCURACY = 1.0
# Centring: the cube of the complementarity that the predictor leaves, between these.
_LEAST_SIGMA = 0.05
_LARGEST_SIGMA = 0.9


class Basis(Protocol):
    """Coordinates of D around one point, and the system of a step in them.  ``frame`` has G′."""

    @property
    def frame(self) -> Frame: ...
    def bend(self, X: Array) -> Array:
        """−𝒬(XBX)."""
        ...

    def cross(self, X: Array, N: Array) -> Array:
        """BXN + NXB."""
        ...

    def loss(self, g: Array) -> float:
        """½⟨g, K⁻¹g⟩; infinite when K is not positive definite."""
        ...

    def system(self, scaling: Scaling, E: Matrix, counters: Counters) -> System | None:
        """The equations of a step for E in the basis; None when rounding has made them indefinite."""
        ...


class Solution(NamedTuple):
    """Of the equations of a step."""

    X: Array
    dZ: Matrix
    dt: float


class System(Protocol):
    """The equations of a step."""

    def solve(self, r: Array, c: Matrix, tolerance: float) -> Solution:
        """K X − G′*[dZ] = r,  G′[X] − E dt + W dZ W = c  and  ⟨E, dZ⟩ = 0.

        The residual of c, as a change of v, is within the tolerance.
        """
        ...


@dataclass(frozen=True, eq=False)
class Problem:
    """metric: the family of G(D) = aD − 𝒬(DBD); E: the floor of G(D) ⪰ tE."""

    metric: Family
    E: Matrix

    def value(self, D: Matrix) -> Matrix:
        """G(D)."""
        left = self.metric
        assert left.B is not None
        return np.asarray(left.a * D - left.Q.apply(sym(D @ left.B @ D)))


@dataclass(frozen=True, eq=False)
class PathPoint:
    """(D, t, Z), and in the basis: Z̃, F̃ and Ẽ."""

    problem: Problem
    D: Matrix
    t: float
    Z: Matrix
    basis: Basis
    Zt: Matrix
    Ft: Matrix
    Et: Matrix

    @staticmethod
    def of(problem: Problem, basis: Basis | None, D: Matrix, t: float, Z: Matrix) -> PathPoint | None:
        if basis is None:
            return None
        frame = basis.frame
        C = frame.C.A
        Zt = sym(C.T @ Z @ C)
        Ft = frame.stretched(problem.value(D) - t * problem.E)
        return PathPoint(problem, D, t, Z, basis, Zt, Ft, frame.stretched(problem.E))

    @property
    def d(self) -> int:
        return len(self.D)

    @cached_property
    def scaling(self) -> Scaling | None:
        """That of F̃ and Z̃; None when one of them is not numerically positive definite."""
        return nesterov_todd(self.Ft, self.Zt)

    @cached_property
    def r(self) -> Matrix:
        return self.basis.frame.coslope(self.Zt)

    @cached_property
    def loss(self) -> float:
        return self.basis.loss(self.r)

    @cached_property
    def energy(self) -> float:
        """⟨Z, F⟩."""
        return float(np.vdot(self.Zt, self.Ft))

    @cached_property
    def weight(self) -> float:
        """⟨Z, E⟩."""
        return float(np.vdot(self.Zt, self.Et))

    def is_near_path(self, before: PathPoint) -> bool:
        """Whether no product of Z and F is far below their mean, nor the loss too large beside the point before."""
        if self.scaling is None:
            return False
        products = self.scaling.v**2
        central = float(products.min()) > _NEIGHBOURHOOD * float(products.mean())
        return central and self.loss <= max(_LOSS_SHARE, _LOSS_GROWTH * before.loss / before.energy) * self.energy

    @property
    def bounds(self) -> Bounds:
        """The interval of d·log t."""
        upper = self.t + (self.energy + self.loss) / self.weight
        lower = self.d * math.log(self.t) if self.t > 0.0 else -math.inf
        return Bounds(lower, self.d * math.log(upper) if upper > 0.0 else math.inf)


class BasisMaker(Protocol):
    def __call__(self, D: Matrix, Z: Matrix) -> Basis | None:
        """The basis at D for the multiplier Z; None when there is none numerically."""
        ...


class Path:
    """One solve; most: after a step with more iterations of conjugate gradients than this it ends as a breakdown."""

    def __init__(self, problem: Problem, basis: BasisMaker, progress: Progress[PathPoint], most: float) -> None:
        self.problem, self.basis, self.progress, self.most = problem, basis, progress, most

    def point(self, D: Matrix, t: float, Z: Matrix) -> PathPoint | None:
        return PathPoint.of(self.problem, self.basis(D, Z), D, t, Z)

    def run(self, D: Matrix) -> Status:
        """From the best point so far, or from a D with G(D) ≻ 0, t = 0 and the central Z.

        INACCURATE after a breakdown.
        """
        best = self.progress.best
        if best is not None:
            p = self.point(best.point.D, best.point.t, best.point.Z)
        else:
            Z = sym(np.linalg.inv(self.problem.value(D)))
            p = self.point(D, 0.0, Z / float(np.vdot(Z, self.problem.E)))
        length, iterations = 0.0, 0
        while p is not None:
            details = {"loss": f"{p.loss:.2e}", "step": f"{length:.3f}", "cg": str(iterations)}
            status = self.progress.examine(p, p.bounds, details)
            if status is not None:
                return status
            if iterations > self.most:
                break
            before = self.progress.counters.cg_iterations
            p, length = self.step(p)
            iterations = self.progress.counters.cg_iterations - before
            self.progress.steps += p is not None
        return Status.INACCURATE

    def step(self, p: PathPoint) -> tuple[PathPoint | None, float]:
        """The next point and the length of the step; None when every length fails."""
        scaling = p.scaling
        if scaling is None:
            return None, 0.0
        d, frame = p.d, p.basis.frame
        mu = p.energy / d
        G, v = scaling.G, scaling.v
        system = p.basis.system(scaling, p.Et, self.progress.counters)
        if system is None:
            return None, 0.0
        root = math.sqrt(mu)
        plain = _Direction.of(p, system.solve(p.r, -p.Ft, _PREDICTOR_ACCURACY * root))
        a = plain.longest(p)
        left = float(np.vdot(p.Zt + a * plain.dZ, p.Ft + a * plain.first + (a * a) * plain.second)) / (mu * d)
        sigma = min(max(left, 0.0) ** 3, _LARGEST_SIGMA)
        # A target below a fifth of the tolerance would be wasted work, and μ must not outrun the dual residual.
        least = 0.2 * self.progress.limits.tol * max(p.t, 0.0) / d
        s = max(max(sigma, _LEAST_SIGMA) * mu, min(mu, 0.1 * p.loss / d), least)
        # Second-order terms of the predictor: of the products in the frame where F and Z are Diag(v), of F and of r.
        back = (G.T @ p.Zt) / v[:, None]
        product = (back @ plain.first @ back.T) @ (G.T @ plain.dZ @ G)
        product = (product + product.T) / (v[:, None] + v)
        c = (G * (s / v - v)) @ G.T - G @ product @ G.T - plain.second
        r = p.r - frame.project(p.basis.cross(plain.X, frame.coimage(plain.dZ)))
        step = _Direction.of(p, system.solve(r, c, _ACCURACY * s / root))
        longest = step.longest(p)
        a = longest if longest == 1.0 else _STEP_FRACTION * longest
        while a > _SHORTEST:
            new = self.point(p.D + frame.change(a * step.X), p.t + a * step.dt, p.Z + frame.dual(a * step.dZ))
            if new is not None and new.scaling is not None and (a < _SHORT or new.is_near_path(p)):
                return new, a
            a *= 0.8
        return None, 0.0


@dataclass(frozen=True, eq=False)
class _Direction:
    """X, dt, dZ, and the changes of F: of first order, −𝒬(XBX) of second."""

    X: Array
    dt: float
    dZ: Matrix
    first: Matrix
    second: Matrix

    @staticmethod
    def of(p: PathPoint, found: Solution) -> _Direction:
        X, dZ, dt = found
        return _Direction(X, dt, dZ, p.basis.frame.slope(X) - dt * p.Et, p.basis.bend(X))

    def longest(self, p: PathPoint) -> float:
        return largest_step([[p.Zt, self.dZ], [p.Ft, self.first, self.second]])
