"""The Gaussian sketch with an L that is never formed: the dense answers, within the certified gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import Gaussian, LargeStepsizeResult, LowRankPlusDiagonal, optimal_stepsize
from stepsize_opt.proofs import Enclosed, eigenvalues_from_below, spectral_condition_bound, spectral_metric_bound
from stepsize_solvers.programs import Matrix

CALLS: list[dict[str, Any]] = [
    {},
    {"guarantee": "descent"},
    {"algorithm": "det-CGD2"},
    {"algorithm": "det-CGD2", "structure": "diagonal"},
    {"structure": "scalar"},
]


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 16), size=st.floats(0.1, 10.0), data=st.data())
def test_the_answers_are_the_dense_ones(seed: int, d: int, size: float, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    sketch = Gaussian(d, data.draw(st.integers(1, d)))
    call = data.draw(st.sampled_from(CALLS))
    eigenbasis = "algorithm" not in call and "structure" not in call
    U = size * rng.standard_normal((d, data.draw(st.integers(1, min(3, d)))))
    L = LowRankPlusDiagonal(U, 0.3 if eigenbasis else rng.uniform(0.1, 1.0, d))
    large, dense = optimal_stepsize(L, sketch, **call), optimal_stepsize(L.todense(), sketch, **call)
    assert isinstance(large, LargeStepsizeResult) and large.certificate.feasible
    slack = 1e-9 * d
    assert large.certificate.log_det <= dense.certificate.upper_bound + slack
    assert dense.certificate.log_det <= large.certificate.upper_bound + slack
    assert large.status == "optimal" or "one sign only" in large.message
    assert large.gap < 0.05
    D, H = large.D.todense(), 2.0 * large.D.todense()
    DLD = D @ L.todense() @ D
    moment = sketch.second_moment(0.5 * (DLD + DLD.T))
    if "algorithm" in call:
        moment = D @ sketch.second_moment(L.todense()) @ D
    if large.satisfies_condition:
        assert np.linalg.eigvalsh(D - moment)[0] > -1e-9 * np.abs(D).max()
    assert large.descent_log_det <= np.linalg.slogdet(H - moment)[1] + slack


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("U", [np.zeros((1, 1)), np.ones((1, 2))], ids=["zeros", "equal columns"])
def test_factors_without_full_rank(d: int, U: Matrix) -> None:
    L = LowRankPlusDiagonal(np.repeat(U, d, axis=0), 0.5)
    for call in CALLS[:2]:
        large, dense = (optimal_stepsize(M, Gaussian(d, 1), **call) for M in (L, L.todense()))
        assert large.status == "optimal" and large.rate == pytest.approx(dense.rate, rel=1e-5)


def test_ten_thousand_coordinates() -> None:
    d = 10_000
    L = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((d, 4)) / np.sqrt(d), 1e-3)
    for call in CALLS[:2]:
        assert optimal_stepsize(L, Gaussian(d, 100), **call).status == "optimal"


def test_another_diagonal_is_told_what_is_possible() -> None:
    L = LowRankPlusDiagonal(np.ones((5, 1)), np.arange(1.0, 6.0))
    with pytest.raises(ValueError, match="a diagonal that is one number"):
        optimal_stepsize(L, Gaussian(5, 2))
    with pytest.raises(ValueError, match="answers without a dense matrix"):
        optimal_stepsize(L, Gaussian(5, 2), structure="diagonal")


def test_bounds_hold_for_every_multiplier() -> None:
    rng = np.random.default_rng(0)
    L, sketch = LowRankPlusDiagonal(rng.standard_normal((6, 2)), 0.5), Gaussian(6, 2)
    values, counts = np.linalg.eigvalsh(L.todense())[3:], np.array([4.0, 1.0, 1.0])
    best = [optimal_stepsize(L.todense(), sketch, guarantee=g).log_det for g in ("condition", "descent")]
    for _ in range(20):
        z, delta = np.exp(rng.standard_normal((2, 3)))
        assert best[0] <= spectral_condition_bound(values, counts, 1.5, 0.5, delta, z)
        assert best[1] <= spectral_metric_bound(values, counts, 1.5, 0.5, z)
    assert spectral_condition_bound(values, counts, 1.5, 0.5, delta, 0.0 * z) == np.inf
    assert spectral_metric_bound(values, counts, 1.5, 0.5, 0.0 * z) == np.inf


def test_eigenvalues_from_below() -> None:
    A = np.diag([1.0, 2.0, 4.0])
    below = eigenvalues_from_below(Enclosed(A, np.full((3, 3), 1e-3)))
    assert np.all(below <= [1.0 - 3e-3, 2.0 - 3e-3, 4.0 - 3e-3]) and np.all(below >= [0.99, 1.99, 3.99])


@pytest.mark.parametrize("shape", [(24, 5), (8, 8), (8, 25)])
@pytest.mark.parametrize("guarantee", ["condition", "descent"])
def test_columns_that_depend_on_others_are_no_directions(shape: tuple[int, int], guarantee: Any) -> None:
    U = np.ones(shape) / np.sqrt(shape[0] * shape[1])
    thin = optimal_stepsize(LowRankPlusDiagonal(U, 1.0), Gaussian(shape[0], 2), guarantee=guarantee)
    dense = optimal_stepsize(U @ U.T + np.eye(shape[0]), Gaussian(shape[0], 2), guarantee=guarantee)
    assert thin.status == "optimal" and thin.rate == pytest.approx(dense.rate, rel=3e-6)
