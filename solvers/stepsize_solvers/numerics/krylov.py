"""Conjugate gradients, stopped in the norm that matters to the caller or at the deadline, and a polynomial inverse.

*By a fixed polynomial.*  𝒦[X] = X + B̃XR̃ + R̃XB̃ costs one product.  Division by its diagonal
J_ij = 1 + λᵢR̃ⱼⱼ + λⱼR̃ᵢᵢ brings its condition number below about ten, so a Chebyshev polynomial p of low degree in J⁻¹𝒦
gives p(𝒦) ≈ 𝒦⁻¹.  The polynomial is chosen once for each Newton step: p(𝒦) is then a fixed, symmetric, positive
definite map, the outer conjugate gradients stay exact for it, and the error of p only leaves a fraction of the dual
residual behind.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics.linalg import Array
from stepsize_solvers.numerics.progress import Work

# The Chebyshev error that is left of the dual residual by one Newton step, and the largest degree spent on it.
_POLYNOMIAL_ERROR = 0.4
_MAX_DEGREE = 8
_LANCZOS_STEPS = 5
_MAX_LANCZOS_STEPS = 16
# Relative residual at which the largest Ritz value is good enough.
_RESIDUAL = 0.1


class Preconditioned(ABC):
    """An inner product with an approximation of the inverse of a symmetric positive definite map in it."""

    @abstractmethod
    def precondition(self, Y: Array, /) -> Array: ...

    def inner(self, Y: Array, Y2: Array, /) -> float:
        """The sum of products of entries, unless a subclass says otherwise."""
        return float(np.vdot(Y, Y2))


class Operator(Preconditioned):
    """The map itself."""

    @abstractmethod
    def __call__(self, Y: Array, /) -> Array: ...


Finished: TypeAlias = Callable[[Array, float], bool]
Images: TypeAlias = tuple[Array, ...]  # arrays that are linear in an argument
ImagesOf: TypeAlias = Callable[[Array], Images]


def conjugate_gradients(A: Operator, b: Array, finished: Finished, most: int, work: Work | None = None) -> Array:
    """Return y with A y = b up to ``finished(residual, ⟨residual, preconditioned residual⟩)``.

    ``work`` counts the iterations; raises OutOfTime at its deadline.
    """
    y = np.zeros_like(b)
    for step, direction, _ in _steps(lambda Y: (A(Y),), A, b, finished, most, work):
        y += step * direction
    return y


def images_of_solution(
    images_of: ImagesOf, A: Preconditioned, b: Array, others: Images, finished: Finished, most: int, work: Work
) -> Images:
    """The sums of ``others`` and the other arrays of the same y; ``images_of``: the image first, then those arrays."""
    sums = tuple(other.copy() for other in others)
    for step, _, images in _steps(images_of, A, b, finished, most, work):
        for total, image in zip(sums, images[1:], strict=True):
            total += step * image
    return sums


def _steps(
    images_of: ImagesOf, A: Preconditioned, b: Array, finished: Finished, most: int, work: Work | None
) -> Iterator[tuple[float, Array, Images]]:
    """The steps and directions that add up to y, with the images of each direction."""
    residual = b.copy()
    z = A.precondition(residual)
    rho = A.inner(residual, z)
    direction = z.copy()
    for _ in range(most):
        if finished(residual, rho):
            return
        if work is not None:
            work.count_iteration()
        images = images_of(direction)
        curvature = A.inner(direction, images[0])
        if not curvature > 0.0:  # by rounding only; the sum so far is as good as it gets
            return
        step = rho / curvature
        yield step, direction, images
        residual -= step * images[0]
        z = A.precondition(residual)
        rho, last = A.inner(residual, z), rho
        direction *= rho / last if last != 0.0 else 0.0
        direction += z


def within_scaled_tolerance(A: Preconditioned, T: Array, tolerance: float) -> Finished:
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


def spectrum_bounds(curvature: Callable[[Array], Array], J: Array, mask: Array | None) -> tuple[float, float]:
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
        if m >= _LANCZOS_STEPS or invariant:
            low, high, residual = _ritz(alphas, betas)
            if invariant or residual <= _RESIDUAL * high or m >= _MAX_LANCZOS_STEPS:
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


def chebyshev_inverse(curvature: Callable[[Array], Array], J: Array, mask: Array | None) -> ChebyshevInverse:
    """The polynomial of the smallest degree whose error on the estimated spectrum is small enough."""
    low, high = spectrum_bounds(curvature, J, mask)
    # The smallest Ritz value lies above the end of the spectrum, by a few per cent as a rule.
    low, high = 0.8 * low, 1.05 * high
    if not low > 0.0:
        low = 0.05 * high
    gamma = (math.sqrt(high) - math.sqrt(low)) / (math.sqrt(high) + math.sqrt(low))
    degree = 1
    while degree < _MAX_DEGREE and 2.0 * gamma**degree / (1.0 + gamma ** (2 * degree)) > _POLYNOMIAL_ERROR:
        degree += 1
    return ChebyshevInverse(curvature, J, low, high, degree)
