"""The proved linear algebra against exact rational arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, sandwich
from stepsize_opt.proofs.cholesky import cholesky_shift, log_det_from_above, log_det_from_below, proved_cholesky
from stepsize_opt.proofs.roundings import Slices
from stepsize_validation.data import random_smoothness, with_spectrum
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    inner,
    is_positive_definite,
    log_det,
    product,
    rational,
    transpose,
)
from stepsize_validation.properties.strategies import Matrix, seeds

ARITHMETICS = st.sampled_from([Enclosed, Pair])


def wild(rng: np.random.Generator, d: int) -> Matrix:
    """Entries over many orders of magnitude, where plain products lose everything."""
    return rng.standard_normal((d, d)) * 10.0 ** rng.integers(-6, 7, (d, d))


def exactly(A: Matrix) -> Enclosed:
    return Enclosed.exact(A)


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
    A, B = (Slices.of_rows(wild(rng, d)) for _ in range(2))
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


def made(rng: np.random.Generator, d: int, arithmetic: type[Approximate]) -> tuple[Approximate, Rational]:
    """A product with its low part and error, and a matrix in its enclosure."""
    found = arithmetic.exact(wild(rng, d)) @ arithmetic.exact(wild(rng, d))
    parts = (found.hi, found.lo) if isinstance(found, Pair) else (found.value,)
    inside = found.error * rng.uniform(-1.0, 1.0, (d, d))
    return found, combine(*((1, rational(part)) for part in (*parts, inside)))


@given(seeds, st.integers(1, 4), ARITHMETICS)
def test_sums_products_and_multiples_are_enclosed(seed: int, d: int, arithmetic: type[Approximate]) -> None:
    """Operands with errors: whatever they enclose gives a result that is enclosed."""
    rng = np.random.default_rng(seed)
    (A, a), (B, b) = made(rng, d, arithmetic), made(rng, d, arithmetic)
    floats = wild(rng, d)
    exact_floats, turned = rational(floats), rational(floats.T)
    times = [[x * y for x, y in zip(row, line, strict=True)] for row, line in zip(a, exact_floats, strict=True)]
    for found, exact in (
        (A + B, combine((1, a), (1, b))),
        (A + -B.T, combine((1, a), (-1, transpose(b)))),
        (A @ B, product(a, b)),
        (A.T @ B, product(transpose(a), b)),
        (A @ arithmetic.exact(floats), product(a, exact_floats)),
        (arithmetic.exact(floats) @ B, product(exact_floats, b)),
        (A * floats, times),
        (sandwich(floats, floats.T, floats, arithmetic), product(product(exact_floats, turned), exact_floats)),
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
    assert proved_cholesky(exactly(A)) is None or is_positive_definite(rational(A))


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
    below, above = log_det_from_below(exactly(A)), log_det_from_above(A)
    assert below is not None and above is not None
    assert Decimal(below) <= log_det(rational(A)) <= Decimal(above)
    assert above - below < 1e-10 * 10**decades  # the bounds are also sharp
    # Floats are an enclosure without error.
    assert log_det_from_below(A) == below
    np.testing.assert_array_equal(proved_cholesky(A), proved_cholesky(exactly(A)))


@pytest.mark.parametrize("n", [1, 2, 7, 60, 400])
def test_the_shift_of_a_cholesky_proof_is_at_least_that_of_the_theorem(n: int) -> None:
    """Demmel's bound nφ a_jj, φ = γ/(1 − γ), γ = (n + 1)u/(1 − (n + 1)u), in exact arithmetic."""
    diagonal = np.geomspace(1e-8, 1e8, n)
    gamma = Fraction(n + 1, 2**53 - (n + 1))
    phi = gamma / (1 - gamma)
    for shift, entry in zip(cholesky_shift(np.diag(diagonal)), diagonal, strict=True):
        assert Fraction(float(shift)) >= n * phi * Fraction(float(entry))
