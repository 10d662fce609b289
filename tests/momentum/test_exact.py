"""The theorems of momentum in rational arithmetic, for the floats that are returned."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh

from shared.goals import arguments_of
from shared.momentum import ExactRounds
from stepsize_opt import (
    FiniteSketch,
    Identity,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS, Goal, MomentumGoal, floors
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    descent_metric,
    inverse,
    is_positive_semidefinite,
    rational,
    second_moment,
)
from stepsize_validation.properties.strategies import Matrix, problems, smoothness_matrices

every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)
shares = st.floats(0.001, 1.0)


def curvature(L: Matrix, share: float) -> Matrix:
    """Some M ⪯ L that does not commute with L."""
    tilted = L[::-1, ::-1] * (np.linalg.eigvalsh(L)[0] / np.linalg.eigvalsh(L)[-1])
    return share * (0.5 * L + 0.5 * tilted)


def inverse_curvature(V: Matrix | float, d: int) -> Rational:
    return rational(V * np.eye(d) if isinstance(V, float) else V)


def exceeds(A: Rational, B: Rational) -> bool:
    """Whether A ⪰ B."""
    return is_positive_semidefinite(combine((1, A), (-1, B)))


@every_goal
@given(L=smoothness_matrices(max_d=3, max_condition=1e4, rescaled=True), share=shares, k=st.floats(0.02, 1.0))
@settings(max_examples=25, deadline=None)
def test_every_state_of_the_subspace_method(goal: str, L: Matrix, share: float, k: float) -> None:
    """E Ψ⁺ ≤ (1 − t)Ψ by enumeration for quadratics between M and L, and M̂ ⪯ M, t²w ≤ h, all without rounding."""
    M = curvature(L, share)
    method = optimal_method(L, k * len(L), **arguments_of(goal, M), momentum=True)
    rounds = ExactRounds.of_subspace(method)
    wanted = rational(M) if goal == "linear" else rational(np.eye(len(L)))
    assert exceeds(rounds.V, inverse(wanted))
    for w, h in zip(method.weights, method.probabilities, strict=True):
        assert rounds.t**2 * Fraction(float(w)) <= Fraction(float(h))
    hessians = [rational(M), rational(L)] if goal == "linear" else [rational(L), rational(0.25 * L)]
    for F in hessians:
        for number in (1, 2, 7):
            assert is_positive_semidefinite(rounds.decrease(F, number))


EXACT_SKETCHES = [
    RandK(2, 1),
    RandK(2, 2),
    IndependentSampling([0.5, 0.25]),
    IndependentSampling([1.0, 0.5, 0.125]),
    FiniteSketch(np.array([[[1.0, 1.0], [1.0, 1.0]], [[1.0, -1.0], [-1.0, 1.0]]]), [0.5, 0.5]),
]


@every_goal
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("sketch", EXACT_SKETCHES, ids=str)
def test_every_state_of_a_sketch(goal: str, algorithm: str, sketch: Sketch) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((sketch.d, sketch.d))
    L = X @ X.T + 0.1 * np.eye(sketch.d)
    M = curvature(L, 0.3)
    result = optimal_stepsize(L, sketch, algorithm=algorithm, **arguments_of(goal, M), momentum=True)
    rounds = ExactRounds.of_sketch(
        result.D,
        result.inverse_curvature,
        result.rate,
        sketch,
        strong=goal == "linear",
        last=algorithm == "det-CGD2",
    )
    for F in (rational(M), rational(L)):
        assert is_positive_semidefinite(rounds.decrease(F, 2))


@every_goal
def test_a_larger_rate_breaks_the_inequality(goal: str) -> None:
    """The check can fail: with a t that is 1 % larger there are states in which Ψ grows too much."""
    L = np.diag([1.0, 3.0])
    method = optimal_method(L, 1, **arguments_of(goal, 0.5), momentum=True)
    rounds = ExactRounds.of_subspace(method)
    larger = ExactRounds(rounds.outcomes, rounds.V, rounds.t * Fraction(101, 100), strong=goal == "linear")
    assert not is_positive_semidefinite(larger.decrease(rational(L)))


@every_goal
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@given(problem=problems(max_d=4, max_condition=1e3), share=shares)
@settings(max_examples=25, deadline=None)
def test_condition_and_bounds_for_every_sketch(
    goal: str, algorithm: str, problem: tuple[Matrix, Sketch], share: float
) -> None:
    """V ⪰ M⁻¹ and t²𝒫(V) ⪯ H for the floats returned; M′ lies where the proof of the upper bound needs it."""
    L, sketch = problem
    d, M = len(L), curvature(L, share)
    asked: dict[str, Any] = {**arguments_of(goal, M), "momentum": True}
    result = optimal_stepsize(L, sketch, algorithm=algorithm, **asked)
    given = rational(M) if goal == "linear" else rational(np.eye(d))
    V, law = inverse_curvature(result.inverse_curvature, d), partial(second_moment, sketch)
    assert exceeds(V, inverse(given))
    t = Fraction(result.rate)
    H = descent_metric(rational(result.D), rational(L), sketch, algorithm)
    assert exceeds(H, combine((t * t, law(V))))
    own = Goal.read(goal, asked["strong_convexity"], d, momentum=True).for_sketch(sketch.map)
    assert isinstance(own, MomentumGoal)
    floor = inverse(rational(floors.block_of(own.M, np.arange(d))))  # M′⁻¹
    assert exceeds(floor, law(V))
    # 1 + loss ≤ e^loss.
    assert exceeds(combine((1 + Fraction(own.loss), law(inverse(given)))), floor)
    assert own.loss <= 1e-6
    assert result.status == "optimal" and result.gap <= result.tol
    upper = compression_limit(L, min(sketch.expected_rank, d), **asked).upper
    assert result.rate <= upper * (1 + 1e-9) and result.rate <= result.limit
    if sketch.is_exactly_unbiased:
        assert result.limit == pytest.approx(upper, rel=1e-6) and result.efficiency <= 1.0


# ----------------------------------------------------------------
# the limit of momentum: a closed form, above every sketch, attained by the subspace method


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
    d, M = len(L), curvature(L, share)
    root = roots("linear", L, M)
    method = optimal_method(L, 0.5 * d, goal="linear", strong_convexity=M, momentum=True)
    assert method.rate == pytest.approx(min(0.5 * d / root.sum(), 1.0 / root.max()), rel=1e-6)


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
