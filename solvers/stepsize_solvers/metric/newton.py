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

from stepsize_solvers.metric.point import MetricPoint
from stepsize_solvers.numerics import Array, Counters, cholesky, sym
from stepsize_solvers.programs import Matrix, Pattern, PositiveMap, Stack, Vector
from stepsize_solvers.single import Coordinates, coordinates, effective_beta, map_matrix

# What a step leaves of the gradient, in the norm of the preconditioner: with a tenth, 4 to 9 steps and 10 to 30
# iterations in all reach a gap of 10⁻⁶ on data sets and random problems (d = 30 to 300); with 0.3 a few steps more.
_REDUCTION = 0.1
_MOST_ITERATIONS = 200


class System(Protocol):
    """A⁻¹ at one point."""

    def solve(self, rhs: Matrix) -> Matrix: ...
    def loss(self) -> float: ...


@dataclass(frozen=True, eq=False)
class Unknowns:
    """Matrices X_k that span a pattern in the basis of a frame, shape (n, d, d), and 𝒬 in coordinates svec."""

    at: Coordinates
    stack: Stack
    T: Array

    @staticmethod
    def of(Q: PositiveMap, pattern: Pattern) -> Unknowns:
        at = coordinates(pattern.d)
        return Unknowns(at, _spanning(pattern.sizes, pattern.W is not None), map_matrix(Q, at))

    @property
    def n(self) -> int:
        return len(self.stack)

    def apply(self, M: Stack) -> Stack:
        """𝒬 of each matrix of a stack."""
        d, at = self.at.d, self.at
        if self.T.ndim == 1:
            return np.asarray(M * self.T.take(at.position).reshape(d, d))
        x = (M.reshape(-1, d * d).take(at.flat, axis=1) * at.weights) @ self.T.T
        return np.asarray((x * at.inverse_weights).take(at.position, axis=1).reshape(-1, d, d))


@lru_cache(maxsize=32)
def _spanning(sizes: tuple[int, ...], given: bool) -> Stack:
    """An orthonormal basis of the block-diagonal matrices; with ``given`` blocks, the identities of the blocks."""
    d = sum(sizes)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if given:
        return np.stack([np.diag((labels == i).astype(float)) for i in range(len(sizes))])
    at = coordinates(d)
    inside = np.flatnonzero(labels[at.rows] == labels[at.columns])
    return np.stack([at.smat(x) for x in np.eye(at.n)[inside]])


def unknowns(pattern: Pattern) -> int:
    """How many numbers a matrix of the pattern has."""
    return len(pattern.sizes) if pattern.W is not None else sum(n * (n + 1) // 2 for n in pattern.sizes)


class DenseSystem:
    """A as an n×n matrix; None of its factors when rounding has made it indefinite."""

    def __init__(self, p: MetricPoint, over: Unknowns) -> None:
        frame, d, n, X = p.frame, p.d, over.n, over.stack
        C, Bt, R = frame.C.A, np.diag(frame.Bt) if frame.Bt.ndim == 1 else frame.Bt, p.Rt
        self.p, self.over = p, over
        flat = X.reshape(-1, d)
        XB = (flat @ Bt).reshape(n, d, d)
        M = _congruence(XB + XB.swapaxes(1, 2), C)
        N = frame.a * _congruence(X, C) - over.apply(M)
        N = _congruence(N, p.root @ frame.E.A.T).reshape(n, d * d)
        XR = np.ascontiguousarray((flat @ R).reshape(n, d, d).swapaxes(1, 2)).reshape(n, d * d)
        self.K = 2.0 * XB.reshape(n, d * d) @ XR.T
        self.K = 0.5 * (self.K + self.K.T)
        self.factor = cholesky(self.K + N @ N.T)
        self.gradient = X.reshape(n, d * d) @ p.gradient.ravel()

    def solve(self, rhs: Matrix) -> Matrix:
        assert self.factor is not None  # the caller has looked
        d, X = self.p.d, self.over.stack.reshape(self.over.n, -1)
        x: Vector = lapack.dpotrs(self.factor, X @ rhs.ravel(), lower=1)[0]
        return np.asarray((x @ X).reshape(d, d))

    def loss(self) -> float:
        """½⟨g, K⁻¹g⟩ over the pattern."""
        factor = cholesky(self.K)
        if factor is None:
            return np.inf
        return 0.5 * float(self.gradient @ lapack.dpotrs(factor, self.gradient, lower=1)[0])


def _congruence(S: Stack, A: Matrix) -> Stack:
    """A S Aᵀ for each symmetric matrix of a stack, as two products of tall matrices."""
    n, d, _ = S.shape
    half = (S.reshape(n * d, d) @ A.T).reshape(n, d, d)
    return np.asarray((half.swapaxes(1, 2).reshape(n * d, d) @ A.T).reshape(n, d, d))


class KrylovSystem:
    """A by conjugate gradients, in single precision if asked."""

    def __init__(self, p: MetricPoint, beta: float, single: bool, counters: Counters) -> None:
        self.p, self.counters = p, counters
        self.frame = p.frame.lowered() if single else p.frame
        dtype = np.float32 if single else np.float64
        self.Yt, self.Rt = p.Yt.astype(dtype), p.Rt.astype(dtype)
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
        enough = _REDUCTION**2 * rho
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

    def loss(self) -> float:
        return self.p.loss


def beta_of(Q: PositiveMap) -> float:
    """The multiple of the identity that stands for 𝒬 in the preconditioner."""
    return effective_beta(Q)
