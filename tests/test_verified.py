"""The proved linear algebra against exact rational arithmetic."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt.verified import (
    Enclosed,
    inner_from_above,
    log_det_from_above,
    log_det_from_below,
    proved_cholesky,
    sandwich,
)
from validation.exact import inner, is_positive_definite, log_det, product, rational


def _wild(rng: np.random.Generator, d: int) -> np.ndarray:
    """Entries over many orders of magnitude, where plain products lose everything."""
    return rng.standard_normal((d, d)) * 10.0 ** rng.integers(-6, 7, (d, d))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_sandwich_encloses_the_exact_product(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    A, B, C = _wild(rng, d), _wild(rng, d), _wild(rng, d)
    found = sandwich(A, B, C)
    exact = product(product(rational(A), rational(B)), rational(C))
    for i in range(d):
        for j in range(d):
            assert abs(exact[i][j] - Fraction(float(found.value[i, j]))) <= Fraction(float(found.error[i, j]))


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
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    spectrum = np.ones(d)
    spectrum[0] = rng.choice([-1.0, 0.0, 1.0]) * 10.0**exponent
    A = (Q * spectrum) @ Q.T
    A = 0.5 * (A + A.T)
    if proved_cholesky(Enclosed(A, np.zeros_like(A))) is not None:
        assert is_positive_definite(rational(A))


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0, 10))
def test_log_det_bounds_hold(seed: int, d: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    A = (Q * np.logspace(0, -decades, d)) @ Q.T
    A = 0.5 * (A + A.T)
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
