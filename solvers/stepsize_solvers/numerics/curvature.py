"""Inverses of the curvature.

*Exact, over a pattern.*  K[X] = Π(BXR + RXB), the curvature of ⟨R, XBX⟩ over a pattern, is written in a basis C that
has the pattern, CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each diagonal block; a matrix of the pattern is CXCᵀ.  One
free block: K multiplies entry (k, l) by ρ_k + ρ_l.  Several: that is the part of K within the blocks, by which
conjugate gradients for the whole are preconditioned.  One number for each block: K is an m×m matrix.

*By a fixed polynomial.*  𝒦[X] = X + B̃XR̃ + R̃XB̃ costs one product.  Division by its diagonal
J_ij = 1 + λᵢR̃ⱼⱼ + λⱼR̃ᵢᵢ brings its condition number below about ten, so a Chebyshev polynomial p of low degree in J⁻¹𝒦
gives p(𝒦) ≈ 𝒦⁻¹.  The polynomial is chosen once for each Newton step: p(𝒦) is then a fixed, symmetric, positive
definite map, the outer conjugate gradients stay exact for it, and the error of p only leaves a fraction of the dual
residual behind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics.cg import conjugate_gradients
from stepsize_solvers.numerics.linalg import Array, cholesky, eigh, sym, triangular_inverse
from stepsize_solvers.programs import Matrix, Pattern, Vector

Interval = tuple[float, float]

_MOST_ITERATIONS = 200
# Of the inverse: more digits than those who iterate with it have to gain.
_ACCURACY = 1e-8
# The Chebyshev error that is left of the dual residual by one Newton step, and the largest degree spent on it.
_POLYNOMIAL_ERROR = 0.4
_MAX_DEGREE = 8
_LANCZOS_STEPS = 5
_MAX_LANCZOS_STEPS = 16
# Relative residual at which the largest Ritz value is good enough.
_RESIDUAL = 0.1


@dataclass(frozen=True, eq=False)
class PatternCurvature:
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

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

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


# ---------------------------------------------------------------- a fixed polynomial


@lru_cache(maxsize=8)
def _random_symmetric(d: int) -> Array:
    """The fixed start of the Lanczos steps; drawing it anew costs as much as the steps for a small d."""
    X = np.random.default_rng(0).standard_normal((d, d))
    return np.asarray(X + X.T)


def _ritz(alphas: Sequence[float], betas: Sequence[float]) -> tuple[float, float, float]:
    """The ends of the spectrum of the tridiagonal matrix of Lanczos steps, and the residual of the upper one."""
    if len(alphas) == 1:
        return alphas[0], alphas[0], betas[0]
    values, vectors, _ = lapack.dstev(alphas, betas[:-1])
    return float(values[0]), float(values[-1]), abs(betas[-1] * float(vectors[-1, -1]))


def spectrum_bounds(
    curvature: Callable[[Array], Array],
    J: Array,
    mask: Array | None = None,
    steps: int = _LANCZOS_STEPS,
    max_steps: int = _MAX_LANCZOS_STEPS,
) -> Interval:
    """Estimates of the extreme eigenvalues of J^{-1/2} 𝒦 J^{-1/2}, by a few Lanczos steps from a fixed random start.

    The lower one is a Ritz value, above the true end.  The upper one is a Ritz value plus its residual norm, and steps
    are added until that residual is small: beyond the upper end of its interval a Chebyshev polynomial explodes, below
    the lower end it is only less accurate.  ``mask`` holds ones on the pattern that 𝒦 acts on, all of it if None.
    """
    root = 1.0 / np.sqrt(J)
    X = np.empty_like(J)
    X[...] = _random_symmetric(J.shape[-1])
    if mask is not None:
        X *= mask
    X /= float(np.linalg.norm(X))
    previous = np.zeros_like(X)
    alphas: list[float] = []
    betas: list[float] = []
    beta = 0.0
    while True:
        Y = curvature(X * root) * root
        alpha = float(np.vdot(X, Y))
        Y -= alpha * X
        Y -= beta * previous
        alphas.append(alpha)
        beta = float(np.linalg.norm(Y))
        betas.append(beta)
        m = len(alphas)
        invariant = beta < 1e-6 * abs(alpha)  # single precision sees nothing below that
        if m >= steps or invariant:
            low, high, residual = _ritz(alphas, betas)
            if invariant or residual <= _RESIDUAL * high or m >= max_steps:
                return low, high + residual
        previous, X = X, Y / beta


@dataclass(frozen=True, eq=False)
class ChebyshevInverse:
    """p(𝒦) ≈ 𝒦⁻¹ with J-preconditioned Chebyshev iteration of fixed degree on the interval [lower, upper]."""

    curvature: Callable[[Array], Array]
    J: Array
    lower: float
    upper: float
    degree: int

    def __call__(self, R: Array) -> Array:
        theta = 0.5 * (self.upper + self.lower)
        delta = 0.5 * (self.upper - self.lower)
        step = R / self.J
        step /= theta
        if self.degree == 1:
            return step
        X = step.copy()
        residual = R
        ratio = theta / delta
        rho = 1.0 / ratio
        for _ in range(self.degree - 1):
            residual = residual - self.curvature(step)
            rho_next = 1.0 / (2.0 * ratio - rho)
            step *= rho * rho_next
            step += residual * (2.0 * rho_next / delta) / self.J
            X += step
            rho = rho_next
        return X


def chebyshev_inverse(
    curvature: Callable[[Array], Array], J: Array, mask: Array | None = None, error: float = _POLYNOMIAL_ERROR
) -> ChebyshevInverse:
    """The polynomial of the smallest degree whose error on the estimated spectrum is below ``error``."""
    low, high = spectrum_bounds(curvature, J, mask)
    # The smallest Ritz value lies above the end of the spectrum, by a few per cent as a rule.
    low, high = 0.8 * low, 1.05 * high
    if not low > 0.0:
        low = 0.05 * high
    gamma = (math.sqrt(high) - math.sqrt(low)) / (math.sqrt(high) + math.sqrt(low))
    degree = 1
    while degree < _MAX_DEGREE and 2.0 * gamma**degree / (1.0 + gamma ** (2 * degree)) > error:
        degree += 1
    return ChebyshevInverse(curvature, J, low, high, degree)
