"""The problem with one constraint F(D) = D − 𝒬(DBD) ⪰ 0 and the largest log det D, over a full or block-diagonal D.

In the basis of a frame (``.frame``, a = 1) with Z̃ = CᵀZC, R̃ = Cᵀ𝒬*(Z)C and F̃ = C⁻¹FC⁻ᵀ the optimality conditions
D⁻¹ + Z = B D R + R D B, Z ⪰ 0, F ⪰ 0, ZF = 0 read

    r := I + F′*[Z̃] = Π(I + Z̃ − (B̃R̃ + R̃B̃)) = 0,      Z̃F̃ = 0,

and the curvature of the Lagrangian is 𝒦[X] = X + Π(B̃XR̃ + R̃XB̃).  The systems of small problems are factorised
(``.dense``), those of larger ones solved by conjugate gradients, in single precision from a size on.

*The system by conjugate gradients.*  Eliminating X from  𝒦X − F′*dZ = r,  F′X + W dZ W = c  leaves

    (F′ 𝒦⁻¹ F′* + W·W) dZ = c − F′𝒦⁻¹r,      𝒦[X] = X + Π(B̃XR̃ + R̃XB̃),

whose condition number, after a diagonal preconditioner in the basis V of W = V Diag(t) Vᵀ, does not grow as
μ → 0.  It is solved by conjugate gradients with a polynomial p(𝒦) ≈ 𝒦⁻¹ (``numerics.krylov``), and
X = p(𝒦)(r + F′*dZ) is summed along the way.  All of it is linear in small quantities, so single precision is enough:
an error of 10⁻⁷ relative to the direction, while the points themselves are in double.

In the basis V write Ẑ = VᵀdZV.  Pairs (i, j) with tᵢ and tⱼ both large belong to slack directions: there
the term tᵢtⱼ dominates, the equation is solved by its diagonal, and conjugate gradients run on the r rows of the
active directions only (1.1 to 1.2 times faster at d = 200 and 300).  A symmetric Ẑ without its slack block is held as
an r×d array Y:

    Ẑ = H_a + H_aᵀ,   H = Y with the r×r part halved,   ⟨Ẑ, Ẑ′⟩ = Σ w ∘ Y ∘ Y′,  w = 1 on the r×r part, else 2.

For a full D and 𝒬(M) = Diag(α∘diag M) + βM the maps need only diagonals of congruences:

    N = βZ + Cᵀ Diag(α ∘ diag(C⁻ᵀZC⁻¹)) C,   F′[X] = (1 − β(λᵢ+λⱼ)) ∘ X − C⁻¹ Diag(α ∘ diag(C(ΛX + XΛ)Cᵀ)) C⁻ᵀ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_solvers.interior.dense import FactorisedSystem, Unknowns
from stepsize_solvers.interior.driver import InequalityPoint, IterativeSystem, Rules, ScaledStep, Solution, Step, System
from stepsize_solvers.interior.frame import Frame, FullFrame, Scaling
from stepsize_solvers.numerics.krylov import (
    ChebyshevInverse,
    Preconditioned,
    chebyshev_inverse,
    images_of_solution,
    within_scaled_tolerance,
)
from stepsize_solvers.numerics.linalg import (
    Array,
    cholesky,
    congruence_diagonal,
    log_det_from_cholesky,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
    weighted_gram,
)
from stepsize_solvers.numerics.progress import Bounds, Work
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Family, Matrix, Pattern, add_to_diagonal

# A new point needs all products of complementarity above this fraction of μ.
_NEIGHBOURHOOD = 1e-3
# With factorised systems, correctors are cheap and steps go to 1 − μ of the boundary near the end: 5.0 steps on average
# on 415 random problems (d ≤ 18, all maps) with two correctors, 5.9 with one.
_FACTORISED = Rules(predictor=True, step_fraction=0.99, to_boundary=True, correctors=2, shortest=1e-3)
# Points are in single precision while μ is above the first: products with C and C⁻¹ lose the second of 6·10⁻⁸, and
# 10⁻⁵ is left.
_DOUBLE_BELOW = 0.01
_SINGLE_CONDITION = 300.0
_BY_GRADIENTS = Rules(predictor=False, step_fraction=0.97)
# Directions with tᵢ and tⱼ above this are slack: T_ij = tᵢtⱼ is above 3, the rest of the Schur complement below 1.
_SLACK = 3.0**0.5
# Restricting to active rows only pays when it saves a fifth of the work.
_WORTHWHILE = 0.8
# Floor of the preconditioner's estimate of diag(F′𝒦⁻¹F′*), which vanishes where 1 = β(λᵢ + λⱼ).
_DIAGONAL_FLOOR = 0.003
# A typical diagonal of F′𝒦⁻¹F′*; T is above 3 in the slack block, so a guess is enough.
_TYPICAL = 0.1
_MOST_ITERATIONS = 400


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
    def is_single(self) -> bool:
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
        return self.frame.single if X.dtype == np.float32 else self.frame

    def residual_bend(self, X: Array, dZ: Array) -> Array:
        """Π(X² − (B̃X dR̃ + dR̃XB̃)), dR̃ = Cᵀ𝒬*(dZ)C."""
        frame = self._frame(X)
        return frame.project(X @ X.T) - frame.cross(X, frame.coimage(dZ))


@dataclass(frozen=True, eq=False)
class Condition:
    """The problem; family: 𝒬 and B with a = 1; unknowns: of factorised systems, None for conjugate gradients.

    single: whether systems are in single precision.
    """

    family: Family
    pattern: Pattern
    tol: float
    work: Work
    unknowns: Unknowns | None = None
    single: bool = False

    @property
    def rules(self) -> Rules:
        return _BY_GRADIENTS if self.unknowns is None else _FACTORISED

    def frame(self, D: Matrix) -> Frame | None:
        """The basis of D, or None when D is not numerically positive definite."""
        return Frame.of(self.family, self.pattern, D, graded=self.family.Q.is_graded)

    def point(self, D: Matrix, Z: Matrix) -> ConditionPoint | None:
        """The pair in its basis, or None when D is not numerically positive definite."""
        frame = self.frame(D)
        return None if frame is None else ConditionPoint.of(frame, frame.squeezed(Z))

    def in_single(self, p: ConditionPoint) -> ConditionPoint:
        """A first point in single precision, where that is enough.

        C must be well conditioned and 𝒬 the cheap map: for the others C⁻¹𝒬(C·Cᵀ)C⁻ᵀ cancels more.
        """
        if not self.single or self.family.Q.diagonal_plus_scaled is None:
            return p
        Zt: Any = p.Zt.astype(np.float32)
        single = ConditionPoint.of(p.frame.single, Zt)
        return p if p.frame.condition > _SINGLE_CONDITION or single.scaling_or_none is None else single

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
        elif d > Sizes.LANCZOS and p.scaling_or_none is not None:
            smallest = smallest_eigenvalue_from_factor(p.scaling_or_none.factor)
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
        if self.unknowns is not None:
            return 0.2 * self.tol
        norm = p.residual_norm
        return max(0.2 * self.tol, min(p.scaling.mu, min(1.0, norm) * min(1.0, 3.0 * norm)))

    def system(self, p: ConditionPoint) -> System[Any] | None:
        if self.unknowns is not None:
            return FactorisedSystem.of(p, p.frame, p.Rt, self.unknowns, identity=True)
        dtype = np.float32 if self.single else np.float64
        schur = SchurSystem.of(p.frame, p.Rt, p.scaling, dtype, self.work)
        return None if schur is None else IterativeSystem(p, schur, single=self.single)

    def moved(self, p: ConditionPoint, step: Step | ScaledStep, length: float) -> ConditionPoint | None:
        moved, L = p.frame.moved(length * step.X), cholesky(p.Zt + length * step.dZ)
        if moved is None or L is None:
            return None
        frame, T = moved
        half = lower_transposed_product(L, T)
        new: ConditionPoint | None = ConditionPoint.of(frame, half.T.dot(half))
        if new is not None and new.is_single and float(np.vdot(new.Ft, new.Zt)) < _DOUBLE_BELOW * new.d:
            new = self.point(new.D, new.Z)
        return None if new is None or new.scaling_or_none is None else new

    def is_near_path(self, p: ConditionPoint, before: ConditionPoint) -> bool:
        return float(p.scaling.v[0]) ** 2 > _NEIGHBOURHOOD * p.scaling.mu

    def fallback(self, p: ConditionPoint) -> tuple[Condition, ConditionPoint] | None:
        """Conjugate gradients after factorised systems, but for given blocks; double precision after single."""
        if self.unknowns is not None:
            return None if self.pattern.W is not None else (replace(self, unknowns=None), p)
        double = self.point(p.D, p.Z) if p.is_single else p
        if not self.single or double is None or double.scaling_or_none is None:
            return None
        return replace(self, single=False), double

    def details(self, p: ConditionPoint) -> dict[str, str]:
        return {"mu": f"{p.scaling.mu:.2e}", "residual": f"{p.residual_norm:.2e}", "cg": str(self.work.cg_iterations)}


# ---------------------------------------------------------------- its Schur complement


@dataclass(frozen=True, eq=False)
class AllRows:
    """F′ and F′* of a frame with any pattern, with the dual side in the basis V; all rows of V are active."""

    frame: Frame
    V: Array

    @property
    def r(self) -> int:
        return self.frame.d

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        """F′*[Z] and Z̃ itself in the working basis, for Z given by its rows."""
        Zt = sym(self.V @ Y @ self.V.T)
        return self.frame.coslope(Zt), Zt

    def forward(self, X: Array) -> Array:
        """The rows of Vᵀ F′[X] V."""
        return np.asarray(self.V.T @ self.frame.slope(X) @ self.V)


@dataclass(frozen=True, eq=False)
class ActiveRows:
    """F′ and F′* for a full D with r active rows of the basis V; E: C⁻ᵀV."""

    frame: FullFrame
    V: Array
    E: Array
    r: int

    @staticmethod
    def of(frame: FullFrame, V: Array, r: int) -> ActiveRows:
        return ActiveRows(frame, V, frame.E @ V, r)

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        r, frame, C, E, V = self.r, self.frame, self.frame.C, self.E, self.V
        H = Y.copy()
        H[:, :r] *= 0.5  # Ẑ = H_a + H_aᵀ
        half = V[:, :r] @ (H @ V.T)
        Zt = half + half.T
        split = frame.Q.diagonal_plus_scaled
        if split is not None:
            diagonal = 2.0 * np.einsum("ij,ij->i", E[:, :r], E @ H.T)
            N = weighted_gram(C, (split.alpha * diagonal).astype(Y.dtype, copy=False))
            return (1.0 - split.beta * frame.sums) * Zt - frame.sums * N, Zt
        half = E[:, :r] @ (H @ E.T)
        N = C.T @ frame.Q.adjoint(half + half.T).astype(Y.dtype, copy=False) @ C
        return Zt - frame.sums * N, Zt

    def forward(self, X: Array) -> Array:
        r, frame, C, E, V = self.r, self.frame, self.frame.C, self.E, self.V
        M = frame.sums * X
        split = frame.Q.diagonal_plus_scaled
        if split is None:
            image = frame.Q.apply(C @ M @ C.T).astype(X.dtype, copy=False)
            return np.asarray((V[:, :r].T @ X) @ V - (E[:, :r].T @ image) @ E)
        weights = (split.alpha * congruence_diagonal(C, M)).astype(X.dtype, copy=False)
        return np.asarray((V[:, :r].T @ (X - split.beta * M)) @ V - (E[:, :r].T * weights) @ E)


@dataclass(frozen=True, eq=False)
class SchurComplement(Preconditioned):
    """Y ↦ rows of F′ p(𝒦) F′*[Y] + T ∘ Y, with its diagonal preconditioner and inner product."""

    jacobian: AllRows | ActiveRows
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array

    def images(self, Y: Array) -> tuple[Array, Array, Array]:
        """The rows, and on the way to them X = p(𝒦)F′*[Y] and Z̃, which are linear in Y too."""
        image, Zt = self.jacobian.adjoint(Y)
        X = self.inverse(image)
        rows = self.jacobian.forward(X)
        rows += self.T * Y
        return rows, X, Zt

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def inner(self, Y: Array, Y2: Array) -> float:
        """⟨Ẑ, Ẑ′⟩ = 2⟨Y, Y′⟩ minus what the r×r part counts too much."""
        r = self.jacobian.r
        if Y.shape[1] == r:
            return float(np.vdot(Y, Y2))
        return 2.0 * float(np.vdot(Y, Y2)) - float(np.vdot(Y[:, :r], Y2[:, :r]))


@dataclass(frozen=True, eq=False)
class Curvature:
    """𝒦[X] = X + Π(B̃XR̃ + R̃XB̃)."""

    frame: Frame
    Rt: Array

    def __call__(self, X: Array) -> Array:
        out = self.frame.cross(X, self.Rt)
        out += X
        return out

    def diagonal(self) -> Array:
        """1 + b̃ᵢr̃ⱼ + b̃ⱼr̃ᵢ, b̃ and r̃ the diagonals of B̃ and R̃."""
        outer = np.multiply.outer(self.frame.diagonal, np.diagonal(self.Rt))
        return np.asarray(1.0 + outer + outer.T)


@dataclass(frozen=True, eq=False)
class SchurSystem:
    """The linearised optimality conditions at one point, ready to be solved for several right-hand sides."""

    all_rows: AllRows
    schur: SchurComplement
    slack_diagonal: Array
    V: Array
    work: Work

    @staticmethod
    def of(frame: Frame, Rt: Matrix, scaling: Scaling, dtype: type[np.floating[Any]], work: Work) -> SchurSystem | None:
        """Operators, preconditioner and Chebyshev inverse at a point; None where rounding leaves 𝒦 or W indefinite."""
        pattern, (t, V), d = frame.pattern, scaling.spectrum, frame.d
        r = max(1, int(np.searchsorted(t, _SLACK)))
        if d <= Sizes.ALL_ROWS or r > _WORTHWHILE * d or not isinstance(frame, FullFrame):
            r = d
        V = V.astype(dtype, copy=False)
        frame = frame.single if dtype == np.float32 else frame
        curvature = Curvature(frame, Rt.astype(dtype, copy=False))
        J = curvature.diagonal()
        if not (t[0] > 0.0 and J.min() > 0.0):
            return None
        mask = None if pattern.is_full else pattern.blocks(np.ones((d, d)))
        inverse = chebyshev_inverse(curvature, J, mask)
        full = AllRows(frame, V)
        active = ActiveRows.of(frame, V, r) if r < d and isinstance(frame, FullFrame) else full
        T = np.multiply.outer(t[:r], t).astype(dtype)
        diagonal = _schur_diagonal(frame, J, mask, V, r) + dtype(_DIAGONAL_FLOOR)
        schur = SchurComplement(active, inverse, T, 1.0 / (diagonal + T))
        slack = np.multiply.outer(t[r:], t[r:]) + _TYPICAL
        return SchurSystem(full, schur, slack.astype(dtype), V, work)

    def solve(self, r: Array, c: Array, tolerance: float) -> Solution:
        """X, in the precision of the system, and dZ with 𝒦X − F′*dZ = r and F′X + W dZ W = c."""
        V, rows, inverse = self.V, self.schur.jacobian.r, self.schur.inverse
        d, dtype = len(V), V.dtype
        rhs: Array = r.astype(dtype, copy=False)
        c = V.T @ c.astype(dtype, copy=False) @ V
        dZt = np.zeros((d, d), dtype)
        if rows < d:
            Y = np.zeros((d, d), dtype)
            Y[rows:, rows:] = c[rows:, rows:] / self.slack_diagonal
            image, dZt = self.all_rows.adjoint(Y)
            rhs = rhs + image
        X, schur = inverse(rhs), self.schur
        finished = within_scaled_tolerance(schur, schur.T, tolerance)
        b = c[:rows] - schur.jacobian.forward(X)
        # The images of the answer cost nothing beside those of the directions that it is made of.
        X, dZt = images_of_solution(schur.images, schur, b, (X, dZt), finished, _MOST_ITERATIONS, self.work)
        return sym(X), dZt, 0.0


def _schur_diagonal(frame: Frame, J: Array, mask: Array | None, V: Array, r: int) -> Array:
    """Rows of diag(F′𝒦⁻¹F′*) in the basis V with the effective β for 𝒬: Σ_kl V_ki² V_lj² (1 − β(b̃_k+b̃_l))²/J_kl."""
    b = frame.diagonal
    h = (1.0 - frame.Q.effective_beta * (b[:, None] + b)) ** 2 / J
    if mask is not None:
        h *= mask
    V2 = V * V
    return np.asarray((V2[:, :r].T @ h) @ V2)
