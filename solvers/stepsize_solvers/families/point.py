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

*A metric as objective.*  log det(aX − XBX) = log det X + log det F₀, F₀ = aI − EᵀXE with EEᵀ = B: the left-hand side of
a plain linear family.  It enters as a family whose multiplier is F₀⁻¹ at every point, and from
log det F₀⁺ ≤ ⟨Z₀, F₀⁺⟩ − d − log det Z₀ the bound becomes log det F₀ − log det Q + 2d log((tr Q + Σ⟨Z_j, F_j⟩)/2d),
where j = 0 is among the terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics.linalg import cholesky, sym
from stepsize_solvers.programs import DiagonalPlusScaled, Family, Matrix, Program, Stack


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
    def frame(self) -> Stack:
        """V Diag(s)^{1/4}, so that G_j = frame frameᵀ."""
        return np.asarray(self.V * np.sqrt(np.sqrt(self.s))[:, None, :])

    @cached_property
    def G(self) -> Stack:
        """W_j⁻¹ with W_j Z_j W_j = F_j, that is V Diag(√s) Vᵀ."""
        return np.asarray(self.frame @ self.frame.mT)

    @cached_property
    def Lam(self) -> Matrix | None:
        """Λ; None for ½I."""
        B = self.family.B
        return None if B is None else sym(self.C.T @ B @ self.C)

    @cached_property
    def Hs(self) -> Stack:
        """The columns of H_j frame_j as rows, shape (n, r, d)."""
        return np.asarray(self.frame.mT @ self.family.H.mT)

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
    """X = C Cᵀ with every family's state; value: the objective, log det X or log det(aX − XBX)."""

    C: Matrix
    log_det: float
    value: float
    states: tuple[FamilyState, ...]

    @property
    def X(self) -> Matrix:
        return sym(self.C @ self.C.T)

    @property
    def duals(self) -> tuple[Stack, ...]:
        return tuple(state.Z for state in self.states)


@dataclass(frozen=True, eq=False)
class Model:
    """Evaluation of a program at points of its pattern.

    program: maximise log det X, with every family; metric: whether the first of them is F₀ of a metric.
    """

    program: Program
    metric: bool = False

    @staticmethod
    def of(program: Program) -> Model:
        """The model of a program; a metric must be aX − XBX, for log det."""
        if program.objective is None:
            return Model(program)
        left = program.objective.left
        assert left.B is not None  # the native solver takes no other metric beside families
        w, V = np.linalg.eigh(left.B)
        E = V * np.sqrt(np.maximum(w, 0.0))
        first = Family(DiagonalPlusScaled.identity(program.d), None, E[None], c=left.a)
        return Model(replace(program, families=(first, *program.families), objective=None), metric=True)

    @property
    def size(self) -> int:
        """The sizes of all inequalities together; F₀ of a metric is none."""
        return self.program.total_size - (self.program.d if self.metric else 0)

    def bounded(self, p: Point) -> tuple[FamilyState, ...]:
        """The states of the inequalities, without F₀ of a metric."""
        return p.states[int(self.metric) :]

    def gradient(self, p: Point) -> Matrix:
        """The gradient of the objective in the basis C: I, minus what F₀ takes from it."""
        out = np.eye(self.program.d)
        if self.metric:
            out -= p.states[0].minus_adjoint(p.states[0].Z)
        return self.project(out)

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
            log_det += 2.0 * float(np.sum(np.log(np.diagonal(K))))
            C[s, s] = K if B is None else K @ np.linalg.eigh(sym(K.T @ B[s, s] @ K))[1]
        return C, log_det

    def project(self, Y: Matrix) -> Matrix:
        """The orthogonal projection of a direction in the basis C onto those that keep the pattern."""
        pattern = self.program.pattern
        if pattern.W is None:
            return pattern.blocks(Y)
        out = np.zeros_like(Y)
        for s in pattern.slices:
            np.einsum("ii->i", out[s, s])[:] = np.trace(Y[s, s]) / (s.stop - s.start)
        return out

    def values(self, C: Matrix, log_det: float) -> list[Stack] | None:
        """The F_j of every family at X = C Cᵀ; None when a number overflows."""
        program, X = self.program, C @ C.T
        out = [program.constant(f, log_det) * np.eye(f.rows) - f.images(X) for f in program.families]
        return out if all(np.all(np.isfinite(F)) for F in out) else None

    def point(self, X: Matrix, duals: tuple[Stack, ...] | None, mu: float = 1.0) -> Point | None:
        """The point (X, Z), with Z_j = μ F_j⁻¹ where no multipliers are given; None when it is not interior.

        The multiplier of a metric's F₀ is F₀⁻¹, whatever is given.
        """
        basis = self.basis(X)
        if basis is None:
            return None
        C, log_det = basis
        values = self.values(C, log_det)
        if values is None:
            return None
        program, states = self.program, []
        for i, (family, F) in enumerate(zip(program.families, values, strict=True)):
            first = self.metric and i == 0
            Z = None if duals is None or first else duals[i]
            slope = family.e * program.tau(log_det) / program.root if family.e else 0.0
            state = FamilyState.of(family, C, F, Z, 1.0 if first else mu, slope)
            if state is None:
                return None
            states.append(state)
        value = log_det
        if self.metric:
            # F₀⁻¹ = V Vᵀ with V the inverse of a triangular matrix
            value -= 2.0 * float(np.sum(np.log(np.diagonal(states[0].V[0]))))
        return Point(C, log_det, value, tuple(states))

    def upper_bound(self, p: Point) -> float:
        """The bound on the objective that the multipliers prove, up to rounding; +inf when they prove nothing."""
        d = self.program.d
        terms = 2 * d if self.metric else d
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
        return p.value - 2.0 * float(np.sum(np.log(np.diagonal(K)))) + terms * math.log(energy / terms)


def congruence(factors: Stack, M: Matrix) -> Stack:
    """H_jᵀ M H_j for a stack of factors."""
    return sym(factors.mT @ (M @ factors))


def trace(Z: Stack) -> float:
    """Σ_j tr Z_j."""
    return float(np.einsum("nii->", Z))
