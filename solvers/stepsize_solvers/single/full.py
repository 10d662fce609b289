"""The program with one constraint 𝒬(D B D) ⪯ D and a full matrix D, in the working basis.

    F̃ = I − C⁻¹𝒬(CΛCᵀ)C⁻ᵀ,      r₁ = I + Z̃ − (ΛR̃ + R̃Λ),
    F̃(I + aX) = F̃ + a F′[X] − a² C⁻¹𝒬(C XΛX Cᵀ)C⁻ᵀ      (exact: the constraint is quadratic).

A step D⁺ = C(I + X)Cᵀ changes the basis to C⁺ = C K U with KKᵀ = I + X and KᵀΛK = U Λ⁺ Uᵀ: one Cholesky
factorisation and one eigendecomposition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_solvers.numerics import (
    SIZE_FOR_LANCZOS,
    Array,
    Bounds,
    Counters,
    Scaling,
    cholesky,
    congruence_diagonal,
    eigh,
    log_det_from_cholesky,
    lower_product,
    lower_solve,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Matrix, PositiveMap, add_to_diagonal
from stepsize_solvers.single.inverse import Interval
from stepsize_solvers.single.newton import NewtonSystem, newton_system
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.schur import effective_beta

# Products with C and C⁻¹ in single precision lose this factor of 6·10⁻⁸: 10⁻⁵ is left, a thousandth of the smallest μ
# for which they are used.
_SINGLE_CONDITION = 300.0


def _signed_gram(A: Array, weights: Array) -> Array:
    """A Diag(w) Aᵀ in the precision of A; for w ≥ 0 as S Sᵀ, which BLAS computes at half the cost of a product."""
    w = weights.astype(A.dtype, copy=False)
    if w.min() >= 0.0:
        S = A * np.sqrt(w)
        return np.asarray(S @ S.T)
    return np.asarray((A * w) @ A.T)


@dataclass(frozen=True, eq=False)
class FullModel:
    """maximise log det D subject to 𝒬(D B D) ⪯ D, D a full matrix."""

    B: Matrix
    Q: PositiveMap
    beta: float  # the scalar that stands for 𝒬 in the preconditioner

    @staticmethod
    def of(B: Matrix, Q: PositiveMap) -> FullModel:
        return FullModel(B, Q, effective_beta(Q))

    @property
    def d(self) -> int:
        return int(self.B.shape[0])

    @property
    def single_precision(self) -> bool:
        """Directions may be computed in float32."""
        return True

    # ---------------------------------------------------------------- quantities in the working basis

    def _constraint(self, C: Array, C_inverse: Array, lam: Array) -> Array:
        """F̃ = I − C⁻¹ 𝒬(C Λ Cᵀ) C⁻ᵀ; the cheap map needs one product, diag(D B D)_j = Σ_k λ_k C_jk²."""
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            F = -_signed_gram(C_inverse, split.alpha * ((C * C) @ lam))
            add_to_diagonal(F, 1.0 - split.beta * lam)
            return sym(F)
        F = -(C_inverse @ self.Q.apply((C * lam) @ C.T).astype(C.dtype, copy=False) @ C_inverse.T)
        add_to_diagonal(F, 1.0)
        return sym(F)

    def adjoint(self, C: Array, C_inverse: Array, Zt: Array) -> Array:
        """R̃ = Cᵀ 𝒬*(C⁻ᵀ Z̃ C⁻¹) C, in the precision of its arguments."""
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            R = _signed_gram(C.T, split.alpha * congruence_diagonal(C_inverse.T, Zt))
            R += split.beta * Zt
            return sym(R)
        return sym(C.T @ self.Q.adjoint(C_inverse.T @ Zt @ C_inverse).astype(Zt.dtype, copy=False) @ C)

    def assemble(self, C: Array, C_inverse: Array, lam: Array, log_det: float, Zt: Array) -> Point:
        """The point of a working basis, its inverse and λ (changed where rounding made it negative), and of Z̃."""
        # B ⪰ 0 has no negative eigenvalue; rounding may produce one of the relative size of the unit roundoff.
        np.maximum(lam, np.finfo(lam.dtype).tiny, out=lam)
        R = self.adjoint(C, C_inverse, Zt)
        return Point(C, C_inverse, lam, log_det, Zt, R, self._constraint(C, C_inverse, lam))

    def point(self, D: Matrix, Z: Matrix) -> Point | None:
        """The point (D, Z) in its working basis, or None when D is not numerically positive definite."""
        K = cholesky(D)
        if K is None:
            return None
        lam, U = eigh(sym(K.T @ (self.B @ K)))
        C = K @ U
        C_inverse = U.T @ triangular_inverse(K)
        return self.assemble(C, C_inverse, lam, log_det_from_cholesky(K), sym(C.T @ Z @ C))

    def with_dual(self, p: Point, Zt: Matrix) -> Point:
        """The point with the dual Z̃ = ``Zt`` in the same basis."""
        return replace(p, Zt=Zt, Rt=self.adjoint(p.C, p.C_inverse, Zt))

    def lowered(self, p: Point) -> Point | None:
        """The point in single precision; None when C is too badly conditioned for it, or 𝒬 is not the cheap map.

        For the others C⁻¹𝒬(C·Cᵀ)C⁻ᵀ cancels more: on finite sketches such points cost half as many steps again.
        """
        if self.Q.diagonal_plus_scaled is None:
            return None
        condition = float(np.linalg.norm(p.C)) * float(np.linalg.norm(p.C_inverse)) / p.d
        return p.single() if condition <= _SINGLE_CONDITION else None

    def advance(self, p: Point, X: Array, dZt: Array, to_double: bool = False) -> Point | None:
        """The point (C(I + X)Cᵀ, Z + dZ), dZ̃ = ``dZt`` in the basis of ``p``; None unless I + X ≻ 0 and Z + dZ ≻ 0.

        It has the precision of ``p``; a point in single precision moves on to double if ``to_double``.
        """
        M = X.astype(p.C.dtype)
        add_to_diagonal(M, 1.0)
        K = cholesky(M)
        L = cholesky(p.Zt + dZt)
        if K is None or L is None:
            return None
        if to_double and p.C.dtype == np.float32:
            return self._doubled(p.C.astype(np.float64), K.astype(np.float64), L.astype(np.float64))
        lam, U = eigh(_signed_gram(K.T, p.lam))
        KU = lower_product(K, U)
        half = lower_transposed_product(L, KU)  # Z + dZ = LLᵀ
        C_inverse = U.T @ lower_solve(K, p.C_inverse)
        return self.assemble(p.C @ KU, C_inverse, lam, p.log_det + log_det_from_cholesky(K), half.T @ half)

    def _doubled(self, C: Matrix, K: Matrix, L: Matrix) -> Point:
        """The point D = CKKᵀCᵀ, Z̃ = LLᵀ with all that depends on them computed anew.

        Any C and any Z̃ ≻ 0 make a point, so their rounding to single precision does not matter from here on.
        """
        half_of_D = C @ K
        lam, U = eigh(sym(half_of_D.T @ (self.B @ half_of_D)))
        basis = half_of_D @ U
        half = lower_transposed_product(L, lower_product(K, U))
        log_det = 2.0 * float(np.linalg.slogdet(basis)[1])
        return self.assemble(basis, np.linalg.inv(basis), lam, log_det, half.T @ half)

    # ---------------------------------------------------------------- residuals, path, bounds

    def dual_residual(self, p: Point) -> Array:
        """r₁ = I + Z̃ − (ΛR̃ + R̃Λ)."""
        r = np.asarray(p.Zt - (p.lam[:, None] + p.lam) * p.Rt)
        add_to_diagonal(r, 1.0)
        return r

    def slope(self, p: Point, X: Array) -> Array:
        """F₁ = F′[X] = X − C⁻¹𝒬(C (XΛ + ΛX) Cᵀ)C⁻ᵀ, in the precision of X."""
        C, Ci, lam = p.basis(X.dtype)
        M = (lam[:, None] + lam) * X
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            F1 = _signed_gram(Ci, -split.alpha * congruence_diagonal(C, M))
            M *= split.beta
            F1 -= M
            F1 += X
            return sym(F1)
        return sym(X - Ci @ self.Q.apply(C @ M @ C.T).astype(X.dtype, copy=False) @ Ci.T)

    def bend(self, p: Point, X: Array) -> Array:
        """F₂ = −C⁻¹𝒬(C XΛX Cᵀ)C⁻ᵀ, in the precision of X: F̃(I + aX) = F̃ + aF₁ + a²F₂ exactly."""
        C, Ci, lam = p.basis(X.dtype)
        root = X * np.sqrt(lam)
        M = root @ root.T  # XΛX, symmetric: half a product
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            F2 = _signed_gram(Ci, split.alpha * congruence_diagonal(C, M))
            M *= split.beta
            F2 += M
            return -F2
        return -sym(Ci @ self.Q.apply(C @ M @ C.T).astype(X.dtype, copy=False) @ Ci.T)

    def curvature_of_residual(self, p: Point, X: Array, dZt: Array) -> Array:
        """Second-order part of r₁ along (aX, a dZ):  X² − (ΛX dR̃ + dR̃ XΛ),  dR̃ = Cᵀ𝒬*(dZ)C."""
        C, Ci, lam = p.basis(X.dtype)
        P = (lam[:, None] * X) @ self.adjoint(C, Ci, dZt)
        return np.asarray(X @ X.T - (P + P.T))

    def bounds(self, p: Point, factor: Array | None, near: bool = True) -> Bounds:
        """Repair and upper bound at t·D, t = 1/(1 − λmin(F̃)), and the best multiple of Z; t = 1 unless ``near``.

        The bound of the certificate with the reference D̂ = tD is, after minimising over the factor of Z,
        d log(t² ⟨R̃, Λ⟩/d) − log det(t (ΛR̃ + R̃Λ) − Z̃) + log det D.
        ``factor`` is the Cholesky factor of F̃ if known; with it large sizes use the cheap estimate of λmin.
        """
        d = p.d
        if not near:
            smallest = 0.0
        elif factor is not None and d > SIZE_FOR_LANCZOS:
            smallest = smallest_eigenvalue_from_factor(factor)
        else:
            smallest = smallest_eigenvalue(p.Ft)
        t = 1.0 / (1.0 - smallest)
        lower = p.log_det + d * np.log(t)
        energy = t * t * float(np.diagonal(p.Rt) @ p.lam)
        K = cholesky((t * (p.lam[:, None] + p.lam)) * p.Rt - p.Zt)
        if K is None or not energy > 0.0:
            return Bounds(float(lower), np.inf, t, 1.0)
        upper = d * np.log(energy / d) - log_det_from_cholesky(K) + p.log_det
        return Bounds(float(lower), float(upper), t, d / energy)

    def confirmed(self, p: Point) -> Bounds | None:
        """The bounds computed from D and Z themselves, free of the rounding that the updates of C gathered."""
        d, D, Z = p.d, p.D, p.Z
        K = cholesky(D)
        if K is None:
            return None
        half = D @ self.B
        M = half @ D
        Ft = lower_solve(K, lower_solve(K, D - self.Q.apply(M)).T)
        t = 1.0 / (1.0 - smallest_eigenvalue(sym(Ft)))
        R = self.Q.adjoint(Z)
        slope = R @ half
        energy = t * t * float(np.vdot(R, M))
        lower = float(log_det_from_cholesky(K) + d * np.log(t))
        factor = cholesky(t * (slope + slope.T) - Z)
        if factor is None or not energy > 0.0:
            return Bounds(lower, np.inf, t, 1.0)
        return Bounds(lower, float(d * np.log(energy / d) - log_det_from_cholesky(factor)), t, d / energy)

    def system(
        self,
        p: Point,
        scaling: Scaling,
        dtype: type[np.floating[Any]],
        counters: Counters,
        known: Interval | None = None,
    ) -> NewtonSystem:
        """The Newton system at a point; ``known`` is the spectrum of the preconditioned K, estimated if None."""
        return newton_system(self.Q, self.beta, p, scaling, dtype, counters, known)
