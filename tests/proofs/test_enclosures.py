"""Enclosed numbers and vectors against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.cholesky import is_proved_definite
from stepsize_opt.proofs.intervals import LOG_2, Interval, log_sum
from stepsize_opt.proofs.thin import eigenvalue_bounds, weighted_gram
from stepsize_validation.properties.exact import log
from stepsize_validation.properties.strategies import Matrix, seeds

floats = st.floats(allow_nan=False, allow_infinity=False)  # subnormal numbers and the largest ones, too
positive = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
shares = st.fractions(0, 1)


CONTEXT = Context(prec=80)


def exponential(x: Fraction) -> Decimal:
    """Return eˣ to eighty digits."""
    return CONTEXT.exp(CONTEXT.divide(Decimal(x.numerator), Decimal(x.denominator)))


def holds(interval: Interval, x: Fraction) -> bool:
    """Whether low ≤ x ≤ high; infinite ends hold everything."""
    return (interval.low == -math.inf or Fraction(interval.low) <= x) and (
        interval.high == math.inf or x <= Fraction(interval.high)
    )


@st.composite
def numbers(draw: st.DrawFn, of: st.SearchStrategy[float] = floats) -> tuple[Interval, Fraction]:
    """An interval of two floats, often of one, and a rational number in it."""
    low, high = sorted((draw(of), draw(of)))
    if draw(st.booleans()):
        high = low
    return Interval(low, high), Fraction(low) + draw(shares) * (Fraction(high) - Fraction(low))


@given(numbers(), numbers(), floats)
def test_sums_and_products_of_numbers(first: tuple[Interval, Fraction], second: Any, c: float) -> None:
    (x, a), (y, b) = first, second
    assert holds(x + y, a + b) and holds(x - y, a - b) and holds(x * y, a * b) and holds(-x, -a)
    assert holds(x + c, a + Fraction(c)) and holds(c - x, Fraction(c) - a) and holds(c * x, Fraction(c) * a)
    assert holds(Interval.total((x, y, c, -3)), a + b + Fraction(c) - 3)
    if b != 0:
        assert holds(x / y, a / b)
    if a != 0:
        assert holds(c / x, Fraction(c) / a)


@given(numbers(positive), numbers(st.floats(-700.0, 700.0)))
def test_roots_logarithms_and_exponentials_of_numbers(first: tuple[Interval, Fraction], second: Any) -> None:
    (x, a), (y, b) = first, second
    root = x.sqrt()
    assert Fraction(root.low) ** 2 <= a and (root.high == math.inf or a <= Fraction(root.high) ** 2)
    assert holds(x.log(), Fraction(log(a)))
    assert holds(y.exp(), Fraction(exponential(b)))
    assert holds(log_sum(Interval.exact(3.0), y), Fraction(CONTEXT.ln(exponential(Fraction(3)) + exponential(b))))


def test_numbers_without_bounds_prove_nothing() -> None:
    unknown = (-math.inf, math.inf)
    nothing = Interval.around(math.nan, 1.0)
    assert (nothing.low, nothing.high) == unknown
    quotient = Interval.exact(1.0) / Interval(-1.0, 1.0)
    assert (quotient.low, quotient.high) == unknown
    assert Interval.exact(0.0).log().high == -math.inf
    assert (Interval.exact(0.0) * Interval(-math.inf, math.inf)).high <= 5e-324
    assert Interval.total((1e308, 1e308)).high == math.inf
    assert Fraction(LOG_2.low) < Fraction(log(Fraction(2))) < Fraction(LOG_2.high)


# ---------------------------------------------------------------- vectors and matrices


def wild(rng: np.random.Generator, *shape: int) -> Matrix:
    """Numbers of both signs over many orders of magnitude."""
    return np.asarray(rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 7, shape))


def made(rng: np.random.Generator, value: Matrix, exact: bool) -> tuple[Enclosed, list[Fraction]]:
    """An enclosure, of the floats alone or with errors of any size, and an array of rationals in it."""
    if exact:
        return enclosed(value), list(map(Fraction, value.ravel().tolist()))
    error = np.abs(value) * 10.0 ** rng.uniform(-18.0, -0.5, value.shape)
    shares = rng.uniform(-1.0, 1.0, value.shape)
    inside = [
        Fraction(v) + Fraction(t) * Fraction(e)
        for v, t, e in zip(value.ravel().tolist(), shares.ravel().tolist(), error.ravel().tolist(), strict=True)
    ]
    return Enclosed(value, error), inside


def assert_encloses(found: Enclosed, exact: list[Fraction]) -> None:
    for v, e, low, high, size, x in zip(
        *(part.ravel().tolist() for part in (found.value, found.error, found.low, found.high, found.magnitude)),
        exact,
        strict=True,
    ):
        assert abs(x - Fraction(v)) <= Fraction(e)
        assert Fraction(low) <= x <= Fraction(high) and abs(x) <= Fraction(size)


exactly = st.booleans()


@given(seeds, st.integers(1, 6), exactly, exactly)
def test_entrywise_operations(seed: int, n: int, first: bool, second: bool) -> None:
    rng = np.random.default_rng(seed)
    (x, a), (y, b) = made(rng, wild(rng, n), first), made(rng, wild(rng, n), second)
    floats, c = wild(rng, n), float(wild(rng))
    rationals = list(map(Fraction, floats.tolist()))

    def each(operation: Callable[[Fraction, Fraction], Fraction], left: list[Fraction] = a, right: Any = None) -> Any:
        return [operation(p, q) for p, q in zip(left, b if right is None else right, strict=True)]

    assert_encloses(x + y, each(lambda p, q: p + q))
    assert_encloses(x - y, each(lambda p, q: p - q))
    assert_encloses(x * y, each(lambda p, q: p * q))
    assert_encloses(x / y, each(lambda p, q: p / q))
    assert_encloses(floats + x, each(lambda p, q: p + q, right=rationals))
    assert_encloses(floats - x, each(lambda p, q: q - p, right=rationals))
    assert_encloses(floats * x, each(lambda p, q: p * q, right=rationals))
    assert_encloses(floats / x, each(lambda p, q: q / p, right=rationals))
    assert_encloses(x * Interval.exact(c) + Interval.around(c, 0.0), [p * Fraction(c) + Fraction(c) for p in a])
    assert holds(x.total(), sum(a, Fraction(0)))
    assert holds(x.inner(y), sum(each(lambda p, q: p * q), Fraction(0)))


@given(seeds, st.integers(1, 6), exactly)
def test_roots_and_logarithms_of_vectors(seed: int, n: int, exact: bool) -> None:
    rng = np.random.default_rng(seed)
    x, a = made(rng, np.abs(wild(rng, n)), exact)
    root, logs = x.sqrt(), x.log()
    for v, e, p in zip(root.value.tolist(), root.error.tolist(), a, strict=True):
        low, high = Fraction(v) - Fraction(e), Fraction(v) + Fraction(e)
        assert (low <= 0 or low * low <= p) and p <= high * high
    assert_encloses(logs, [Fraction(log(p)) for p in a])
    assert holds(logs.total(), sum((Fraction(log(p)) for p in a), Fraction(0)))
    if exact:
        assert holds(sum_of_logs(x.value), sum((Fraction(log(p)) for p in a), Fraction(0)))


def test_the_root_of_a_number_that_may_be_zero() -> None:
    found = Enclosed(np.array([0.0, -1.0, 1.0]), np.array([1e-4, 2.0, 1.0])).sqrt()
    assert np.all(found.high >= np.sqrt([1e-4, 1.0, 2.0])) and np.all(found.low <= 0.0)


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), exactly, exactly)
def test_products_and_norms_of_matrices(seed: int, n: int, m: int, k: int, first: bool, second: bool) -> None:
    rng = np.random.default_rng(seed)
    (A, a), (B, b) = made(rng, wild(rng, n, m), first), made(rng, wild(rng, m, k), second)
    row, column = (lambda i: a[i * m : (i + 1) * m]), (lambda j: b[j::k])
    exact = [
        sum((p * q for p, q in zip(row(i), column(j), strict=True)), Fraction(0)) for i in range(n) for j in range(k)
    ]
    assert_encloses(A @ B, exact)
    assert_encloses((B.T @ A.T).T, exact)
    assert_encloses(A @ B[:, 0], exact[::k])
    assert_encloses(A.value @ B if first else A @ B, exact)
    other, c = made(rng, wild(rng, n, m), second)
    sums = [sum((a[i * m + j] * c[i * m + j] for j in range(m)), Fraction(0)) for i in range(n)]
    assert_encloses(A.row_products(other), sums)
    rows = [sum(map(abs, row(i)), Fraction(0)) for i in range(n)]
    assert all(p <= Fraction(q) for p, q in zip(rows, A.row_sums().tolist(), strict=True))
    assert max(rows) <= Fraction(A.norm())
    assert sum((p * p for p in a), Fraction(0)) <= Fraction(A.frobenius_norm()) ** 2


@given(seeds, st.integers(1, 8), st.integers(1, 3))
def test_gram_matrices_of_many_rows(seed: int, d: int, r: int) -> None:
    rng = np.random.default_rng(seed)
    U, B, w = wild(rng, d, r), wild(rng, d, 2), 10.0 ** rng.uniform(-6.0, 6.0, d)

    def gram(left: list[Fraction], right: list[Fraction], size: int, weights: list[Fraction]) -> list[Fraction]:
        return [
            sum((left[k * r + i] * weights[k] * right[k * size + j] for k in range(d)), Fraction(0))
            for i in range(r)
            for j in range(size)
        ]

    rational_U, rational_B = (list(map(Fraction, M.ravel().tolist())) for M in (U, B))
    weights = list(map(Fraction, w.tolist()))
    assert_encloses(weighted_gram(U, w), gram(rational_U, rational_U, r, weights))
    assert_encloses(weighted_gram(U, w, B), gram(rational_U, rational_B, 2, weights))
    assert_encloses(weighted_gram(U, None, B), gram(rational_U, rational_B, 2, [Fraction(1)] * d))


@given(seeds, st.integers(1, 6), st.floats(0.0, 1e-3))
def test_eigenvalues_of_every_matrix_in_an_enclosure_lie_between_the_bounds(seed: int, n: int, error: float) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n))
    middle, change = X @ X.T + np.eye(n), rng.uniform(-1.0, 1.0, (n, n))
    low, high = eigenvalue_bounds(Enclosed(middle, np.full((n, n), error)))
    values = np.linalg.eigvalsh(middle + 0.5 * error * (change + change.T))
    assert np.all(low <= values + 1e-12 * values) and np.all(values <= high + 1e-12 * values)
    assert np.all(high - low <= 2.0 * n * error + 1e-11 * high)


@pytest.mark.parametrize("size", [1e200, 1e308])
def test_overflow_proves_nothing(size: float) -> None:
    A = enclosed(np.full((2, 2), size))
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite((A @ A * A).value).all()
        assert not is_proved_definite(A @ A * A)
        assert (A * A).total().high == math.inf and A.inner(A).high == math.inf
        with_zero = 1.0 / Enclosed(np.array([1.0]), np.array([1.0]))
    assert with_zero.high[0] == math.inf and with_zero.low[0] == -math.inf
    assert Enclosed(np.array([1.0]), np.array([2.0])).log().low[0] == -math.inf
