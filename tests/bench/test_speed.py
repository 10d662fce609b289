"""The harness of the speed benchmarks: a miss ends with exit code 1; they compare the same problems."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import native
from benchmarks.harness import GAP, Measured, main, shortest
from stepsize_opt import RandK
from stepsize_opt.proofs import repair
from stepsize_solvers.programs import Program


@pytest.mark.parametrize(("value", "code"), [(10.0, 0), (10.1, 1), (math.inf, 1), (math.nan, 1)])
def test_a_miss_ends_with_exit_code_1(value: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def study(quick: bool) -> Iterator[Measured]:
        """Measure a toy."""
        yield Measured("cost", f"quick is {quick}", value, at_most=10.0)
        yield Measured("cost", "harmless", 1.0, at_most=10.0)
        yield Measured("speed", "near", 3.0, at_least=3.0)
        yield Measured("shown", "without a target", 1e9)

    assert main([study], ["--quick"]) == code
    table = capsys.readouterr().out.partition("worst case")[2]
    assert "quick is True" in table and "harmless" not in table
    assert ("MISSED" in table) == bool(code)


def test_the_shortest_call_counts_and_runs_take_turns() -> None:
    order: list[str] = []
    now = iter(np.cumsum([0, 5, 0, 1, 0, 2, 0, 4]).tolist())
    calls = [lambda: order.append("first"), lambda: order.append("second")]
    first, second = shortest(calls, 2, clock=lambda: next(now))
    assert order == ["first", "second"] * 2
    assert (first.seconds, second.seconds) == (2, 1)


def test_the_plain_model_and_the_native_solver_solve_the_same_problem() -> None:
    B, sketch = native.synthetic(5, 10.0), RandK(5, 1)
    program = Program.single(B, sketch.map)
    assert native.certified_gap(program, native.solve(program)) <= GAP
    theirs = native.solve_plain_model(B, sketch.second_moment_matrix, "CLARABEL")
    assert theirs is not None
    values = [repair(program, D).log_det for D in (theirs, native.solve(program).X)]
    assert values[0] == pytest.approx(values[1], abs=5e-5)


@pytest.mark.slow
def test_a_study_in_small() -> None:
    """It measures something; how fast it is, ``make bench-native`` judges."""
    measured = list(native.closed_form(True))
    assert measured and all(0.0 < one.value < math.inf for one in measured)
