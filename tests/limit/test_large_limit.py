"""The limit of a LowRankPlusDiagonal: that of the dense matrix, within both proved intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stepsize_opt import LowRankPlusDiagonal, compression_limit
from stepsize_opt.inputs import dense


@settings(max_examples=25, deadline=None)
@given(
    d=st.integers(1, 9),
    r=st.integers(1, 4),
    share=st.floats(0.05, 1.0),
    goal=st.sampled_from(["descent", "euclidean"]),
    constant=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_the_dense_limit(d: int, r: int, share: float, goal: str, constant: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((d, r)) * 10.0 ** rng.uniform(-2, 2)
    L = LowRankPlusDiagonal(U, 0.3 if constant else rng.uniform(0.1, 2.0, d))
    large, known = (compression_limit(one, share * d, goal=goal) for one in (L, L.todense()))
    # L.todense() is rounded, so the intervals meet up to that.
    assert large.value <= known.upper * (1.0 + 1e-9)
    assert known.value <= large.upper * (1.0 + 1e-9)
    assert large.gap < 1e-7
    assert large.certificate.feasible
    D, whole = large.D.todense(), dense(L.todense())
    eigenvalues = np.linalg.eigvals(whole @ D).real
    assert eigenvalues.max() <= 1.0 + 1e-9
    assert eigenvalues.sum() <= share * d * (1.0 + 1e-9)
    if goal == "euclidean":
        assert large.probabilities.size == (d if constant or d == 1 else 0)
        if large.probabilities.size:
            np.testing.assert_allclose(np.sort(eigenvalues), large.probabilities, rtol=1e-6, atol=1e-9)


def test_one_hot_data_have_the_euclidean_limit() -> None:
    U = sparse.csr_array(np.eye(6)[:, [0, 0, 1, 4]])
    L = LowRankPlusDiagonal(U, 0.5)
    for k in (1, 5):  # the trace decides, then the largest eigenvalue
        large, known = (compression_limit(one, k, goal="euclidean") for one in (L, L.todense()))
        assert large.value == pytest.approx(known.value, rel=1e-6)
        assert large.upper >= known.value
    assert "not computed" in repr(large)


def test_a_million_coordinates() -> None:
    d = 10**6
    limit = compression_limit(LowRankPlusDiagonal(np.ones((d, 1)), 1.0), d // 10)
    assert limit.value == pytest.approx(0.1 * (1.0 + d) ** (-1.0 / d), rel=1e-9)
    assert limit.gap < 1e-9


def test_a_number_below_the_hessian_scales_the_plain_limit() -> None:
    L = LowRankPlusDiagonal(np.ones((4, 1)), 1.0)
    plain = compression_limit(L, 1, goal="euclidean")
    linear, known = (compression_limit(one, 1, goal="linear", strong_convexity=0.5) for one in (L, L.todense()))
    assert linear.value == pytest.approx(0.5 * plain.value, rel=1e-14)
    assert linear.value == pytest.approx(known.value, rel=1e-12)
    assert linear.value <= 0.5 * plain.upper <= linear.upper
