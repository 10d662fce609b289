"""The public cvxpy problem: the optimum of optimal_stepsize, and constraints of one's own."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    BlockDiagonal,
    Direction,
    Gaussian,
    IndependentSampling,
    LayerWise,
    RandK,
    certify,
    optimal_stepsize,
    to_cvxpy,
)
from stepsize_solvers.programs import UnsupportedProgram
from stepsize_validation.data import random_smoothness

L = random_smoothness(np.random.default_rng(0), 5, 50.0)
SKETCHES = [RandK(5, 2), IndependentSampling(np.linspace(0.2, 0.9, 5)), LayerWise([RandK(2, 1), Gaussian(3, 1)])]
QUESTIONS: dict[str, dict[str, Any]] = {
    **{goal: arguments_of(goal, 0.01) for goal in GOALS},
    "det-CGD2": {"algorithm": "det-CGD2"},
    "diagonal": {"structure": "diagonal"},
    "blocks": {"structure": BlockDiagonal((2, 3))},
    "direction": {"structure": Direction(np.diag(1.0 / np.diagonal(L)))},
}


@pytest.mark.parametrize("sketch", SKETCHES, ids=str)
@pytest.mark.parametrize("name", QUESTIONS)
def test_it_is_the_program_that_is_solved(name: str, sketch: Any) -> None:
    question = QUESTIONS[name]
    form, result = to_cvxpy(L, sketch, **question), optimal_stepsize(L, sketch, **question)
    value = form.problem.solve(solver="CLARABEL")
    # t for the goals that have one, otherwise a log det.  Clarabel stops at a relative gap of 1e-8, and its points
    # miss the constraints by about as much.
    expected = result.rate if name in ("euclidean", "linear") else result.log_det
    assert value == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert form.D.shape == (5, 5)


def test_lifts_agree_and_a_wrong_one_is_refused() -> None:
    values = [to_cvxpy(L, RandK(5, 2), lift=lift).problem.solve(solver="CLARABEL") for lift in ("compact", "quadratic")]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    with pytest.raises(UnsupportedProgram, match="lift='compact'"):
        to_cvxpy(L, Gaussian(5, 2), lift="quadratic")


def test_a_constraint_of_ones_own_is_kept_and_the_answer_is_provable() -> None:
    sketch = RandK(5, 2)
    form, free = to_cvxpy(L, sketch), optimal_stepsize(L, sketch)
    limit = 0.5 * float(np.trace(free.D))
    problem = cp.Problem(form.problem.objective, [*form.problem.constraints, cp.trace(form.D) <= limit])
    value = problem.solve(solver="CLARABEL")
    assert value < free.log_det
    D = form.D.value
    assert np.trace(D) == pytest.approx(limit, rel=1e-6)
    check = certify(D, L, sketch, dual=free.dual)
    assert check.largest_scale > 1.0 - 1e-6
    assert certify(min(1.0, check.largest_scale) * D, L, sketch, dual=free.dual).feasible


def test_two_forms_do_not_share_their_numbers() -> None:
    first, second = to_cvxpy(L, RandK(5, 2)), to_cvxpy(4.0 * L, RandK(5, 2))
    large, small = (form.problem.solve(solver="CLARABEL") for form in (first, second))
    assert large - small == pytest.approx(5 * np.log(4.0), rel=1e-5)
    assert first.problem.solve(solver="CLARABEL") == pytest.approx(large, rel=1e-6)
