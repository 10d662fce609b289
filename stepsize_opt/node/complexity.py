"""From a stepsize to iterations and communication.

Theorem 1 of the paper: (1/K) Σ_{k<K} E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2Δ⁰/(det(D)^{1/d} K) with Δ⁰ = f(x⁰) − f^inf.  The
descent metric H has the same in place of D, λmin(H) bounds the plain mean of E‖∇f‖², and H ⪰ tM⁻¹ for M ⪯ ∇²f gives
E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

from stepsize_opt.inputs import positive_number


def iterations_needed(rate: float, epsilon2: float, initial_gap: float) -> int:
    """The smallest K with 2Δ⁰/(det(D)^{1/d} K) ≤ ε², where ``rate`` is det(D)^{1/d} and ``initial_gap`` is Δ⁰.

    Exact for the floats given, however large K is.
    """
    gap, target = positive_number("initial_gap", initial_gap), positive_number("epsilon2", epsilon2)
    return math.ceil(2 * Fraction(gap) / (Fraction(positive_number("rate", rate)) * Fraction(target)))


def linear_iterations(t: float, accuracy: float, initial_gap: float) -> int:
    """The smallest K with (1 − t)^K Δ⁰ ≤ accuracy, where ``initial_gap`` is Δ⁰ = f(x⁰) − f*.

    Found with 60 digits; where these leave a doubt, K is decided exactly up to 10⁴, and rounded up beyond.
    """
    gap, target = Fraction(positive_number("initial_gap", initial_gap)), Fraction(positive_number("accuracy", accuracy))
    kept = 1 - Fraction(positive_number("rate", t))
    if gap <= target:
        return 0
    if kept <= 0:
        return 1
    with localcontext() as context:
        context.prec = 60
        needed, each = ((Decimal(x.numerator) / x.denominator).ln() for x in (gap / target, 1 / kept))
        K = needed / each
        nearest = K.to_integral_value()
        if abs(K - nearest) > Decimal("1e-30") * max(K, Decimal(1)):
            return math.ceil(K)
    whole = int(nearest)
    return whole if whole <= _DECIDED and kept**whole * gap <= target else whole + 1


_DECIDED = 10**4


def coordinates_sent(iterations: int, expected_nonzeros: float) -> float:
    """Expected number of coordinates sent to the server in all rounds; raises OverflowError beyond float64."""
    try:
        return iterations * expected_nonzeros
    except OverflowError:
        digits = math.floor(iterations.bit_length() * math.log10(2.0))
        msg = (
            f"the number of coordinates sent in about 1e{digits} iterations exceeds float64; ask for a larger epsilon2"
        )
        raise OverflowError(msg) from None
