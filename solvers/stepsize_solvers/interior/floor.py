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
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.interior.dense import FactorisedSystem, Unknowns
from stepsize_solvers.interior.driver import InequalityPoint, Rules, ScaledStep, Step, System
from stepsize_solvers.interior.frame import Basis, Frame
from stepsize_solvers.numerics.linalg import Array, cholesky, sym
from stepsize_solvers.numerics.progress import Bounds, Work
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


class Formulation(Protocol):
    """A basis around one point, and the equations of a step in it."""

    @property
    def basis(self) -> Basis: ...
    def loss(self, g: Array) -> float:
        """½⟨g, K⁻¹g⟩; infinite when K is not positive definite."""
        ...

    def system(self, p: FloorPoint, work: Work) -> System[Any] | None:
        """The system of a point in this basis; None when rounding has made it indefinite."""
        ...


# (D, Z) ↦ the formulation at D for the multiplier Z; None when there is none numerically.
Former: TypeAlias = Callable[[Matrix, Matrix], Formulation | None]


@dataclass(frozen=True, eq=False)
class FloorPoint(InequalityPoint):
    """(D, t, Z), and Ẽ in the basis."""

    Et: Matrix
    D: Matrix
    t: float
    Z: Matrix
    formulation: Formulation

    @property
    def basis(self) -> Basis:
        return self.formulation.basis

    @property
    def d(self) -> int:
        return len(self.D)

    @cached_property
    def residual(self) -> Matrix:
        return self.basis.coslope(self.Zt)

    @cached_property
    def loss(self) -> float:
        return self.formulation.loss(self.residual)

    @cached_property
    def energy(self) -> float:
        """⟨Z, F⟩."""
        return float(np.vdot(self.Zt, self.Ft))

    def slope(self, X: Array, dt: float) -> Array:
        return np.asarray(self.basis.slope(X) - dt * self.Et)

    def bend(self, X: Array) -> Array:
        return self.basis.bend(X)

    def residual_bend(self, X: Array, dZ: Array) -> Array:
        return -self.basis.cross(X, self.basis.coimage(dZ))


@dataclass(frozen=True, eq=False)
class Floor:
    """The problem; family: of G; formers: of the formulations, of which the first is the one in use."""

    family: Family
    E: Matrix
    formers: tuple[Former, ...]
    tol: float
    work: Work

    @property
    def rules(self) -> Rules:
        last = self.formers[-1]
        return replace(_RULES, most_iterations=_MANY_ITERATIONS) if isinstance(last, Factorised) else _RULES

    def value(self, D: Matrix) -> Matrix:
        """G(D)."""
        family = self.family
        assert family.B is not None
        return np.asarray(family.a * D - family.Q.apply(sym(D @ family.B @ D)))

    def first(self, D: Matrix) -> tuple[Floor, FloorPoint] | None:
        """The point at D with G(D) ≻ 0, t = 0 and the central Z, in the first basis in which it is one."""
        Z = sym(np.linalg.inv(self.value(D)))
        Z = Z / float(np.vdot(Z, self.E))
        p = self.point(D, 0.0, Z)
        return self._again(D, 0.0, Z) if p is None else (self, p)

    def point(self, D: Matrix, t: float, Z: Matrix) -> FloorPoint | None:
        """None unless the point is strictly inside."""
        formulation = self.formers[0](D, Z)
        if formulation is None:
            return None
        basis = formulation.basis
        Ft = basis.stretched(self.value(D) - t * self.E)
        new = FloorPoint(Ft, basis.squeezed(Z), basis.stretched(self.E), D, t, Z, formulation)
        return None if new.scaling_or_none is None else new

    def mu(self, p: FloorPoint) -> float:
        return p.energy / p.d

    def bounds(self, p: FloorPoint, near: bool = True) -> Bounds:
        """The interval of d·log t."""
        upper = p.t + (p.energy + p.loss) / float(np.vdot(p.Zt, p.Et))
        lower = p.d * math.log(p.t) if p.t > 0.0 else -math.inf
        return Bounds(lower, p.d * math.log(upper) if upper > 0.0 else math.inf)

    def least_target(self, p: FloorPoint, steps: int) -> float:
        return max(min(self.mu(p), 0.1 * p.loss / p.d), 0.2 * self.tol * max(p.t, 0.0) / p.d)

    def system(self, p: FloorPoint) -> System[Any] | None:
        return p.formulation.system(p, self.work)

    def moved(self, p: FloorPoint, step: Step | ScaledStep, length: float) -> FloorPoint | None:
        D, Z = p.D + p.basis.change(length * step.X), p.Z + p.basis.dual(length * step.dZ)
        return self.point(D, p.t + length * step.dt, Z)

    def is_near_path(self, p: FloorPoint, before: FloorPoint) -> bool:
        """Whether no product of Z and F is far below their mean, nor the loss too large beside the point before."""
        central = float(p.scaling.v[0]) ** 2 > _NEIGHBOURHOOD * p.scaling.mu
        return central and p.loss <= max(_LOSS_SHARE, _LOSS_GROWTH * before.loss / before.energy) * p.energy

    def fallback(self, p: FloorPoint) -> tuple[Floor, FloorPoint] | None:
        """The point in the next basis in which it is one."""
        return self._again(p.D, p.t, p.Z)

    def _again(self, D: Matrix, t: float, Z: Matrix) -> tuple[Floor, FloorPoint] | None:
        for used in range(1, len(self.formers)):
            other = replace(self, formers=self.formers[used:])
            p = other.point(D, t, Z)
            if p is not None:
                return other, p
        return None

    def details(self, p: FloorPoint) -> dict[str, str]:
        return {"loss": f"{p.loss:.2e}", "cg": str(self.work.cg_iterations)}


@dataclass(frozen=True, eq=False)
class DirectFormulation:
    """In the basis of D, with factorised systems; Rt: R̃; unknowns: of the system."""

    basis: Frame
    Rt: Matrix
    unknowns: Unknowns

    def loss(self, g: Array) -> float:
        if self.basis.pattern.is_full:
            return self.basis.loss(self.Rt, g)
        # Over the pattern alone; over all matrices it is larger, by orders of magnitude where R is nearly singular.
        factor, x = cholesky(self.unknowns.curvature(self.basis, self.Rt)), self.unknowns.vector(g)
        return math.inf if factor is None else 0.5 * float(x @ lapack.dpotrs(factor, x, lower=1)[0])

    def system(self, p: FloorPoint, work: Work) -> FactorisedSystem | None:
        return FactorisedSystem.of(p, self.basis, self.Rt, self.unknowns, identity=False, floor=p.Et)


@dataclass(frozen=True, eq=False)
class Factorised:
    """D and Z to the basis of D."""

    family: Family
    pattern: Pattern
    unknowns: Unknowns

    def __call__(self, D: Matrix, Z: Matrix) -> DirectFormulation | None:
        frame = Frame.of(self.family, self.pattern, D, rotated=self.pattern.is_full)
        if frame is None:
            return None
        return DirectFormulation(frame, frame.coimage(frame.squeezed(Z)), self.unknowns)
