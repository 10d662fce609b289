"""The dual Schur complement of the Newton system, in the eigenbasis of the Nesterov–Todd scaling.

Eliminating dD from  𝒦 dD − F′*dZ = r₁,  F′dD + W dZ W = r₂  leaves

    (F′ 𝒦⁻¹ F′* + W·W) dZ = r₂ − F′𝒦⁻¹r₁,

whose condition number, after a diagonal preconditioner in the basis V of W = V Diag(t) Vᵀ, does not grow as
μ → 0.  In that basis write Ẑ = VᵀdZ̃V.  Pairs (i, j) with tᵢ and tⱼ both large belong to slack directions: there
the term tᵢtⱼ dominates, the equation is solved by its diagonal, and conjugate gradients run on the r rows of the
active directions only.  A symmetric Ẑ without its slack block is held as an r×d array Y:

    Ẑ = H_a + H_aᵀ,   H = Y with the r×r part halved,   ⟨Ẑ, Ẑ′⟩ = Σ w ∘ Y ∘ Y′,  w = 1 on the r×r part, else 2.

When all rows are active, H is the triangle of Y with a halved diagonal, so that products with it cost half.

For 𝒬(M) = Diag(α∘diag M) + βM the maps need only diagonals of congruences:

    N = βZ + Cᵀ Diag(α ∘ diag(C⁻ᵀZC⁻¹)) C,   F′[X] = (1 − β(λᵢ+λⱼ)) ∘ X − C⁻¹ Diag(α ∘ diag(C(ΛX + XΛ)Cᵀ)) C⁻ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_solvers.numerics import Array, congruence_diagonal, half_triangle, inner, upper_product
from stepsize_solvers.programs import PositiveMap
from stepsize_solvers.single.inverse import ChebyshevInverse


@dataclass(frozen=True, eq=False)
class Gram:
    """Aᵀ Diag(w) A for many w of any signs.

    With κ = max(0, −min w) it is SᵀS − κ AᵀA, S = Diag(w + κ)^½ A: a symmetric product costs half of a general one,
    and AᵀA is formed once.  The rounding error is that of the general product, relative to max |w|.
    """

    A: Array

    @cached_property
    def plain(self) -> Array:
        return np.asarray(self.A.T @ self.A)

    def __call__(self, w: Array) -> Array:
        shift = max(0.0, -float(np.min(w)))
        S = np.sqrt(w + shift)[:, None] * self.A
        out = S.T @ S
        if shift > 0.0:
            out -= shift * self.plain
        return np.asarray(out)


@dataclass(frozen=True, eq=False)
class Jacobian:
    """F′ and F′* in the working basis, with the dual side in the rows of the basis V (r rows; r = d is all of it)."""

    Q: PositiveMap
    C: Gram
    E: Gram  # C⁻ᵀ V
    V: Array
    lam2: Array  # λᵢ + λⱼ
    r: int

    @cached_property
    def damping(self) -> Array:
        """1 − β(λᵢ + λⱼ), what F′ and F′* multiply by for 𝒬(M) = Diag(α∘diag M) + βM, apart from α."""
        split = self.Q.diagonal_plus_scaled
        assert split is not None  # the callers have looked
        return np.asarray(1.0 - split.beta * self.lam2)

    def halve(self, Y: Array) -> Array:
        """H of the rows Y, so that Ẑ = H_a + H_aᵀ."""
        H = Y.copy()
        H[:, : self.r] *= 0.5
        return H

    def _rows(self, A: Array, H: Array) -> Array:
        """A H_a Aᵀ, half of the congruence A Ẑ Aᵀ; H is a half triangle when all rows are active."""
        if self.r == A.shape[0]:
            return np.asarray(upper_product(H, A, right=True) @ A.T)
        return np.asarray(A[:, : self.r] @ (H @ A.T))

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        """F′*[Z] and Z̃ itself in the working basis, for Z given by its rows."""
        r, C, E, V = self.r, self.C.A, self.E.A, self.V
        H = half_triangle(Y) if r == V.shape[0] else self.halve(Y)
        A = self._rows(V, H)
        Zt = A + A.T
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            if r == V.shape[0]:
                half = np.einsum("ij,ij->i", upper_product(H, E.T).T, E)
            else:
                half = np.einsum("ij,ij->i", E[:, :r], E @ H.T)
            N = self.C((2.0 * split.alpha * half).astype(Y.dtype, copy=False))
            N *= self.lam2
            return self.damping * Zt - N, Zt
        A = self._rows(E, H)
        N = C.T @ self.Q.adjoint(A + A.T).astype(Y.dtype, copy=False) @ C
        N *= self.lam2
        return Zt - N, Zt

    def forward(self, X: Array) -> Array:
        """The rows of Vᵀ F′[X] V."""
        r, C, E, V = self.r, self.C.A, self.E.A, self.V
        M = self.lam2 * X
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            weights = (split.alpha * congruence_diagonal(C, M)).astype(X.dtype, copy=False)
            U = self.damping * X
            if r == V.shape[0]:
                A = V.T @ upper_product(half_triangle(U), V)
                out = A + A.T
                out -= self.E(weights)
            else:
                out = (V[:, :r].T @ U) @ V
                out -= (E[:, :r].T * weights) @ E
            return np.asarray(out)
        image = self.Q.apply(C @ M @ C.T).astype(X.dtype, copy=False)
        out = (V[:, :r].T @ X) @ V
        out -= (E[:, :r].T @ image) @ E
        return np.asarray(out)


class Images:
    """X = X₀ + p(𝒦)F′*[y] and Z̃ = Z̃₀ + Σ y, summed while conjugate gradients build y from their directions.

    Both are linear in y and each direction's images are formed anyway to apply the Schur complement, so the Newton
    direction costs nothing once y is known.
    """

    def __init__(self, X: Array, Zt: Array) -> None:
        self.X = X
        self.Zt = Zt
        self._last = (X, Zt)

    def of_direction(self, X: Array, Zt: Array) -> None:
        """Note the images of the direction to which the complement is being applied."""
        self._last = (X, Zt)

    def add_step(self, step: float, direction: Array) -> None:
        """Add the images of ``step`` times that direction, which is now part of y."""
        del direction
        X, Zt = self._last
        self.X += step * X
        self.Zt += step * Zt


@dataclass(frozen=True, eq=False)
class SchurComplement:
    """Y ↦ rows of F′ p(𝒦) F′*[Y] + T ∘ Y, with its diagonal preconditioner and inner product."""

    jacobian: Jacobian
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array
    images: Images | None = None

    def __call__(self, Y: Array) -> Array:
        image, Zt = self.jacobian.adjoint(Y)
        X = self.inverse(image)
        if self.images is not None:
            self.images.of_direction(X, Zt)
        out = self.jacobian.forward(X)
        out += self.T * Y
        return out

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def inner(self, Y: Array, Y2: Array) -> float:
        """⟨Ẑ, Ẑ′⟩ = 2⟨Y, Y′⟩ minus what the r×r part counts too much."""
        r = self.jacobian.r
        if Y.shape[1] == r:
            return float(np.vdot(Y, Y2))
        return 2.0 * float(np.vdot(Y, Y2)) - float(np.vdot(Y[:, :r], Y2[:, :r]))


def effective_beta(Q: PositiveMap) -> Any:
    """A scalar β with 𝒬(M) ≈ βM on average: the mean of what an entrywise map multiplies by off the diagonal.

    For other maps ⟨M, 𝒬(M)⟩/⟨M, M⟩ at a fixed random M; for the maps of a stack an array that multiplies it.
    """
    split = Q.diagonal_plus_scaled
    if split is not None:
        return split.beta
    P, d = Q.hadamard_matrix, Q.d
    if P is not None and d > 1:
        return (inner(P, np.ones_like(P)) - inner(P, np.zeros_like(P) + np.eye(d))) / (d * (d - 1))
    M = np.random.default_rng(1).standard_normal((d, d))
    M += M.T
    return inner(M, Q.apply(M)) / inner(M, M)


def schur_diagonal(lam2: Array, J: Array, V: Array, r: int, beta: float) -> Array:
    """Rows of diag(F′𝒦⁻¹F′*) in the basis V with 𝒬 replaced by β: Σ_kl V_ki² V_lj² (1 − β(λ_k+λ_l))²/J_kl."""
    h = 1.0 - beta * lam2
    h *= h
    h /= J
    V2 = V * V
    return np.asarray((V2[:, :r].T @ h) @ V2)
