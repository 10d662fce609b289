"""The table of stepsizes for one node beside its limit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.goals import arguments_of
from stepsize_opt import Identity, RandK, Sketch, compare, optimal_stepsize
from stepsize_opt.tables import Table
from stepsize_validation.properties.strategies import Matrix, problems


def _assert_none_is_better_than_the_limit(table: Table) -> None:
    for goal, floats, least in ((goal, *limit) for goal, limits in table.limits.items() for limit in limits):
        without_memory = [row for row in table.rows if row.goal == goal and not row.result.momentum]
        assert all(row.k == floats and row.rounds >= least for row in without_memory)


@pytest.mark.parametrize("share", [0.9, 1e-3])
def test_a_linear_row_without_compression_is_at_the_limit(share: float) -> None:
    L = np.diag([1.0, 4.0])
    table = compare(L, Identity(2), goal="linear", strong_convexity=share * L)
    _assert_none_is_better_than_the_limit(table)
    ((_, least),) = table.limits["linear"]
    best = min(row.rounds for row in table.rows if not row.result.momentum)
    assert best == pytest.approx(least, rel=1e-6) == pytest.approx(-1.0 / np.log1p(-share), rel=1e-6)


@pytest.mark.parametrize("goal", ["paper", "descent", "euclidean", "linear"])
@given(problem=problems(3, 1e3), share=st.floats(0.05, 1.0))
@settings(max_examples=10, deadline=None)
def test_no_row_is_better_than_its_limit(goal: str, problem: tuple[Matrix, Sketch], share: float) -> None:
    L, sketch = problem
    _assert_none_is_better_than_the_limit(compare(L, sketch, **arguments_of(goal, share * (1.0 - 1e-9) * L)))


def test_rounds_are_those_of_iterations_in_the_unit_of_the_table() -> None:
    """For a small accuracy K of ``iterations`` is the rounds of the row times log(Δ⁰/accuracy)."""
    L, M = np.diag([1.0, 3.0]), 0.5
    row = next(r for r in compare(L, RandK(2, 1), goal="linear", strong_convexity=M).rows if r.stepsize == "optimal")
    result = optimal_stepsize(L, RandK(2, 1), algorithm=row.method, goal="linear", strong_convexity=M)
    K = result.iterations(accuracy=1e-100, initial_gap=1.0)
    assert K == pytest.approx(row.rounds * 100.0 * np.log(10.0), rel=1e-3)
