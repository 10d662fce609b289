"""From a stepsize to iterations and communication.

Theorem 1 of the paper: (1/K) Σ_{k<K} E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2Δ⁰/(det(D)^{1/d} K) with Δ⁰ = f(x⁰) − f^inf.  The
descent metric H has the same in place of D, λmin(H) bounds the plain mean of E‖∇f‖², and H ⪰ tM⁻¹ for M ⪯ ∇²f gives
E f(x^K) − f* ≤ (1 − t)^K Δ⁰.  For convex f, 𝒫(D) ⪯ L⁻¹ bounds the mean of E f(xᵏ) − f* by ‖x⁰ − x*‖²_{D⁻¹}/(2K).  With
momentum E f(x^K) − f* is at most 2(1 − t)^K Δ⁰, or 2‖x⁰ − x*‖²/(t²K(K + 3)) for convex f.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt.inputs import dimensions, positive_number, real_array
from stepsize_opt.proofs import UNIT, Enclosed, exponent_above, largest_floor, norm_from_above, twice_gamma
from stepsize_solvers.programs import Matrix, Vector


def iterations_needed(rate: float, epsilon2: float, initial_gap: float) -> int:
    """The smallest K with 2Δ⁰/(det(D)^{1/d} K) ≤ ε², where ``rate`` is det(D)^{1/d} and ``initial_gap`` is Δ⁰.

    Exact for the floats given, however large K is.
    """
    gap, target = positive_number("initial_gap", initial_gap), positive_number("epsilon2", epsilon2)
    return math.ceil(2 * Fraction(gap) / (Fraction(positive_number("rate", rate)) * Fraction(target)))


def linear_iterations(t: float, accuracy: float, initial_gap: float) -> int:
    """The smallest K with (1 − t)^K Δ⁰ ≤ accuracy, where ``initial_gap`` is Δ⁰ = f(x⁰) − f*.

    Found to 50 digits behind the point; where these leave a doubt, K is decided exactly up to 10⁴, rounded up beyond.
    """
    gap, target = Fraction(positive_number("initial_gap", initial_gap)), Fraction(positive_number("accuracy", accuracy))
    kept = 1 - Fraction(positive_number("rate", t))
    if gap <= target:
        return 0
    if kept <= 0:
        return 1
    zeros = math.ceil(-math.log10(t))  # of t: 1 − t takes them off its digits, and K has them in front of the point
    with localcontext(Context(prec=60 + 2 * zeros)):
        needed, each = ((Decimal(x.numerator) / x.denominator).ln() for x in (gap / target, 1 / kept))
        K = needed / each
        nearest = K.to_integral_value()
        if abs(K - nearest) > Decimal("1e-30"):
            return math.ceil(K)
    whole = int(nearest)
    return whole if whole <= _DECIDED and kept**whole * gap <= target else whole + 1


_DECIDED = 10**4


def convex_iterations(squared: Fraction, accuracy: float) -> int:
    """The smallest K with ‖x⁰ − x*‖²_{D⁻¹}/(2K) ≤ accuracy, where ``squared`` is that norm, squared; at least 1."""
    return max(1, math.ceil(squared / (2 * Fraction(positive_number("accuracy", accuracy)))))


def momentum_iterations(goal: str, t: float, accuracy: float, start: Any) -> int:
    """The smallest K that momentum with the rate t needs for E f(x^K) − f* ≤ accuracy.

    ``linear``: 2(1 − t)^K Δ⁰ ≤ accuracy, start = Δ⁰.  ``convex``: 2r² ≤ accuracy t²K(K + 3), start = x⁰ − x* or a
    number r ≥ ‖x⁰ − x*‖.
    """
    if goal == "linear":
        return linear_iterations(t, accuracy, 2.0 * positive_number("initial_gap", start))
    if dimensions(start) == 0:
        squared = Fraction(positive_number("initial_distance", start)) ** 2
    else:
        squared = sum((Fraction(x) ** 2 for x in real_array("initial_distance", start).tolist()), Fraction(0))
    rate = Fraction(positive_number("rate", t))
    needed = math.ceil(2 * squared / (rate**2 * Fraction(positive_number("accuracy", accuracy))))  # ≤ K(K + 3)
    K = max(1, (math.isqrt(4 * needed + 9) - 3) // 2)  # (2K + 3)² = 4K(K + 3) + 9
    return K if K * (K + 3) >= needed else K + 1


def squared_norm(blocks: Sequence[Matrix], distance: float | Sequence[Vector]) -> Fraction:
    """An upper bound on ‖v‖²_{D⁻¹} for D = Diag(blocks), a block being a matrix or a diagonal.

    distance: the part of v in each block, or a number r, then for every v with ‖v‖ ≤ r.
    A Fraction: the square of a float, or its quotient by an entry of D, may lie beyond the range of floats.
    """
    total, floors = Fraction(0), []
    for i, D in enumerate(blocks):
        e = int(np.frexp(D.max())[1])
        near = np.ldexp(D, -e)
        below = near.min() if D.ndim == 1 else largest_floor(Enclosed.exact(near), 1.0)
        if not below > 0.0:
            msg = "the smallest eigenvalue of D is lost to rounding; no bound on the norm of D⁻¹ is proved"
            raise ValueError(msg)
        floors.append(Fraction(below) * Fraction(2) ** e)
        if isinstance(distance, Sequence):
            v, f = _near_one(distance[i])
            if D.ndim == 1:
                root, g = _near_one(v / np.sqrt(near))
                size = math.ldexp(float(np.sum(root * root)) * (1.0 + twice_gamma(len(v) + 8)), 2 * g)
            else:
                size = norm_from_above(near, v, below)
            # What underflows is far below the roundings of a sum whose largest term is near one.
            total += Fraction(size * (1.0 + 4.0 * UNIT)) * Fraction(2) ** (2 * f - e)
    return total if isinstance(distance, Sequence) else Fraction(distance) ** 2 / min(floors)


def _near_one(v: Vector) -> tuple[Vector, int]:
    """v/2ᵉ with a largest entry near one, and e."""
    e = exponent_above(v)
    return np.ldexp(v, -e), e


def coordinates_sent(iterations: int, expected_nonzeros: float) -> float:
    """Expected number of coordinates sent to the server in all rounds; raises OverflowError beyond float64."""
    try:
        return iterations * expected_nonzeros
    except OverflowError:
        digits = math.floor(iterations.bit_length() * math.log10(2.0))
        msg = f"the number of coordinates sent in about 1e{digits} iterations exceeds float64; ask for less accuracy"
        raise OverflowError(msg) from None
