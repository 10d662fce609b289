"""The proved arithmetic of numbers, vectors and matrices against exact rational arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, enclosed, sandwich, sum_of_logs
from stepsize_opt.proofs.cholesky import (
    cholesky_shift,
    is_proved_definite,
    log_det_from_above,
    log_det_from_below,
    proved_cholesky,
)
from stepsize_opt.proofs.intervals import LOG_2, Interval, log_sum
from stepsize_opt.proofs.roundings import Slices
from stepsize_opt.proofs.thin import eigenvalue_bounds, weighted_gram
from stepsize_validation.data import random_smoothness, with_spectrum
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    inner,
    is_positive_definite,
    log,
    log_det,
    product,
    rational,
    transpose,
)
from stepsize_validation.properties.strategies import Matrix, seeds

ARITHMETICS = st.sampled_from([Enclosed, Pair])


def assert_within(error: Matrix, exact: Rational, value: Matrix | None = None) -> None:
    """|exact − value| ≤ error entry by entry."""
    values, errors = rational(np.zeros_like(error) if value is None else value), rational(error)
    for row, other, most in zip(exact, values, errors, strict=True):
        assert all(abs(x - y) <= e for x, y, e in zip(row, other, most, strict=True))


def test_sandwich_is_as_good_as_one_rounding_under_cancellation() -> None:
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 30)))[0]
    A, B = (Q * np.logspace(0, 6, 30)) @ Q.T, (Q * np.logspace(0, -6, 30)) @ Q.T
    found = sandwich(A, B, A)
    assert np.max(found.error) <= 1e-15 * np.max(np.abs(found.value))


@given(seeds, st.integers(1, 40))
def test_slices_add_up_and_have_few_bits(seed: int, d: int) -> None:
    """A = A₁ + A₂ + A₃ exactly, A₂ + A₃ = rest, and the products that must be free of rounding are."""
    rng = np.random.default_rng(seed)
    A, B = (Slices.of_rows(wild(rng, d, d)) for _ in range(2))
    for cut in (A, B):
        np.testing.assert_array_equal(cut.first + cut.rest, cut.A)
        np.testing.assert_array_equal(cut.second + cut.third, cut.rest)
        assert np.all(np.abs(cut.A) <= cut.top)
    i, j = rng.integers(0, d, 2)

    def exact(left: Matrix, right: Matrix) -> Fraction:
        return inner(rational(left[i : i + 1]), rational(right[j : j + 1]))

    assert exact(A.first, B.first) == Fraction(float((A.first @ B.first.T)[i, j]))
    middle = A.first @ B.second.T + A.second @ B.first.T
    assert exact(A.first, B.second) + exact(A.second, B.first) == Fraction(float(middle[i, j]))


def multiplied(rng: np.random.Generator, d: int, arithmetic: type[Approximate]) -> tuple[Approximate, Rational]:
    """A product with its low part and error, and a matrix in its enclosure."""
    found = arithmetic.exact(wild(rng, d, d)) @ arithmetic.exact(wild(rng, d, d))
    parts = (found.hi, found.lo) if isinstance(found, Pair) else (found.value,)
    inside = found.error * rng.uniform(-1.0, 1.0, (d, d))
    return found, combine(*((1, rational(part)) for part in (*parts, inside)))


@given(seeds, st.integers(1, 4), ARITHMETICS)
def test_sums_products_and_multiples_are_enclosed(seed: int, d: int, arithmetic: type[Approximate]) -> None:
    """Operands with errors: whatever they enclose gives a result that is enclosed."""
    rng = np.random.default_rng(seed)
    (A, a), (B, b) = multiplied(rng, d, arithmetic), multiplied(rng, d, arithmetic)
    plain = wild(rng, d, d)
    exact_floats, turned = rational(plain), rational(plain.T)
    times = [[x * y for x, y in zip(row, line, strict=True)] for row, line in zip(a, exact_floats, strict=True)]
    for found, exact in (
        (A + B, combine((1, a), (1, b))),
        (A + -B.T, combine((1, a), (-1, transpose(b)))),
        (A @ B, product(a, b)),
        (A.T @ B, product(transpose(a), b)),
        (A @ arithmetic.exact(plain), product(a, exact_floats)),
        (arithmetic.exact(plain) @ B, product(exact_floats, b)),
        (A * plain, times),
        (sandwich(plain, plain.T, plain, arithmetic), product(product(exact_floats, turned), exact_floats)),
    ):
        rounded = found.rounded()
        assert_within(rounded.error, exact, rounded.value)
        if isinstance(found, Pair):
            assert_within(found.magnitude, exact)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100])
def test_a_mean_in_twice_the_precision(n: int) -> None:
    matrices = [random_smoothness(np.random.default_rng(seed), 3, 1e6) for seed in range(n)]
    found = sum((Pair.exact(M) for M in matrices[1:]), Pair.exact(matrices[0])).divided(n)
    exact = combine(*((Fraction(1, n), rational(M)) for M in matrices))
    assert found.lo is not None and found.error is not None
    assert_within(found.error, combine((1, exact), (-1, rational(found.lo))), found.hi)
    assert found.error.max() <= 1e-30 * max(1.0, n / 10.0)


@pytest.mark.parametrize("arithmetic", [Enclosed, Pair])
def test_blocks_of_an_exact_matrix_are_replaced(arithmetic: type[Approximate]) -> None:
    rng = np.random.default_rng(0)
    outer, block = rng.standard_normal((5, 5)), arithmetic.exact(rng.standard_normal((2, 2))) * 0.1
    found = arithmetic.exact(outer).with_blocks([(slice(1, 3), block)]).rounded()
    outer[1:3, 1:3] = block.rounded().value
    np.testing.assert_array_equal(found.value, outer)
    assert np.all(found.error[1:3, 1:3] >= block.rounded().error)


@given(seeds, st.integers(1, 6), st.floats(-16, -1))
def test_cholesky_proves_nothing_false(seed: int, d: int, exponent: float) -> None:
    """Matrices at the edge of definiteness: the proof may fail, but must never be wrong."""
    rng = np.random.default_rng(seed)
    spectrum = np.ones(d)
    spectrum[0] = rng.choice([-1.0, 0.0, 1.0]) * 10.0**exponent
    A = with_spectrum(rng, spectrum)
    assert proved_cholesky(Enclosed.exact(A)) is None or is_positive_definite(rational(A))


def test_an_enclosure_wider_than_the_eigenvalues_is_not_proved() -> None:
    assert proved_cholesky(Enclosed(np.eye(3), np.full((3, 3), 0.1))) is not None
    assert proved_cholesky(Enclosed(np.eye(3), np.full((3, 3), 0.4))) is None
    assert proved_cholesky(np.full((2, 2), np.nan)) is None


def test_the_larger_error_of_an_entry_counts_whichever_triangle_is_read() -> None:
    """Both triangles enclose [[1, 0.49], [0.49, 0.1]], which is indefinite; one of them has the middle 0."""
    value, slack = np.array([[1.0, 0.0], [0.49, 0.1]]), np.array([[0.0, 0.49], [0.0, 0.0]])
    assert proved_cholesky(Enclosed(value, slack)) is None
    assert proved_cholesky(Enclosed(value.T, slack.T)) is None


@settings(max_examples=50)
@given(seeds, st.integers(1, 6), st.floats(0, 10), st.floats(-100, 100))
def test_log_det_bounds_hold(seed: int, d: int, decades: float, unit: float) -> None:
    """In any unit: far from one the rounding of the logarithms counts for more than that of the factor."""
    A = 10.0**unit * random_smoothness(np.random.default_rng(seed), d, 10.0**decades)
    below, above = log_det_from_below(Enclosed.exact(A)), log_det_from_above(A)
    assert below is not None and above is not None
    assert Decimal(below) <= log_det(rational(A)) <= Decimal(above)
    assert above - below < 1e-10 * 10**decades  # the bounds are also sharp
    # Floats are an enclosure without error.
    assert log_det_from_below(A) == below
    np.testing.assert_array_equal(proved_cholesky(A), proved_cholesky(Enclosed.exact(A)))


@pytest.mark.parametrize("n", [1, 2, 7, 60, 400])
def test_the_shift_of_a_cholesky_proof_is_at_least_that_of_the_theorem(n: int) -> None:
    """Demmel's bound nφ a_jj, φ = γ/(1 − γ), γ = (n + 1)u/(1 − (n + 1)u), in exact arithmetic."""
    diagonal = np.geomspace(1e-8, 1e8, n)
    gamma = Fraction(n + 1, 2**53 - (n + 1))
    phi = gamma / (1 - gamma)
    for shift, entry in zip(cholesky_shift(np.diag(diagonal)), diagonal, strict=True):
        assert Fraction(float(shift)) >= n * phi * Fraction(float(entry))


# ----------------------------------------------------------------
# numbers, vectors and thin matrices


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


@given(seeds, st.integers(1, 6), st.booleans(), st.booleans())
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


@given(seeds, st.integers(1, 6), st.booleans())
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


@given(seeds, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
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


@pytest.mark.parametrize("sign", [-1, 1])
def test_products_of_enclosures_wider_than_their_values(sign: int) -> None:
    """Around zero every product of the errors counts."""
    A = Enclosed(np.zeros((1, 4)), np.ones((1, 4)))
    corner = [Fraction(4 * sign)]
    assert holds(A.inner(A), corner[0])
    assert_encloses(A @ A.T, corner)
    assert_encloses(A.row_products(A), corner)
    assert_encloses(A * A, [Fraction(sign)] * 4)


@given(seeds, st.integers(1, 8), st.integers(1, 3))
def test_gram_matrices_of_many_rows(seed: int, d: int, r: int) -> None:
    rng = np.random.default_rng(seed)
    U, w = wild(rng, d, r), 10.0 ** rng.uniform(-6.0, 6.0, d)
    rows = [list(map(Fraction, row)) for row in U.tolist()]

    def gram(weights: Any) -> list[Fraction]:
        terms = [(row, Fraction(weight)) for row, weight in zip(rows, weights, strict=True)]
        return [sum((row[i] * w * row[j] for row, w in terms), Fraction(0)) for i in range(r) for j in range(r)]

    assert_encloses(weighted_gram(U, w), gram(w.tolist()))
    assert_encloses(weighted_gram(U, None), gram([1] * d))


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
