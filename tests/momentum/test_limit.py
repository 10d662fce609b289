"""The limit of momentum: a closed form, above every sketch, attained by the subspace method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh

from shared.goals import arguments_of
from stepsize_opt import (
    Identity,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS
from stepsize_validation.properties.strategies import Matrix, problems, smoothness_matrices

every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)
shares = st.floats(0.001, 1.0)


def roots(goal: str, L: Matrix, M: Matrix) -> Matrix:
    return np.sqrt(eigvalsh(L, M if goal == "linear" else np.eye(len(L))))


@every_goal
@given(L=smoothness_matrices(max_condition=1e6, rescaled=True), share=shares, k=st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_closed_form(goal: str, L: Matrix, share: float, k: float) -> None:
    """t = min(k/Σ√ℓ, 1/√ℓmax) from both sides; D ⪯ L⁻¹, tr(LD) ≤ k and DLD ⪰ t²M⁻¹; the subspace method has it."""
    d, M = len(L), share * np.linalg.eigvalsh(L)[0] * np.eye(len(L))
    budget = k * d
    asked: dict[str, Any] = {**arguments_of(goal, M), "momentum": True}
    root = roots(goal, L, M)
    expected = min(budget / root.sum(), 1.0 / root.max())
    limit = compression_limit(L, budget, **asked)
    assert limit.value <= expected * (1 + 1e-9) and limit.upper >= expected * (1 - 1e-9)
    assert limit.gap <= 1e-6
    assert limit.probabilities.sum() <= budget * (1 + 1e-9)
    assert float(np.sum(L * limit.D)) <= budget * (1 + 1e-9)
    floor = limit.value**2 * np.linalg.inv(M if goal == "linear" else np.eye(d))
    assert np.linalg.eigvalsh(limit.D @ L @ limit.D - floor)[0] >= -1e-6 * np.abs(floor).max()
    method = optimal_method(L, budget, **asked)
    assert method.momentum and method.rate == pytest.approx(expected, rel=1e-6)
    assert 0.0 <= 1.0 - method.efficiency <= 1e-6
    assert method.rate <= limit.upper


@given(L=smoothness_matrices(max_condition=1e4), share=shares)
@settings(max_examples=30, deadline=None)
def test_a_matrix_of_curvature(L: Matrix, share: float) -> None:
    """An M that does not commute with L."""
    d = len(L)
    tilted = L[::-1, ::-1] * (np.linalg.eigvalsh(L)[0] / np.linalg.eigvalsh(L)[-1])
    M = share * (0.5 * L + 0.5 * tilted)
    root = roots("linear", L, M)
    method = optimal_method(L, 0.5 * d, goal="linear", strong_convexity=M, momentum=True)
    assert method.rate == pytest.approx(min(0.5 * d / root.sum(), 1.0 / root.max()), rel=1e-6)


@given(problem=problems(max_d=5, max_condition=1e4), share=shares)
@settings(max_examples=60, deadline=None)
def test_no_sketch_is_above_the_limit(problem: tuple[Matrix, Sketch], share: float) -> None:
    L, sketch = problem
    mu = share * float(np.linalg.eigvalsh(L)[0])
    for goal in MOMENTUM_GOALS:
        asked: dict[str, Any] = {**arguments_of(goal, mu), "momentum": True}
        result = optimal_stepsize(L, sketch, **asked)
        upper = compression_limit(L, min(sketch.expected_rank, len(L)), **asked).upper
        assert result.rate <= upper * (1 + 1e-9)
        if sketch.is_exactly_unbiased:
            assert result.limit == pytest.approx(upper, rel=1e-6) and result.efficiency <= 1.0


@given(L=smoothness_matrices(max_condition=1e4), share=shares, k=st.floats(0.05, 1.0))
@settings(max_examples=30, deadline=None)
def test_momentum_is_not_slower(L: Matrix, share: float, k: float) -> None:
    """The rate is at least that without memory: for the limit, and for rand-k with M = μI."""
    d, mu = len(L), share * float(np.linalg.eigvalsh(L)[0])
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": mu}
    assert compression_limit(L, k * d, **asked, momentum=True).upper >= compression_limit(L, k * d, **asked).value
    sketch = RandK(d, max(1, int(k * d)))
    assert optimal_stepsize(L, sketch, **asked, momentum=True).rate >= optimal_stepsize(L, sketch, **asked).rate * (
        1 - 1e-6
    )


@given(L=smoothness_matrices(max_condition=1e4, rescaled=True))
@settings(max_examples=20, deadline=None)
def test_all_floats_and_known_curvature_need_one_round(L: Matrix) -> None:
    """k = d and M = L: t = 1."""
    d = len(L)
    for answer in (
        optimal_method(L, d, goal="linear", strong_convexity=L, momentum=True),
        optimal_stepsize(L, Identity(d), goal="linear", strong_convexity=L, momentum=True),
    ):
        assert 1.0 - 1e-6 <= answer.rate <= 1.0


@every_goal
@pytest.mark.parametrize("k", [1, 3.5, 12])
def test_a_low_rank_smoothness_matrix_agrees_with_a_dense_one(goal: str, k: float) -> None:
    L = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((12, 3)), 0.1)
    asked: dict[str, Any] = {**arguments_of(goal, 0.05), "momentum": True}
    thin, whole = optimal_method(L, k, **asked), optimal_method(L.todense(), k, **asked)
    assert thin.rate == pytest.approx(whole.rate, rel=1e-8)
    limit = compression_limit(L, k, **asked)
    assert limit.value <= compression_limit(L.todense(), k, **asked).upper and thin.rate <= limit.upper
    assert limit.gap <= 1e-9
    sketch = RandK(12, 3)
    for algorithm in ("det-CGD1", "det-CGD2"):
        large, dense = (
            optimal_stepsize(one, sketch, structure="scalar", algorithm=algorithm, **asked) for one in (L, L.todense())
        )
        assert large.rate == pytest.approx(dense.rate, rel=1e-6)
        assert large.limit == pytest.approx(dense.limit, rel=1e-9)
    A, w, h = thin.directions @ np.eye(12), thin.weights, thin.probabilities
    V = (A * (h * w)) @ A.T
    assert np.linalg.eigvalsh(V - (1 / 0.05 if goal == "linear" else 1.0) * np.eye(12))[0] >= -1e-9


def test_what_a_low_rank_smoothness_matrix_refuses() -> None:
    L = LowRankPlusDiagonal(np.ones((3, 1)), [0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="diagonal"):
        compression_limit(L, 1, goal="convex", momentum=True)
    same = LowRankPlusDiagonal(np.ones((3, 1)), 0.1)
    with pytest.raises(ValueError, match="μI ⪯ L"):
        optimal_stepsize(same, RandK(3, 1), structure="scalar", goal="linear", strong_convexity=0.5, momentum=True)


def test_iterations() -> None:
    """The smallest K, with the factor 2 of Ψ⁰ for linear and K(K + 3) for convex."""
    L = np.diag([1.0, 4.0, 9.0])
    linear = optimal_method(L, 1, goal="linear", strong_convexity=0.5, momentum=True)
    K = linear.iterations(accuracy=1e-3, initial_gap=2.0)
    assert 2 * (1 - linear.rate) ** K * 2.0 <= 1e-3 < 2 * (1 - linear.rate) ** (K - 1) * 2.0
    convex = optimal_method(L, 1, goal="convex", momentum=True)
    K = convex.iterations(accuracy=1e-3, initial_distance=2.0)
    assert 8.0 / (convex.rate**2 * K * (K + 3)) <= 1e-3 < 8.0 / (convex.rate**2 * (K - 1) * (K + 2))
    assert convex.iterations(accuracy=1e3, initial_distance=1e-3) == 1
    with pytest.raises(TypeError, match="initial_gap"):
        linear.iterations(accuracy=1e-3)
    plain = optimal_method(L, 1, goal="linear", strong_convexity=0.5)
    assert plain.iterations(accuracy=1e-3, initial_gap=1.0) == math.ceil(math.log(1e-3) / math.log(1 - plain.rate))
    with pytest.raises(ValueError, match="linear and convex"):
        optimal_method(L, 1).iterations(accuracy=1e-3, initial_gap=1.0)
