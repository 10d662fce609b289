"""The proved linear algebra against exact rational arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.exact import (
    combine,
    inner,
    is_positive_definite,
    log_det,
    product,
    rational,
    transpose,
)
from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, Plain, inner_from_above, sandwich
from stepsize_opt.proofs.cholesky import log_det_from_above, log_det_from_below, proved_cholesky
from stepsize_opt.proofs.roundings import Slices
from stepsize_validation.data import random_smoothness, with_spectrum


def _wild(rng: np.random.Generator, d: int) -> np.ndarray:
    """Entries over many orders of magnitude, where plain products lose everything."""
    return rng.standard_normal((d, d)) * 10.0 ** rng.integers(-6, 7, (d, d))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([Plain, Pair]))
def test_sandwich_encloses_the_exact_product(seed: int, d: int, arithmetic: type[Approximate]) -> None:
    rng = np.random.default_rng(seed)
    A, B, C = _wild(rng, d), _wild(rng, d), _wild(rng, d)
    found = sandwich(A, B, C, arithmetic)
    exact = product(product(rational(A), rational(B)), rational(C))
    for i in range(d):
        for j in range(d):
            assert abs(exact[i][j] - Fraction(float(found.value[i, j]))) <= Fraction(float(found.error[i, j]))


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_slices_add_up_and_have_few_bits(seed: int, d: int) -> None:
    """A = A₁ + A₂ + A₃ exactly, A₂ + A₃ = rest, and the products that must be free of rounding are."""
    rng = np.random.default_rng(seed)
    A, B = (Slices.of_rows(_wild(rng, d)) for _ in range(2))
    for cut in (A, B):
        np.testing.assert_array_equal(cut.first + cut.rest, cut.A)
        np.testing.assert_array_equal(cut.second + cut.third, cut.rest)
        assert np.all(np.abs(cut.A) <= cut.top)
    i, j = rng.integers(0, d, 2)
    high = sum(Fraction(x) * Fraction(y) for x, y in zip(A.first[i].tolist(), B.first[j].tolist(), strict=True))
    assert high == Fraction(float((A.first @ B.first.T)[i, j]))
    middle = sum(
        Fraction(x) * Fraction(y)
        for left, right in ((A.first, B.second), (A.second, B.first))
        for x, y in zip(left[i].tolist(), right[j].tolist(), strict=True)
    )
    assert middle == Fraction(float((A.first @ B.second.T + A.second @ B.first.T)[i, j]))


def _made(rng: np.random.Generator, d: int, arithmetic: type[Approximate]) -> tuple[Approximate, list[list[Fraction]]]:
    """A product with its low part and error, and a matrix in its enclosure."""
    made = arithmetic.exact(_wild(rng, d)) @ arithmetic.exact(_wild(rng, d))
    if isinstance(made, Pair):
        assert made.lo is not None and made.error is not None
        middle, error = combine((1, rational(made.hi)), (1, rational(made.lo))), made.error
    else:
        assert isinstance(made, Plain) and made.error is not None
        middle, error = rational(made.value), made.error
    return made, combine((1, middle), (1, rational(error * rng.uniform(-1.0, 1.0, (d, d)))))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.sampled_from([Plain, Pair]))
def test_sums_products_and_multiples_are_enclosed(seed: int, d: int, arithmetic: type[Approximate]) -> None:
    """Operands with errors: whatever they enclose gives a result that is enclosed."""
    rng = np.random.default_rng(seed)
    (A, a), (B, b) = _made(rng, d, arithmetic), _made(rng, d, arithmetic)
    floats = _wild(rng, d)
    times = [
        [x * Fraction(float(y)) for x, y in zip(row, line, strict=True)] for row, line in zip(a, floats, strict=True)
    ]
    for found, exact in (
        (A + B, combine((1, a), (1, b))),
        (A + -B.T, combine((1, a), (-1, transpose(b)))),
        (A @ B, product(a, b)),
        (A.T @ B, product(transpose(a), b)),
        (A @ arithmetic.exact(floats), product(a, rational(floats))),
        (arithmetic.exact(floats) @ B, product(rational(floats), b)),
        (A.scaled(floats), times),
    ):
        rounded = found.rounded()
        for i in range(d):
            for j in range(d):
                value = Fraction(float(rounded.value[i, j]))
                assert abs(exact[i][j] - value) <= Fraction(float(rounded.error[i, j]))
                if isinstance(found, Pair):
                    assert abs(exact[i][j]) <= Fraction(float(found.magnitude[i, j]))


@pytest.mark.parametrize("arithmetic", [Plain, Pair])
def test_blocks_of_an_exact_matrix_are_replaced(arithmetic: type[Approximate]) -> None:
    rng = np.random.default_rng(0)
    outer, inner_part = rng.standard_normal((5, 5)), arithmetic.exact(rng.standard_normal((2, 2))).scaled(0.1)
    found = arithmetic.exact(outer).with_blocks([(slice(1, 3), inner_part)]).rounded()
    np.testing.assert_array_equal(found.value[1:3, 1:3], inner_part.rounded().value)
    assert np.all(found.error[1:3, 1:3] >= inner_part.rounded().error)
    outside = np.ones((5, 5), dtype=bool)
    outside[1:3, 1:3] = False
    np.testing.assert_array_equal(found.value[outside], outer[outside])


def test_sandwich_is_as_good_as_one_rounding_under_cancellation() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    A = (Q * np.logspace(0, 6, 30)) @ Q.T
    B = (Q * np.logspace(0, -6, 30)) @ Q.T
    found = sandwich(A, B, A)
    assert np.max(found.error) <= 1e-15 * np.max(np.abs(found.value))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(-16, -1))
def test_cholesky_proves_nothing_false(seed: int, d: int, exponent: float) -> None:
    """Matrices at the edge of definiteness: the proof may fail, but must never be wrong."""
    rng = np.random.default_rng(seed)
    spectrum = np.ones(d)
    spectrum[0] = rng.choice([-1.0, 0.0, 1.0]) * 10.0**exponent
    A = with_spectrum(rng, spectrum)
    if proved_cholesky(Enclosed(A, np.zeros_like(A))) is not None:
        assert is_positive_definite(rational(A))


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0, 10))
def test_log_det_bounds_hold(seed: int, d: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    A = random_smoothness(rng, d, 10.0**decades)
    exact = log_det(rational(A))
    below, above = log_det_from_below(Enclosed(A, np.zeros_like(A))), log_det_from_above(A)
    assert below is not None
    assert above is not None
    assert Decimal(below) <= exact <= Decimal(above)
    assert above - below < 1e-10 * 10**decades  # the bounds are also sharp


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
def test_inner_product_bound_holds(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = _wild(rng, d), _wild(rng, d)
    zero = np.zeros((d, d))
    assert inner(rational(A), rational(B)) <= Fraction(inner_from_above(Enclosed(A, zero), Enclosed(B, zero)))


def test_an_enclosure_wider_than_the_eigenvalues_is_not_proved() -> None:
    A = np.eye(3)
    assert proved_cholesky(Enclosed(A, np.full((3, 3), 0.1))) is not None
    assert proved_cholesky(Enclosed(A, np.full((3, 3), 0.4))) is None


def test_floats_are_an_enclosure_without_error() -> None:
    A = np.cov(np.random.default_rng(0).standard_normal((4, 9)))
    enclosed = Enclosed(A, np.zeros_like(A))
    np.testing.assert_array_equal(proved_cholesky(A), proved_cholesky(enclosed))
    assert log_det_from_below(A) == log_det_from_below(enclosed)
    assert proved_cholesky(np.full((2, 2), np.nan)) is None
