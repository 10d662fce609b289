"""Matrices with a bound on their error, in working precision (``Plain``) and in twice that (``Pair``).

A certificate that says "feasible" must be right in exact arithmetic for the very floats it was given.  ``Pair`` adds up
products of slices, which have no rounding error (``.roundings``).  Where the rounding of an ordinary product,
|fl(AB) − AB| ≤ γ_n |A||B|, does no harm, ``Plain`` costs a fraction of that.  ``.cholesky`` proves from such
enclosures that a matrix is positive definite.

Underflow is left out of the bounds: callers scale stepsizes to a diagonal near one (``SMALLEST_STEPSIZE``).  An
underflow loses less than 2⁻¹⁰⁷⁴; even after n products and a map with coefficients up to ``LARGEST_COEFFICIENT``
that is nothing against 2⁻⁵³ D_jj, a rounding error that every bound counts at least twice.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_opt.proofs.roundings import UNIT, Slices, gamma, sliced_product, two_product, two_sum
from stepsize_solvers.programs import Indices, Matrix


# Neither this class nor ``Plain`` is frozen: a proof makes dozens, and to make a frozen one takes twice as long.
@dataclass(eq=False, slots=True)
class Enclosed:
    """A matrix known to lie within ``error`` (entrywise, nonnegative) of ``value``."""

    value: Matrix
    error: Matrix

    def symmetric(self) -> Enclosed:
        """The symmetric part, when the exact matrix is symmetric."""
        value = self.value + self.value.T
        value *= 0.5
        error = np.maximum(self.error, self.error.T)
        error += UNIT * np.abs(value)
        return Enclosed(value, error)


class Approximate(ABC):
    """A matrix with a bound on its error, in one of two precisions; operands must have the same one."""

    @staticmethod
    @abstractmethod
    def exact(A: Matrix) -> Approximate:
        """The floats of A."""

    @staticmethod
    @abstractmethod
    def enclosing(value: Matrix, error: Matrix) -> Approximate:
        """A matrix within ``error`` (entrywise) of ``value``."""

    @staticmethod
    @abstractmethod
    def side_by_side(parts: Sequence[Any]) -> Approximate:
        """[A₁ A₂ …]."""

    @abstractmethod
    def __add__(self, other: Any) -> Approximate: ...

    @abstractmethod
    def __neg__(self) -> Approximate: ...

    @abstractmethod
    def __matmul__(self, other: Any) -> Approximate: ...

    @property
    @abstractmethod
    def T(self) -> Approximate: ...

    @abstractmethod
    def scaled(self, factor: float | Matrix) -> Approximate:
        """The entrywise product with exact floats."""

    @abstractmethod
    def block(self, s: slice | Indices) -> Approximate:
        """The rows and columns of a slice, or of indices."""

    @abstractmethod
    def on(self, rows: Indices, d: int) -> Approximate:
        """The d×d matrix with this one in the given rows and columns, zero elsewhere."""

    @abstractmethod
    def with_blocks(self, blocks: Iterable[tuple[slice, Any]]) -> Approximate:
        """The matrix with some of its diagonal blocks replaced."""

    @abstractmethod
    def trace_times_identity(self) -> Approximate:
        """tr(A) I."""

    @abstractmethod
    def rounded(self) -> Enclosed:
        """One float for each entry."""

    @abstractmethod
    def inner_from_above(self, other: Any) -> float:
        """A proved upper bound on ⟨A, B⟩."""


def _plus(a: Matrix | None, b: Matrix | None) -> Matrix | None:
    """a + b, where None stands for zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _block(A: Matrix, s: slice | Indices) -> Matrix:
    return A[s, s] if isinstance(s, slice) else A[np.ix_(s, s)]


def embedded(block: Matrix, rows: Indices, d: int) -> Matrix:
    """The d×d matrix with the block in the given rows and columns, zero elsewhere."""
    out = np.zeros((d, d))
    out[np.ix_(rows, rows)] = block
    return out


def _filled(part: Matrix | None, like: Matrix) -> Matrix:
    """A copy of the part, where None stands for zero."""
    return np.zeros_like(like) if part is None else part.copy()


@dataclass(frozen=True, eq=False)
class Pair(Approximate):
    """A matrix in twice the working precision: within ``error`` (entrywise) of hi + lo, |lo| about a rounding of hi.

    ``lo`` or ``error`` is None when it is zero.
    """

    hi: Matrix
    lo: Matrix | None = None
    error: Matrix | None = None

    @staticmethod
    def exact(A: Matrix) -> Pair:
        return Pair(A)

    @staticmethod
    def enclosing(value: Matrix, error: Matrix) -> Pair:
        return Pair(value, error=error)

    @staticmethod
    def side_by_side(parts: Sequence[Pair]) -> Pair:
        hi = np.hstack([part.hi for part in parts])
        lo = np.hstack([_filled(part.lo, part.hi) for part in parts])
        return Pair(hi, lo, np.hstack([_filled(part.error, part.hi) for part in parts]))

    def to(self, arithmetic: type[Approximate]) -> Approximate:
        """The same in one of the two precisions."""
        if arithmetic is Pair:
            return self
        rounded = self.rounded()
        return arithmetic.enclosing(rounded.value, rounded.error)

    @cached_property
    def rows(self) -> Slices:
        """The slices of hi, row by row."""
        return Slices.of_rows(self.hi)

    @cached_property
    def columns(self) -> Slices:
        """The slices of hiᵀ, row by row."""
        hi = self.hi
        return self.rows if hi.shape[0] == hi.shape[1] and (hi == hi.T).all() else Slices.of_rows(hi.T)

    @cached_property
    def magnitude(self) -> Matrix:
        """An entrywise bound on the absolute value."""
        out = np.abs(self.hi)
        if self.lo is not None:
            out += np.abs(self.lo)
        if self.error is not None:
            out += self.error
        return np.asarray(out * (1.0 + gamma(2)))

    def __add__(self, other: Pair) -> Pair:
        hi, rest = two_sum(self.hi, other.hi)
        slack = np.abs(rest)
        for part in (self.lo, other.lo):
            if part is not None:
                slack += np.abs(part)
                rest += part
        slack *= gamma(3)
        for part in (self.error, other.error):
            if part is not None:
                slack += part * (1.0 + gamma(2))
        return Pair(hi, rest, slack)

    def __neg__(self) -> Pair:
        return Pair(-self.hi, None if self.lo is None else -self.lo, self.error)

    @property
    def T(self) -> Pair:
        lo, error = (None if part is None else part.T for part in (self.lo, self.error))
        return Pair(self.hi.T, lo, error)

    def _slack(self, n: int) -> Matrix | None:
        """What a product of n terms adds per unit of the other factor: the error, and the rounding of lo's part."""
        return self.error if self.lo is None else _plus(self.error, gamma(n + 6) * np.abs(self.lo))

    def __matmul__(self, other: Pair) -> Pair:
        n = self.hi.shape[1]
        hi, lo, error = sliced_product(self.rows, other.columns)
        if other.lo is not None:
            lo += self.hi.dot(other.lo)
        if self.lo is not None:
            lo += self.lo.dot(other.hi)
        # What is left out: the rounding of these two products, the errors of the factors, the product of the low parts.
        left, right = self._slack(n), other._slack(n)
        if left is not None:
            error += left.dot(other.magnitude) * (1.0 + gamma(n))
        if right is not None:
            error += self.magnitude.dot(right) * (1.0 + gamma(n))
        if self.lo is not None and other.lo is not None:
            error += np.abs(self.lo).dot(np.abs(other.lo)) * (1.0 + gamma(n))
        return Pair(hi, lo, error + gamma(3) * np.abs(lo))

    def scaled(self, factor: float | Matrix) -> Pair:
        hi, rest = two_product(self.hi, factor)
        error = None if self.error is None else self.error * np.abs(factor) * (1.0 + gamma(2))
        if self.lo is None:
            return Pair(hi, rest, error)
        lo = rest + self.lo * factor
        return Pair(hi, lo, _plus(error, gamma(2) * (np.abs(rest) + np.abs(lo))))

    def block(self, s: slice | Indices) -> Pair:
        lo, error = (None if part is None else _block(part, s) for part in (self.lo, self.error))
        return Pair(_block(self.hi, s), lo, error)

    def on(self, rows: Indices, d: int) -> Pair:
        lo, error = (None if part is None else embedded(part, rows, d) for part in (self.lo, self.error))
        return Pair(embedded(self.hi, rows, d), lo, error)

    def with_blocks(self, blocks: Iterable[tuple[slice, Pair]]) -> Pair:
        hi, lo, error = self.hi.copy(), _filled(self.lo, self.hi), _filled(self.error, self.hi)
        for s, block in blocks:
            hi[s, s] = block.hi
            lo[s, s] = 0.0 if block.lo is None else block.lo
            error[s, s] = 0.0 if block.error is None else block.error
        return Pair(hi, lo, error)

    def trace_times_identity(self) -> Pair:
        terms = [x for part in (self.hi, self.lo) if part is not None for x in part.diagonal().tolist()]
        trace = math.fsum(terms)  # rounded once, and so is what is left of the sum
        rest = math.fsum([*terms, -trace])
        error = 0.0 if self.error is None else math.fsum(self.error.diagonal().tolist())
        identity = np.eye(len(self.hi))
        return Pair(trace * identity, rest * identity, (UNIT * abs(rest) + error * (1.0 + gamma(2))) * identity)

    def divided(self, n: int) -> Pair:
        """A/n for a whole number n below 2⁵³."""
        hi = self.hi / n
        back, rest = two_product(hi, float(n))
        # hi − n fl(hi/n) = (hi − back) − rest, of which the difference is exact.
        lo = ((self.hi - back) - rest + (0.0 if self.lo is None else self.lo)) / n
        error = gamma(4) * np.abs(lo) + gamma(4) * (np.abs(rest) + np.abs(self.hi - back)) / n
        return Pair(hi, lo, error if self.error is None else error + self.error / n * (1.0 + gamma(2)))

    def rounded(self) -> Enclosed:
        value = self.hi if self.lo is None else self.hi + self.lo
        error = (2.0 * UNIT) * np.abs(value)
        if self.error is not None:
            error += self.error * (1.0 + gamma(2))
        return Enclosed(value, error)

    def inner_from_above(self, other: Pair) -> float:
        high, low = two_product(self.hi, other.hi)
        size = np.abs(low)
        for a, b in ((self.hi, other.lo), (self.lo, other.hi)):
            if a is not None and b is not None:
                product = a * b
                low += product
                size += np.abs(product)
        # Rounded: the products with a low part and every sum of the low parts.  Left out: the errors, and the product
        # of the low parts.
        slack = size * gamma(size.size + 4)
        if self.lo is not None and other.lo is not None:
            slack += np.abs(self.lo * other.lo)
        if self.error is not None:
            slack += self.error * other.magnitude
        if other.error is not None:
            slack += self.magnitude * other.error
        total = math.fsum(high.ravel().tolist()) + float(low.sum())
        return total + 2.0 * float(slack.sum()) + 4.0 * UNIT * abs(total)


@dataclass(eq=False, slots=True)
class Plain(Approximate):
    """A matrix in working precision: within ``error`` (entrywise) of ``value``; None stands for no error."""

    value: Matrix
    error: Matrix | None = None

    @staticmethod
    def exact(A: Matrix) -> Plain:
        return Plain(A)

    @staticmethod
    def enclosing(value: Matrix, error: Matrix) -> Plain:
        return Plain(value, error)

    @staticmethod
    def side_by_side(parts: Sequence[Plain]) -> Plain:
        error = np.hstack([_filled(part.error, part.value) for part in parts])
        return Plain(np.hstack([part.value for part in parts]), error)

    def __add__(self, other: Plain) -> Plain:
        value = self.value + other.value
        error = UNIT * np.abs(value)
        for part in (self.error, other.error):
            if part is not None:
                error += part
        error *= 1.0 + gamma(3)
        return Plain(value, error)

    def __neg__(self) -> Plain:
        return Plain(-self.value, self.error)

    @property
    def T(self) -> Plain:
        return Plain(self.value.T, None if self.error is None else self.error.T)

    def __matmul__(self, other: Plain) -> Plain:
        # |AB − fl(AB)| ≤ γ_n|A||B|, and the errors of the factors; doubled, as γ is, for the roundings of this bound.
        n = self.value.shape[1]
        left, right = np.abs(self.value), np.abs(other.value)
        around = gamma(n) * left
        if self.error is not None:
            around += 2.0 * self.error
        error = around.dot(right)
        if other.error is not None:
            around += left
            error += 2.0 * around.dot(other.error)
        return Plain(self.value.dot(other.value), error)

    def scaled(self, factor: float | Matrix) -> Plain:
        value = self.value * factor
        error = (2.0 * UNIT) * np.abs(value)
        return Plain(value, error if self.error is None else error + 2.0 * self.error * np.abs(factor))

    def block(self, s: slice | Indices) -> Plain:
        return Plain(_block(self.value, s), None if self.error is None else _block(self.error, s))

    def on(self, rows: Indices, d: int) -> Plain:
        return Plain(embedded(self.value, rows, d), None if self.error is None else embedded(self.error, rows, d))

    def with_blocks(self, blocks: Iterable[tuple[slice, Plain]]) -> Plain:
        value, error = self.value.copy(), _filled(self.error, self.value)
        for s, block in blocks:
            value[s, s] = block.value
            error[s, s] = 0.0 if block.error is None else block.error
        return Plain(value, error)

    def trace_times_identity(self) -> Plain:
        trace = math.fsum(self.value.diagonal().tolist())
        error = 0.0 if self.error is None else math.fsum(self.error.diagonal().tolist())
        identity = np.eye(len(self.value))
        return Plain(trace * identity, (UNIT * abs(trace) + error) * (1.0 + gamma(2)) * identity)

    def rounded(self) -> Enclosed:
        return Enclosed(self.value, np.zeros_like(self.value) if self.error is None else self.error)

    def inner_from_above(self, other: Plain) -> float:
        return inner_from_above(self.rounded(), other.rounded())


def sandwich(A: Matrix, B: Matrix, C: Matrix, arithmetic: type[Approximate] = Pair) -> Enclosed:
    """A B C with an entrywise error bound; in twice the working precision and rounded once, unless asked otherwise."""
    exact = arithmetic.exact
    return (exact(A) @ (exact(B) @ exact(C))).rounded()


def inner_from_above(A: Enclosed, B: Enclosed) -> float:
    """A proved upper bound on ⟨A, B⟩."""
    products = A.value * B.value
    slack = np.abs(A.value) * B.error + A.error * (np.abs(B.value) + B.error) + UNIT * np.abs(products)
    total = math.fsum(products.ravel().tolist())
    return total + 2.0 * float(slack.sum()) + 2.0 * UNIT * abs(total)
