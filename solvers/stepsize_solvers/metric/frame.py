"""The metric G(D) = aD − 𝒬(DBD) around one D, written in a basis C with CCᵀ = D that has the pattern of D.

A change of D is CXCᵀ; what comes from G is multiplied by C⁻¹ from both sides, what comes from its inverse by C:

    G̃ = aI − C⁻¹𝒬(CB̃Cᵀ)C⁻ᵀ,   B̃ = CᵀBC,   Ỹ = G̃⁻¹,   R̃ = Cᵀ𝒬*(Y)C,
    G′[X] = aX − C⁻¹𝒬(C(XB̃ + B̃X)Cᵀ)C⁻ᵀ,      G′*[Z] = Π(aZ − (B̃N + NB̃)),  N = Cᵀ𝒬*(C⁻ᵀZC⁻¹)C,
    G̃(I + X) = G̃ + G′[X] − C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ      (exact: the metric is quadratic),

Π the projection onto the pattern in this basis: the diagonal blocks, or multiples of the identity in each block for
D = Diag(γᵢWᵢ).  C is rotated so that the diagonal blocks of B̃ are diagonal: for a full D, B̃ is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    cholesky,
    congruence_diagonal,
    eigh,
    log_det_from_cholesky,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, add_to_diagonal
from stepsize_solvers.single import Gram


@dataclass(frozen=True, eq=False)
class Frame:
    """The basis of one D and the maps in it, in the precision of its arrays.

    C, E: C and C⁻ᵀ; Bt: the diagonal of B̃ for a full D, otherwise the matrix; log_det: of D.  Another basis, CCᵀ ≠ D,
    has B̃ = CᵀBDC⁻ᵀ, which need not be symmetric; ``value``, ``left`` and ``bend`` are not for it.
    """

    Q: PositiveMap
    a: float
    pattern: Pattern
    C: Gram
    E: Gram
    Bt: Array
    log_det: float

    @staticmethod
    def of(left: Family, pattern: Pattern, D: Matrix, rotated: bool = True) -> Frame | None:
        """The frame of D, or None when D is not numerically positive definite; ``rotated`` as said above."""
        K = cholesky(D)
        if K is None or left.B is None:
            return None
        C, C_inverse = K, triangular_inverse(K)
        Bt: Array = sym(K.T @ (left.B @ K))
        if rotated and pattern.is_full:
            lam, U = eigh(Bt)
            # B ⪰ 0 has no negative eigenvalue; rounding may produce one of the relative size of the unit roundoff.
            C, C_inverse, Bt = K @ U, U.T @ C_inverse, np.maximum(lam, np.finfo(float).tiny)
        elif rotated and max(pattern.sizes) > 1:
            U = np.eye(len(D))
            for s in pattern.slices:
                U[s, s] = eigh(Bt[s, s])[1]
            C, C_inverse, Bt = K @ U, U.T @ C_inverse, sym(U.T @ Bt @ U)
        return Frame(left.Q, left.a, pattern, Gram(C), Gram(C_inverse.T), Bt, log_det_from_cholesky(K))

    @property
    def d(self) -> int:
        return int(self.C.A.shape[0])

    def lowered(self) -> Frame:
        """The frame in single precision."""
        C, E, Bt = (part.astype(np.float32) for part in (self.C.A, self.E.A, self.Bt))
        return replace(self, C=Gram(C), E=Gram(E), Bt=Bt)

    @cached_property
    def diagonal(self) -> Array:
        """diag B̃."""
        return self.Bt if self.Bt.ndim == 1 else np.diagonal(self.Bt)

    @cached_property
    def sums(self) -> Array:
        """λᵢ + λⱼ for a diagonal B̃."""
        return np.asarray(self.Bt[:, None] + self.Bt)

    def project(self, M: Array) -> Array:
        """Π(M)."""
        pattern = self.pattern
        if pattern.is_full:
            return M
        if pattern.W is None:
            return pattern.blocks(M)
        means = [np.full(s.stop - s.start, np.trace(M[s, s]) / (s.stop - s.start)) for s in pattern.slices]
        return np.diag(np.concatenate(means)).astype(M.dtype)

    def left(self, X: Array) -> Array:
        """B̃X."""
        return np.asarray(self.Bt[:, None] * X if self.Bt.ndim == 1 else self.Bt @ X)

    def twice(self, X: Array) -> Array:
        """B̃ᵀX + XB̃ for a symmetric X."""
        if self.Bt.ndim == 1:
            return np.asarray(self.sums * X)
        M = X @ self.Bt
        return np.asarray(M + M.T)

    def cotwice(self, X: Array) -> Array:
        """B̃X + XB̃ᵀ for a symmetric X."""
        if self.Bt.ndim == 1:
            return np.asarray(self.sums * X)
        M = self.Bt @ X
        return np.asarray(M + M.T)

    def image(self, M: Array) -> Array:
        """C⁻¹𝒬(CMCᵀ)C⁻ᵀ; the cheap map needs a diagonal and a symmetric product only."""
        split, C, E = self.Q.diagonal_plus_scaled, self.C.A, self.E.A
        if split is not None:
            return _plus(self.E((split.alpha * congruence_diagonal(C, M)).astype(M.dtype)), split.beta, M)
        return sym(E.T @ self.Q.apply(C @ M @ C.T).astype(M.dtype) @ E)

    def coimage(self, Z: Array) -> Array:
        """Cᵀ𝒬*(C⁻ᵀZC⁻¹)C."""
        split, C, E = self.Q.diagonal_plus_scaled, self.C.A, self.E.A
        if split is not None:
            return _plus(self.C((split.alpha * congruence_diagonal(E, Z)).astype(Z.dtype)), split.beta, Z)
        return sym(C.T @ self.Q.adjoint(E @ Z @ E.T).astype(Z.dtype) @ C)

    @property
    def value(self) -> Array:
        """G̃."""
        G = -self.image(np.diag(self.Bt) if self.Bt.ndim == 1 else self.Bt)
        add_to_diagonal(G, self.a)
        return G

    def slope(self, X: Array) -> Array:
        """G′[X]."""
        return np.asarray(self.a * X - self.image(self.twice(X)))

    def coslope(self, Z: Array) -> Array:
        """G′*[Z]."""
        return self.project(self.a * Z - self.cotwice(self.coimage(Z)))

    def bend(self, X: Array) -> Array:
        """−C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ."""
        return -self.image(sym(X @ self.left(X)))

    def stretched(self, E: Matrix) -> Matrix:
        """C⁻¹EC⁻ᵀ."""
        return sym(self.E.A.T @ E @ self.E.A)

    def dual(self, Yt: Array) -> Matrix:
        """C⁻ᵀỸC⁻¹."""
        return sym(self.E.A @ Yt @ self.E.A.T)

    def change(self, X: Array) -> Matrix:
        """CXCᵀ."""
        return sym(self.C.A @ X @ self.C.A.T)

    def between(self, A: Array, P: Array) -> Between:
        """G′ for X = AX̂Aᵀ, seen as PᵀG′[X]P."""
        split, C = self.Q.diagonal_plus_scaled, self.C.A
        Bt = np.diag(self.Bt) if self.Bt.ndim == 1 else self.Bt
        T, turned = P.T @ A, Bt.T @ A
        S = 0.5 * self.a * T - (0.0 if split is None else split.beta) * (P.T @ turned)
        return Between(self.Q, T, S, C @ A, C @ turned, Gram(self.E.A @ P))


@dataclass(frozen=True, eq=False)
class Between:
    """G′ between two bases of a frame, X = AX̂Aᵀ and PᵀG′[X]P, without Π.

    For 𝒬(M) = Diag(α∘diag M) + βM, with T = PᵀA, S = (a/2)T − βPᵀB̃ᵀA, q = CA, b = CB̃ᵀA and u = C⁻ᵀP,

        PᵀG′[X]P = TX̂Sᵀ + SX̂Tᵀ − uᵀ Diag(α∘diag(qX̂bᵀ + bX̂qᵀ)) u;

    for any other map β is 0 here, and 𝒬 itself takes the place of Diag(α∘diag ·).
    """

    Q: PositiveMap
    T: Array
    S: Array
    q: Array
    b: Array
    u: Gram

    def lowered(self) -> Between:
        """The same in single precision."""
        T, S, q, b, u = (part.astype(np.float32) for part in (self.T, self.S, self.q, self.b, self.u.A))
        return Between(self.Q, T, S, q, b, Gram(u))

    def slope(self, X: Array) -> Array:
        """PᵀG′[AX̂Aᵀ]P."""
        half, split, u = self.T @ (X @ self.S.T), self.Q.diagonal_plus_scaled, self.u.A
        out, qX = half + half.T, self.q @ X
        if split is not None:
            out -= self.u((2.0 * split.alpha * np.einsum("ij,ij->i", qX, self.b)).astype(X.dtype))
            return np.asarray(out)
        M = qX @ self.b.T
        return np.asarray(out - sym(u.T @ self.Q.apply(M + M.T).astype(X.dtype) @ u))

    def coslope(self, Y: Array) -> Array:
        """The adjoint: AᵀG′*[PŶPᵀ]A, without Π."""
        half, split, u = self.T.T @ (Y @ self.S), self.Q.diagonal_plus_scaled, self.u.A
        if split is not None:
            half -= (self.q.T * (split.alpha * congruence_diagonal(u, Y)).astype(Y.dtype)) @ self.b
        else:
            half -= self.q.T @ (self.Q.adjoint(sym(u @ Y @ u.T)).astype(Y.dtype) @ self.b)
        return np.asarray(half + half.T)


def _plus(out: Array, factor: float, M: Array) -> Array:
    out += np.asarray(factor, dtype=M.dtype) * M
    return out
