"""Linear algebra whose answers are proved: products with an error bound, positive definiteness, log det from below.

A certificate that says "feasible" must be right in exact arithmetic for the very floats it was given.
Three facts are enough for that.

*Products without rounding* (Ozaki, Ogita, Oishi, Rump 2012).  Cut each row of A and each column of B into
slices of at most ``53 − ⌈(53 + log₂ n)/2⌉`` bits.  A product of two slices then has no rounding error in any
summation order, so ordinary BLAS products of slices add up to twice the working precision.

*Cholesky as a proof* (Rump 2006; Demmel 1989).  If floating-point Cholesky of a matrix A runs to the end, its
factor R has ``RᵀR = A + ΔA`` with ``|ΔA_ij| ≤ φ √(a_ii a_jj)``, ``φ = γ_{n+1}/(1 − γ_{n+1})``,
``γ_m = mu/(1 − mu)``, ``u = 2⁻⁵³``.  Hence ΔA ⪯ nφ Diag(a_jj): lower the diagonal by that much first, and
success proves A ⪰ RᵀR ≻ 0 and ``log det A ≥ 2 Σ log R_jj``.

*Perturbations.*  A symmetric E with ``|E| ≤ H`` entrywise satisfies ``E ⪯ Diag(H1)`` (diagonal dominance).

Underflow is left out of the bounds: callers scale their matrices to have entries near one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from solvers.maps import Matrix, Vector

UNIT = 2.0**-53  # unit roundoff of float64


def gamma(n: int) -> float:
    """γ_n = nu/(1 − nu), the relative error of n roundings in a row; doubled, so that bounds of bounds stay bounds."""
    return 2.0 * n * UNIT / (1.0 - n * UNIT)


@dataclass(frozen=True, eq=False)
class Enclosed:
    """A matrix known to lie within ``error`` (entrywise, nonnegative) of ``value``."""

    value: Matrix
    error: Matrix

    def symmetric(self) -> Enclosed:
        """The symmetric part, when the exact matrix is symmetric."""
        value = 0.5 * (self.value + self.value.T)
        return Enclosed(value, np.maximum(self.error, self.error.T) + UNIT * np.abs(value))


def _slices(A: Matrix, axis: int, inner: int) -> tuple[Matrix, Matrix, Matrix]:
    """A = A₁ + A₂ + A₃ exactly; A₁ and A₂ have few enough bits that their products are free of rounding."""
    shift = math.ceil((53.0 + math.log2(inner)) / 2.0)
    parts = []
    rest = A
    for _ in range(2):
        top = np.max(np.abs(rest), axis=axis, keepdims=True)
        # 0.75·2^(e + shift) with 2^e ≥ top: adding and subtracting it keeps the leading 53 − shift bits.
        sigma = np.where(top > 0.0, np.ldexp(0.75, np.frexp(top)[1] + shift), 0.0)
        head = (rest + sigma) - sigma
        parts.append(head)
        rest = rest - head
    return parts[0], parts[1], rest


def _two_sum(a: Matrix, b: Matrix) -> tuple[Matrix, Matrix]:
    """fl(a + b) and its exact rounding error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _product(A: Matrix, B: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """A B = hi + lo up to ``error``, with |lo| of the size of a rounding error of hi."""
    n = A.shape[1]
    A1, A2, A3 = _slices(A, 1, n)
    B1, B2, B3 = _slices(B, 0, n)
    hi, lo1 = _two_sum(A1 @ B1, A1 @ B2)
    hi, lo2 = _two_sum(hi, A2 @ B1)
    hi, lo3 = _two_sum(hi, A2 @ B2)
    small = (A1 + A2) @ B3 + A3 @ B
    lo = lo1 + lo2 + lo3 + small
    row, col = np.max(np.abs(A), axis=1, keepdims=True), np.max(np.abs(B), axis=0, keepdims=True)
    row3, col3 = np.max(np.abs(A3), axis=1, keepdims=True), np.max(np.abs(B3), axis=0, keepdims=True)
    error = gamma(n + 4) * n * (2.0 * row @ col3 + row3 @ col)
    error += gamma(4) * (np.abs(lo1) + np.abs(lo2) + np.abs(lo3) + np.abs(small))
    hi, low = _two_sum(hi, lo)
    return hi, low, error


@dataclass(frozen=True, eq=False)
class Pair:
    """A matrix in twice the working precision: within ``error`` (entrywise) of hi + lo, |lo| about a rounding of hi."""

    hi: Matrix
    lo: Matrix
    error: Matrix

    @staticmethod
    def exact(A: Matrix) -> Pair:
        """The floats of A."""
        zero = np.zeros_like(A)
        return Pair(A, zero, zero)

    @property
    def magnitude(self) -> Matrix:
        """An entrywise bound on the absolute value."""
        return np.asarray((np.abs(self.hi) + np.abs(self.lo) + self.error) * (1.0 + gamma(2)))

    def __add__(self, other: Pair) -> Pair:
        hi, rest = _two_sum(self.hi, other.hi)
        parts = rest, self.lo, other.lo
        lo = rest + self.lo + other.lo
        slack = gamma(3) * sum(np.abs(part) for part in parts)
        return Pair(hi, lo, (self.error + other.error) * (1.0 + gamma(2)) + slack)

    def __neg__(self) -> Pair:
        return Pair(-self.hi, -self.lo, self.error)

    @property
    def T(self) -> Pair:
        return Pair(self.hi.T, self.lo.T, self.error.T)

    def __matmul__(self, other: Pair) -> Pair:
        n = self.hi.shape[1]
        hi, lo, error = _product(self.hi, other.hi)
        for left, right in ((self.hi, other.lo), (self.lo, other.hi)):
            if np.any(left) and np.any(right):
                lo = lo + left @ right
                error = error + gamma(n + 4) * (np.abs(left) @ np.abs(right))
        # What is left out: the product of the low parts, and the errors of the factors.
        if np.any(self.lo) and np.any(other.lo):
            error = error + np.abs(self.lo) @ np.abs(other.lo) * (1.0 + gamma(n))
        if np.any(self.error):
            error = error + self.error @ other.magnitude * (1.0 + gamma(n))
        if np.any(other.error):
            error = error + self.magnitude @ other.error * (1.0 + gamma(n))
        return Pair(hi, lo, error + gamma(3) * np.abs(lo))

    def scaled(self, factor: float | Matrix) -> Pair:
        """The entrywise product with exact floats."""
        hi, rest = two_product(self.hi, factor)
        lo = rest + self.lo * factor
        return Pair(hi, lo, self.error * np.abs(factor) * (1.0 + gamma(2)) + gamma(2) * (np.abs(rest) + np.abs(lo)))

    def rounded(self) -> Enclosed:
        """One float for each entry."""
        value = self.hi + self.lo
        return Enclosed(value, self.error * (1.0 + gamma(2)) + 2.0 * UNIT * np.abs(value))


def two_product(a: Matrix, b: float | Matrix) -> tuple[Matrix, Matrix]:
    """fl(ab) and its exact rounding error (Dekker), entry by entry."""
    p = a * b
    a1, b1 = _upper_half(a), _upper_half(np.asarray(b, dtype=float))
    a2, b2 = a - a1, b - b1
    return p, a2 * b2 - (((p - a1 * b1) - a2 * b1) - a1 * b2)


def _upper_half(a: Matrix) -> Matrix:
    """The leading 26 bits of each entry (Veltkamp)."""
    c = 134217729.0 * a  # 2²⁷ + 1
    return np.asarray(c - (c - a))


def sandwich(A: Matrix, B: Matrix, C: Matrix) -> Enclosed:
    """A B C in twice the working precision, rounded once, with an entrywise error bound."""
    return (Pair.exact(A) @ (Pair.exact(B) @ Pair.exact(C))).rounded()


def cholesky_shift(A: Enclosed) -> Vector:
    """What :func:`proved_cholesky` takes off the diagonal: nφ a_jj for its own rounding, row sums for the error."""
    n = A.value.shape[0]
    # The factor 2 covers the rounding of the subtraction and of the row sums themselves.
    return np.asarray(2.0 * (n * gamma(n + 2) * np.abs(np.diagonal(A.value)) + A.error.sum(axis=1)))


def proved_cholesky(A: Enclosed) -> Matrix | None:
    """A lower triangular factor G with A ⪰ G Gᵀ for every matrix in the enclosure, or None when that is not proved."""
    shifted = A.value.copy()
    np.einsum("ii->i", shifted)[:] -= cholesky_shift(A)
    if not np.all(np.isfinite(shifted)):
        return None
    factor, info = lapack.dpotrf(shifted, lower=1, clean=1)
    return factor if info == 0 else None


def log_det_from_below(A: Enclosed) -> float | None:
    """A proved lower bound on log det over the enclosure, or None when positive definiteness is not proved."""
    factor = proved_cholesky(A)
    if factor is None:
        return None
    logs = np.log(np.diagonal(factor))
    return 2.0 * math.fsum(logs) - _log_slack(logs)


def log_det_from_above(A: Matrix) -> float | None:
    """A proved upper bound on log det of the given floats, or None when A is not numerically positive definite.

    Cholesky of the matrix with its diagonal *raised* by nφ a_jj gives RᵀR = A + nφ Diag(a_jj) + ΔA ⪰ A.
    """
    n = A.shape[0]
    raised = A.copy()
    np.einsum("ii->i", raised)[:] += 2.0 * n * gamma(n + 2) * np.abs(np.diagonal(A))
    factor, info = lapack.dpotrf(raised, lower=1)
    if info != 0:
        return None
    logs = np.log(np.diagonal(factor))
    return 2.0 * math.fsum(logs) + _log_slack(logs)


def _log_slack(logs: Vector) -> float:
    """Rounding of the logarithms (one ulp each) and of their exact sum."""
    return 8.0 * UNIT * float(np.sum(np.abs(logs)) + logs.size)


def inner_from_above(A: Enclosed, B: Enclosed) -> float:
    """A proved upper bound on ⟨A, B⟩."""
    products = A.value * B.value
    slack = np.abs(A.value) * B.error + A.error * np.abs(B.value) + A.error * B.error + UNIT * np.abs(products)
    return math.fsum(products.ravel()) + 2.0 * float(np.sum(slack)) + 2.0 * UNIT * abs(float(np.sum(products)))
