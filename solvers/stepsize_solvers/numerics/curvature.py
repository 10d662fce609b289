"""Inverses of the curvature.

*Exact, over a pattern.*  K[X] = Π(BXR + RXB), the curvature of ⟨R, XBX⟩ over a pattern, is written in a basis C that
has the pattern, CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each diagonal block; a matrix of the pattern is CXCᵀ.  One
free block: K multiplies entry (k, l) by ρ_k + ρ_l.  Several: that is the part of K within the blocks, by which
conjugate gradients for the whole are preconditioned.  One number for each block: K is an m×m matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.linalg import Array, cholesky, eigh, sym, triangular_inverse
from stepsize_solvers.programs import Matrix, Pattern, Vector

_MOST_ITERATIONS = 200
# Of the inverse: more digits than those who iterate with it have to gain.
_ACCURACY = 1e-8


@dataclass(frozen=True, eq=False)
class PatternCurvature(Operator):
    """K in the basis C; E: C⁻ᵀ; Bt, Rt: CᵀBC and CᵀRC, not needed for one free block."""

    pattern: Pattern
    C: Matrix
    E: Matrix
    rho: Vector
    Bt: Matrix
    Rt: Matrix

    @cached_property
    def inverse_sums(self) -> Matrix:
        """1/(ρ_k + ρ_l) within the blocks of the pattern, zero elsewhere; for given blocks on the diagonal alone."""
        inverse = 1.0 / (self.rho[:, None] + self.rho)
        if self.pattern.W is not None:
            return np.diag(np.diagonal(inverse))
        return self.pattern.blocks(inverse)

    @property
    def _one_number_each(self) -> bool:
        return self.pattern.W is not None or self.pattern.is_diagonal

    @cached_property
    def _factor(self) -> Matrix | None:
        """The Cholesky factor of the matrix of K for one number in each block, 2⟨B̃_ij, R̃_ij⟩."""
        starts = [s.start for s in self.pattern.slices]
        products = np.add.reduceat(np.add.reduceat(self.Bt * self.Rt, starts, 0), starts, 1)
        return cholesky(2.0 * sym(products))

    @property
    def is_definite(self) -> bool:
        """Whether K is numerically positive definite, as far as that is known before it is inverted."""
        return self.rho.min() > 0.0 and not (self._one_number_each and self._factor is None)

    def solve(self, M: Matrix) -> Matrix:
        """X of the pattern with K[X] = Π(M); of several free blocks up to ``_ACCURACY``."""
        pattern = self.pattern
        if pattern.is_full:
            return np.asarray(self.inverse_sums * M)
        if self._one_number_each:
            sums = np.add.reduceat(np.diagonal(M), [s.start for s in pattern.slices])
            return np.diag(np.repeat(lapack.dpotrs(self._factor, sums, lower=1)[0], pattern.sizes))
        M = pattern.blocks(M)
        enough = _ACCURACY**2 * self.inner(M, self.precondition(M))
        return conjugate_gradients(self, M, lambda _, rho: rho <= enough, _MOST_ITERATIONS)

    def precondition(self, Y: Array) -> Array:
        return np.asarray(self.inverse_sums * Y)

    def __call__(self, Y: Array) -> Array:
        """K[Y] for free blocks; only the products that reach them are formed."""
        slices = self.pattern.slices
        half, out = np.empty_like(Y), np.zeros_like(Y)
        for s in slices:
            half[:, s] = self.Bt[:, s] @ Y[s, s]
        for s in slices:
            M = half[s] @ self.Rt[:, s]
            out[s, s] = M + M.T
        return out


class Curvatures:
    """K for one B and many R; what depends on B alone is computed once."""

    def __init__(self, B: Matrix, pattern: Pattern) -> None:
        self.pattern, self.is_definite = pattern, True
        # The basis before it is turned for R, and its inverse transposed.
        self.base, self.cobase = np.zeros_like(B), np.zeros_like(B)
        for s in pattern.slices:
            W = None if pattern.W is None else pattern.W[s, s]
            K = cholesky(B[s, s] if W is None else W * (len(W) / float(np.vdot(B[s, s], W))))
            if K is None:
                self.is_definite = False
                return
            inverse = triangular_inverse(K).T
            self.base[s, s], self.cobase[s, s] = (inverse, K) if W is None else (K, inverse)
        self.B = sym(self.base.T @ B @ self.base)

    def __call__(self, R: Matrix) -> PatternCurvature | None:
        """None when K is not numerically positive definite."""
        if not self.is_definite:
            return None
        pattern = self.pattern
        R = sym(self.base.T @ R @ self.base)
        if pattern.W is not None:
            means = [float(np.vdot(self.B[s, s], R[s, s])) / (s.stop - s.start) for s in pattern.slices]
            rho = np.repeat(means, pattern.sizes)
            curvature = PatternCurvature(pattern, self.base, self.cobase, rho, self.B, R)
        else:
            rho, U = np.empty(len(R)), np.zeros_like(R)
            for s in pattern.slices:
                rho[s], U[s, s] = eigh(R[s, s])
            turned = (self.B, R) if pattern.is_full else (sym(U.T @ M @ U) for M in (self.B, R))
            curvature = PatternCurvature(pattern, self.base @ U, self.cobase @ U, rho, *turned)
        return curvature if curvature.is_definite else None
