"""The largest t with F = G(D) − tE ⪰ 0, G(D) = aD − 𝒬(DBD): the problem and its points.

With the multiplier Z of F ⪰ 0, KKT is r := G′*[Z] = 0, ⟨Z, E⟩ = 1, ZF = 0, and a step solves

    K X − G′*[dZ] = r,      G′[X] − E dt + W dZ W = c,      ⟨E, dZ⟩ = 0,

with the curvature K[X] = BXR + RXB, R = 𝒬*(Z).  For every Z ⪰ 0 the optimum is bounded by

    t* ≤ t + (⟨Z, F⟩ + ½⟨r, K⁻¹r⟩)/⟨Z, E⟩,

because ⟨Z, G(D)⟩ is a concave quadratic in D with gradient r and curvature −K.

There are two bases: that of D, with factorised systems (``Factorised``), and one in which K is inverted, with conjugate
gradients (``.whitened``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.interior.dense import FactorisedSystem, Unknowns
from stepsize_solvers.interior.driver import InequalityPoint, Rules, Step, System
from stepsize_solvers.interior.frame import Frame, curvature_loss
from stepsize_solvers.numerics import Array, Bounds, Work, cholesky, sym
from stepsize_solvers.programs import Family, Matrix, Pattern

_RULES = Rules(predictor=True, step_fraction=0.95, least_sigma=0.05, largest_sigma=0.9)
# Where a factorisation is possible it takes over after a step with more iterations of conjugate gradients than this; 3
# to 50 are usual.
_MANY_ITERATIONS = 500
# The least v² relative to the mean that a new point may have.
_NEIGHBOURHOOD = 1e-4
# The largest share that the loss may have beside ⟨Z, F⟩, and by what factor it may grow where it has more.  Without
# this, a long first step may end so far from the path that twenty steps of a thousandth to a tenth have to follow.
_LOSS_SHARE = 0.01
_LOSS_GROWTH = 3.0


class Basis(Protocol):
    """Coordinates of D around one point, and the equations of a step in them.  ``frame`` has G′."""

    @property
    def frame(self) -> Frame: ...
    def bend(self, X: Array) -> Array:
        """−𝒬(XBX)."""
        ...

    def cross(self, X: Array, N: Array) -> Array:
        """Π(BXN + NXB)."""
        ...

    def loss(self, g: Array) -> float:
        """½⟨g, K⁻¹g⟩; infinite when K is not positive definite."""
        ...

    def system(self, p: FloorPoint, work: Work) -> System[Step] | None:
        """The system of a point in this basis; None when rounding has made it indefinite."""
        ...


class BasisMaker(Protocol):
    def __call__(self, D: Matrix, Z: Matrix) -> Basis | None:
        """The basis at D for the multiplier Z; None when there is none numerically."""
        ...


@dataclass(frozen=True, eq=False)
class FloorPoint(InequalityPoint):
    """(D, t, Z), and Ẽ in the basis."""

    Et: Matrix
    D: Matrix
    t: float
    Z: Matrix
    basis: Basis

    @property
    def d(self) -> int:
        return len(self.D)

    @cached_property
    def residual(self) -> Matrix:
        return self.basis.frame.coslope(self.Zt)

    @cached_property
    def loss(self) -> float:
        return self.basis.loss(self.residual)

    @cached_property
    def energy(self) -> float:
        """⟨Z, F⟩."""
        return float(np.vdot(self.Zt, self.Ft))

    def slope(self, X: Array, dt: float) -> Array:
        return np.asarray(self.basis.frame.slope(X) - dt * self.Et)

    def bend(self, X: Array) -> Array:
        return self.basis.bend(X)

    def residual_bend(self, X: Array, dZ: Array) -> Array:
        return -self.basis.cross(X, self.basis.frame.coimage(dZ))


@dataclass(frozen=True, eq=False)
class Floor:
    """The problem; family: of G; bases: the formulations, of which the first is the one in use."""

    family: Family
    E: Matrix
    bases: tuple[BasisMaker, ...]
    tol: float
    work: Work

    @property
    def rules(self) -> Rules:
        last = self.bases[-1]
        return replace(_RULES, most_iterations=_MANY_ITERATIONS) if isinstance(last, Factorised) else _RULES

    def value(self, D: Matrix) -> Matrix:
        """G(D)."""
        left = self.family
        assert left.B is not None
        return np.asarray(left.a * D - left.Q.apply(sym(D @ left.B @ D)))

    def first(self, D: Matrix) -> tuple[Floor, FloorPoint] | None:
        """The point at D with G(D) ≻ 0, t = 0 and the central Z, in the first basis in which it is one."""
        Z = sym(np.linalg.inv(self.value(D)))
        Z = Z / float(np.vdot(Z, self.E))
        p = self.point(D, 0.0, Z)
        return self._again(D, 0.0, Z) if p is None else (self, p)

    def point(self, D: Matrix, t: float, Z: Matrix) -> FloorPoint | None:
        """None unless the point is strictly inside."""
        basis = self.bases[0](D, Z)
        if basis is None:
            return None
        frame = basis.frame
        Ft = frame.stretched(self.value(D) - t * self.E)
        new = FloorPoint(Ft, sym(frame.C.A.T @ Z @ frame.C.A), frame.stretched(self.E), D, t, Z, basis)
        return None if new.found_scaling is None else new

    def mu(self, p: FloorPoint) -> float:
        return p.energy / p.d

    def bounds(self, p: FloorPoint, near: bool = True) -> Bounds:
        """The interval of d·log t."""
        upper = p.t + (p.energy + p.loss) / float(np.vdot(p.Zt, p.Et))
        lower = p.d * math.log(p.t) if p.t > 0.0 else -math.inf
        return Bounds(lower, p.d * math.log(upper) if upper > 0.0 else math.inf)

    def least_target(self, p: FloorPoint, steps: int) -> float:
        return max(min(self.mu(p), 0.1 * p.loss / p.d), 0.2 * self.tol * max(p.t, 0.0) / p.d)

    def system(self, p: FloorPoint) -> System[Step] | None:
        return p.basis.system(p, self.work)

    def moved(self, p: FloorPoint, step: Step, length: float) -> FloorPoint | None:
        frame = p.basis.frame
        D, Z = p.D + frame.change(length * step.X), p.Z + frame.dual(length * step.change_of_Z)
        return self.point(D, p.t + length * step.dt, Z)

    def is_near_path(self, p: FloorPoint, before: FloorPoint) -> bool:
        """Whether no product of Z and F is far below their mean, nor the loss too large beside the point before."""
        central = float(p.scaling.v[0]) ** 2 > _NEIGHBOURHOOD * p.scaling.mu
        return central and p.loss <= max(_LOSS_SHARE, _LOSS_GROWTH * before.loss / before.energy) * p.energy

    def fallback(self, p: FloorPoint) -> tuple[Floor, FloorPoint] | None:
        """The point in the next basis in which it is one."""
        return self._again(p.D, p.t, p.Z)

    def _again(self, D: Matrix, t: float, Z: Matrix) -> tuple[Floor, FloorPoint] | None:
        for used in range(1, len(self.bases)):
            other = replace(self, bases=self.bases[used:])
            p = other.point(D, t, Z)
            if p is not None:
                return other, p
        return None

    def details(self, p: FloorPoint) -> dict[str, str]:
        return {"loss": f"{p.loss:.2e}", "cg": str(self.work.cg_iterations)}


@dataclass(frozen=True, eq=False)
class FactorisedBasis:
    """``frame`` is that of D; Rt: R̃; over: the unknowns of the system."""

    frame: Frame
    Rt: Matrix
    over: Unknowns

    def bend(self, X: Array) -> Array:
        return self.frame.bend(X)

    def cross(self, X: Array, N: Array) -> Array:
        return self.frame.cross(X, N)

    def loss(self, g: Array) -> float:
        if self.frame.pattern.is_full:
            return curvature_loss(self.frame, self.Rt, g)
        # Over the pattern alone; over all matrices it is larger, by orders of magnitude where R is nearly singular.
        factor, x = cholesky(self.over.curvature(self.frame, self.Rt)), self.over.vector(g)
        return math.inf if factor is None else 0.5 * float(x @ lapack.dpotrs(factor, x, lower=1)[0])

    def system(self, p: FloorPoint, work: Work) -> FactorisedSystem | None:
        return FactorisedSystem.of(p, self.frame, self.Rt, self.over, identity=False, E=p.Et)


@dataclass(frozen=True, eq=False)
class Factorised:
    """D and Z to the basis of D."""

    family: Family
    pattern: Pattern
    over: Unknowns

    def __call__(self, D: Matrix, Z: Matrix) -> FactorisedBasis | None:
        frame = Frame.of(self.family, self.pattern, D, rotated=self.pattern.is_full)
        if frame is None:
            return None
        return FactorisedBasis(frame, frame.coimage(sym(frame.C.A.T @ Z @ frame.C.A)), self.over)
