"""Roundings of float64: their size, sums and products whose rounding is known, products of slices without any.

*Products without rounding* (Ozaki, Ogita, Oishi, Rump 2012).  Cut each row of A and each column of B into
slices of at most ``⌊(53 − log₂ n)/2⌋`` bits.  A product of two slices then has no rounding error in any
summation order, so ordinary BLAS products of slices add up to twice the working precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stepsize_solvers.programs import Matrix, Vector

UNIT = 2.0**-53  # unit roundoff of float64
SMALLEST_NORMAL = 2.0**-1022  # smaller numbers lose digits
SMALLEST_STEPSIZE = 2.0**-400  # on the diagonal of a scaled stepsize matrix that can be proved feasible
LARGEST_COEFFICIENT = 2.0**330  # of a positive map, about 2e99


def is_held(x: Vector) -> NDArray[np.bool_]:
    """Return which positive numbers float64 holds with all their digits."""
    return (x >= SMALLEST_NORMAL) & np.isfinite(x)


def twice_gamma(n: int) -> float:
    """Return 2γ_n, γ_n = nu/(1 − nu) the relative error of n roundings in a row.

    Doubled, so that the rounding of a bound, of a nonnegative sum of up to n terms, is covered too.
    """
    return 2.0 * n * UNIT / (1.0 - n * UNIT)


def rounded_down(x: Fraction) -> float:
    """Return the largest float that is not above x."""
    try:
        nearest = float(x)
    except OverflowError:
        nearest = math.inf if x > 0 else -math.inf
    return nearest if nearest <= x else math.nextafter(nearest, -math.inf)


def rounded_up(x: Fraction) -> float:
    """Return the smallest float that is not below x."""
    return -rounded_down(-x)


def sum_below(values: Sequence[float], n: int = 1) -> float:
    """Return the largest float that is not above (1/n)Σ of the values; −∞ if one of them is −∞."""
    return -math.inf if -math.inf in values else rounded_down(sum(map(Fraction, values), Fraction(0)) / n)


def exp_down(x: float) -> float:
    """Return a lower bound on eʸ for every y that x is the rounding of: a quotient log det/d is rounded once.

    The library's exp is right to one unit in the last place, below the normal floats to the smallest of all.
    """
    x = min(x, 709.75)  # e^709.78 is the largest float
    return max(0.0, math.exp(x) * (1.0 - _roundings_of_exp(x)) - 4.0 * math.ulp(0.0))


def exp_up(x: float) -> float:
    """Return an upper bound on eʸ for every y that x is the rounding of."""
    return math.exp(x) * (1.0 + _roundings_of_exp(x)) + 4.0 * math.ulp(0.0) if x < 700.0 else math.inf


def _roundings_of_exp(x: float) -> float:
    """Return a relative error of eˣ that covers the roundings of x and of the result; e^−800 is no float."""
    return (4.0 + 2.0 * min(abs(x), 800.0)) * UNIT


@dataclass(frozen=True, eq=False)
class Slices:
    """A = A₁ + A₂ + A₃ exactly, row by row: A₁ and A₂ have few enough bits that their products are free of rounding.

    With n columns, p = ⌊(53 − log₂ n)/2⌋ bits and 2^e above the entries of a row, A₁ is a multiple of 2^(e−p) and A₂ of
    2^(e−2p), |A₁| ≤ 2^e, |A₂ + A₃| ≤ 2^(e−p−1), |A₃| ≤ 2^(e−2p−1).  So the n products in an entry of A₁B₁, and the 2n
    in one of A₁B₂ + A₂B₁, are multiples of one power of two and their sums stay below 2^53 times it.

    rest: A₂ + A₃.  top: a column of the numbers 2^e.
    """

    A: Matrix
    first: Matrix
    second: Matrix
    third: Matrix
    rest: Matrix
    top: Matrix

    @staticmethod
    def of_rows(A: Matrix) -> Slices:
        bits = _slice_bits(A.shape[1])
        top = np.ldexp(1.0, np.frexp(np.abs(A).max(axis=1, keepdims=True))[1])
        # 0.75·2^(e + 53 − p): adding and subtracting it rounds to multiples of 2^(e − p).
        sigma = (0.75 * 2.0 ** (53 - bits)) * top
        first = A + sigma
        first -= sigma
        rest = A - first
        sigma *= 2.0**-bits
        second = rest + sigma
        second -= sigma
        return Slices(A, first, second, rest - second, rest, top)


def _slice_bits(n: int) -> int:
    return int((53.0 - math.log2(n)) / 2.0)


def two_sum(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """fl(a + b) and its exact rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def sliced_product(A: Slices, B: Slices) -> tuple[Matrix, Matrix, Matrix]:
    """A₀B₀ᵀ = hi + lo up to ``error`` for the sliced matrices A₀ and B₀, |lo| of the size of a rounding error of hi.

    A₁B₁ᵀ and A₁B₂ᵀ + A₂B₁ᵀ are exact, their sum is kept with its rounding error, and the rest is below
    1.25·n·2^(e + f − 2p): its n + 2 roundings and that of lo are below γ_{n+4} times as much.
    """
    n = A.A.shape[1]
    hi, lo = two_sum(A.first.dot(B.first.T), A.first.dot(B.second.T) + A.second.dot(B.first.T))
    lo += A.first.dot(B.third.T) + A.second.dot(B.rest.T) + A.third.dot(B.A.T)
    error = (twice_gamma(n + 4) * 2.0 * n * 4.0 ** -_slice_bits(n) * A.top) * B.top.T
    return hi, lo, error


def two_product(a: Matrix, b: float | Matrix) -> tuple[Matrix, Matrix]:
    """fl(ab) and its exact rounding error (Dekker), entry by entry."""
    p = a * b
    a1, b1 = _upper_half(a), _upper_half(np.asarray(b, dtype=float))
    a2, b2 = a - a1, b - b1
    return p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)


def _upper_half(a: Matrix) -> Matrix:
    """Return the leading 26 bits of each entry (Veltkamp)."""
    c = 134217729.0 * a  # 2²⁷ + 1
    return np.asarray(c - (c - a))


def power_of_two_scaling(diagonal: Vector) -> Vector:
    """Λ_j = 2^{−⌊½ log₂ M_jj⌉}: ΛMΛ has diagonal entries in [½, 2), and the scaling has no rounding error."""
    return np.asarray(np.ldexp(1.0, np.rint(-0.5 * np.log2(diagonal)).astype(np.intc)))
