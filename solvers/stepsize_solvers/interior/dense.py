"""Newton systems formed as matrices and factorised: A = K + F′*(W⁻¹ F′[·] W⁻¹) for a few thousand unknowns.

K X − F′*[dZ] = r and F′[X] + W dZ W = c leave  A X = r + F′*[W⁻¹cW⁻¹],  dZ = W⁻¹(c − F′[X])W⁻¹.  The condition of A
grows like 1/μ, which a direct factorisation bears down to gaps of 10⁻⁹ and conjugate gradients do not.

The unknowns are orthonormal symmetric matrices X_k that span the pattern in the basis of a frame.  With
N_k = P F′[X_k] Pᵀ and PᵀP = W⁻¹,  A_kl = ⟨N_k, N_l⟩ + 2 tr(X_k B̃ X_l R̃).  For a full D the unknowns are coordinates
svec(X) = (X_ii, √2 X_ij), in which X ↦ AXAᵀ is an n×n matrix, written A⊗A, and

    N = (PC⁻¹⊗PC⁻¹) [a(C⊗C) − T (C⊗C) Diag(λᵢ + λⱼ)],      T the matrix of 𝒬,

because dD B D + D B dD = C(XΛ + ΛX)Cᵀ has the coordinates (λᵢ + λⱼ) x_ij in the basis C.  A step costs O(d⁶) operations
in few calls: for small sizes the calls are what counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache, singledispatch
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from stepsize_solvers.interior.driver import InequalityPoint, ScaledStep
from stepsize_solvers.interior.frame import Frame, Scaling
from stepsize_solvers.numerics.linalg import Array, cholesky, smallest_eigenvalue, sym
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    CongruenceSum,
    Indices,
    Matrix,
    Pattern,
    PositiveMap,
    ScaledPlusTrace,
    Stack,
    Vector,
    add_to_diagonal,
)

# A step that is longer than this is cut to 1 anyway; trials of the length of one.
_BEYOND = 1.1
_TRIALS = 2


class Coordinates:
    """Index arrays of svec for one size d.

    rows, columns: the pair (i, j), i ≤ j, of each coordinate, and flat = i·d + j.
    weights: 1 or √2, and their inverses.  position: the coordinate of each entry, d×d.
    pairs: 2uuᵀ, u = ½ on the diagonal and √½ off it, the factor of A_ik A_jl + A_il A_jk in A⊗A.
    The matrix of X ↦ ΛXR + RXΛ is the sum of factors · λ[lam_index] · R.ravel()[R_index] over equal ``places``.
    """

    def __init__(self, d: int) -> None:
        i, j = np.triu_indices(d)
        n, off = int(i.size), i != j
        self.d, self.n = d, n
        self.rows, self.columns, self.flat = i, j, i * d + j
        self.weights, self.inverse_weights = np.where(off, 2.0**0.5, 1.0), np.where(off, 0.5**0.5, 1.0)
        self.position = np.empty((d, d), dtype=np.intp)
        self.position[i, j] = self.position[j, i] = np.arange(n)
        u = np.where(off, 0.5**0.5, 0.5)
        self.pairs = 2.0 * np.multiply.outer(u, u)
        # Row (i, j), column (k, l) has the terms Λ_ik R_jl + Λ_il R_jk + Λ_jk R_il + Λ_jl R_ik; Λ is diagonal.
        terms: list[tuple[Indices, Vector, Indices, Indices]] = []
        for a, b in ((i, j), (j, i)):
            for c, e in ((i, j), (j, i)):
                p, q = np.nonzero(a[:, None] == c)
                terms.append((p * n + q, self.pairs[p, q], a[p], b[p] * d + e[q]))
        places, factors, lam_index, R_index = (np.concatenate(part) for part in zip(*terms, strict=True))
        self.places, self.factors, self.lam_index, self.R_index = places, factors, lam_index, R_index

    def svec(self, M: Matrix) -> Vector:
        """The coordinates of a symmetric matrix."""
        x = M.ravel().take(self.flat)
        x *= self.weights
        return x

    def smat(self, x: Vector) -> Matrix:
        """The symmetric matrix with the given coordinates."""
        return (x * self.inverse_weights).take(self.position)

    def congruence(self, A: Matrix) -> Matrix:
        """A⊗A: the n×n matrix of X ↦ AXAᵀ."""
        first, second = A.take(self.rows, axis=1), A.take(self.columns, axis=1)
        out = first.take(self.rows, axis=0)
        out *= second.take(self.columns, axis=0)
        other = second.take(self.rows, axis=0)
        other *= first.take(self.columns, axis=0)
        out += other
        out *= self.pairs
        return out

    def curvature(self, lam: Vector, R: Matrix) -> Matrix:
        """The n×n matrix of X ↦ ΛXR + RXΛ, Λ = Diag(lam)."""
        terms = lam.take(self.lam_index)
        terms *= R.ravel().take(self.R_index)
        terms *= self.factors
        total: Vector = np.bincount(self.places, terms, self.n * self.n)  # type: ignore[assignment]  # stub: integers
        return total.reshape(self.n, self.n)


@lru_cache(maxsize=32)
def coordinates(d: int) -> Coordinates:
    """The index arrays of size d, made once for each size."""
    return Coordinates(d)


@singledispatch
def map_matrix(Q: PositiveMap, at: Coordinates) -> NDArray[np.float64]:
    """T, the matrix of 𝒬 in svec coordinates: n×n, or its diagonal when 𝒬(M) = P∘M."""
    P = Q.hadamard_matrix
    if P is not None:
        return np.asarray(P.ravel().take(at.flat))
    return np.stack([at.svec(sym(Q.apply(at.smat(e)))) for e in np.eye(at.n)], axis=1)


@map_matrix.register
def _(Q: ScaledPlusTrace, at: Coordinates) -> NDArray[np.float64]:
    trace = np.where(at.rows == at.columns, 1.0, 0.0)
    return Q.a * np.eye(at.n) + Q.b * np.multiply.outer(trace, trace)


@map_matrix.register
def _(Q: CongruenceSum, at: Coordinates) -> NDArray[np.float64]:
    # Σ_r w_r S_ik S_jl for all (ik), (jl) is one product; the entries are those of Σ_r w_r S_r⊗S_r.
    S = Q.matrices.reshape(Q.weights.size, -1)
    products = ((S.T * Q.weights) @ S).reshape((at.d,) * 4)
    i, j = at.rows[:, None], at.columns[:, None]
    return np.asarray(at.pairs * (products[i, at.rows, j, at.columns] + products[i, at.columns, j, at.rows]))


@dataclass(frozen=True, eq=False)
class Rows:
    """The matrices N_k as rows of an array."""

    N: Matrix

    def inner(self, M: Matrix) -> Vector:
        """⟨N_k, M⟩."""
        return np.asarray(self.N.dot(M.ravel()))

    def combined(self, x: Vector) -> Matrix:
        """Σ x_k N_k."""
        d = math.isqrt(self.N.shape[1])
        return np.asarray(x.dot(self.N).reshape(d, d))


@dataclass(frozen=True, eq=False)
class SvecRows(Rows):
    """The same in coordinates svec."""

    at: Coordinates

    def inner(self, M: Matrix) -> Vector:
        return np.asarray(self.N.dot(self.at.svec(M)))

    def combined(self, x: Vector) -> Matrix:
        return self.at.smat(x.dot(self.N))


@dataclass(frozen=True, eq=False)
class DiagonalUnknowns:
    """A diagonal D and 𝒬(M) = P∘M: G′[e_k e_kᵀ] = e_k u_kᵀ + u_k e_kᵀ with the columns u_k of U = (a/2) I − P∘B̃, so

    A = 2 [ Y∘(UᵀYU) + (YU)∘(YU)ᵀ + B̃∘R̃ ],  Y = W⁻¹.
    """

    P: Matrix

    def system(self, frame: Frame, root: Matrix, Rt: Matrix) -> tuple[Matrix, None]:
        """A for W⁻¹ = rootᵀ·root, and the N_k of the other classes, which are not formed here."""
        Y = root.T @ root
        U = -self.P * frame.matrix()
        add_to_diagonal(U, 0.5 * frame.a)
        YU = Y @ U
        return 2.0 * sym(Y * (U.T @ YU) + YU * YU.T) + self.curvature(frame, Rt), None

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        """K alone."""
        return np.asarray(2.0 * sym(frame.matrix() * Rt))

    def vector(self, X: Matrix) -> Vector:
        """⟨X_k, X⟩."""
        return np.diagonal(X)

    def matrix(self, x: Vector) -> Matrix:
        """Σ x_k X_k."""
        return np.diag(x)


@dataclass(frozen=True, eq=False)
class GivenUnknowns:
    """D = Diag(γ₁W₁, …, γ_mW_m): X_k = E_k/√d_k with the identity E_k of block k.  C commutes with it, so that

    √d_k N_k = a P E_k Pᵀ − H 𝒬(E_k S + S E_k) Hᵀ,   S = DBD,   H = PC⁻¹,

    and an entrywise 𝒬 makes H E_k 𝒬(S) Hᵀ and its transpose of the last term: all N_k cost a few products.
    """

    Q: PositiveMap
    pattern: Pattern

    @cached_property
    def roots(self) -> Vector:
        """√d_k."""
        return np.sqrt(self.pattern.sizes)

    @cached_property
    def starts(self) -> list[int]:
        return [s.start for s in self.pattern.slices]

    def system(self, frame: Frame, root: Matrix, Rt: Matrix) -> tuple[Matrix, Rows]:
        H, C, d = root @ frame.E.T, frame.C, frame.d
        S = C @ frame.matrix() @ C.T
        shared = self.Q.apply(S) @ H.T if self.Q.is_entrywise else None
        N = np.empty((len(self.roots), d * d))
        for row, s, size in zip(N, self.pattern.slices, self.roots, strict=True):
            image = H @ self._image(S, s) @ H.T if shared is None else H[:, s] @ shared[s]
            row[:] = (frame.a * root[:, s] @ root[:, s].T - image - image.T).ravel()
            row /= size
        return N @ N.T + self.curvature(frame, Rt), Rows(N)

    def _image(self, S: Matrix, s: slice) -> Matrix:
        """½𝒬(E_k S + S E_k)."""
        rows = np.zeros_like(S)
        rows[s] = S[s]
        return self.Q.apply(sym(rows))

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        sums = np.add.reduceat(np.add.reduceat(frame.matrix() * Rt, self.starts, axis=0), self.starts, axis=1)
        return np.asarray(2.0 * sym(sums) / np.multiply.outer(self.roots, self.roots))

    def vector(self, X: Matrix) -> Vector:
        return np.asarray(np.add.reduceat(np.diagonal(X), self.starts) / self.roots)

    def matrix(self, x: Vector) -> Matrix:
        return np.diag(np.repeat(x / self.roots, self.pattern.sizes))


@dataclass(frozen=True, eq=False)
class SvecUnknowns:
    """A full D in coordinates svec; T: the matrix of 𝒬, or its diagonal."""

    at: Coordinates
    T: Array

    def system(self, frame: Frame, root: Matrix, Rt: Matrix) -> tuple[Matrix, Rows]:
        at, T = self.at, self.T
        J, lam = at.congruence(frame.C), frame.diagonal
        lam2 = lam.take(at.rows) + lam.take(at.columns)
        if T.ndim == 1:
            J *= frame.a - T[:, None] * lam2
        else:
            J = frame.a * J - T @ (J * lam2)
        N = at.congruence(root.dot(frame.E.T)).dot(J)
        A = N.T.dot(N)
        A += self.curvature(frame, Rt)
        return A, SvecRows(N.T, at)

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        return self.at.curvature(frame.diagonal, Rt)

    def vector(self, X: Matrix) -> Vector:
        return self.at.svec(X)

    def matrix(self, x: Vector) -> Matrix:
        return self.at.smat(x)


@dataclass(frozen=True, eq=False)
class ListedUnknowns:
    """Matrices X_k that span free blocks in the basis of a frame, shape (n, d, d); T: 𝒬 in coordinates svec."""

    stack: Stack
    at: Coordinates
    T: Array

    def system(self, frame: Frame, root: Matrix, Rt: Matrix) -> tuple[Matrix, Rows]:
        n, d, _ = self.stack.shape
        XB = (self.stack.reshape(n * d, d) @ frame.matrix()).reshape(n, d, d)
        N = frame.a * _congruence(self.stack, frame.C)
        N -= self.apply(_congruence(XB + XB.swapaxes(1, 2), frame.C))
        N = _congruence(N, root @ frame.E.T).reshape(n, d * d)
        return N @ N.T + self.curvature(frame, Rt), Rows(N)

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        n, d, _ = self.stack.shape
        flat = self.stack.reshape(n * d, d)
        XR = (flat @ Rt).reshape(n, d, d).swapaxes(1, 2).reshape(n, d * d)
        return np.asarray(2.0 * sym((flat @ frame.matrix()).reshape(n, d * d) @ XR.T))

    def apply(self, M: Stack) -> Stack:
        """𝒬 of each matrix of a stack."""
        d, at, T = M.shape[1], self.at, self.T
        if T.ndim == 1:
            return np.asarray(M * T.take(at.position))
        x = (M.reshape(-1, d * d).take(at.flat, axis=1) * at.weights) @ T.T
        return np.asarray((x * at.inverse_weights).take(at.position, axis=1))

    def vector(self, X: Matrix) -> Vector:
        return np.asarray(self.stack.reshape(len(self.stack), -1) @ X.ravel())

    def matrix(self, x: Vector) -> Matrix:
        return np.asarray(np.tensordot(x, self.stack, 1))


# The numbers in which a pattern is written, and A in them.
Unknowns: TypeAlias = DiagonalUnknowns | GivenUnknowns | SvecUnknowns | ListedUnknowns


@lru_cache(maxsize=32)
def _spanning(sizes: tuple[int, ...]) -> Stack:
    """A basis of the block-diagonal matrices."""
    d = sum(sizes)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rows, columns = np.tril_indices(d)
    inside = labels[rows] == labels[columns]
    rows, columns = rows[inside], columns[inside]
    out, k = np.zeros((len(rows), d, d)), np.arange(len(rows))
    out[k, rows, columns] = out[k, columns, rows] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    return out


def listed(Q: PositiveMap, pattern: Pattern, most: float = math.inf) -> Unknowns | None:
    """The unknowns of a factorised system, or None when there are more than ``most`` or arrays would be too large.

    A diagonal and factors of given blocks may have any number.
    """
    P = Q.hadamard_matrix
    if pattern.is_diagonal and not pattern.is_full and P is not None:
        return DiagonalUnknowns(P)
    if pattern.W is not None:
        return GivenUnknowns(Q, pattern)
    if pattern.unknowns > most or pattern.d**4 > Sizes.FACTORISED_FLOATS:
        return None
    at = coordinates(pattern.d)
    T = map_matrix(Q, at)
    return SvecUnknowns(at, T) if pattern.is_full else ListedUnknowns(_spanning(pattern.sizes), at, T)


@dataclass(frozen=True, eq=False)
class FactorisedSystem:
    """The system of a problem with one inequality by the Cholesky factor of A, or of I + A where K has the identity.

    All that comes from F and Z is in the coordinates of the Nesterov–Todd factor G, where both are Diag(v) and W = I.
    rows: the N_k, or None; floor: G⁻¹EG⁻ᵀ of F ⪰ tE, or None.
    """

    p: InequalityPoint
    scaling: Scaling
    frame: Frame
    unknowns: Unknowns
    factor: Matrix
    rows: Rows | None
    floor: Matrix | None = None

    @staticmethod
    def of(
        p: InequalityPoint, frame: Frame, Rt: Matrix, unknowns: Unknowns, identity: bool, floor: Matrix | None = None
    ) -> FactorisedSystem | None:
        """None when rounding has made A indefinite; ``floor``: E in the basis of the point."""
        scaling = p.scaling
        back = scaling.G_inverse
        A, rows = unknowns.system(frame, back, Rt)
        if identity:
            add_to_diagonal(A, 1.0)
        factor = cholesky(A, overwrite=True)
        if factor is None:
            return None
        scaled_floor = None if floor is None else back @ floor @ back.T
        return FactorisedSystem(p, scaling, frame, unknowns, factor, rows, scaled_floor)

    @cached_property
    def sums(self) -> Matrix:
        """vᵢ + vⱼ."""
        return self.scaling.v[:, None] + self.scaling.v

    @cached_property
    def inverse_roots(self) -> Matrix:
        """(vᵢvⱼ)^{−½}."""
        root = 1.0 / np.sqrt(self.scaling.v)
        return np.asarray(root[:, None] * root)

    @cached_property
    def column(self) -> tuple[Matrix, Matrix, Matrix]:
        """X, dZ and F′[X] for r = 0 and c = E."""
        assert self.floor is not None
        return self._solve(np.zeros_like(self.floor), self.floor)

    def _scaled(self, F: Matrix) -> Matrix:
        """G⁻¹FG⁻ᵀ."""
        back = self.scaling.G_inverse
        return np.asarray(back.dot(F).dot(back.T))

    def _solve(self, r: Matrix, c: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """X, dZ and F′[X] with K X − F′*[dZ] = r and F′[X] + dZ = c."""
        unknowns, rows = self.unknowns, self.rows
        if rows is None:
            back = self.scaling.G_inverse
            rhs = unknowns.vector(r + self.frame.coslope(back.T @ c @ back))
            X = unknowns.matrix(lapack.dpotrs(self.factor, rhs, 1)[0])
            first = sym(self._scaled(self.frame.slope(X)))
        else:
            x = lapack.dpotrs(self.factor, unknowns.vector(r) + rows.inner(c), 1)[0]
            X, first = unknowns.matrix(x), rows.combined(x)
        return X, c - first, first

    def step(self, s: float, before: ScaledStep | None = None) -> ScaledStep:
        v, r = self.scaling.v, self.p.residual
        c = np.zeros(r.shape)
        add_to_diagonal(c, s / v - v)
        if before is not None:
            product = before.first.dot(before.scaled_dZ)
            product += product.T
            product /= self.sums
            c -= product + before.second
            r = r + self.p.residual_bend(before.X, before.dZ)
        X, dZ, first = self._solve(r, c)
        dt = 0.0
        if self.floor is not None:
            X1, dZ1, first1 = self.column
            dt = -float(np.vdot(self.floor, dZ)) / float(np.vdot(self.floor, dZ1))
            X, dZ, first = X + dt * X1, dZ + dt * dZ1, first + dt * (first1 - self.floor)
        return ScaledStep(self.scaling, X, dZ, dt, first, self._scaled(self.p.bend(X)))

    def longest(self, step: ScaledStep, trials: int = _TRIALS) -> float:
        """A length a ≤ 1.1 with Diag(v) + a dZ ⪰ 0 and Diag(v) + aF′ + a²F″ ⪰ 0, F″ ⪯ 0, near the largest."""
        scale, a = self.inverse_roots, _BEYOND
        least = smallest_eigenvalue(step.scaled_dZ * scale)
        if least * a < -1.0:
            a = -1.0 / least
        # The largest b with Diag(v) + b(F′ + aF″) ⪰ 0 falls with a, and is feasible itself when b < a.
        first = step.first * scale
        second = step.second * scale
        low = 0.0
        for _ in range(trials):
            least = smallest_eigenvalue(first + a * second)
            if least * a >= -1.0:
                return a
            low = max(low, -1.0 / least)
            a = 0.5 * (a + low)
        return low

    def share_left(self, step: ScaledStep) -> float:
        return max(1.0 - self.longest(step, trials=1), 0.0)


def _congruence(S: Stack, A: Matrix) -> Stack:
    """A S Aᵀ for each symmetric matrix of a stack, as two products of tall matrices."""
    n, d, _ = S.shape
    half = (S.reshape(n * d, d) @ A.T).reshape(n, d, d)
    return np.asarray((half.swapaxes(1, 2).reshape(n * d, d) @ A.T).reshape(n, d, d))
