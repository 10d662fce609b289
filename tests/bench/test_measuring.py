"""Measuring one run: problems, the ladder, processes that misbehave."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest

from stepsize_solvers import get_solver
from stepsize_solvers.programs import Settings
from stepsize_validation.bench import process
from stepsize_validation.bench.plan import (
    BenchSettings,
    ClientsProblem,
    NodeProblem,
    Problem,
    Task,
    data_problems,
    kind_problems,
    size_problems,
)
from stepsize_validation.bench.process import run_task
from stepsize_validation.bench.worker import climb, judge
from stepsize_validation.data import DATA_VARIABLE

TINY = Problem("size", 3, condition=10.0)
FAST = BenchSettings(time_limit=5.0, repeats=1)
NATIVE = Task(TINY, "native")

# Solvers that misbehave, known in the process of a run and nowhere else.
_BAD_SOLVERS = """
import os, sys, time
import numpy as np
from stepsize_solvers.programs import SolverUnavailable
from stepsize_solvers.native import NativeSolver
from stepsize_validation.bench import worker

class Bad(NativeSolver):
    def __init__(self, name, deed):
        self.name, self.deed = name, deed
    def solve(self, program, settings):
        if program.d > 2 and settings.tol < 1e-3:  # the warm-up and the first rung go well
            self.deed()
        return super().solve(program, settings)
    def unsupported(self, program):
        return "no such cone" if self.name == "narrow" and program.d > 2 else None

def burn():
    while True:
        pass

def unlicensed():
    raise SolverUnavailable("the license is for smaller problems")

def noisy_abort():
    print("memory allocation of 1099511627776 bytes failed", file=sys.stderr, flush=True)
    os.abort()

deeds = {
    "aborts": os.abort, "burns": burn, "sleeps": lambda: time.sleep(60.0),
    "hungry": lambda: np.ones(2**33), "oom": noisy_abort, "unlicensed": unlicensed,
    "chatty": lambda: os.write(1, b"printed by native code\\n"), "narrow": None,
}
worker.get_solver = {name: Bad(name, deed) for name, deed in deeds.items()}.__getitem__
worker.main()
"""


def test_every_problem_builds_and_survives_json() -> None:
    problems = [*size_problems((3, 5)), *kind_problems(4), Problem("data", 30, data="breast_cancer")]
    assert len({problem.name for problem in problems}) == len(problems)
    for problem in problems:
        built, again = problem.build(), Problem(**json.loads(json.dumps(asdict(problem)))).build()
        if isinstance(built, ClientsProblem):
            assert isinstance(again, ClientsProblem) and len(built.matrices) == problem.clients
            np.testing.assert_array_equal(built.matrices, again.matrices)
            continue
        assert isinstance(again, NodeProblem) and built.program.d == problem.d
        np.testing.assert_array_equal(built.program.families[0].B, again.program.families[0].B)


def test_embedded_data_is_always_there(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert [problem.data for problem in data_problems()] == ["breast_cancer", "digits"]
    (tmp_path / "heart_scale").write_text("")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert [problem.data for problem in data_problems()] == ["heart_scale", "breast_cancer", "digits"]


@pytest.mark.parametrize(
    ("gaps", "finest", "expected"),
    [
        # Each target at its own tolerance.
        ({1e-3: 1e-4, 1e-6: 1e-7, 1e-8: 1e-9}, 0.0, [1e-3, 1e-6, 1e-8]),
        # One solve reaches everything.
        ({1e-3: 1e-9}, 0.0, [1e-3]),
        # A missed target is refined twice and no more; the next target starts at its own tolerance.
        ({1e-3: 1e-2, 1e-4: 1e-2, 1e-5: 1e-2}, 1e-5, [1e-3, 1e-4, 1e-5]),
        # No tolerance below the finest, none twice.
        ({1e-3: 1e-4, 1e-6: 1e-5, 1e-7: 1e-5}, 1e-7, [1e-3, 1e-6, 1e-7]),
        # Without an answer the ladder goes on.
        ({1e-3: None, 1e-4: 1e-9}, 0.0, [1e-3, 1e-4]),
    ],
)
def test_the_ladder_refines_only_missed_targets(
    gaps: dict[float, float | None], finest: float, expected: list[float]
) -> None:
    tried: list[float] = []

    def solve(tol: float) -> float | None:
        tried.append(tol)
        return gaps[min(gaps, key=lambda known: abs(math.log(known / tol)))]

    climb((1e-3, 1e-6, 1e-8), finest, solve)
    assert tried == pytest.approx(expected)


@pytest.mark.slow
def test_native_reaches_every_certified_gap() -> None:
    run = run_task(NATIVE, BenchSettings())
    assert run["run_status"] == "done" and run["problem"] == "d=3"
    for target in (1e-3, 1e-6, 1e-8):
        assert any(rung["gap"] <= target for rung in run["rungs"])
    best = run["rungs"][-1]
    for rung in run["rungs"]:
        assert rung["seconds"] > 0.0 and rung["repeats"] == 3
        assert rung["wall"] == pytest.approx(rung["setup"] + rung["compile"] + rung["solve"], abs=1e-6)
        # The certified interval of the best rung contains the rates of the others.
        assert rung["rate"] <= best["rate"] * math.exp(best["gap"])
    assert best["peak_mb"] >= run["base_mb"] > 10.0


@pytest.mark.slow
def test_clients_are_the_call_that_users_make() -> None:
    """Both solvers end with the same rate, within their gaps; every rung of cvxpy compiles anew."""
    (problem,) = (problem for problem in kind_problems(4) if problem.clients)
    native, other = (run_task(Task(problem, name), FAST) for name in ("native", "clarabel"))
    assert native["run_status"] == other["run_status"] == "done"
    assert all(rung["compile"] > 0.0 for rung in other["rungs"])
    ours, theirs = native["rungs"][-1], other["rungs"][-1]
    assert abs(math.log(ours["rate"] / theirs["rate"])) <= max(ours["gap"], theirs["gap"]) <= 1e-6
    built = problem.build()
    assert isinstance(built, ClientsProblem)
    assert set(built.solve("native", 1e-6, {}).binding) == {"λ_D ≤ n/K", "D ⪯ L⁻¹"}


def test_nan_and_infinite_answers_have_no_gap() -> None:
    problem = TINY.build()
    assert isinstance(problem, NodeProblem)
    outcome = get_solver("native").solve(problem.program, Settings())
    assert judge(problem, outcome, 1e-6)["gap"] <= 1e-6
    for broken in (np.full((3, 3), np.nan), np.diag([1.0, 1.0, np.inf])):
        assert judge(problem, replace(outcome, X=broken), 1e-6)["gap"] is None
        assert judge(problem, replace(outcome, duals=(broken[None],)), 1e-6)["gap"] is None


@pytest.fixture
def bad_solvers(tmp_path, monkeypatch) -> None:
    script = tmp_path / "bad_worker.py"
    script.write_text(_BAD_SOLVERS, encoding="utf-8")
    monkeypatch.setattr(process, "WORKER", (sys.executable, str(script)))
    monkeypatch.setattr(process, "_WALL_FACTOR", 4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("aborts", "crashed", "SIGABRT"),
        ("hungry", "memory limit", "allocate"),
        ("oom", "memory limit", "memory allocation of"),
        ("burns", "time limit", "processor seconds"),
        ("sleeps", "time limit", "processor seconds"),
        ("unlicensed", "no licence", "license"),
        ("chatty", "done", ""),
        ("narrow", "unsupported", "no such cone"),
    ],
)
def test_a_solver_that_misbehaves_has_a_status(bad_solvers, name: str, status: str, message: str) -> None:
    run = run_task(Task(TINY, name), replace(FAST, time_limit=0.7, memory_mb=1024))
    assert run["run_status"] == status
    assert message in run["run_message"]
    # What was measured before is kept, and what a solver prints does not disturb.
    # Only the native solver is asked for less than 1e-7.
    expected = {"done": [1e-3, 1e-6, 1e-7], "unsupported": []}.get(status, [1e-3])
    assert [rung["tol"] for rung in run["rungs"]] == pytest.approx(expected)


def test_a_process_that_does_not_start(monkeypatch) -> None:
    monkeypatch.setattr(process, "WORKER", (sys.executable, "-c", "raise SystemExit('no such thing')"))
    run = run_task(NATIVE, FAST)
    assert (run["run_status"], run["run_message"]) == ("crashed", "exit code 1: no such thing")
