"""Conjugate gradients, stopped in the norm that matters to the caller or at the deadline, and a polynomial inverse.

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
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics.linalg import Array
from stepsize_solvers.numerics.progress import Work

Interval = tuple[float, float]

# The Chebyshev error that is left of the dual residual by one Newton step, and the largest degree spent on it.
_POLYNOMIAL_ERROR = 0.4
_MAX_DEGREE = 8
_LANCZOS_STEPS = 5
_MAX_LANCZOS_STEPS = 16
# Relative residual at which the largest Ritz value is good enough.
_RESIDUAL = 0.1


class Operator(Protocol):
    """A symmetric positive definite map in an inner product, with an approximation of its inverse."""

    def __call__(self, Y: Array, /) -> Array: ...
    def precondition(self, Y: Array, /) -> Array: ...
    def inner(self, Y: Array, Y2: Array, /) -> float: ...


def conjugate_gradients(
    A: Operator,
    b: Array,
    finished: Callable[[Array, float], bool],
    most: int,
    work: Work | None = None,
    add_step: Callable[[float, Array], None] | None = None,
) -> Array:
    """Return y with A y = b up to ``finished(residual, ⟨residual, preconditioned residual⟩)``.

    ``work`` counts the iterations; raises OutOfTime at its deadline.  With ``add_step`` the caller sums what it needs,
    and y is not: it is told the steps a·p that add up to y, after A was applied to the direction p.
    """
    y = np.zeros_like(b)
    residual = b.copy()
    z = A.precondition(residual)
    rho = A.inner(residual, z)
    direction = z.copy()
    for _ in range(most):
        if finished(residual, rho):
            break
        if work is not None:
            work.count_iteration()
        image = A(direction)
        curvature = A.inner(direction, image)
        if not curvature > 0.0:  # by rounding only; the sum so far is as good as it gets
            break
        step = rho / curvature
        if add_step is None:
            y += step * direction
        else:
            add_step(step, direction)
        residual -= step * image
        z = A.precondition(residual)
        rho, last = A.inner(residual, z), rho
        direction *= rho / last if last != 0.0 else 0.0
        direction += z
    return y


def within_scaled_tolerance(A: Operator, T: Array, tolerance: float) -> Callable[[Array, float], bool]:
    """Whether ‖r_ij/√T_ij‖ ≤ tolerance for a residual r.

    Dividing by √T_ij = √(tᵢtⱼ) is the Nesterov–Todd scaling of a residual of F, so the tolerance bounds the error of
    the complementarity products whatever the spread of t; a tolerance relative to ‖b‖ does not.
    """
    inverse_T = 1.0 / T
    squared = tolerance * tolerance
    return lambda residual, _: not A.inner(residual, inverse_T * residual) > squared


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
