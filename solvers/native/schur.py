"""The dual Schur complement of the Newton system, in the eigenbasis of the Nesterov–Todd scaling.

Eliminating dD from  K dD − F′*dZ = r₁,  F′dD + W dZ W = r₂  leaves

    (F′ K⁻¹ F′* + W·W) dZ = r₂ − F′K⁻¹r₁,

whose condition number, after a diagonal preconditioner in the basis V of W = V Diag(t) Vᵀ, does not grow as
μ → 0.  In that basis write Ẑ = VᵀdZ̃V.  Pairs (i, j) with tᵢ and tⱼ both large belong to slack directions: there
the term tᵢtⱼ dominates, the equation is solved by its diagonal, and conjugate gradients run on the r rows of the
active directions only.  A symmetric Ẑ without its slack block is held as an r×d array Y:

    Ẑ = H_a + H_aᵀ,   H = Y with the r×r part halved,   ⟨Ẑ, Ẑ′⟩ = Σ w ∘ Y ∘ Y′,  w = 1 on the r×r part, else 2.

For 𝒬(M) = Diag(α∘diag M) + βM the maps need only diagonals of congruences:

    N = βZ + Cᵀ Diag(α ∘ diag(C⁻ᵀZC⁻¹)) C,   F′[X] = (1 − β(λᵢ+λⱼ)) ∘ X − C⁻¹ Diag(α ∘ diag(C(ΛX + XΛ)Cᵀ)) C⁻ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.maps import DiagonalPlusScaled, PositiveMap
from solvers.native.inverse import ChebyshevInverse

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Jacobian:
    """F′ and F′* in the working basis, with the dual side in the rows of the basis V (r rows; r = d is all of it)."""

    Q: PositiveMap
    C: Array
    E: Array  # C⁻ᵀ V
    V: Array
    lam2: Array  # λᵢ + λⱼ
    r: int

    def halve(self, Y: Array) -> Array:
        """H of the rows Y, so that Ẑ = H_a + H_aᵀ."""
        H = Y.copy()
        H[:, : self.r] *= 0.5
        return H

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        """F′*[Z] and Z̃ itself in the working basis, for Z given by its rows."""
        r = self.r
        H = self.halve(Y)
        A = self.V[:, :r] @ (H @ self.V.T)
        Zt = A + A.T
        if isinstance(self.Q, DiagonalPlusScaled):
            diagonal = np.einsum("ij,ij->i", self.E[:, :r], self.E @ H.T)
            weights = (2.0 * self.Q.alpha * diagonal).astype(Y.dtype, copy=False)
            N = (self.C.T * weights) @ self.C
            if self.Q.beta != 0.0:
                N += self.Q.beta * Zt
        else:
            A = self.E[:, :r] @ (H @ self.E.T)
            N = self.C.T @ self.Q.adjoint(A + A.T).astype(Y.dtype, copy=False) @ self.C
        N *= self.lam2
        return Zt - N, Zt

    def forward(self, X: Array) -> Array:
        """The rows of Vᵀ F′[X] V."""
        r = self.r
        M = self.lam2 * X
        if isinstance(self.Q, DiagonalPlusScaled):
            diagonal = np.einsum("ij,ij->i", self.C @ M, self.C)
            weights = (self.Q.alpha * diagonal).astype(X.dtype, copy=False)
            U = X - self.Q.beta * M if self.Q.beta != 0.0 else X
            out = (self.V[:, :r].T @ U) @ self.V
            out -= (self.E[:, :r].T * weights) @ self.E
            return np.asarray(out)
        image = self.Q.apply(self.C @ M @ self.C.T).astype(X.dtype, copy=False)
        out = (self.V[:, :r].T @ X) @ self.V
        out -= (self.E[:, :r].T @ image) @ self.E
        return out


@dataclass(frozen=True, eq=False)
class SchurComplement:
    """Y ↦ rows of F′ p(K) F′*[Y] + T ∘ Y, with its diagonal preconditioner and inner product."""

    jacobian: Jacobian
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array
    weights: Array

    def __call__(self, Y: Array) -> Array:
        out = self.jacobian.forward(self.inverse(self.jacobian.adjoint(Y)[0]))
        out += self.T * Y
        return out

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, self.weights * Y2))


def effective_beta(Q: PositiveMap) -> float:
    """A scalar β with 𝒬(M) ≈ βM on average over symmetric matrices: ⟨M, 𝒬(M)⟩/⟨M, M⟩ at a fixed random M."""
    if isinstance(Q, DiagonalPlusScaled):
        return Q.beta
    M = np.random.default_rng(1).standard_normal((Q.d, Q.d))
    M += M.T
    return float(np.vdot(M, Q.apply(M)) / np.vdot(M, M))


def schur_diagonal(lam2: Array, J: Array, V: Array, r: int, beta: float) -> Array:
    """Rows of diag(F′K⁻¹F′*) in the basis V with 𝒬 replaced by β: Σ_kl V_ki² V_lj² (1 − β(λ_k+λ_l))²/J_kl."""
    h = 1.0 - beta * lam2
    h *= h
    h /= J
    V2 = V * V
    return np.asarray((V2[:, :r].T @ h) @ V2)
