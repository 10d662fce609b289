"""The proofs behind large answers: true of any stepsize, for any multiplier; gradients by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.goals import GOALS
from stepsize_opt import Gaussian, IndependentSampling, LowRankPlusDiagonal, RandK, Sketch, optimal_stepsize
from stepsize_opt.large import thin_metric
from stepsize_opt.methods import get_method
from stepsize_opt.proofs import ThinStepsize, spectral_condition_bound, spectral_metric_bound
from stepsize_solvers.large.metric import MetricModel, metric_point
from stepsize_solvers.programs import DiagonalPlusScaled
from stepsize_validation.properties.strategies import Matrix, seeds


def low_rank(seed: int, d: int) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(seed)
    return LowRankPlusDiagonal(rng.standard_normal((d, 2)), rng.uniform(0.05, 1.0, d))


def split_of(sketch: Sketch) -> DiagonalPlusScaled:
    split = sketch.map.diagonal_plus_scaled
    assert split is not None
    return split


def metric(D: Matrix, L: LowRankPlusDiagonal, sketch: Sketch, c: float = 2.0) -> Matrix:
    """cD − 𝒫(DLD), formed."""
    return np.asarray(c * D - get_method("det-CGD1").second_moment(D, L.todense(), sketch))


@settings(max_examples=20)
@given(seed=seeds, d=st.integers(2, 12), sign=st.sampled_from([-1.0, 1.0]), c=st.sampled_from([1, 2]))
def test_what_is_proved_of_any_stepsize_is_true(seed: int, d: int, sign: float, c: int) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = low_rank(seed, d), RandK(d, max(1, d // 2))
    scale = float(rng.choice([0.002, 0.2, 1.0]))
    D = ThinStepsize(scale * rng.uniform(0.5, 1.0, d), 0.2 * np.sqrt(scale / d) * rng.standard_normal((d, 2)), sign)
    dense = np.diag(D.a) + sign * D.V @ D.V.T
    ends, below = D.log_det(), thin_metric(L, split_of(sketch)).log_det(D, c)
    positive = np.linalg.eigvalsh(dense)[0] > 0.0
    assert (ends is not None) == positive
    if ends is not None:
        exact = np.linalg.slogdet(dense)[1]
        assert exact - 1e-10 * d < ends.low <= exact + 1e-12 * d
        assert exact - 1e-12 * d <= ends.high < exact + 1e-10 * d
    H = metric(dense, L, sketch, c)
    if below is not None:
        assert np.linalg.eigvalsh(H)[0] > 0.0
        assert np.linalg.slogdet(H)[1] == pytest.approx(below, abs=1e-7 * d)
    assert below is not None or scale > 0.1 or not positive  # small stepsizes are proved


def test_bounds_of_thin_multipliers_are_above_the_optimum() -> None:
    rng = np.random.default_rng(0)
    L, sketch = low_rank(5, 12), RandK(12, 4)
    proof = thin_metric(L, split_of(sketch))
    best = optimal_stepsize(L.todense(), sketch, **GOALS["descent"]).log_det
    for _ in range(20):
        assert best <= proof.bound(np.exp(rng.standard_normal(12)), rng.standard_normal((12, 3))) < np.inf
    assert proof.bound(-np.ones(12), np.ones((12, 1))) == np.inf


def test_bounds_of_spectral_multipliers_are_above_the_optimum() -> None:
    rng = np.random.default_rng(0)
    L, sketch = LowRankPlusDiagonal(rng.standard_normal((6, 2)), 0.5), Gaussian(6, 2)
    values, counts = np.linalg.eigvalsh(L.todense())[3:], np.array([4.0, 1.0, 1.0])
    best = {goal: optimal_stepsize(L.todense(), sketch, **GOALS[goal]).log_det for goal in ("paper", "descent")}
    for _ in range(20):
        z, delta = np.exp(rng.standard_normal((2, 3)))
        assert best["paper"] <= spectral_condition_bound(values, counts, 1.5, 0.5, delta, z)
        assert best["descent"] <= spectral_metric_bound(values, counts, 1.5, 0.5, z)
    assert spectral_condition_bound(values, counts, 1.5, 0.5, delta, 0.0 * z) == np.inf
    assert spectral_metric_bound(values, counts, 1.5, 0.5, 0.0 * z) == np.inf


def test_the_gradient_is_that_of_the_objective() -> None:
    rng = np.random.default_rng(0)
    L, sketch = low_rank(1, 9), IndependentSampling(np.linspace(0.3, 0.9, 9))
    split = split_of(sketch)
    model = MetricModel(L.shift, L.U, split.alpha, split.beta)
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
