"""An approximate inverse of the curvature 𝒦 by a fixed polynomial.

𝒦[X] = X + ΛXR̃ + R̃XΛ costs one product.  Division by its diagonal J_ij = 1 + λᵢR̃ⱼⱼ + λⱼR̃ᵢᵢ brings its condition
number below about ten, so a Chebyshev polynomial p of low degree in J⁻¹𝒦 gives p(𝒦) ≈ 𝒦⁻¹.  The polynomial is
chosen once for each Newton step: p(𝒦) is then a fixed, symmetric, positive definite map, the outer conjugate
gradients stay exact for it, and the error of p only leaves a fraction of the dual residual behind.

All of it works on stacks of matrices, too; the two ends of the spectra are then arrays that multiply the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stepsize_solvers.numerics import Array, every, inner, some

Interval = tuple[Any, Any]  # of numbers, or of arrays for a stack

# The Chebyshev error that is left of the dual residual by one Newton step, and the largest degree spent on it.
_POLYNOMIAL_ERROR = 0.4
_MAX_DEGREE = 8
_LANCZOS_STEPS = 5
_MAX_LANCZOS_STEPS = 16
# Relative residual at which the largest Ritz value is good enough.
_RESIDUAL = 0.1


@dataclass(frozen=True, eq=False)
class Curvature:
    """𝒦[X] = X + ΛXR̃ + R̃XΛ."""

    lam: Array
    Rt: Array

    def __call__(self, X: Array) -> Array:
        P = (self.lam[:, None] * X) @ self.Rt
        out = P + P.T
        out += X
        return np.asarray(out)

    def diagonal(self) -> Array:
        r = np.diagonal(self.Rt)
        J = np.multiply.outer(self.lam, r)
        J += J.T
        J += 1.0
        return np.asarray(J)


@lru_cache(maxsize=8)
def _random_symmetric(d: int) -> Array:
    """The fixed start of the Lanczos steps; drawing it anew costs as much as the steps for a small d."""
    X = np.random.default_rng(0).standard_normal((d, d))
    return np.asarray(X + X.T)


def _norm(X: Array) -> Any:
    return inner(X, X) ** 0.5


def _ritz(alphas: Sequence[Any], betas: Sequence[Any]) -> tuple[Any, Any, Any]:
    """The ends of the spectrum of the tridiagonal matrix of Lanczos steps, and the residual of the upper one."""
    m, stacked = len(alphas), not isinstance(alphas[0], float)
    T = np.zeros((len(alphas[0]) if stacked else 1, m, m))
    for i, (alpha, beta) in enumerate(zip(alphas, betas, strict=True)):
        T[:, i, i] = np.ravel(alpha)
        if i + 1 < m:
            T[:, i, i + 1] = T[:, i + 1, i] = np.ravel(beta)
    ritz, vectors = np.linalg.eigh(T)
    residual = np.abs(np.ravel(betas[-1]) * vectors[:, -1, -1])
    ends = (ritz[:, 0], ritz[:, -1], residual)
    low, high, residual = (end[:, None, None] if stacked else float(end[0]) for end in ends)
    return low, high, residual


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
    X /= _norm(X)
    previous = np.zeros_like(X)
    alphas: list[Any] = []
    betas: list[Any] = []
    beta: Any = 0.0
    found: Interval = (0.0, 0.0)
    done: Any = False
    while True:
        Y = curvature(X * root) * root
        alpha = inner(X, Y)
        Y -= alpha * X
        Y -= beta * previous
        alphas.append(alpha)
        beta = _norm(Y)
        betas.append(beta)
        m = len(alphas)
        invariant = beta < 1e-6 * abs(alpha)  # single precision sees nothing below that
        if m >= steps or some(invariant):
            low, high, residual = _ritz(alphas, betas)
            ends = (low, high + residual)
            found = (np.where(done, found[0], ends[0]), np.where(done, found[1], ends[1])) if some(done) else ends
            done = done | invariant | (residual <= _RESIDUAL * high) | (m >= max_steps)
            if every(done):
                return found
        previous, X = X, Y / (beta + (beta == 0.0))  # a member that is done may have no direction left


@dataclass(frozen=True, eq=False)
class ChebyshevInverse:
    """p(𝒦) ≈ 𝒦⁻¹ with J-preconditioned Chebyshev iteration of fixed degree on the interval [lower, upper]."""

    curvature: Callable[[Array], Array]
    J: Array
    lower: Any
    upper: Any
    degree: int

    @property
    def spectrum(self) -> Interval:
        """The interval that holds the spectrum of the preconditioned 𝒦."""
        return self.lower, self.upper

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
    curvature: Callable[[Array], Array],
    J: Array,
    mask: Array | None = None,
    error: float = _POLYNOMIAL_ERROR,
    known: Interval | None = None,
) -> ChebyshevInverse:
    """The polynomial of the smallest degree whose error on the spectrum, estimated unless known, is below ``error``."""
    if known is None:
        low, high = spectrum_bounds(curvature, J, mask)
        # The smallest Ritz value lies above the end of the spectrum, by a few per cent as a rule.
        low, high = 0.8 * low, 1.05 * high
        if not every(low > 0.0):
            low = np.where(low > 0.0, low, 0.05 * high) if isinstance(low, np.ndarray) else 0.05 * high
    else:
        low, high = known
    gamma = (np.sqrt(high) - np.sqrt(low)) / (np.sqrt(high) + np.sqrt(low))
    degree = 1
    while degree < _MAX_DEGREE and some(2.0 * gamma**degree / (1.0 + gamma ** (2 * degree)) > error):
        degree += 1
    return ChebyshevInverse(curvature, J, low, high, degree)
