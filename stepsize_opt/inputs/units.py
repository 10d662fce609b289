"""Numbers in units in which they are near one, by an exact power of two, so that no product leaves float64's range.

The stepsize for L is 4⁻ⁿ times the one for 4⁻ⁿL.  Powers of four have exact roots: L = UUᵀ + Diag(a) becomes
(2⁻ⁿU)(2⁻ⁿU)ᵀ + Diag(4⁻ⁿa).
"""

from __future__ import annotations

import math
import sys

import numpy as np

from stepsize_opt.inputs.checks import Array

LARGEST_SPREAD = 150  # binary digits; a condition number of 2⁵³ is the most that float64 resolves
_NEAR = 32  # binary digits from one that leave room for every product, so that large arrays need no copy


def binary_exponent(x: float) -> int:
    """The least e with x < 2ᵉ; below every exponent of a float for x = 0."""
    return math.frexp(x)[1] if x > 0.0 else -sys.maxsize


def power_of_four(name: str, largest: int, smallest: int) -> int:
    """n such that 4⁻ⁿ brings numbers with exponents from ``smallest`` to ``largest`` near one; 0 where they are.

    Raises ValueError for numbers that lie too far apart for proofs in float64.
    """
    if largest - smallest > LARGEST_SPREAD:
        msg = (
            f"{name} has numbers whose sizes differ by 2^{largest - smallest}, and proofs in float64 take at most "
            f"2^{LARGEST_SPREAD}; rescale the variables, or raise the smallest of them (a regulariser)"
        )
        raise ValueError(msg)
    return 0 if abs(largest) <= _NEAR else largest // 2


def scaled_exactly(name: str, array: Array, exponent: int) -> Array:
    """Return 2^exponent times an array, without rounding; raises ValueError where float64 does not hold it."""
    if exponent == 0:
        return array
    with np.errstate(over="ignore"):  # what is lost shows on the way back
        out = np.ldexp(array, exponent)
    if not np.array_equal(np.ldexp(out, -exponent), array):
        what = f"an entry of {name}"
        raise out_of_range(what)
    return out


def out_of_range(what: str) -> ValueError:
    """Return the error for a number that float64 does not hold."""
    return ValueError(
        f"{what} lies outside the range of float64, 2.3e-308 to 1.8e308; solve for cL with a factor c that brings D "
        "into this range: the stepsize for L is c times that for cL"
    )
