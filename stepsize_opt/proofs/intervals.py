"""Real numbers enclosed by two floats.

Addition, multiplication, division and the square root of IEEE 754 return the float nearest to the exact result, and
``math.fsum`` does for a sum.  So the next float below (above) the computed one is below (above) the exact result, with
underflow and overflow included: nothing is left to count.  ``math.log`` is right to one unit in the last place, so two
floats further are taken, and ``exp_up`` covers what ``math.exp`` may be off.  An end that cannot be bounded is
infinite; NaN counts as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from stepsize_opt.proofs.roundings import exp_down, exp_up


def below(x: float) -> float:
    """Return a float below every number that rounds to x; −inf for NaN."""
    return math.nextafter(x, -math.inf) if x == x else -math.inf


def above(x: float) -> float:
    """Return a float above every number that rounds to x; inf for NaN."""
    return math.nextafter(x, math.inf) if x == x else math.inf


def fsum(values: Iterable[float]) -> float:
    """Return the sum of the values, rounded once; NaN where float64 does not hold it."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return math.nan


# Not frozen: a proof makes dozens, and to make a frozen one takes twice as long.
@dataclass(eq=False, slots=True)
class Interval:
    """Some real number x with low ≤ x ≤ high.  Floats and whole numbers below 2⁵³ count as exact in every operation."""

    low: float
    high: float

    @staticmethod
    def exact(x: float) -> Interval:
        """Return the interval of one float."""
        return Interval(x, x)

    @staticmethod
    def around(value: float, error: float) -> Interval:
        """Return the interval of all numbers within a float ``error`` of ``value``."""
        return Interval(below(value - error), above(value + error))

    @staticmethod
    def total(parts: Iterable[Interval | float]) -> Interval:
        """Return the sum of the parts, each end rounded once."""
        found = [_interval(part) for part in parts]
        return Interval(below(fsum(x.low for x in found)), above(fsum(x.high for x in found)))

    def __add__(self, other: Interval | float) -> Interval:
        other = _interval(other)
        return Interval(below(self.low + other.low), above(self.high + other.high))

    __radd__ = __add__

    def __neg__(self) -> Interval:
        return Interval(-self.high, -self.low)

    def __sub__(self, other: Interval | float) -> Interval:
        other = _interval(other)
        return Interval(below(self.low - other.high), above(self.high - other.low))

    def __rsub__(self, other: float) -> Interval:
        return -self + other

    def __mul__(self, other: Interval | float) -> Interval:
        """Multiply: a product is monotone in each factor, so its extremes are among the products of the ends."""
        if not isinstance(other, Interval):
            ends = [_product(self.low, other), _product(self.high, other)]
        else:
            ends = [_product(x, y) for x in (self.low, self.high) for y in (other.low, other.high)]
        return Interval(below(min(ends)), above(max(ends)))

    __rmul__ = __mul__

    def __truediv__(self, other: Interval | float) -> Interval:
        """Return x/y; unknown where y may be zero."""
        other = _interval(other)
        if not (other.low > 0.0 or other.high < 0.0):
            return Interval(-math.inf, math.inf)
        return self * Interval(below(1.0 / other.high), above(1.0 / other.low))

    def __rtruediv__(self, other: float) -> Interval:
        return Interval.exact(other) / self

    def sqrt(self) -> Interval:
        """Return √x of a number x ≥ 0."""
        return Interval(max(0.0, below(math.sqrt(max(self.low, 0.0)))), above(math.sqrt(max(self.high, 0.0))))

    def log(self) -> Interval:
        """Return log x of a number x ≥ 0."""
        low = below(below(math.log(self.low))) if self.low > 0.0 else -math.inf
        return Interval(low, above(above(math.log(self.high))) if self.high > 0.0 else -math.inf)

    def exp(self) -> Interval:
        """Return eˣ."""
        return Interval(exp_down(self.low), exp_up(self.high))


def _interval(x: Interval | float) -> Interval:
    return x if isinstance(x, Interval) else Interval(x, x)


def _product(x: float, y: float) -> float:
    """Multiply ends: an infinite one stands for arbitrarily large numbers, of which 0 times any is 0."""
    return 0.0 if x == 0.0 or y == 0.0 else x * y


def log_sum(x: Interval, y: Interval) -> Interval:
    """Return log(eˣ + eʸ)."""
    if x.high < y.high:
        x, y = y, x
    return x + (1.0 + (y - x).exp()).log()


LOG_2 = Interval.exact(2.0).log()
