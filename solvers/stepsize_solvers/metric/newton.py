"""Newton's system for the metric: A = K + G′*(Ỹ G′[·] Ỹ), by a dense factorisation or by conjugate gradients.

K[X] = B̃XR̃ + R̃XB̃ is the curvature of −𝒬(DBD), the rest that of the logarithm.  Conjugate gradients take the diagonal
of A with 𝒬 replaced by a multiple β of the identity, B̃ᵢR̃ⱼ + B̃ⱼR̃ᵢ + (a − β(B̃ᵢ + B̃ⱼ))² ỸᵢỸⱼ of diagonal entries: three to
five iterations reduce the residual tenfold, and that is all a step needs.

The dense system lists the unknowns: symmetric matrices X_k that span the pattern in the basis, and the matrices
N_k = Ñ(G′[X_k])Ñᵀ, ÑᵀÑ = Ỹ; then A_kl = ⟨N_k, N_l⟩ + 2 tr(X_k B̃ X_l R̃).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.point import MetricPoint
from stepsize_solvers.numerics import Array, Counters, cholesky, sym
from stepsize_solvers.programs import Matrix, Pattern, PositiveMap, Stack, Vector, add_to_diagonal
from stepsize_solvers.single import Coordinates, coordinates, map_matrix

# What a step leaves of the gradient, in the norm of the preconditioner, near the end and far from it: 4 to 12 steps and
# 10 to 60 iterations in all reach a gap of 10⁻⁶ on data sets and random problems (d = 30 to 300).
_REDUCTION = 0.1
_ROUGH_REDUCTION = 0.3
_MOST_ITERATIONS = 200
# The numbers that the arrays of a dense system may have: 80 MB each.
_MOST_NUMBERS = 10**7


class System(Protocol):
    """A⁻¹ at one point."""

    def solve(self, rhs: Matrix) -> Matrix: ...


@dataclass(frozen=True, eq=False)
class Curvature:
    """What A is made of: the frame, R̃, and Ỹ with a root N of it, NᵀN = Ỹ."""

    frame: Frame
    root: Matrix
    Yt: Matrix
    Rt: Matrix


class Unknowns(Protocol):
    """The numbers in which a pattern is written, and A in them."""

    def system(self, p: Curvature) -> Matrix: ...
    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        """K alone."""
        ...

    def vector(self, X: Matrix) -> Vector: ...
    def matrix(self, x: Vector) -> Matrix: ...


@dataclass(frozen=True, eq=False)
class DiagonalUnknowns:
    """A diagonal D and 𝒬(M) = P∘M: G′[e_k e_kᵀ] = e_k u_kᵀ + u_k e_kᵀ with the columns u_k of U = (a/2) I − P∘B̃, so

    A = 2 [ Ỹ∘(UᵀỸU) + (ỸU)∘(ỸU)ᵀ + B̃∘R̃ ].
    """

    P: Matrix

    def system(self, p: Curvature) -> Matrix:
        """A, of size d."""
        U = -self.P * p.frame.Bt
        add_to_diagonal(U, 0.5 * p.frame.a)
        YU = p.Yt @ U
        return np.asarray(2.0 * sym(p.Yt * (U.T @ YU) + YU * YU.T)) + self.curvature(p.frame, p.Rt)

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        return np.asarray(2.0 * sym(frame.Bt * Rt))

    def vector(self, X: Matrix) -> Vector:
        return np.diagonal(X)

    def matrix(self, x: Vector) -> Matrix:
        return np.diag(x)


@dataclass(frozen=True, eq=False)
class ListedUnknowns:
    """Matrices X_k that span a pattern in the basis of a frame, shape (n, d, d), and 𝒬 in coordinates svec.

    For a full D the coordinates are those of svec themselves, and there is no stack.  Where svec itself would be too
    long (given directions of any size), 𝒬 is applied to one matrix at a time.
    """

    Q: PositiveMap
    at: Coordinates | None
    stack: Stack | None
    T: Array | None

    @staticmethod
    def of(Q: PositiveMap, pattern: Pattern) -> ListedUnknowns:
        at = coordinates(pattern.d) if pattern.d**4 <= _MOST_NUMBERS else None
        stack = None if pattern.is_full else _spanning(pattern.sizes, pattern.W is not None)
        return ListedUnknowns(Q, at, stack, None if at is None else map_matrix(Q, at))

    def system(self, p: Curvature) -> Matrix:
        """The n×n matrix of A."""
        at, T, frame, root = self.at, self.T, p.frame, p.root @ p.frame.E.A.T
        if self.stack is None:
            assert at is not None and T is not None
            J, lam2 = at.congruence(frame.C.A), frame.sums.ravel().take(at.flat)
            J = J * (frame.a - T[:, None] * lam2) if T.ndim == 1 else frame.a * J - T @ (J * lam2)
            N = at.congruence(root) @ J
            return np.asarray(N.T @ N + self.curvature(frame, p.Rt))
        n, d, _ = self.stack.shape
        flat = self.stack.reshape(n * d, d)
        XB = (flat @ frame.Bt).reshape(n, d, d)
        N = frame.a * _congruence(self.stack, frame.C.A)
        N -= self.apply(_congruence(XB + XB.swapaxes(1, 2), frame.C.A))
        N = _congruence(N, root).reshape(n, d * d)
        return np.asarray(N @ N.T + self.curvature(frame, p.Rt))

    def curvature(self, frame: Frame, Rt: Matrix) -> Matrix:
        if self.stack is None:
            assert self.at is not None
            return self.at.curvature(frame.Bt, Rt)
        n, d, _ = self.stack.shape
        flat = self.stack.reshape(n * d, d)
        XR = (flat @ Rt).reshape(n, d, d).swapaxes(1, 2).reshape(n, d * d)
        return np.asarray(2.0 * sym((flat @ frame.Bt).reshape(n, d * d) @ XR.T))

    def apply(self, M: Stack) -> Stack:
        """𝒬 of each matrix of a stack."""
        d, at, T = M.shape[1], self.at, self.T
        if at is None or T is None:
            return np.stack([self.Q.apply(part) for part in M])
        if T.ndim == 1:
            return np.asarray(M * T.take(at.position))
        x = (M.reshape(-1, d * d).take(at.flat, axis=1) * at.weights) @ T.T
        return np.asarray((x * at.inverse_weights).take(at.position, axis=1))

    def vector(self, X: Matrix) -> Vector:
        """⟨X_k, X⟩."""
        if self.stack is None:
            assert self.at is not None
            return self.at.svec(X)
        return np.asarray(self.stack.reshape(len(self.stack), -1) @ X.ravel())

    def matrix(self, x: Vector) -> Matrix:
        """Σ x_k X_k."""
        if self.stack is None:
            assert self.at is not None
            return self.at.smat(x)
        return np.asarray(np.tensordot(x, self.stack, 1))


@lru_cache(maxsize=32)
def _spanning(sizes: tuple[int, ...], given: bool) -> Stack:
    """A basis of the block-diagonal matrices; with ``given`` blocks, the identities of the blocks."""
    d = sum(sizes)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if given:
        return np.stack([np.diag((labels == i).astype(float)) for i in range(len(sizes))])
    rows, columns = np.tril_indices(d)
    inside = labels[rows] == labels[columns]
    rows, columns = rows[inside], columns[inside]
    out, k = np.zeros((len(rows), d, d)), np.arange(len(rows))
    out[k, rows, columns] = out[k, columns, rows] = np.where(rows == columns, 1.0, np.sqrt(0.5))
    return out


def listed(Q: PositiveMap, pattern: Pattern, most: int) -> Unknowns | None:
    """The unknowns of a dense system, or None when there are more than ``most``; a diagonal may have any number."""
    P = Q.hadamard_matrix
    if pattern.is_diagonal and P is not None:
        return DiagonalUnknowns(P)
    count = len(pattern.sizes) if pattern.W is not None else sum(n * (n + 1) // 2 for n in pattern.sizes)
    fits = pattern.d**4 <= _MOST_NUMBERS if pattern.is_full else count * pattern.d**2 <= _MOST_NUMBERS
    return ListedUnknowns.of(Q, pattern) if count <= most and fits else None


@dataclass(frozen=True, eq=False)
class DenseSystem:
    """A by the Cholesky factor of its n×n matrix."""

    over: Unknowns
    factor: Matrix

    @staticmethod
    def of(p: MetricPoint, over: Unknowns) -> DenseSystem | None:
        """None when rounding has made A indefinite."""
        factor = cholesky(over.system(Curvature(p.frame, p.root, p.Yt, p.Rt)))
        return None if factor is None else DenseSystem(over, factor)

    def solve(self, rhs: Matrix) -> Matrix:
        return self.over.matrix(lapack.dpotrs(self.factor, self.over.vector(rhs), lower=1)[0])


def _congruence(S: Stack, A: Matrix) -> Stack:
    """A S Aᵀ for each symmetric matrix of a stack, as two products of tall matrices."""
    n, d, _ = S.shape
    half = (S.reshape(n * d, d) @ A.T).reshape(n, d, d)
    return np.asarray((half.swapaxes(1, 2).reshape(n * d, d) @ A.T).reshape(n, d, d))


class KrylovSystem:
    """A by conjugate gradients, in single precision if asked."""

    def __init__(
        self, p: MetricPoint, beta: float, single: bool, floor: float, counters: Counters, far: bool = False
    ) -> None:
        """``floor``: what need not be reduced any further, a squared residual in the norm of the preconditioner.

        ``far``: whether the step is one of those that approach, for which a rough direction will do.
        """
        self.floor, self.counters = floor, counters
        self.reduction = _ROUGH_REDUCTION if far else _REDUCTION
        self.frame = p.frame.lowered() if single else p.frame
        dtype = np.float32 if single else np.float64
        self.Yt: Array = p.Yt.astype(dtype)
        self.Rt: Array = p.Rt.astype(dtype)
        b, r, y = p.frame.diagonal, np.diagonal(p.Rt), np.diagonal(p.Yt)
        outer = np.multiply.outer(b, r)
        damping = p.frame.a - beta * (b[:, None] + b)
        self.preconditioner = (1.0 / (outer + outer.T + damping**2 * np.multiply.outer(y, y))).astype(dtype)

    def __call__(self, X: Array) -> Array:
        frame = self.frame
        M = frame.left(X) @ self.Rt
        return frame.coslope(sym(self.Yt @ frame.slope(X) @ self.Yt)) + frame.project(M + M.T)

    def solve(self, rhs: Matrix) -> Matrix:
        r = rhs.astype(self.preconditioner.dtype)
        x = np.zeros_like(r)
        z = self.frame.project(self.preconditioner * r)
        rho = float(np.vdot(r, z))
        enough = max(self.reduction**2 * rho, self.floor)
        direction = z
        for _ in range(_MOST_ITERATIONS):
            image = self(direction)
            curvature = float(np.vdot(direction, image))
            self.counters.cg_iterations += 1
            if not curvature > 0.0:  # rounding has the last word
                break
            x += (rho / curvature) * direction
            r -= (rho / curvature) * image
            z = self.frame.project(self.preconditioner * r)
            rho, last = float(np.vdot(r, z)), rho
            if rho <= enough:
                break
            direction = z + (rho / last) * direction
        return x.astype(np.float64)
