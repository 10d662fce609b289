"""The matrix G(D) = aD − 𝒬(DBD) around one D, written in a basis C with CCᵀ = D that has the pattern of D.

For a = 1 it is the left-hand side F of the condition F(D) ⪰ 0, for a = 2 the descent metric.

A change of D is CXCᵀ; what comes from G is multiplied by C⁻¹ from both sides, what comes from its inverse by C:

    G̃ = aI − C⁻¹𝒬(CB̃Cᵀ)C⁻ᵀ,   B̃ = CᵀBC,   Ỹ = G̃⁻¹,   R̃ = Cᵀ𝒬*(Y)C,
    G′[X] = aX − C⁻¹𝒬(C(XB̃ + B̃X)Cᵀ)C⁻ᵀ,      G′*[Z] = Π(aZ − (B̃N + NB̃)),  N = Cᵀ𝒬*(C⁻ᵀZC⁻¹)C,
    G̃(I + X) = G̃ + G′[X] − C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ      (exact: G is quadratic),

Π the projection onto the pattern in this basis: the diagonal blocks, or multiples of the identity in each block for
D = Diag(γᵢWᵢ).  C is rotated so that the diagonal blocks of B̃ are diagonal: for a full D, B̃ is.

A step D⁺ = C(I + X)Cᵀ changes the basis to C⁺ = CKU with KKᵀ = I + X and a rotation U that makes the blocks of KᵀB̃K
diagonal: one Cholesky factorisation and one eigendecomposition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    Gram,
    cholesky,
    congruence_diagonal,
    eigh,
    log_det_from_cholesky,
    lower_product,
    lower_solve,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, add_to_diagonal

_GRADED = 1e10  # see is_graded


@dataclass(frozen=True, eq=False)
class Frame:
    """The basis of one D and the maps in it, in the precision of its arrays.
    Products are written ``A.dot(B)``: for small matrices that call takes half the time of @.

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
    def of(left: Family, pattern: Pattern, D: Matrix, rotated: bool = True, graded: bool = False) -> Frame | None:
        """The frame of D, or None when D is not numerically positive definite; ``rotated`` as said above.

        ``graded``: keep all of B̃ for a full D, too.
        """
        K = cholesky(D)
        if K is None or left.B is None:
            return None
        C, C_inverse = K, triangular_inverse(K)
        Bt: Array = sym(K.T.dot(left.B.dot(K)))
        if rotated and (pattern.is_full or (pattern.W is None and max(pattern.sizes) > 1)):
            U, Bt = _rotation(pattern, Bt, graded)
            C, C_inverse = K.dot(U), U.T.dot(C_inverse)
        return Frame(left.Q, left.a, pattern, Gram(C), Gram(C_inverse.T), Bt, log_det_from_cholesky(K))

    def moved(self, X: Array) -> tuple[Frame, Array] | None:
        """Return the rotated frame of D⁺ = C(I + X)Cᵀ and T = C⁻¹C⁺; None unless I + X ≻ 0."""
        M = X.astype(self.C.A.dtype)
        add_to_diagonal(M, 1.0)
        K = cholesky(M)
        if K is None:
            return None
        if self.Bt.ndim == 1:
            root = K.T * np.sqrt(self.Bt)
            U, Bt = _rotation(self.pattern, root.dot(root.T))
        else:
            U, Bt = _rotation(self.pattern, sym(K.T @ self.Bt @ K), graded=True)
        T = lower_product(K, U)
        C, E = Gram(self.C.A.dot(T)), Gram(lower_solve(K, self.E.A.T).T.dot(U))
        return Frame(self.Q, self.a, self.pattern, C, E, Bt, self.log_det + log_det_from_cholesky(K)), T

    @property
    def d(self) -> int:
        return int(self.C.A.shape[0])

    def lowered(self) -> Frame:
        """The frame in single precision."""
        C, E, Bt = (part.astype(np.float32) for part in (self.C.A, self.E.A, self.Bt))
        return replace(self, C=Gram(C), E=Gram(E), Bt=Bt)

    @property
    def condition(self) -> float:
        """‖C‖‖C⁻¹‖/d in the norm of Frobenius: 1 for an orthogonal C."""
        return math.sqrt(float(np.vdot(self.C.A, self.C.A)) * float(np.vdot(self.E.A, self.E.A))) / self.d

    @cached_property
    def low(self) -> Frame:
        """The frame in single precision."""
        return self if self.C.A.dtype == np.float32 else self.lowered()

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
        return sym(E.T.dot(self.Q.apply(C.dot(M).dot(C.T)).astype(M.dtype, copy=False)).dot(E))

    def coimage(self, Z: Array) -> Array:
        """Cᵀ𝒬*(C⁻ᵀZC⁻¹)C."""
        split, C, E = self.Q.diagonal_plus_scaled, self.C.A, self.E.A
        if split is not None:
            return _plus(self.C((split.alpha * congruence_diagonal(E, Z)).astype(Z.dtype)), split.beta, Z)
        return sym(C.T.dot(self.Q.adjoint(E.dot(Z).dot(E.T)).astype(Z.dtype, copy=False)).dot(C))

    @property
    def D(self) -> Matrix:
        C = self.C.A.astype(np.float64, copy=False)
        return np.asarray(C.dot(C.T))

    @cached_property
    def quadratic(self) -> Array:
        """C⁻¹𝒬(DBD)C⁻ᵀ; diag(DBD)_j = Σ_k λ_k C_jk² for a diagonal B̃."""
        split = self.Q.diagonal_plus_scaled
        if self.Bt.ndim == 2:
            return self.image(self.Bt)
        if split is None:
            return sym(self.E.A.T.dot(self.Q.apply((self.C.A * self.Bt).dot(self.C.A.T))).dot(self.E.A))
        out = self.E((split.alpha * ((self.C.A * self.C.A) @ self.Bt)).astype(self.Bt.dtype, copy=False))
        add_to_diagonal(out, split.beta * self.Bt)
        return out

    @property
    def value(self) -> Array:
        """G̃."""
        G = -self.quadratic
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
        if self.Bt.ndim == 1 and self.Q.diagonal_plus_scaled is None:
            CX, E = self.C.A.dot(X), self.E.A
            image = self.Q.apply((CX * self.Bt).dot(CX.T)).astype(X.dtype, copy=False)
            return np.asarray(-E.T.dot(image).dot(E))
        if self.Bt.ndim == 1:
            root = X * np.sqrt(self.Bt)
            return -self.image(root.dot(root.T))  # half a product
        return -self.image(sym(X @ self.left(X)))

    def cross(self, X: Array, N: Array) -> Array:
        """Π(B̃XN + NXB̃)."""
        M = self.left(X).dot(N)
        return self.project(M + M.T)

    def stretched(self, E: Matrix) -> Matrix:
        """C⁻¹EC⁻ᵀ."""
        return sym(self.E.A.T @ E @ self.E.A)

    def dual(self, Yt: Array) -> Matrix:
        """C⁻ᵀỸC⁻¹."""
        E = self.E.A.astype(np.float64, copy=False)
        return sym(E.dot(Yt).dot(E.T))

    def change(self, X: Array) -> Matrix:
        """CXCᵀ."""
        return sym(self.C.A @ X @ self.C.A.T)

    def seen_from(self, P: Array, beta: float) -> SeenFrom:
        """X ↦ PᵀG′[X]P, for a frame with a matrix B̃."""
        C, T = self.C.A, P.T
        S = 0.5 * self.a * T - beta * (T @ self.Bt.T)
        return SeenFrom(self.Q, beta, T, S, C, C @ self.Bt.T, Gram(self.E.A @ P))


@dataclass(frozen=True, eq=False)
class SeenFrom:
    """X ↦ PᵀG′[X]P, G′ of a frame in the basis P, without Π.

    With T = Pᵀ, S = (a/2)T − βTB̃ᵀ, b = CB̃ᵀ and u = C⁻ᵀP,

        PᵀG′[X]P = TXSᵀ + SXTᵀ − uᵀ 𝒬_β(CXbᵀ + bXCᵀ) u,      𝒬_β(M) = 𝒬(M) − βM,

    and the cheap map has 𝒬_β(M) = Diag(α∘diag M), β being its own.
    """

    Q: PositiveMap
    beta: float
    T: Matrix
    S: Matrix
    C: Matrix
    b: Matrix
    u: Gram

    def turned(self, weights: Array, factors: Matrix) -> tuple[Matrix, SeenFrom, Matrix]:
        """U, the same for PU, and the diagonal of Y ↦ Ĝ(factors∘Ĝ*Y) there, Ĝ[X] = TXSᵀ + SXTᵀ the part of β.

        U is a rotation in which that is almost diagonal: it would be if factors were weights·weightsᵀ and the rows of S
        multiples of those of T, as they are for β = 0.  Then every sum of squares and products of T and S is diagonal
        there; this one is definite, and gives S the sign that most of its rows have.
        """
        root = np.sqrt(weights)
        T, S = self.T * root, self.S * root
        product = T @ S.T
        size = float(np.linalg.norm(T)) * float(np.linalg.norm(S))
        correlation = float(np.trace(product)) / size if size > 0.0 else 0.0
        U = eigh(sym(T @ T.T + S @ S.T + (2.0 * correlation) * product))[1]
        T, S = U.T @ self.T, U.T @ self.S
        # Left out of entry (a, b), a ≠ b, are sums over T_ai T_bi or T_ai S_bi: they have both signs and would cost d⁴.
        half, both = (T * T) @ factors @ (S * S).T, T * S
        diagonal = half + half.T + 2.0 * (both @ factors @ both.T)
        return U, replace(self, T=T, S=S, u=Gram(self.u.A @ U)), diagonal

    def slope(self, X: Matrix) -> Matrix:
        """PᵀG′[X]P."""
        half, split, u = self.T @ (X @ self.S.T), self.Q.diagonal_plus_scaled, self.u.A
        out, CX = half + half.T, self.C @ X
        if split is not None:
            out -= self.u(2.0 * split.alpha * np.einsum("ij,ij->i", CX, self.b))
            return np.asarray(out)
        M = CX @ self.b.T
        M = M + M.T
        return np.asarray(out - sym(u.T @ (self.Q.apply(M) - self.beta * M) @ u))

    def coslope(self, Y: Matrix) -> Matrix:
        """The adjoint: G′*[PYPᵀ], without Π."""
        half, split, u = self.T.T @ (Y @ self.S), self.Q.diagonal_plus_scaled, self.u.A
        if split is not None:
            half -= (self.C.T * (split.alpha * congruence_diagonal(u, Y))) @ self.b
        else:
            N = sym(u @ Y @ u.T)
            half -= self.C.T @ ((self.Q.adjoint(N) - self.beta * N) @ self.b)
        return np.asarray(half + half.T)


_LARGEST = 1e300  # of an entry: the sum of two is a float


def curvature_loss(frame: Frame, Rt: Matrix, g: Matrix) -> float:
    """½⟨g, K⁻¹g⟩; infinite when B or R is not numerically positive definite."""
    Bt = frame.Bt
    if Bt.ndim == 1:
        root = 1.0 / np.sqrt(Bt)
        scale = np.multiply.outer(root, root)
        with np.errstate(over="ignore"):
            R, g = Rt * scale, g * scale
    else:
        K = cholesky(Bt)
        if K is None:
            return math.inf
        R, g = (lower_solve(K, lower_solve(K, M).T) for M in (Rt, g))
    if not np.abs(R).max() < _LARGEST:
        return math.inf
    rho, U = eigh(sym(R))
    if not rho[0] > 0.0:
        return math.inf
    g = U.T @ g @ U
    with np.errstate(over="ignore"):  # infinite is what it is then
        return 0.5 * float(np.sum(g * g / (rho[:, None] + rho)))


def is_graded(Q: PositiveMap) -> bool:
    """Whether second moments differ so much (a coordinate kept with probability 10⁻¹⁰, say) that rotations lose digits.

    The diagonal of a B that is scaled for D near one has the same ratio, and eigenvectors of B, or of a D that is so
    graded, are right to rounding of the largest entries only.
    """
    lowest, highest = Q.action_range
    return bool(highest > _GRADED * lowest)


def effective_beta(Q: PositiveMap) -> float:
    """A scalar β with 𝒬(M) ≈ βM on average: the mean of what an entrywise map multiplies by off the diagonal.

    For other maps ⟨M, 𝒬(M)⟩/⟨M, M⟩ at a fixed random M.
    """
    split = Q.diagonal_plus_scaled
    if split is not None:
        return split.beta
    P, d = Q.hadamard_matrix, Q.d
    if P is not None and d > 1:
        return float(P.sum() - np.trace(P)) / (d * (d - 1))
    M = np.random.default_rng(1).standard_normal((d, d))
    M += M.T
    return float(np.vdot(M, Q.apply(M)) / np.vdot(M, M))


def _rotation(pattern: Pattern, Bt: Array, graded: bool = False) -> tuple[Array, Array]:
    """U with the pattern that makes the diagonal blocks of UᵀB̃U diagonal, and that matrix.

    For a full D its diagonal alone, unless the map is graded and rounding off the diagonal counts.
    """
    if pattern.is_full and not graded:
        lam, U = eigh(Bt)
        # B ⪰ 0 has no negative eigenvalue; rounding may produce one of the relative size of the unit roundoff.
        return U, np.maximum(lam, np.finfo(lam.dtype).tiny)
    U = np.eye(len(Bt))
    for s in pattern.slices:
        if s.stop - s.start > 1:
            U[s, s] = eigh(Bt[s, s])[1]
    return U, sym(U.T @ Bt @ U)


def _plus(out: Array, factor: float, M: Array) -> Array:
    out += np.asarray(factor, dtype=M.dtype) * M
    return out
