"""The system of two coupled inequalities, F = D − 𝒬(DBD) ⪰ 0 and D ⪰ tE, and its preconditioner.

In bases with P_iᵀW_iP_i = I the system for Ŷ_i, dZ_i = P_iŶ_iP_iᵀ, is

    [ ĜK⁻¹Ĝ* + I    ĜK⁻¹   ]
    [ K⁻¹Ĝ*         K⁻¹ + I ],

Ĝ = P₁ᵀG′[Q·Qᵀ]P₁ from the basis Q = P₂^−ᵀ of D.  As the gap closes, K⁻¹ is large where both are tight, and the blocks
all but cancel: a preconditioner that treats them one by one takes thousands of iterations.  Let κ be the diagonal of
K⁻¹ in the basis P₂ and h = κ/(1 + κ).  The unknowns (Ŷ₁, V) with Ŷ₂ = V − hĜ*Ŷ₁ decouple the system with κ in the place
of K⁻¹, into ĜhĜ* + I and 1 + κ, and with K⁻¹ itself nothing large cancels in them:

    N = V + (1 − h)Ĝ*Ŷ₁  and  R = K⁻¹N  give  (Ŷ₁ + Ĝ[(1 − h)R − hŶ₂],  R + Ŷ₂).

For an entrywise map Ĝ = Ĝ_β − 𝒰𝒱*, 𝒰w = uᵀDiag(w)u and ⟨𝒱_j, X̂⟩ = α_j diag(qX̂bᵀ + bX̂qᵀ)_j.  Ĝ_βhĜ_β* + I is almost
diagonal in a suitable basis P₁, near 1/p.  From 𝒰(𝒱*h𝒱)𝒰* come d large eigenvalues; of 𝒱*h𝒱 its diagonal s is enough.
The inverse of 1/p + 𝒰Diag(s)𝒰* takes a d×d system with

    Φ = 𝒰*p𝒰,    Φ_ij = Σ_ab p_ab u_ia u_ja u_ib u_jb = Σ_q λ_q (u Diag(v_q) uᵀ)_ij²

for p = Σ_q λ_q v_qv_qᵀ, which has few terms.  For rand-1 at d = 30 the spectrum of the preconditioned system is [¼, 4]
from the first step to the last; without the part of 𝒰 it ends at 4·10⁴.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_solvers.metric.frame import Between, Frame
from stepsize_solvers.numerics import (
    Array,
    PatternCurvature,
    Scaling,
    cholesky,
    congruence_diagonal,
    eigh,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Matrix, Stack

# Φ is as exact as what it must cancel, this part of the smallest 1/(s_jΦ_jj): many small terms add up.
_CANCELLATION = 3e-4


@dataclass(frozen=True, eq=False)
class Coupled:
    """The operator and its preconditioner for the unknowns (Ŷ₁, V).

    G: Ĝ; P: P₂; h and rest: h and 1 − h; p as above; inverse: (Diag(1/s) + Φ)⁻¹, None where there is no such part.
    """

    G: Between
    K: PatternCurvature
    P: Array
    h: Array
    rest: Array
    p: Array
    inverse: Array | None

    def lowered(self) -> Coupled:
        """The same in single precision."""
        P, h, rest, p = (part.astype(np.float32) for part in (self.P, self.h, self.rest, self.p))
        inverse = None if self.inverse is None else self.inverse.astype(np.float32)
        return Coupled(self.G.lowered(), self.K, P, h, rest, p, inverse)

    def __call__(self, Y: Stack) -> Stack:
        first, image = Y[0], self.G.coslope(Y[0])
        second = Y[1] - self.h * image
        N = sym(self.P @ (Y[1] + self.rest * image) @ self.P.T)
        R = self.P.T @ self.K.solve(N) @ self.P
        return np.stack([first + self.G.slope(self.rest * R - self.h * second), R + second])

    def precondition(self, Y: Stack) -> Stack:
        first = Y[0]
        if self.inverse is not None:
            first = first - self.G.u(self.inverse @ congruence_diagonal(self.G.u.A, self.p * first))
        return np.stack([self.p * first, self.rest * Y[1]])

    def reduced(self, b: Stack) -> Stack:
        """The right-hand side b of the equations for Ŷ as one for (Ŷ₁, V)."""
        return np.stack([b[0] - self.G.slope(self.h * b[1]), b[1]])

    def unreduced(self, b: Stack) -> Stack:
        """The b of a reduced one."""
        return np.stack([b[0] + self.G.slope(self.h * b[1]), b[1]])

    def restored(self, Y: Stack) -> Stack:
        """Ŷ of (Ŷ₁, V)."""
        return np.stack([Y[0], Y[1] - self.h * self.G.coslope(Y[0])])


def coupled(frame: Frame, K: PatternCurvature, beta: float, scaling: Scaling) -> tuple[Stack, Coupled]:
    """The bases P_i, and the system in them.  The preconditioner leaves Π out."""
    first, second = np.linalg.inv(scaling.G).swapaxes(1, 2)
    # K⁻¹ is near to a multiple of Diag(ρ^−½) X Diag(ρ^−½), and diagonal where that is.
    U = eigh(sym((second.T / np.sqrt(K.rho)) @ second))[1]
    second, Q = second @ U, scaling.G[1] @ U
    squares = second**2
    kappa = squares.T @ K.inverse_sums @ squares
    h = kappa / (1.0 + kappa)
    U, G, diagonal = frame.between(Q, first, beta).turned(np.sqrt(np.diagonal(h)), h)
    p = 1.0 / (1.0 + diagonal)
    inverse = _inverse(G, frame.Q.diagonal_action - beta, h, p) if frame.Q.is_entrywise else None
    return np.stack([first @ U, second]), Coupled(G, K, second, h, 1.0 / (1.0 + kappa), p, inverse)


def _inverse(G: Between, alpha: Array, h: Matrix, p: Matrix) -> Matrix | None:
    """(Diag(1/s) + Φ)⁻¹, or None when rounding has made it indefinite."""
    q, b, u = G.q, G.b, G.u.A
    qb = q * b
    s = 2.0 * alpha**2 * (np.einsum("ij,ij->i", q**2 @ h, b**2) + np.einsum("ij,ij->i", qb @ h, qb))
    squares = u * u
    large = float((s * np.einsum("ij,ij->i", squares @ p, squares)).max())
    root = np.sqrt(np.diagonal(p))
    lam, V = eigh(p / np.multiply.outer(root, root))
    used = np.abs(lam) * max(large, 1.0) > _CANCELLATION * lam[-1]
    Phi = np.zeros_like(p)
    for weight, v in zip(lam[used], V.T[used], strict=True):
        M = (u * (root * v)) @ u.T
        M *= M
        Phi += weight * M
    r = np.sqrt(s)
    K = cholesky(np.eye(len(r)) + r[:, None] * sym(Phi) * r)
    if K is None:
        return None
    half = triangular_inverse(K) * r
    return np.asarray(half.T @ half)
