"""Arrays with a bound on their error, in working precision (``Enclosed``) and in twice that (``Pair``).

A certificate that says "feasible" must be right in exact arithmetic for the very floats it was given.  Every operation
here returns an enclosure of the exact results over all that its operands enclose, so a formula is its own proof.
Numbers are enclosed by an ``Interval``.  ``Pair`` adds up products of slices, which have no rounding error
(``.roundings``); ``Enclosed`` costs a fraction of that.  ``.cholesky`` proves that an enclosed matrix is positive
definite.

*Bounds.*  With u = 2⁻⁵³, |fl(x ∘ y) − x ∘ y| ≤ u|fl(x ∘ y)| for ∘ = +, −, ×, ÷ and for the root, and an inner product
of n terms is off by at most γ_n Σ|xᵢyᵢ| in any order of summation.  An error bound is itself a sum of nonnegative
numbers: with n roundings in a row it is right up to γ_n times itself, which a factor 1 + 2γ_n, or 2, covers.

Underflow is left out of the bounds: callers scale stepsizes to a diagonal near one (``SMALLEST_STEPSIZE``).  An
underflow loses less than 2⁻¹⁰⁷⁴; even after n products and a map with coefficients up to ``LARGEST_COEFFICIENT``
that is nothing against 2⁻⁵³ D_jj, a rounding error that every bound counts at least twice.  Overflow leaves an infinite
or undefined number, from which nothing is proved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from stepsize_opt.proofs.intervals import Interval, fsum
from stepsize_opt.proofs.roundings import UNIT, Slices, sliced_product, twice_gamma, two_product, two_sum
from stepsize_solvers.programs import Indices, Matrix, Vector, add_to_diagonal

# Roundings of the few nonnegative numbers in the error bound of one entrywise operation.
_UP = 1.0 + twice_gamma(8)


class _Entries(ABC):
    """What both precisions of a matrix do alike."""

    @abstractmethod
    def _of_each(self, part: Callable[[Matrix], Matrix]) -> Self:
        """Apply a function that moves entries to the value, or its parts, and to the error."""

    @property
    def T(self) -> Self:
        return self._of_each(np.transpose)

    def block(self, s: slice | Indices) -> Self:
        """Return the rows and columns of a slice, or of indices."""
        return self._of_each(lambda A: A[s, s] if isinstance(s, slice) else A[np.ix_(s, s)])

    def on(self, rows: Indices, d: int) -> Self:
        """Return the d×d matrix with this one in the given rows and columns, zero elsewhere."""
        return self._of_each(lambda A: _embedded(A, rows, d))

    def to(self: Any, arithmetic: type[Approximate]) -> Approximate:
        """Return the same in one of the two precisions."""
        return self if isinstance(self, arithmetic) else arithmetic.of(self.rounded())

    def congruent(self: Any, C: Matrix) -> Enclosed:
        """Return C A Cᵀ for a symmetric A, rounded once to a symmetric matrix."""
        exact = self.exact(C)
        found: Enclosed = (exact @ (self @ exact.T)).rounded()
        return found.symmetric()


def _plus(a: Matrix | None, b: Matrix | None) -> Matrix | None:
    """a + b, where None stands for zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _embedded(block: Matrix, rows: Indices, d: int) -> Matrix:
    """Return the d×d matrix with the block in the given rows and columns, zero elsewhere."""
    out = np.zeros((d, d))
    out[np.ix_(rows, rows)] = block
    return out


def _filled(part: Matrix | None, like: Matrix) -> Matrix:
    """Return a copy of the part, where None stands for zero."""
    return np.zeros_like(like) if part is None else part.copy()


@dataclass(frozen=True, eq=False)
class Pair(_Entries):
    """A matrix in twice the working precision: within ``error`` (entrywise) of hi + lo, |lo| about a rounding of hi.

    ``lo`` or ``error`` is None when it is zero.  transposed: the matrix of which this is the transpose, if it is known.
    """

    hi: Matrix
    lo: Matrix | None = None
    error: Matrix | None = None
    transposed: Pair | None = None

    @staticmethod
    def exact(A: Matrix) -> Pair:
        return Pair(A)

    @classmethod
    def of(cls, A: Enclosed) -> Self:
        return cls(A.value, error=A.slack)

    @staticmethod
    def side_by_side(parts: Sequence[Any]) -> Pair:
        hi = np.hstack([part.hi for part in parts])
        lo = np.hstack([_filled(part.lo, part.hi) for part in parts])
        return Pair(hi, lo, np.hstack([_filled(part.error, part.hi) for part in parts]))

    @cached_property
    def rows(self) -> Slices:
        """The slices of hi, row by row."""
        return Slices.of_rows(self.hi)

    @cached_property
    def columns(self) -> Slices:
        """The slices of hiᵀ, row by row."""
        if self.transposed is not None:
            return self.transposed.rows
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
        return np.asarray(out * (1.0 + twice_gamma(2)))

    def __add__(self, other: Pair) -> Pair:
        hi, rest = two_sum(self.hi, other.hi)
        slack = np.abs(rest)
        for part in (self.lo, other.lo):
            if part is not None:
                slack += np.abs(part)
                rest += part
        slack *= twice_gamma(3)
        for part in (self.error, other.error):
            if part is not None:
                slack += part * (1.0 + twice_gamma(2))
        return Pair(hi, rest, slack)

    def __sub__(self, other: Pair) -> Pair:
        return self + -other

    def __neg__(self) -> Pair:
        return Pair(-self.hi, None if self.lo is None else -self.lo, self.error)

    @property
    def T(self) -> Self:
        lo, error = (None if A is None else A.T for A in (self.lo, self.error))
        return type(self)(self.hi.T, lo, error, self)

    def _of_each(self, part: Callable[[Matrix], Matrix]) -> Self:
        lo, error = (None if A is None else part(A) for A in (self.lo, self.error))
        return type(self)(part(self.hi), lo, error)

    def _slack(self, n: int) -> Matrix | None:
        """What a product of n terms adds per unit of the other factor: the error, and the rounding of lo's part."""
        return self.error if self.lo is None else _plus(self.error, twice_gamma(n + 6) * np.abs(self.lo))

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
            error += left.dot(other.magnitude) * (1.0 + twice_gamma(n))
        if right is not None:
            error += self.magnitude.dot(right) * (1.0 + twice_gamma(n))
        if self.lo is not None and other.lo is not None:
            error += np.abs(self.lo).dot(np.abs(other.lo)) * (1.0 + twice_gamma(n))
        return Pair(hi, lo, error + twice_gamma(3) * np.abs(lo))

    def __mul__(self, factor: float | Matrix) -> Pair:
        hi, rest = two_product(self.hi, factor)
        error = None if self.error is None else self.error * np.abs(factor) * (1.0 + twice_gamma(2))
        if self.lo is None:
            return Pair(hi, rest, error)
        lo = rest + self.lo * factor
        return Pair(hi, lo, _plus(error, twice_gamma(2) * (np.abs(rest) + np.abs(lo))))

    def with_blocks(self, blocks: Iterable[tuple[slice, Any]]) -> Pair:
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
        return Pair(trace * identity, rest * identity, (UNIT * abs(rest) + error * (1.0 + twice_gamma(2))) * identity)

    def divided(self, n: int) -> Pair:
        """A/n for a whole number n below 2⁵³."""
        hi = self.hi / n
        back, rest = two_product(hi, float(n))
        # hi − n fl(hi/n) = (hi − back) − rest, of which the difference is exact.
        lo = ((self.hi - back) - rest + (0.0 if self.lo is None else self.lo)) / n
        error = twice_gamma(4) * np.abs(lo) + twice_gamma(4) * (np.abs(rest) + np.abs(self.hi - back)) / n
        return Pair(hi, lo, error if self.error is None else error + self.error / n * (1.0 + twice_gamma(2)))

    def rounded(self) -> Enclosed:
        value = self.hi if self.lo is None else self.hi + self.lo
        error = (2.0 * UNIT) * np.abs(value)
        if self.error is not None:
            error += self.error * (1.0 + twice_gamma(2))
        return Enclosed(value, error)

    def inner(self, other: Any) -> Interval:
        high, low = two_product(self.hi, other.hi)
        size = np.abs(low)
        for a, b in ((self.hi, other.lo), (self.lo, other.hi)):
            if a is not None and b is not None:
                product = a * b
                low += product
                size += np.abs(product)
        # Rounded: the products with a low part and every sum of the low parts.  Left out: the errors, and the product
        # of the low parts.
        slack = size * twice_gamma(size.size + 4)
        if self.lo is not None and other.lo is not None:
            slack += np.abs(self.lo * other.lo)
        if self.error is not None:
            slack += self.error * other.magnitude
        if other.error is not None:
            slack += self.magnitude * other.error
        total = fsum(high.ravel().tolist()) + float(low.sum())
        return Interval.around(total, 2.0 * float(slack.sum()) + 4.0 * UNIT * abs(total))


# Neither this class nor ``Interval`` is frozen: a proof makes dozens, and to make a frozen one takes twice as long.
@dataclass(eq=False, slots=True)
class Enclosed(_Entries):
    """A vector or matrix within ``error`` (entrywise, nonnegative) of ``value``; ``slack`` is None for exact floats.

    In every operation arrays and numbers count as exact floats.
    """

    value: Matrix
    slack: Matrix | None = None

    __array_ufunc__: ClassVar[None] = None  # so that array * Enclosed is an Enclosed

    @staticmethod
    def exact(A: Matrix) -> Enclosed:
        return Enclosed(A)

    @classmethod
    def of(cls, A: Enclosed) -> Self:
        return cls(A.value, A.slack)

    @staticmethod
    def side_by_side(parts: Sequence[Any]) -> Enclosed:
        return Enclosed(np.hstack([part.value for part in parts]), np.hstack([part.error for part in parts]))

    @staticmethod
    def symmetric_blocks(A: Enclosed, B: Enclosed, C: Enclosed) -> Enclosed:
        """Return [A B; Bᵀ C]."""
        value = np.block([[A.value, B.value], [B.value.T, C.value]])
        return Enclosed(value, np.block([[A.error, B.error], [B.error.T, C.error]]))

    @property
    def error(self) -> Matrix:
        return np.zeros_like(self.value) if self.slack is None else self.slack

    @property
    def low(self) -> Matrix:
        """Return a float below each entry."""
        return self.value if self.slack is None else np.nextafter(self.value - self.slack, -math.inf)

    @property
    def high(self) -> Matrix:
        """Return a float above each entry."""
        return self.value if self.slack is None else np.nextafter(self.value + self.slack, math.inf)

    @property
    def magnitude(self) -> Matrix:
        """Return a float above the absolute value of each entry."""
        size = np.abs(self.value)
        return size if self.slack is None else (size + self.slack) * _UP

    def __getitem__(self, index: Any) -> Enclosed:
        return self._of_each(lambda A: A[index])

    def diagonal(self) -> Enclosed:
        """Return the entries of the diagonal."""
        return self._of_each(np.diagonal)

    def _of_each(self, part: Callable[[Matrix], Matrix]) -> Self:
        return type(self)(part(self.value), None if self.slack is None else part(self.slack))

    def __add__(self, other: Any) -> Enclosed:
        """Add: one rounding of the sum, and the errors of both."""
        other = enclosed(other)
        return self._rounded_once(self.value + other.value, other)

    __radd__ = __add__

    def _rounded_once(self, value: Matrix, other: Enclosed) -> Enclosed:
        """Return an enclosure of a sum or difference whose value was rounded once."""
        error = UNIT * np.abs(value)
        if self.slack is not None:
            error += self.slack
        if other.slack is not None:
            error += other.slack
        error *= _UP
        return Enclosed(value, error)

    def __neg__(self) -> Enclosed:
        return Enclosed(-self.value, self.slack)

    def __sub__(self, other: Any) -> Enclosed:
        other = enclosed(other)
        return self._rounded_once(self.value - other.value, other)

    def __rsub__(self, other: Any) -> Enclosed:
        return enclosed(other) - self

    def __mul__(self, factor: Any) -> Enclosed:
        """Multiply entry by entry: |xy − x̂ŷ| ≤ |x̂|δy + δx(|ŷ| + δy), and one rounding."""
        other = enclosed(factor)
        value = self.value * other.value
        error = UNIT * np.abs(value)
        if self.slack is not None:
            error += self.slack * np.abs(other.value)
        if other.slack is not None:
            error += np.abs(self.value) * other.slack
            if self.slack is not None:
                error += self.slack * other.slack
        error *= _UP
        return Enclosed(value, error)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Enclosed:
        """Divide entry by entry: |x/y − x̂/ŷ| ≤ (δx + |x̂/ŷ|δy)/(|ŷ| − δy), and one rounding; inf where δy ≥ |ŷ|."""
        other = enclosed(other)
        value = self.value / other.value
        error = UNIT * np.abs(value)
        if self.slack is not None or other.slack is not None:
            least = np.abs(other.value) - other.error
            with np.errstate(divide="ignore", invalid="ignore"):
                error += np.where(least > 0.0, (self.error + np.abs(value) * other.error) / least, math.inf)
        error *= _UP
        return Enclosed(value, error)

    def __rtruediv__(self, other: Any) -> Enclosed:
        return enclosed(other) / self

    def __matmul__(self, other: Any) -> Enclosed:
        """Multiply matrices: |AB − fl(AB)| ≤ γ_n|A||B|, and the errors of the factors as for numbers."""
        other = enclosed(other)
        return Enclosed(self.value.dot(other.value), self._error_of_products(other, np.dot))

    def __rmatmul__(self, other: Any) -> Enclosed:
        return enclosed(other) @ self

    def sqrt(self) -> Enclosed:
        """Return the roots of numbers x ≥ 0: |√x − √x̂| is at most δ/√x̂ and at most √δ, and one rounding."""
        value = np.sqrt(np.maximum(self.value, 0.0))
        error = UNIT * value
        if self.slack is not None:
            with np.errstate(divide="ignore", invalid="ignore"):
                error += np.fmin(self.slack / value, np.sqrt(self.slack))
        error *= _UP
        return Enclosed(value, error)

    def log(self) -> Enclosed:
        """Return the logarithms of numbers x > 0; infinitely wrong where x > 0 is not proved.

        |log x − log x̂| ≤ r/(1 − r) for |x − x̂| ≤ r x̂, r < 1, and np.log is right to four units in the last place.
        """
        positive = self.low > 0.0
        value = np.log(np.where(positive, self.value, 1.0))
        error = (8.0 * UNIT) * np.abs(value)
        if self.slack is not None:
            error += self.slack / np.where(positive, self.value - self.slack, 1.0)
        error *= _UP
        return Enclosed(value, np.where(positive, error, math.inf))

    def total(self) -> Interval:
        """Return the sum of all entries: ``math.fsum`` rounds it once, the sum of the errors is rounded n times."""
        total = fsum(self.value.ravel().tolist())
        error = 2.0 * UNIT * abs(total)
        if self.slack is not None:
            error += float(np.add.reduce(self.slack, None)) * (1.0 + twice_gamma(self.slack.size + 2))
        return Interval.around(total, error)

    def inner(self, other: Any) -> Interval:
        """Return ⟨A, B⟩ = Σ A_ij B_ij with the bounds of ``__mul__``, doubled for their own roundings."""
        other = enclosed(other)
        products = self.value * other.value
        slack = UNIT * np.abs(products)
        if other.slack is not None:
            slack += np.abs(self.value) * other.slack
        if self.slack is not None:
            slack += self.slack * (np.abs(other.value) + other.error)
        total = fsum(products.ravel().tolist())
        return Interval.around(total, 2.0 * (float(np.add.reduce(slack, None)) + UNIT * abs(total)))

    def row_products(self, other: Any) -> Enclosed:
        """Return the inner products of the rows of two matrices, with the bound of ``__matmul__``."""
        other = enclosed(other)
        return Enclosed(_row_products(self.value, other.value), self._error_of_products(other, _row_products))

    def _error_of_products(self, other: Enclosed, product: Callable[[Matrix, Matrix], Matrix]) -> Matrix:
        """Return γ_n|A||B| + δA|B| + (|A| + δA)δB for inner products of n terms, doubled for its own roundings."""
        left = np.abs(self.value)
        around = twice_gamma(left.shape[-1]) * left
        if self.slack is not None:
            around += 2.0 * self.slack
        error = product(around, np.abs(other.value))
        if other.slack is not None:
            around += left
            error += 2.0 * product(around, other.slack)
        return error

    def row_sums(self) -> Vector:
        """Return an upper bound on the sum of the absolute values of each row."""
        size = np.abs(self.value) if self.slack is None else np.abs(self.value) + self.slack
        return np.asarray(np.add.reduce(size, 1) * (1.0 + twice_gamma(size.shape[1] + 1)))

    def norm(self) -> float:
        """Return an upper bound on the spectral norm of a symmetric matrix: its largest sum of a row."""
        return float(self.row_sums().max(initial=0.0))

    def frobenius_norm(self) -> float:
        """Return an upper bound on the Frobenius norm."""
        size = self.magnitude.ravel()
        return Interval.exact(float(size.dot(size)) * (1.0 + twice_gamma(size.size))).sqrt().high

    def symmetric(self) -> Enclosed:
        """Return the symmetric part, when the exact matrix is symmetric."""
        value = self.value + self.value.T
        value *= 0.5
        error = UNIT * np.abs(value)
        if self.slack is not None:
            error += np.maximum(self.slack, self.slack.T)
        error *= _UP
        return Enclosed(value, error)

    def plus_diagonal(self, w: float | Vector) -> Enclosed:
        """Return A + Diag(w), or A + wI: one rounding of each entry of the diagonal."""
        value, error = self.value.copy(), _filled(self.slack, self.value)
        add_to_diagonal(value, w)
        np.fill_diagonal(error, (error.diagonal() + UNIT * np.abs(value.diagonal())) * _UP)
        return Enclosed(value, error)

    def with_blocks(self, blocks: Iterable[tuple[slice, Any]]) -> Enclosed:
        value, error = self.value.copy(), _filled(self.slack, self.value)
        for s, block in blocks:
            value[s, s] = block.value
            error[s, s] = block.error
        return Enclosed(value, error)

    def trace_times_identity(self) -> Enclosed:
        return enclosed(self.diagonal().total()) * np.eye(len(self.value))

    def rounded(self) -> Enclosed:
        return self


# A matrix with a bound on its error, in one of two precisions; operands must have the same one.
Approximate: TypeAlias = Enclosed | Pair
# From the cheapest on.
PRECISIONS: tuple[type[Approximate], ...] = (Enclosed, Pair)


def _row_products(A: Matrix, B: Matrix) -> Vector:
    return np.asarray(np.einsum("ij,ij->i", A, B))


def enclosed(x: Any) -> Enclosed:
    """Return an enclosure of an array or number (exact floats), of an Interval (its middle), or x if it is one."""
    if isinstance(x, Enclosed):
        return x
    if isinstance(x, Interval):
        middle = 0.5 * (x.low + x.high)
        return Enclosed(np.asarray(middle), np.asarray(max((x.high - middle), (middle - x.low)) * _UP))
    return Enclosed(np.asarray(x, dtype=np.float64))


def sum_of_logs(x: Vector) -> Interval:
    """Return Σ log x_j of positive floats: np.log is right to four units in the last place, the sum is rounded once."""
    logs = np.log(x)
    total = fsum(logs.tolist())
    return Interval.around(total, 16.0 * UNIT * float(np.add.reduce(np.abs(logs))) + 2.0 * UNIT * abs(total))


def sandwich(A: Matrix, B: Matrix, C: Matrix, arithmetic: type[Approximate] = Pair) -> Enclosed:
    """Return A B C; in twice the working precision and rounded once, unless asked otherwise."""
    exact = arithmetic.exact
    return (exact(A) @ (exact(B) @ exact(C))).rounded()
