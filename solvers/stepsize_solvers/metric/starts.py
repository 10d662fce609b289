"""Starts: the best multiple of a few powers of B and 𝒬(B), of W, or of the answer of a nearby problem.

If 𝒬 is entrywise, D = Diag(s)D̃Diag(s) turns B into Diag(s)BDiag(s), and the powers are those for a unit diagonal: at
k = 1 they save half of the steps against those of a B whose diagonal varies by a factor of four.

log det(aγW − γ²𝒬(WBW)) = log det W + Σ_j log(γ(a − γm_j)), m_j the eigenvalues of W^{-½}𝒬(WBW)W^{-½}, is concave in γ
and largest between a/(2m_max) and a/m_max.  Among the powers are the optimum of the identity map and that of det-CGD2,
𝒬(B)⁻¹; the smaller ones are better the fewer coordinates are sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.numerics import eigh, sym
from stepsize_solvers.programs import Matrix, Metric, Pattern, Vector
from stepsize_solvers.single import Gram, scaled, unit_diagonal

# The exponents for B and for 𝒬(B): on 35 problems with rand-k (synthetic, a1a, phishing, heart_scale, w1a) one of them
# is within 0.2 of the best log det/d.
_EXPONENTS = np.array([[0.25, 0.5], [0.75, 1.0]])
# Eigenvalues below this fraction of the largest are raised to it: powers of them would only be rounding.
_EIGENVALUE_FLOOR = 1e-14
# The multiples tried, as fractions of a/m_max; the best of them is within 0.01 of the best log det/d.
_FRACTIONS = np.array([0.52, 0.6, 0.7, 0.8, 0.9, 0.97])
# Up to this size the number of calls counts, beyond it the number of operations.
_SIZE_FOR_STACKS = 30


def best_multiple(m: Vector, a: float) -> float:
    """The maximiser of Σ_j log(γ(a − γm_j)), m ascending, by Newton's method on the derivative within a bracket."""
    top = float(m[-1])
    low, high = 0.5 * a / top, a / top
    gamma = low
    for _ in range(60):  # far more than Newton's method needs; bisection alone would come to rounding
        terms = m / (a - gamma * m)
        slope = len(m) / gamma - float(terms.sum())
        low, high = (gamma, high) if slope > 0.0 else (low, gamma)
        new = gamma + slope / (len(m) / gamma**2 + float(terms @ terms))
        if not low < new < high:
            new = 0.5 * (low + high)
        if abs(new - gamma) <= 1e-12 * gamma:
            break
        gamma = new
    return gamma


def start(metric: Metric, pattern: Pattern, warm: Matrix | None) -> Matrix | None:
    """A D with G(D) ≻ 0: the best multiple of a warm start, of W, or of the best power; None when there is none."""
    given = pattern.W if warm is None else pattern.nearest(warm)
    if given is not None:
        frame = Frame.of(metric.left, pattern, given, rotated=False)
        m = None if frame is None else _spectrum(frame)
        if m is not None:
            return best_multiple(m, metric.left.a) * given
        return None if warm is None else start(metric, pattern, None)
    P = metric.left.Q.hadamard_matrix if pattern.is_full and pattern.d <= _SIZE_FOR_STACKS else None
    return _best_power(metric, pattern) if P is None else _best_power_in_stacks(metric, P)


def _spectrum(frame: Frame) -> Vector | None:
    """The numbers m_j, ascending; None when they are no numbers."""
    m = np.linalg.eigvalsh(frame.image(np.diag(frame.Bt) if frame.Bt.ndim == 1 else frame.Bt))
    return np.maximum(m, 0.0) if 0.0 < m[-1] < math.inf else None


def _values(m: Vector, a: float) -> Vector:
    """Σ_j log(γ(a − γm_j)) for each of the multiples tried; m may be a stack of spectra."""
    gamma = (a / m[..., -1:, None]) * _FRACTIONS[:, None]
    return np.asarray(np.log(gamma * (a - gamma * m[..., None, :])).sum(axis=-1))


def _frames(metric: Metric, pattern: Pattern) -> Iterator[Frame]:
    """The frames of the powers."""
    left = metric.left
    assert left.B is not None
    B, scale = unit_diagonal(left.B, left.Q)
    for M, exponents in zip((B, sym(left.Q.apply(B))), _EXPONENTS, strict=True):
        w, U = np.empty(len(M)), np.zeros_like(M)
        for s in pattern.slices:
            w[s], U[s, s] = eigh(M[s, s])
        if not w.max() > 0.0:
            continue
        w = np.maximum(w, _EIGENVALUE_FLOOR * w.max())
        rotated = w if M is B and pattern.is_full else sym(U.T @ B @ U)
        for exponent in exponents:
            root = w ** (-0.5 * exponent)
            Bt = rotated * root**2 if rotated.ndim == 1 else rotated * np.multiply.outer(root, root)
            C, E = Gram(scale[:, None] * U * root), Gram(U / scale[:, None] / root)
            yield Frame(left.Q, left.a, pattern, C, E, Bt, 2.0 * float(np.log(root * scale).sum()))


def _best_power(metric: Metric, pattern: Pattern) -> Matrix | None:
    best: tuple[float, Matrix] | None = None
    for frame in _frames(metric, pattern):
        m = _spectrum(frame)
        if m is None:
            continue
        values = _values(m, frame.a)
        value = frame.log_det + float(values.max())
        if best is None or value > best[0]:
            best = (value, best_multiple(m, frame.a) * sym(frame.C.A @ frame.C.A.T))
    return None if best is None else best[1]


def _best_power_in_stacks(metric: Metric, P: Matrix) -> Matrix | None:
    """All four at once, for 𝒬(M) = P∘M: more operations in fewer calls.  Arrays have the shape (2, 2, d, d)."""
    a = metric.left.a
    assert metric.left.B is not None
    B, scale = unit_diagonal(metric.left.B)
    w, U = np.linalg.eigh(np.array((B, P * B)))
    if not w[:, -1].min() > 0.0:
        return None
    w = np.maximum(w, _EIGENVALUE_FLOOR * w[:, -1:])
    half = w[:, None, :] ** (-0.5 * _EXPONENTS[:, :, None])
    root = U[:, None] * half[:, :, None, :]
    inverse_root = U[:, None] / half[:, :, None, :]
    W = root @ root.swapaxes(-1, -2)
    m = np.linalg.eigvalsh(inverse_root.swapaxes(-1, -2) @ (P * (W @ B @ W)) @ inverse_root)
    values = _values(np.maximum(m, 0.0), a) + 2.0 * np.log(half).sum(axis=-1)[..., None]
    i, j, _ = np.unravel_index(int(values.argmax()), values.shape)
    return scaled(best_multiple(np.maximum(m[i, j], 0.0), a) * W[i, j], scale)
