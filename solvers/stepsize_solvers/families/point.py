"""A primal-dual point (X, Z) of a max-det program, in the basis in which X is the identity.

Take C with C Cᵀ = X, block by block of the pattern, rotated so that CᵀB̄C is diagonal in each block for the sum B̄ of
the B of quadratic families.  A step is X⁺ = C(I + Y)Cᵀ.  With Λ = CᵀBC for a quadratic family and Λ = ½I for a linear
one, both kinds have the same derivative

    F_j′(Y) = c′ tr(Y) I − H_jᵀ 𝒬(C(YΛ + ΛY)Cᵀ) H_j,      c′ = eτ/root,
    F′*(Z) = c′ tr(Z) I − (ΛR̃ + R̃Λ),                      R̃ = Cᵀ 𝒬*(Σ_j H_j Z_j H_jᵀ) C,

and the second derivative of −⟨Z, F⟩ is ΛYR̃ + R̃YΛ (quadratic families) plus c′ tr(Z) (Y − tr(Y) I/root).

*Bound.*  F is concave, so for any Z_j ⪰ 0 every feasible C(I + Y)Cᵀ has

    log det(I + Y) ≤ log det(I + Y) + Σ⟨Z_j, F_j + F_j′(Y)⟩ = log det(I + Y) − ⟨Q, Y⟩ + Σ⟨Z_j, F_j⟩,   Q = −F′*(Z).

Its maximum over Y, and then over a common factor of the Z_j, is −log det Q + d log((tr Q + Σ⟨Z_j, F_j⟩)/d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics.linalg import cholesky, log_det_from_cholesky, sym
from stepsize_solvers.programs import Family, Matrix, Program, Stack


@dataclass(frozen=True, eq=False)
class FamilyState:
    """One family at X = C Cᵀ: the values F_j, the multipliers Z_j, and the Nesterov–Todd scaling.

    F, Z: shape (n, r, r); V, s: F_j⁻¹ = V Vᵀ and Z_j = V Diag(s) Vᵀ; slope: c′.
    """

    family: Family
    C: Matrix
    F: Stack
    Z: Stack
    V: Stack
    s: Matrix
    slope: float

    @staticmethod
    def of(family: Family, C: Matrix, F: Stack, Z: Stack | None, mu: float, slope: float) -> FamilyState | None:
        """The state with Z_j = μF_j⁻¹ where no multipliers are given; None when F or Z is not positive definite."""
        try:
            K = np.linalg.cholesky(F)
        except np.linalg.LinAlgError:
            return None
        V: Stack = np.asarray(np.linalg.inv(K), dtype=np.float64).mT
        if Z is None:
            return FamilyState(family, C, F, np.asarray(mu * (V @ V.mT)), V, np.full(F.shape[:2], mu), slope)
        s, U = np.linalg.eigh(sym(K.mT @ Z @ K))
        return FamilyState(family, C, F, Z, V @ U, s, slope) if np.min(s) > 0.0 else None

    @cached_property
    def inverse(self) -> Stack:
        """F_j⁻¹."""
        return np.asarray(self.V @ self.V.mT)

    @cached_property
    def half(self) -> Stack:
        """V Diag(s)^{1/4}, so that G_j = half halfᵀ."""
        return np.asarray(self.V * np.sqrt(np.sqrt(self.s))[:, None, :])

    @cached_property
    def G(self) -> Stack:
        """W_j⁻¹ with W_j Z_j W_j = F_j, that is V Diag(√s) Vᵀ."""
        return np.asarray(self.half @ self.half.mT)

    @cached_property
    def Lam(self) -> Matrix | None:
        """Λ; None for ½I."""
        B = self.family.B
        return None if B is None else sym(self.C.T @ B @ self.C)

    @cached_property
    def Hs(self) -> Stack:
        """The columns of H_j half_j as rows, shape (n, r, d)."""
        return np.asarray(self.half.mT @ self.family.H.mT)

    @cached_property
    def P(self) -> Stack:
        """P_j = H_j G_j H_jᵀ, shape (n, d, d)."""
        return np.asarray(self.Hs.mT @ self.Hs)

    @cached_property
    def P2(self) -> Matrix:
        """Σ_j H_j G_j² H_jᵀ."""
        columns = (self.family.H @ self.G).mT.reshape(-1, len(self.C))
        return np.asarray(columns.T @ columns)

    @cached_property
    def Rt(self) -> Matrix:
        """R̃ of Z."""
        return self._image(self.Z)

    def _image(self, Z: Stack) -> Matrix:
        """Cᵀ 𝒬*(Σ_j H_j Z_j H_jᵀ) C."""
        H, d = self.family.H, len(self.C)
        total = (H @ Z).mT.reshape(-1, d).T @ H.mT.reshape(-1, d)
        return sym(self.C.T @ self.family.Q.adjoint(sym(total)) @ self.C)

    def twice(self, Y: Matrix) -> Matrix:
        """ΛY + YΛ."""
        if self.Lam is None:
            return Y
        half = self.Lam @ Y
        return np.asarray(half + half.T)

    def minus_adjoint(self, Z: Stack) -> Matrix:
        """−F′*(Z) = ΛR̃ + R̃Λ − c′ tr(Z) I."""
        out = self.twice(self.Rt if Z is self.Z else self._image(Z))
        if self.slope:
            out = out - (self.slope * trace(Z)) * np.eye(len(self.C))
        return out

    def derivative(self, Y: Matrix) -> Stack:
        """F_j′(Y) for every j."""
        out = -congruence(self.family.H, self.family.Q.apply(sym(self.C @ self.twice(Y) @ self.C.T)))
        if self.slope:
            np.einsum("nii->ni", out)[:] += self.slope * np.trace(Y)
        return out


@dataclass(frozen=True, eq=False)
class Point:
    """X = C Cᵀ with every family's state."""

    C: Matrix
    log_det: float
    states: tuple[FamilyState, ...]

    @property
    def X(self) -> Matrix:
        return sym(self.C @ self.C.T)

    @property
    def duals(self) -> tuple[Stack, ...]:
        return tuple(state.Z for state in self.states)


@dataclass(frozen=True, eq=False)
class Model:
    """Evaluation of a program, maximise log det X, at points of its pattern."""

    program: Program

    def basis(self, X: Matrix) -> tuple[Matrix, float] | None:
        """C and log det X, or None when X is not numerically positive definite."""
        program = self.program
        quadratic = [f.B for f in program.families if f.B is not None]
        B = sum(quadratic[1:], quadratic[0]) if quadratic else None
        C = np.zeros_like(X)
        log_det = 0.0
        for s in program.pattern.slices:
            K = cholesky(X[s, s])
            if K is None:
                return None
            log_det += log_det_from_cholesky(K)
            C[s, s] = K if B is None else K @ np.linalg.eigh(sym(K.T @ B[s, s] @ K))[1]
        return C, log_det

    def project(self, Y: Matrix) -> Matrix:
        """The orthogonal projection of a direction in the basis C onto those that keep the pattern."""
        return self.program.pattern.projected(Y)

    def values(self, C: Matrix, log_det: float) -> list[Stack] | None:
        """The F_j of every family at X = C Cᵀ; None when a number overflows."""
        program, X = self.program, C @ C.T
        out = [program.constant(f, log_det) * np.eye(f.rows) - f.images(X) for f in program.families]
        return out if all(np.all(np.isfinite(F)) for F in out) else None

    def point(self, X: Matrix, duals: tuple[Stack, ...] | None, mu: float = 1.0) -> Point | None:
        """The point (X, Z), with Z_j = μ F_j⁻¹ where no multipliers are given; None when it is not interior."""
        basis = self.basis(X)
        if basis is None:
            return None
        C, log_det = basis
        values = self.values(C, log_det)
        if values is None:
            return None
        program, states = self.program, []
        for i, (family, F) in enumerate(zip(program.families, values, strict=True)):
            slope = family.e * program.tau(log_det) / program.root if family.e else 0.0
            state = FamilyState.of(family, C, F, None if duals is None else duals[i], mu, slope)
            if state is None:
                return None
            states.append(state)
        return Point(C, log_det, tuple(states))

    def upper_bound(self, p: Point) -> float:
        """The bound on the objective that the multipliers prove, up to rounding; +inf when they prove nothing."""
        d = self.program.d
        Q = np.zeros((d, d))
        energy = 0.0
        for state in p.states:
            Q += state.minus_adjoint(state.Z)
            energy += float(np.sum(state.s))
        Q = self.project(Q)
        energy += float(np.trace(Q))
        K = cholesky(Q)
        if K is None or not energy > 0.0:
            return math.inf
        return p.log_det - log_det_from_cholesky(K) + d * math.log(energy / d)


def congruence(factors: Stack, M: Matrix) -> Stack:
    """H_jᵀ M H_j for a stack of factors."""
    return sym(factors.mT @ (M @ factors))


def trace(Z: Stack) -> float:
    """Σ_j tr Z_j."""
    return float(np.einsum("nii->", Z))
