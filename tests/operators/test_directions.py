"""D = γW for a W that is never formed: the dense γ, within the certified gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt import (
    BernQ,
    Direction,
    IndependentSampling,
    LargeStepsizeResult,
    LowRankPlusDiagonal,
    RandK,
    StepsizeResult,
    compression_limit,
    optimal_stepsize,
)
from stepsize_solvers.programs import Matrix


def close(large: StepsizeResult, dense: StepsizeResult, tol: float = 1e-6) -> None:
    assert isinstance(large, LargeStepsizeResult) and large.certificate.feasible and large.structure == "direction"
    slack = 1e-9 * large.d
    assert large.certificate.log_det <= dense.certificate.upper_bound + slack
    assert dense.certificate.log_det <= large.certificate.upper_bound + slack
    assert large.gap <= tol
    assert large.descent_log_det <= dense.descent_log_det + tol * large.d


def formed(W: Any) -> Matrix:
    return np.diag(W) if isinstance(W, np.ndarray) else np.asarray(W.todense())


@settings(max_examples=12)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 20), data=st.data())
def test_the_factor_is_the_dense_one(seed: int, d: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    L = LowRankPlusDiagonal(rng.standard_normal((d, 2)), rng.uniform(0.1, 1.0, d))
    sketch = data.draw(st.sampled_from([RandK(d, 1), RandK(d, max(1, d // 2)), IndependentSampling(np.full(d, 0.3))]))
    algorithm = data.draw(st.sampled_from(["det-CGD1", "det-CGD2"]))
    w = rng.uniform(0.1, 3.0, d)
    W: Any = data.draw(
        st.sampled_from([w, LowRankPlusDiagonal(rng.standard_normal((d, 1)), w), compression_limit(L, 1).D])
    )
    large = optimal_stepsize(L, sketch, algorithm=algorithm, structure=Direction(W))
    dense = optimal_stepsize(L.todense(), sketch, algorithm=algorithm, structure=Direction(formed(W)))
    close(large, dense)
    D, shape = large.D.todense(), formed(W)
    np.testing.assert_allclose(D / D[0, 0], shape / shape[0, 0], rtol=1e-9, atol=1e-12 * np.abs(shape).max())
    # Vectors and operators do for a dense L, too.
    assert optimal_stepsize(L.todense(), sketch, algorithm=algorithm, structure=Direction(W)).rate == pytest.approx(
        dense.rate, rel=1e-9
    )


@settings(max_examples=5)
@given(seed=st.integers(0, 10**6), d=st.integers(3, 20))
def test_a_sparse_factor_has_multiples_of_a_diagonal(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random((2 * d, d)) * (rng.random((2 * d, d)) < 0.3)
    L, W = LowRankPlusDiagonal(sparse.csr_array(X.T), 0.1), Direction(rng.uniform(0.1, 3.0, d))
    sketch = RandK(d, max(1, d // 2))
    close(optimal_stepsize(L, sketch, structure=W), optimal_stepsize(L.todense(), sketch, structure=W))


def test_a_condition_that_is_met_in_every_direction_at_once_costs_some_digits() -> None:
    # D = γL⁻¹ with 𝒫(M) = M/q: D − T(D) is near zero as a whole, and so is what the proof has to work with.
    L = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((30, 2)), 0.5)
    large = optimal_stepsize(L, BernQ(0.4, 30), structure=Direction(compression_limit(L, 5).D))
    close(large, optimal_stepsize(L.todense(), BernQ(0.4, 30), structure=Direction(np.linalg.inv(L.todense()))), 1e-2)
    assert (large.status == "optimal") == (large.gap <= 1e-6)


def test_a_result_is_a_direction_and_is_saved(tmp_path: Path) -> None:
    L = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((25, 2)), 0.5)
    W = optimal_stepsize(L, RandK(25, 5), guarantee="descent").D
    result = optimal_stepsize(L, RandK(25, 5), structure=Direction(W))
    again = LargeStepsizeResult.load(result.save(tmp_path / "d"))
    np.testing.assert_array_equal(again.D @ np.ones(25), result.D @ np.ones(25))
    assert result.rate < optimal_stepsize(L, RandK(25, 5), guarantee="descent").rate  # the condition forbids more of W


def test_what_is_no_direction_is_refused() -> None:
    L = LowRankPlusDiagonal(np.ones((4, 1)), 1.0)
    with pytest.raises(ValueError, match="positive definite"):
        Direction([1.0, 0.0, 1.0])
    with pytest.raises(TypeError, match="without todense"):
        Direction(aslinearoperator(np.eye(4)))
    with pytest.raises(ValueError, match="sizes go with a W that is a matrix"):
        Direction(np.ones(4), (2, 2))
    with pytest.raises(ValueError, match="for d=3 but L is 4×4"):
        optimal_stepsize(L, RandK(4, 2), structure=Direction(np.ones(3)))
    with pytest.raises(TypeError, match="use a vector w"):
        W = LowRankPlusDiagonal(sparse.csr_array(np.ones((4, 1))), 1.0)
        optimal_stepsize(L, RandK(4, 2), structure=Direction(W))
    with pytest.raises(ValueError, match="answers without a dense matrix"):
        optimal_stepsize(L, RandK(4, 2), structure=Direction(np.ones(4)), guarantee="descent")
