"""Starts: the best multiple of a few powers of 𝒬(B), of W, or of the answer of a nearby problem.

log det(aγW − γ²𝒬(WBW)) = log det W + Σ_j log(aγ − γ²m_j), m_j the eigenvalues of W^{-½}𝒬(WBW)W^{-½}, is concave in γ and
largest between a/(2m_max) and a/m_max.  𝒬(B)⁻¹ is the optimum of det-CGD2; on one-hot data powers below 1 are better.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics import cholesky, eigh, log_det_from_cholesky, lower_solve, sym
from stepsize_solvers.programs import Family, Matrix, Pattern, Vector

_EXPONENTS = (1.0, 0.75, 0.5)
# Eigenvalues of 𝒬(B) below this fraction of the largest are raised to it: powers of them would only be rounding.
_EIGENVALUE_FLOOR = 1e-14


def best_multiple(m: Vector, a: float) -> float:
    """The maximiser of Σ_j log(aγ − γ²m_j), by Newton's method on the derivative within a bracket."""
    top = float(m[-1])
    low, high = 0.5 * a / top, a / top
    gamma = low
    for _ in range(60):
        terms = m / (a - gamma * m)
        slope = len(m) / gamma - float(terms.sum())
        if slope > 0.0:
            low = gamma
        else:
            high = gamma
        new = gamma + slope / (len(m) / gamma**2 + float(terms @ terms))
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - gamma) <= 1e-12 * gamma:
            break
        gamma = new
    return gamma


def _scaled(left: Family, W: Matrix) -> tuple[float, Matrix] | None:
    """log det G at the best multiple of W, and that multiple; None when W is not numerically positive definite."""
    K = cholesky(W)
    if K is None or left.B is None:
        return None
    half = lower_solve(K, left.Q.apply(W @ left.B @ W))
    m, _, info = lapack.dsyevd(sym(lower_solve(K, half.T)), 0, 1)  # compute_v, lower
    if info != 0 or not m[-1] > 0.0 or not math.isfinite(m[-1]):
        return None
    gamma = best_multiple(np.maximum(m, 0.0), left.a)
    values = gamma * (left.a - gamma * np.maximum(m, 0.0))
    return log_det_from_cholesky(K) + float(np.log(values).sum()), gamma * W


def _powers(left: Family, pattern: Pattern) -> Iterator[Matrix]:
    """Block-diagonal powers of 𝒬(B), or W."""
    if pattern.W is not None:
        yield pattern.W
        return
    image = sym(left.Q.apply(np.asarray(left.B)))
    spectra = [(s, *eigh(image[s, s])) for s in pattern.slices]
    for exponent in _EXPONENTS:
        W = np.zeros_like(image)
        for s, w, U in spectra:
            W[s, s] = (U * np.maximum(w, _EIGENVALUE_FLOOR * w[-1]) ** -exponent) @ U.T
        yield sym(W)


def start(left: Family, pattern: Pattern, warm: Matrix | None) -> Matrix | None:
    """A D with G(D) ≻ 0: the best multiple of a warm start, else of the best power; None when there is none."""
    candidates = _powers(left, pattern) if warm is None else iter((pattern.nearest(warm),))
    found = [scaled for W in candidates if (scaled := _scaled(left, W)) is not None]
    if not found:
        return None if warm is None else start(left, pattern, None)
    return max(found, key=lambda pair: pair[0])[1]
