"""The search for a direction: which run follows from the runs so far, and when they are an answer."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shared.clients import random_clients
from stepsize_opt import Direction, RandK
from stepsize_opt.clients import search
from stepsize_opt.clients.fit import Multiples
from stepsize_opt.clients.problem import read_clients, reduce_clients
from stepsize_opt.clients.programs import ClientPrograms
from stepsize_opt.clients.search import Answer, Question, Run, answered, step, upper_bound
from stepsize_opt.inputs.structures import Structure, pattern_of
from stepsize_opt.methods import get_method
from stepsize_solvers.programs import Outcome, Settings, SolverStats, Status

OPEN, TIGHT = math.log(1e6), math.log(1e-3)
INFINITE = (math.inf, math.inf)
DET_CGD1 = get_method("det-CGD1")


def asked(
    log_c: float = math.inf, log_kappa: float = math.inf, structure: Structure = "full", partly: bool = False
) -> Question:
    """A question about two clients in three coordinates; partly: λ_D sees only the first."""
    clients = [np.diag([1.0, 0.0, 0.0])] * 2 if partly else random_clients(3, 2, 1)
    mean = np.eye(3) + 0.3 if partly else None
    conditions, _ = reduce_clients(read_clients(clients, RandK(3, 1), mean), pattern_of(structure, 3), DET_CGD1)
    return Question(ClientPrograms.of(conditions), (log_c, log_kappa), "auto", Settings(tol=1e-7))


def next_run(question: Question, *runs: Run) -> Run:
    found = step(question, runs)
    assert isinstance(found, Run)
    return found


def next_answer(question: Question, *runs: Run) -> Answer:
    found = step(question, runs)
    assert isinstance(found, Answer)
    return found


NO_INVERSE, NO_HOMOGENEOUS = Run("inverse", (TIGHT, math.inf)), Run("homogeneous", None)


def test_the_inverse_of_l_is_the_answer_where_the_limits_are_slack() -> None:
    question = asked(OPEN)
    run = next_run(question)
    assert run.rule == "inverse" and run.direction is not None and run.bounds
    np.testing.assert_allclose(run.direction.W @ question.conditions.L.hi, np.eye(3), atol=1e-10)
    assert next_answer(question, run).direction is run.direction
    # It is the largest D, and its bound proves that.
    best = run.direction.best_log_rate(*question.limits)
    assert best <= upper_bound((run,), question.limits) <= best + 1e-9
    tight = next_run(asked(TIGHT))
    assert (tight.rule, tight.direction, tight.outcome, tight.bounds) == ("inverse", None, None, ())


def test_the_homogeneous_program_answers_where_the_inverse_is_slack() -> None:
    question = asked(TIGHT)
    run = next_run(question, NO_INVERSE)
    assert run.rule == "homogeneous" and run.direction is not None and run.limits is None
    answer = next_answer(question, NO_INVERSE, run)
    assert answer.direction is run.direction and "slack" in answer.notes[0]
    # Where D ⪯ L⁻¹ limits its scale, it is no answer.
    loose = replace(question, limits=(OPEN, math.inf))
    assert next_run(loose, Run("inverse", loose.limits), run).rule == "joint"
    # It serves other limits as well, and is not solved again.
    other = replace(question, limits=(TIGHT - 1.0, math.inf))
    assert [one.rule for one in answered(other, (NO_INVERSE, run))[1]].count("homogeneous") == 1


def test_a_homogeneous_solve_that_got_stuck_is_no_answer() -> None:
    question = asked(TIGHT)
    run = next_run(question, NO_INVERSE)
    assert run.outcome is not None
    stuck = replace(run, outcome=replace(run.outcome, status=Status.INACCURATE))
    assert next_answer(question, NO_INVERSE, stuck).direction is run.direction  # its bounds prove it all the same
    assert next_run(question, NO_INVERSE, replace(stuck, bounds=())).rule == "joint"


def test_the_joint_programs_take_one_limit_after_the_other_until_the_second_is_slack() -> None:
    question = asked(0.0, OPEN, "diagonal")
    first = next_run(question, NO_HOMOGENEOUS)
    assert (first.rule, first.limits) == ("joint", (0.0, math.inf))
    assert first.direction is not None and next_answer(question, NO_HOMOGENEOUS, first).direction is first.direction
    both = replace(question, limits=(0.0, -2.0))
    second = next_run(both, NO_HOMOGENEOUS, first)
    assert (second.rule, second.limits) == ("joint", (math.inf, -2.0))
    # Without a point from the first the second is solved as well, and decides.
    second = next_run(question, NO_HOMOGENEOUS, replace(first, direction=None))
    assert second.limits == (math.inf, OPEN)
    # Without any limit there is one program, D ⪯ L⁻¹ alone.
    assert next_run(replace(question, limits=INFINITE), NO_HOMOGENEOUS).limits == INFINITE


def test_the_answer_for_a_smaller_c_comes_from_that_for_a_larger_one() -> None:
    question = asked(TIGHT - 60.0, partly=True)
    found, runs = answered(question)
    assert [run.rule for run in runs][-1] == "shrunk" and runs[-2].remaining < 0.0
    joint, shrunk = runs[-2:]
    assert joint.direction is not None and shrunk.direction is not None
    # Only the row that λ_D sees becomes smaller, the others change by less than its size; its bounds prove the answer.
    np.testing.assert_allclose(shrunk.direction.W[1:, 1:], joint.direction.W[1:, 1:], atol=1e-5)
    assert shrunk.direction.W[0, 0] < joint.direction.W[0, 0]
    best = shrunk.direction.best_log_rate(*question.limits)
    assert best <= upper_bound(runs, question.limits) + 1e-12 <= best + 1e-5
    assert found.direction is not None and found.direction.best_log_rate(*question.limits) >= best
    # Rows that are too large for that ask for a smaller c first, but only once.
    large = replace(joint, direction=replace(joint.direction, W=np.diag([1.0, 1.0, 1.0])))
    before = runs[:-2]
    again = next_run(question, *before, large)
    assert again.rule == "joint" and again.scale < joint.scale
    assert next_run(question, *before, large, replace(large, scale=again.scale)).rule == "shrunk"


def test_along_a_direction_only_closed_forms_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "choose_solver", None)
    for limits in ((TIGHT, math.inf), (OPEN, 0.0), (math.inf, TIGHT), INFINITE):
        found, runs = answered(asked(*limits, structure=Direction(np.diag([1.0, 2.0, 3.0]))))
        assert found.direction is not None and runs
        assert {run.outcome.stats.solver_name for run in runs if run.outcome} == {"closed form"}


def test_the_best_of_all_runs_is_the_answer_and_a_limit_is_no_error() -> None:
    question = asked(TIGHT, structure="diagonal")
    directions = [Multiples.of(question.conditions, np.diag(x)) for x in ([1.0, 1.0, 1.0], [1.0, 50.0, 1.0])]
    runs = [Run("joint", (TIGHT, math.inf), direction) for direction in directions]
    rates = [run.direction.best_log_rate(*question.limits) for run in runs if run.direction is not None]
    best = next_answer(question, NO_HOMOGENEOUS, *runs).direction
    assert best is directions[int(np.argmax(rates))]
    stopped = Outcome(Status.USER_LIMIT, None, (), SolverStats("native"))
    nothing = Run("joint", (TIGHT, math.inf), outcome=stopped)
    plain = next_answer(question, NO_HOMOGENEOUS, nothing).direction
    assert plain is not None
    failed = replace(nothing, outcome=replace(stopped, status=Status.SOLVER_ERROR, message="broken"))
    assert next_answer(question, NO_HOMOGENEOUS, failed).direction is None
    assert search.failures((failed, failed)) == ["native: broken"]
