"""Starting points: powers of B and of 𝒬(B), given blocks, or the solution of a nearby problem, moved inside.

The candidates are W = B^{-p} and 𝒬(B)^{-p} for a few p: between them they contain the exact optimum of the identity map
(𝒬(B)⁻¹ up to a factor), of a diagonal B, and the best hand-picked stepsizes of the literature.  With m_j, ascending,
the eigenvalues of W^{-½} 𝒬(WBW) W^{-½},

* γW satisfies the condition exactly for γ ≤ 1/m_d;
* log det(aγW − γ²𝒬(WBW)) = log det W + Σ_j log(γ(a − γm_j)) is concave in γ and largest between a/(2m_d) and a/m_d.

If 𝒬 is entrywise, D = Diag(s)D̃Diag(s) turns B into Diag(s)BDiag(s), and the powers are those for a unit diagonal: at
k = 1 they save a third of the time against those of a B whose diagonal varies by a factor of four.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stepsize_solvers.interior.condition import Condition, ConditionPoint
from stepsize_solvers.interior.frame import BlockFrame, Frame, FullFrame
from stepsize_solvers.numerics.linalg import (
    cholesky,
    eigenvalues,
    eigh,
    largest_eigenvalue,
    smallest_eigenvalue,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, Vector, WarmStart

# Eigenvalues below this fraction of the largest are raised to it: powers of them would only be rounding.
_EIGENVALUE_FLOOR = 1e-14
# The exponents for B and for 𝒬(B).  For the metric, on 35 problems with rand-k (synthetic, a1a, phishing, heart_scale,
# w1a), one of them is within 0.2 of the best log det/d.
_FOR_CONDITION = np.array([[0.5, 0.25, 0.0], [0.5, 0.75, 1.0]])
# For a graded map those of B itself alone.
_FOR_GRADED = np.array([[0.0, 0.5, 1.0]])
_FOR_METRIC = np.array([[0.25, 0.5], [0.75, 1.0]])
# The multiples tried, as fractions of a/m_d; the best of them is within 0.01 of the best log det/d.
_FRACTIONS = np.array([0.52, 0.6, 0.7, 0.8, 0.9, 0.97])
# A cold start lies at this fraction of the boundary: 5.4 steps on average over 120 random problems (d ≤ 16, all maps,
# condition up to 10⁶) where 0.9 takes 5.6 and 0.8 takes 5.9.
_FRACTION = 0.95
# A warm start keeps this fraction of the boundary, and mixes this much of the central dual into the given one.
_WARM_FRACTION = 0.97
_WARM_MIX = 0.05


def _unit_diagonal(B: Matrix, Q: PositiveMap) -> tuple[Matrix, Vector]:
    """Diag(s)BDiag(s) with a unit diagonal, and s; s is 1 where an entry is not positive, or 𝒬 allows no other."""
    if not Q.is_entrywise:
        return B, np.ones(len(B))
    diagonal = B.diagonal()
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    return B * np.multiply.outer(scale, scale), scale


def _frames(family: Family, pattern: Pattern, exponents: Matrix) -> Iterator[Frame]:
    """The frames of the powers."""
    assert family.B is not None
    B, scale = (family.B, np.ones(len(family.B))) if len(exponents) == 1 else _unit_diagonal(family.B, family.Q)
    for M, row in zip((B, sym(family.Q.apply(B))), exponents, strict=False):
        w, U = np.empty(len(M)), np.zeros_like(M)
        for s in pattern.slices:
            w[s], U[s, s] = eigh(M[s, s])
        if not w.max() > 0.0:
            continue
        w = np.maximum(w, _EIGENVALUE_FLOOR * w.max())
        rotated = None if M is B and pattern.is_full else sym(U.T @ B @ U)  # None: it is Diag(w)
        for exponent in row:
            root = w ** (-0.5 * exponent)
            C, E = scale[:, None] * U * root, U / scale[:, None] / root
            if exponent == 0.0:
                # Exactly I: rounding errors of UUᵀ are too much for a map with coefficients of 10³⁰.
                C, E = np.diag(scale), np.diag(1.0 / scale)
            shared = family.Q, family.a, pattern, C, E, 2.0 * float(np.log(root * scale).sum())
            if exponent == 0.0:
                yield BlockFrame(*shared, family.B, B)
            elif rotated is None:
                yield FullFrame(*shared, w * root**2)
            else:
                yield BlockFrame(*shared, family.B, rotated * np.multiply.outer(root, root))


# ---------------------------------------------------------------- the condition


def power_start(family: Family, pattern: Pattern) -> Matrix | None:
    """The best of the powers on the boundary of the condition; None when there is none."""
    best, most = None, -math.inf
    for frame in _frames(family, pattern, _FOR_GRADED if family.Q.is_graded else _FOR_CONDITION):
        top = largest_eigenvalue(frame.quadratic)
        value = frame.log_det - pattern.d * math.log(top) if 0.0 < top < math.inf else -math.inf
        if value > most:
            best, most = frame.D / top, value
    return best


def given_start(family: Family, pattern: Pattern) -> Matrix | None:
    """The best factor of each given block alone, all scaled to the boundary; None when W is not positive definite."""
    frame = Frame.of(family, pattern, sym(pattern.member), rotated=False)
    if frame is None:
        return None
    factors = [1.0 / largest_eigenvalue(frame.quadratic[s, s]) for s in pattern.slices]
    D = np.repeat(factors, pattern.sizes)[:, None] * pattern.member
    frame = Frame.of(family, pattern, sym(D), rotated=False)
    return None if frame is None else D / largest_eigenvalue(frame.quadratic)


def cold_start(problem: Condition, fraction: float = _FRACTION) -> ConditionPoint | None:
    """The best of the powers, or given blocks, moved inside, with the central dual Z = cF⁻¹ of ⟨Z, D⟩ = d."""
    candidates = power_start if problem.pattern.W is None else given_start
    D = candidates(problem.family, problem.pattern)
    frame = None if D is None else problem.frame(fraction * D)
    K = None if frame is None else cholesky(frame.value)
    if frame is None or K is None:
        return None
    half = triangular_inverse(K)
    inverse = half.T.dot(half)
    return ConditionPoint.of(frame, inverse * (frame.d / float(np.trace(inverse))))


def warm_start(problem: Condition, warm: WarmStart) -> ConditionPoint | None:
    """The solution of a nearby problem moved inside: D scaled back from the boundary, Z mixed with the central dual.

    The factor of D is chosen from the constraint of *this* problem, so D may come from another sketch or another B.
    """
    d = problem.pattern.d
    if warm.X.shape != (d, d) or len(warm.duals) != 1 or warm.duals[0].shape != (1, d, d):
        return None
    D, Z = problem.pattern.nearest(warm.X), sym(warm.duals[0][0])
    p = problem.point(D, Z)
    if p is None:
        return None
    p = problem.point((_WARM_FRACTION / (1.0 - smallest_eigenvalue(p.Ft))) * D, Z)
    if p is None or cholesky(p.Ft) is None:
        return None
    inverse = sym(np.linalg.inv(p.Ft))
    w, U = eigh(p.Zt)
    Zt = sym((U * np.maximum(w, 0.0)) @ U.T)
    # Both normalised to ⟨Z, 𝒬(DBD)⟩ = d.
    central = inverse * (d / float(np.trace(inverse) - d))
    energy = float(np.vdot(Zt, p.frame.quadratic))
    if not energy > 0.0:
        return None
    mixed = replace(p, Zt=(1.0 - _WARM_MIX) * (d / energy) * Zt + _WARM_MIX * central)
    return None if mixed.scaling_or_none is None else mixed


# ---------------------------------------------------------------- the metric


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


def metric_start(family: Family, pattern: Pattern, warm: Matrix | None) -> Matrix | None:
    """A D with G(D) ≻ 0: the best multiple of a warm start, of W, or of the best power; None when there is none."""
    given = pattern.W if warm is None else pattern.nearest(warm)
    if given is not None:
        frame = Frame.of(family, pattern, given, rotated=False)
        m = None if frame is None else _spectrum(frame)
        if m is not None:
            return best_multiple(m, family.a) * given
        return None if warm is None else metric_start(family, pattern, None)
    best: tuple[float, Vector, Frame] | None = None
    for frame in _frames(family, pattern, _FOR_METRIC):
        m = _spectrum(frame)
        if m is None:
            continue
        value = frame.log_det + float(_values(m, family.a).max())
        if best is None or value > best[0]:
            best = (value, m, frame)
    if best is None:
        return None
    _, m, frame = best
    return np.asarray(best_multiple(m, family.a) * frame.D)


def _spectrum(frame: Frame) -> Vector | None:
    """The numbers m_j, ascending; None when they are no numbers."""
    m = eigenvalues(frame.quadratic)
    return np.maximum(m, 0.0) if 0.0 < m[-1] < math.inf else None


def _values(m: Vector, a: float) -> Vector:
    """Σ_j log(γ(a − γm_j)) for each of the multiples tried."""
    gamma = (a / m[-1]) * _FRACTIONS[:, None]
    return np.asarray(np.log(gamma * (a - gamma * m)).sum(axis=1))
