"""``certify`` judges a stepsize by every goal, given as a result or as a matrix, at any scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from shared.goals import GOALS, arguments_of
from shared.reference_problems import DATASETS, smoothness_of
from stepsize_opt import (
    BlockDiagonal,
    Direction,
    Identity,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    optimal_stepsize,
)
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import random_smoothness, with_spectrum
from stepsize_validation.properties.exact import log_det, rational, satisfies_condition
from stepsize_validation.properties.judges import Node, judge_bound
from stepsize_validation.properties.strategies import problems

L = random_smoothness(np.random.default_rng(3), 6, 1e3)
SKETCH = RandK(6, 2)
# How closely the largest feasible multiple of an optimum is known.
CLOSE = 1e-8


@pytest.mark.parametrize("goal", GOALS)
def test_an_optimum_is_judged_by_its_goal(goal: str) -> None:
    asked = arguments_of(goal, L)
    result = optimal_stepsize(L, SKETCH, **asked)
    assert result.satisfies_condition == (goal == "paper")
    ways: list[dict[str, Any]] = [{"dual": result.dual, **asked}, {"optimum": result, **asked}]
    checks = [certify(result.D, L, SKETCH, **way) for way in ways]
    own = {"strong_convexity": asked["strong_convexity"]}  # a result does not keep its M
    for check in (*checks, certify(result, L, SKETCH, **own)):
        assert check.goal == goal and check.feasible and check.margin > -1e-9 and check.gap <= 1.5e-6
        assert check.rate == pytest.approx(result.rate, rel=1e-9)
        assert f"{check.rate:.9g}" in repr(check)
        assert check.descent_rate == pytest.approx(result.descent_rate, rel=1e-9)
        assert goal == "paper" or not check.condition.feasible
    alone = certify(result.D, L, SKETCH, **asked)
    assert alone.rate == pytest.approx(result.rate, rel=1e-9)
    assert math.isfinite(alone.gap) and (alone.gap <= 1.5e-6) == (goal == "descent")  # D has a multiplier of its own


@pytest.mark.parametrize("factor", [1e-300, 2.0**-900, 1e-150, 0.5, 1.0, 2.0, 2.5, 1e150, 1e300])
def test_multiples_of_an_optimum(factor: float) -> None:
    result = optimal_stepsize(L, SKETCH)
    D = factor * result.D
    check = certify(D, L, SKETCH, optimum=result)
    assert check.feasible == (factor <= 1.0)
    assert check.largest_scale == pytest.approx(1.0 / factor, rel=CLOSE)
    assert check.gap_when_scaled <= 1.5e-6
    if check.feasible:
        assert check.margin == pytest.approx(1.0 - factor, abs=CLOSE)
        assert check.gap == pytest.approx(-math.log(factor), abs=1e-6 + CLOSE)
    else:
        assert check.rate == 0.0 and math.isinf(check.gap)
    assert check.feasible == satisfies_condition(D, L, SKETCH, "det-CGD1")
    assert certify(D, L, SKETCH, dual=result.dual).gap_when_scaled <= 1e-6
    assert not check.feasible or check.certificate.log_det <= log_det(rational(D))
    assert not check.feasible or check.descent_rate >= check.rate > 0.0


def test_both_guarantees_are_reported() -> None:
    inside, free = optimal_stepsize(L, SKETCH), optimal_stepsize(L, SKETCH, goal="descent")
    check = certify(inside, L, SKETCH, goal="descent", dual=free.dual)
    assert check.gap == pytest.approx(math.log(free.rate / inside.descent_rate), abs=2e-6)
    assert check.condition.feasible and math.isnan(check.gap_when_scaled)
    check = certify(free, L, SKETCH, goal="paper")
    assert not check.feasible and check.rate == 0.0
    assert check.descent.feasible and check.descent_rate == pytest.approx(free.rate, rel=1e-9)
    check = certify(10.0 * free.D, L, SKETCH)
    assert not check.descent.feasible and check.descent_rate == 0.0 and math.isinf(check.descent.gap)


@pytest.mark.parametrize("structure", ["diagonal", BlockDiagonal((4, 2)), Direction(L)], ids=str)
def test_a_result_brings_its_sketch_method_structure_and_multiplier(structure: Any) -> None:
    result = optimal_stepsize(L, SKETCH, algorithm="det-CGD2", structure=structure)
    check = certify(result, L)
    assert check.feasible and check.gap <= 1.5e-6 and check.rate == pytest.approx(result.rate, rel=1e-9)
    assert check == certify(result.D, L, SKETCH, algorithm="det-CGD2", structure=result.structure, dual=result.dual)
    assert certify(result, L, structure="full").gap > 1e-3
    other = certify(result, L, algorithm="det-CGD1")
    assert (other.margin == pytest.approx(check.margin, abs=1e-3)) == (structure == "diagonal")  # SD = DS


def test_what_a_result_or_a_matrix_does_not_bring_is_asked_for() -> None:
    result = optimal_stepsize(L, SKETCH, goal="linear", strong_convexity=0.3 * L)
    with pytest.raises(ValueError, match="strong_convexity"):
        certify(result, L)
    assert certify(result, L, strong_convexity=0.3 * L).gap <= 2e-6
    with pytest.raises(TypeError, match="sketch"):
        certify(np.eye(6), L)


LARGE = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((6, 2)), 0.5)


@pytest.mark.parametrize("call", [{"structure": "diagonal"}, {"structure": "scalar"}], ids=str)
def test_a_large_smoothness_matrix_is_made_dense(call: dict[str, Any]) -> None:
    result = optimal_stepsize(LARGE, SKETCH, **call)
    check = certify(result, LARGE)
    assert check.feasible and check.rate == pytest.approx(result.rate, rel=1e-9)
    best = optimal_stepsize(LARGE.todense(), SKETCH, **call)
    assert certify(result, LARGE, optimum=best).gap <= result.gap + 2e-6


@pytest.mark.parametrize("scale", [1.0, 4.0**-20])
@pytest.mark.parametrize("goal", ["paper", "descent"])
def test_the_inverse_that_a_large_result_holds_is_proved_as_an_operator(scale: float, goal: Any) -> None:
    """The dense matrix that it rounds to lies on both sides of the boundary."""
    L = LowRankPlusDiagonal(scale * LARGE.U, 0.5 * scale**2)
    result = optimal_stepsize(L, SKETCH, algorithm="det-CGD2", goal=goal)
    for check in (certify(result, L), certify(result.D, L, SKETCH, algorithm="det-CGD2", goal=goal)):
        assert check.feasible and check.gap <= 1e-12 and check.descent.feasible
        assert check.rate == pytest.approx(result.rate, rel=1e-12)


def test_an_inverse_for_another_problem_is_made_dense() -> None:
    D = optimal_stepsize(LARGE, SKETCH, algorithm="det-CGD2").D
    other = LowRankPlusDiagonal(LARGE.U, 0.4)
    check = certify(D, other, SKETCH, algorithm="det-CGD2")
    assert check.feasible and check == certify(D.todense(), other.todense(), SKETCH, algorithm="det-CGD2")
    for larger in (LowRankPlusDiagonal(LARGE.U, 0.6), LowRankPlusDiagonal(1.1 * LARGE.U, 0.5)):
        assert not certify(D, larger, SKETCH, algorithm="det-CGD2").feasible


# ----------------------------------------------------------------
# the certified gap on many random problems, on real data and on hard spectra


@pytest.mark.slow
@given(problems(max_d=60, max_condition=1e6))
@settings(max_examples=300)
def test_random_problems_are_optimal(problem: tuple[Matrix, Sketch]) -> None:
    """Every sketch, d ≤ 60."""
    L, sketch = problem
    result = optimal_stepsize(L, sketch)
    assert result.status == "optimal" and result.gap <= 1e-6


def check_every_k(L: Matrix) -> None:
    d = len(L)
    for k in {1, max(1, d // 4), max(1, 3 * d // 4)}:
        result = optimal_stepsize(L, RandK(d, k))
        assert result.status == "optimal" and result.gap <= 1e-6, k


@pytest.mark.slow
@pytest.mark.parametrize("reg", [0.1, 1e-3])
@pytest.mark.parametrize("name", DATASETS)
def test_real_data(name: str, reg: float) -> None:
    check_every_k(smoothness_of(name, reg))


@pytest.mark.slow
@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e8])
@pytest.mark.parametrize("d", [10, 40, 100])
def test_spectra(d: int, condition: float) -> None:
    check_every_k(with_spectrum(np.random.default_rng(0), np.geomspace(1.0, condition, d)))


def test_the_bound_along_a_direction_holds_for_the_w_that_was_given() -> None:
    """D = γW is rounded entry by entry, so its own multiples are not quite those of W."""
    L, sketch = np.eye(2) + 1e-16 * (1.0 - np.eye(2)), Identity(2)
    for seed in range(20):
        structure = Direction(with_spectrum(np.random.default_rng(seed), [1e-4, 1.0]))
        best = optimal_stepsize(L, sketch, structure=structure)
        check = certify(best.D, L, sketch, structure=structure, optimum=best)
        judge_bound(Node(L, sketch, structure=structure), check.certificate.upper_bound, np.array(best.D), [])
