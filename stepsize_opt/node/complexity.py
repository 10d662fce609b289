"""From a stepsize to iterations and communication.

Theorem 1 of the paper: (1/K) Σ_{k<K} E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2Δ⁰/(det(D)^{1/d} K) with Δ⁰ = f(x⁰) − f^inf.
"""

from __future__ import annotations

import math
from fractions import Fraction

from stepsize_opt.inputs import positive_number


def iterations_needed(rate: float, epsilon2: float, initial_gap: float) -> int:
    """The smallest K with 2Δ⁰/(det(D)^{1/d} K) ≤ ε², where ``rate`` is det(D)^{1/d} and ``initial_gap`` is Δ⁰.

    Exact for the floats given, however large K is.
    """
    gap, target = positive_number("initial_gap", initial_gap), positive_number("epsilon2", epsilon2)
    return math.ceil(2 * Fraction(gap) / (Fraction(positive_number("rate", rate)) * Fraction(target)))


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
