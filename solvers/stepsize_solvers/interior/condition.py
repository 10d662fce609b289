"""The problem with one constraint F(D) = D − 𝒬(DBD) ⪰ 0 and the largest log det D, over a full or block-diagonal D.

In the basis of a frame (``.frame``, a = 1) with Z̃ = CᵀZC, R̃ = Cᵀ𝒬*(Z)C and F̃ = C⁻¹FC⁻ᵀ the optimality conditions
D⁻¹ + Z = B D R + R D B, Z ⪰ 0, F ⪰ 0, ZF = 0 read

    r := I + F′*[Z̃] = Π(I + Z̃ − (B̃R̃ + R̃B̃)) = 0,      Z̃F̃ = 0,

and the curvature of the Lagrangian is 𝒦[X] = X + Π(B̃XR̃ + R̃XB̃).  The systems of small problems are factorised
(``.dense``), those of larger ones solved by conjugate gradients (``.schur``), in single precision from a size on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_solvers.interior.dense import FactorisedSystem, Unknowns
from stepsize_solvers.interior.driver import IterativeSystem
from stepsize_solvers.interior.frame import Frame, effective_beta, is_graded
from stepsize_solvers.interior.problem import InequalityPoint, Rules, Step, System
from stepsize_solvers.interior.schur import SchurSystem
from stepsize_solvers.numerics import (
    Array,
    Bounds,
    Sizes,
    Work,
    cholesky,
    log_det_from_cholesky,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, add_to_diagonal

# A new point needs all products of complementarity above this fraction of μ.
_NEIGHBOURHOOD = 1e-3
# With factorised systems, correctors are cheap and steps go to 1 − μ of the boundary near the end: 5.0 steps on average
# on 415 random problems (d ≤ 18, all maps) with two correctors, 5.9 with one.
_FACTORISED = Rules(predictor=True, step_fraction=0.99, to_boundary=True, correctors=2, shortest=1e-3)
# Points are in single precision while μ is above the first: products with C and C⁻¹ lose the second of 6·10⁻⁸, and
# 10⁻⁵ is left.
_DOUBLE_BELOW = 0.01
_LOW_CONDITION = 300.0
_BY_GRADIENTS = Rules(predictor=False, step_fraction=0.97)


@dataclass(frozen=True, eq=False)
class ConditionPoint(InequalityPoint):
    """A stepsize D, by its frame, and a multiplier."""

    frame: Frame

    @staticmethod
    def of(frame: Frame, Zt: Matrix) -> ConditionPoint:
        return ConditionPoint(frame.value, Zt, frame)

    @property
    def d(self) -> int:
        return self.frame.d

    @property
    def is_low(self) -> bool:
        """Whether the point is in single precision."""
        return self.Zt.dtype == np.float32

    @property
    def D(self) -> Matrix:
        return self.frame.D

    @property
    def Z(self) -> Matrix:
        return self.frame.dual(self.Zt)

    @cached_property
    def Rt(self) -> Matrix:
        return self.frame.coimage(self.Zt)

    @cached_property
    def gradient(self) -> Matrix:
        """B̃R̃ + R̃B̃."""
        return self.frame.cotwice(self.Rt)

    @cached_property
    def residual(self) -> Matrix:
        r = self.frame.project(self.Zt - self.gradient)
        add_to_diagonal(r, 1.0)
        return r

    @cached_property
    def residual_norm(self) -> float:
        """‖r‖/√d."""
        return float(np.linalg.norm(self.residual)) / math.sqrt(self.d)

    def slope(self, X: Array, dt: float) -> Array:
        return self._frame(X).slope(X)

    def bend(self, X: Array) -> Array:
        return self._frame(X).bend(X)

    def _frame(self, X: Array) -> Frame:
        """In the precision of X."""
        return self.frame.low if X.dtype == np.float32 else self.frame

    def residual_bend(self, X: Array, dZ: Array) -> Array:
        """Π(X² − (B̃X dR̃ + dR̃XB̃)), dR̃ = Cᵀ𝒬*(dZ)C."""
        frame = self._frame(X)
        return frame.project(X @ X.T) - frame.cross(X, frame.coimage(dZ))


@dataclass(frozen=True, eq=False)
class Condition:
    """The problem; family: 𝒬 and B with a = 1; over: the unknowns of factorised systems, None for gradients.

    single: whether systems are in single precision.
    """

    family: Family
    pattern: Pattern
    tol: float
    work: Work
    over: Unknowns | None = None
    single: bool = False

    @cached_property
    def beta(self) -> float:
        return effective_beta(self.family.Q)

    @property
    def rules(self) -> Rules:
        return _BY_GRADIENTS if self.over is None else _FACTORISED

    def frame(self, D: Matrix) -> Frame | None:
        """The basis of D, or None when D is not numerically positive definite."""
        return Frame.of(self.family, self.pattern, D, graded=is_graded(self.family.Q))

    def point(self, D: Matrix, Z: Matrix) -> ConditionPoint | None:
        """The pair in its basis, or None when D is not numerically positive definite."""
        frame = self.frame(D)
        return None if frame is None else ConditionPoint.of(frame, sym(frame.C.A.T @ Z @ frame.C.A))

    def lowered(self, p: ConditionPoint) -> ConditionPoint:
        """A first point in single precision, where that is enough.

        C must be well conditioned and 𝒬 the cheap map: for the others C⁻¹𝒬(C·Cᵀ)C⁻ᵀ cancels more.
        """
        if not self.single or self.family.Q.diagonal_plus_scaled is None:
            return p
        Zt: Any = p.Zt.astype(np.float32)
        low = ConditionPoint.of(p.frame.low, Zt)
        return p if p.frame.condition > _LOW_CONDITION or low.found_scaling is None else low

    def mu(self, p: ConditionPoint) -> float:
        return p.scaling.mu

    def bounds(self, p: ConditionPoint, near: bool = True) -> Bounds:
        """Repair and upper bound at t·D, t = 1/(1 − λmin(F̃)), and the best multiple of Z; t = 1 unless ``near``.

        The bound of the certificate with the reference tD is, after minimising over the factor of Z,
        d log(t² ⟨R̃, B̃⟩/d) − log det(t (B̃R̃ + R̃B̃) − Z̃) + log det D.
        """
        d, frame = p.d, p.frame
        if not near:
            smallest = 0.0
        elif d > Sizes.LANCZOS and p.found_scaling is not None:
            smallest = smallest_eigenvalue_from_factor(p.found_scaling.factor)
        else:
            smallest = smallest_eigenvalue(p.Ft)
        t = 1.0 / (1.0 - smallest)
        lower = frame.log_det + d * math.log(t)
        energy = 0.5 * t * t * float(p.gradient.diagonal().sum())
        K = cholesky(frame.project(t * p.gradient - p.Zt), overwrite=True)
        if K is None or not energy > 0.0:
            return Bounds(lower, math.inf, t, 1.0)
        upper = d * math.log(energy / d) - log_det_from_cholesky(K) + frame.log_det
        return Bounds(lower, upper, t, d / energy)

    def least_target(self, p: ConditionPoint, steps: int) -> float:
        """The gap at a central point is μ: less than a fifth of the tolerance would be wasted work.

        By conjugate gradients min(1, n)·min(1, 3n), n = ‖r‖/√d: linear while the residual is large, quadratic below.
        """
        if self.over is not None:
            return 0.2 * self.tol
        norm = p.residual_norm
        return max(0.2 * self.tol, min(p.scaling.mu, min(1.0, norm) * min(1.0, 3.0 * norm)))

    def system(self, p: ConditionPoint) -> System[Step] | None:
        if self.over is not None:
            return FactorisedSystem.of(p, p.frame, p.Rt, self.over, identity=True)
        dtype = np.float32 if self.single else np.float64
        schur = SchurSystem.of(p.frame, p.Rt, p.scaling, self.beta, dtype, self.work)
        return None if schur is None else IterativeSystem(p, schur, single=self.single)

    def moved(self, p: ConditionPoint, step: Step, length: float) -> ConditionPoint | None:
        found, L = p.frame.moved(length * step.X), cholesky(p.Zt + length * step.change_of_Z)
        if found is None or L is None:
            return None
        frame, T = found
        if frame.Bt.ndim == 2:  # from B itself: for a graded map its rounding counts
            frame = replace(frame, Bt=sym(frame.C.A.T @ self.family.B @ frame.C.A))
        half = lower_transposed_product(L, T)
        new: ConditionPoint | None = ConditionPoint.of(frame, half.T.dot(half))
        if new is not None and new.is_low and float(np.vdot(new.Ft, new.Zt)) < _DOUBLE_BELOW * new.d:
            new = self.point(new.D, new.Z)
        return None if new is None or new.found_scaling is None else new

    def is_near_path(self, p: ConditionPoint, before: ConditionPoint) -> bool:
        return float(p.scaling.v[0]) ** 2 > _NEIGHBOURHOOD * p.scaling.mu

    def fallback(self, p: ConditionPoint) -> tuple[Condition, ConditionPoint] | None:
        """Conjugate gradients after factorised systems, but for given blocks; double precision after single."""
        if self.over is not None:
            return None if self.pattern.W is not None else (replace(self, over=None), p)
        double = self.point(p.D, p.Z) if p.is_low else p
        if not self.single or double is None or double.found_scaling is None:
            return None
        return replace(self, single=False), double

    def details(self, p: ConditionPoint) -> dict[str, str]:
        return {"mu": f"{p.scaling.mu:.2e}", "residual": f"{p.residual_norm:.2e}", "cg": str(self.work.cg_iterations)}
