"""D = Diag(a) − VVᵀ under the descent metric: the proved ends hold and enclose the dense optimum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stepsize_opt import (
    BernQ,
    IndependentSampling,
    LargeStepsizeResult,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    get_method,
    optimal_stepsize,
)
from stepsize_opt.operators import thin_metric
from stepsize_opt.proofs import ThinStepsize
from stepsize_solvers.programs import Matrix
from stepsize_solvers.thin.descent import MetricModel, metric_point
from stepsize_validation.runs.metric import moment_operator


def low_rank(seed: int, d: int, r: int, size: float) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(seed)
    return LowRankPlusDiagonal(size * rng.standard_normal((d, r)), rng.uniform(0.05, 1.0, d))


def metric(D: Matrix, L: LowRankPlusDiagonal, sketch: Sketch, c: float = 2.0) -> Matrix:
    """cD − 𝒫(DLD), formed."""
    DLD = D @ L.todense() @ D
    return np.asarray(c * D - sketch.second_moment(0.5 * (DLD + DLD.T)))


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 20), size=st.floats(0.05, 5.0), data=st.data())
def test_the_ends_enclose_the_dense_optimum(seed: int, d: int, size: float, data: st.DataObject) -> None:
    L = low_rank(seed, d, data.draw(st.integers(1, min(d, 4))), size)
    k = data.draw(st.integers(1, d))
    sketch = data.draw(st.sampled_from([RandK(d, k), IndependentSampling(np.linspace(0.2, 0.9, d)), BernQ(0.4, d)]))
    large = optimal_stepsize(L, sketch, guarantee="descent")
    dense = optimal_stepsize(L.todense(), sketch, guarantee="descent")
    assert isinstance(large, LargeStepsizeResult) and large.certificate.feasible and large.guarantee == "descent"
    slack = 1e-9 * d
    assert large.certificate.log_det <= dense.certificate.upper_bound + slack
    assert dense.certificate.log_det <= large.certificate.upper_bound + slack
    D = large.D.todense()
    H = metric(D, L, sketch)
    assert np.linalg.eigvalsh(H)[0] > 0.0
    assert large.log_det <= np.linalg.slogdet(H)[1] + slack
    assert large.log_det == pytest.approx(np.linalg.slogdet(H)[1], abs=1e-6 * d)
    assert large.rate > 0.8 * dense.rate  # 0.91 and more in trials
    if large.satisfies_condition:
        assert np.linalg.eigvalsh(metric(D, L, sketch, 1.0))[0] >= -1e-12
    assert large.D.log_det() == pytest.approx(np.linalg.slogdet(D)[1], abs=1e-9 * d)


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 12), sign=st.sampled_from([-1.0, 1.0]), c=st.sampled_from([1, 2]))
def test_what_is_proved_of_any_stepsize_is_true(seed: int, d: int, sign: float, c: int) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = low_rank(seed, d, 2, 1.0), RandK(d, max(1, d // 2))
    split = sketch.map.diagonal_plus_scaled
    assert split is not None
    scale = float(rng.choice([0.002, 0.2, 1.0]))
    D = ThinStepsize(scale * rng.uniform(0.5, 1.0, d), 0.2 * np.sqrt(scale / d) * rng.standard_normal((d, 2)), sign)
    dense = np.diag(D.a) + sign * D.V @ D.V.T
    ends, below = D.log_det(), thin_metric(L, split).log_det(D, c)
    positive = np.linalg.eigvalsh(dense)[0] > 0.0
    assert (ends is not None) == positive
    if ends is not None:
        exact = np.linalg.slogdet(dense)[1]
        assert exact - 1e-10 * d < ends[0] <= exact + 1e-12 * d
        assert exact - 1e-12 * d <= ends[1] < exact + 1e-10 * d
    H = metric(dense, L, sketch, c)
    if below is not None:
        assert np.linalg.eigvalsh(H)[0] > 0.0
        assert np.linalg.slogdet(H)[1] == pytest.approx(below, abs=1e-7 * d)
    assert below is not None or scale > 0.1 or not positive  # small stepsizes are proved


def test_the_bound_holds_for_the_optimum_whatever_the_multiplier() -> None:
    rng = np.random.default_rng(0)
    L, sketch = low_rank(5, 12, 2, 1.0), RandK(12, 4)
    split = sketch.map.diagonal_plus_scaled
    assert split is not None
    best = optimal_stepsize(L.todense(), sketch, guarantee="descent").log_det
    for _ in range(20):
        bound = thin_metric(L, split).bound(np.exp(rng.standard_normal(12)), rng.standard_normal((12, 3)))
        assert best <= bound < np.inf
    assert thin_metric(L, split).bound(-np.ones(12), np.ones((12, 1))) == np.inf


def test_the_gradient_is_that_of_the_objective() -> None:
    rng = np.random.default_rng(0)
    L, sketch = low_rank(1, 9, 2, 1.0), IndependentSampling(np.linspace(0.3, 0.9, 9))
    split = sketch.map.diagonal_plus_scaled
    assert split is not None
    model = MetricModel(L.own, L.U, split.alpha, split.beta)
    a, J = 0.1 / L.diagonal() * np.exp(0.1 * rng.standard_normal(9)), rng.standard_normal((2, 2))
    at = metric_point(model, a, J, 3.0)
    assert at is not None
    D = np.linalg.inv(np.diag(1.0 / a) + L.U @ J @ J.T @ L.U.T)
    assert at.value == pytest.approx(np.linalg.slogdet(metric(0.5 * (D + D.T), L, sketch))[1])
    step = 1e-6
    along, Jalong = rng.standard_normal(9), rng.standard_normal((2, 2))
    ends = [metric_point(model, a * np.exp(t * along), J + t * Jalong, 3.0) for t in (step, -step)]
    assert ends[0] is not None and ends[1] is not None
    slope = (ends[0].objective - ends[1].objective) / (2.0 * step)
    assert slope == pytest.approx(float(along @ at.by_log_a + np.vdot(Jalong, at.by_J)), rel=1e-6)


def test_the_message_says_that_a_wide_factor_gains_nothing() -> None:
    result = optimal_stepsize(low_rank(2, 6, 8, 1.0), RandK(6, 2), guarantee="descent")
    assert result.status == "optimal_inaccurate"
    assert "U has 8 columns for 6 coordinates, so L.todense() is no larger" in result.message


def test_the_message_says_what_is_left_and_files_keep_the_answer(tmp_path: Path) -> None:
    L, sketch = low_rank(2, 40, 3, 1.0), RandK(40, 8)
    result = optimal_stepsize(L, sketch, guarantee="descent")
    assert result.status == "optimal_inaccurate" and "diagonal plus rank 3" in result.message
    assert result.gap < 0.5
    assert optimal_stepsize(L, sketch, guarantee="descent", max_iters=1).status == "user_limit"
    again = LargeStepsizeResult.load(result.save(tmp_path / "d"))
    np.testing.assert_array_equal(again.D @ np.ones(40), result.D @ np.ones(40))
    assert again.rate == result.rate
    np.testing.assert_allclose(result.D.todense() @ np.ones(40), result.D @ np.ones(40), rtol=1e-12)
    with pytest.raises(ValueError, match="takes a dense U"):
        optimal_stepsize(LowRankPlusDiagonal(sparse.csr_array(np.abs(L.U)), 1.0), sketch, guarantee="descent")


def test_the_second_moment_of_a_run_is_the_dense_one() -> None:
    L, sketch, method = low_rank(3, 10, 2, 1.0), RandK(10, 3), get_method("det-CGD1")
    D = optimal_stepsize(L, sketch, guarantee="descent").D
    expected = 2.0 * D.todense() - metric(D.todense(), L, sketch)
    np.testing.assert_allclose(moment_operator(method, D, L, sketch) @ np.eye(10), expected, atol=1e-13)
    assert moment_operator(method, D, L.todense(), sketch) is None
    inverse = optimal_stepsize(L, BernQ(0.3, 10), guarantee="descent")
    assert inverse.status == "optimal" and inverse.descent_rate == pytest.approx(inverse.rate)
