"""The solver benchmark: resuming, tables, the command ``bench``, the stored runs; the harness of the speed targets."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import flower, harness, native
from benchmarks.harness import GAP, Measured, shortest
from shared.licences import without_mosek_licence
from stepsize_opt import RandK
from stepsize_opt.problems import Federated, Quadratic
from stepsize_opt.proofs import repair
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Program, Settings
from stepsize_validation.bench import draw_all, process
from stepsize_validation.bench.plan import (
    BenchSettings,
    ClientsProblem,
    Plan,
    Problem,
    Task,
    data_problems,
    kind_problems,
    size_problems,
)
from stepsize_validation.bench.process import run_benchmark, run_task
from stepsize_validation.bench.results import RESULTS_FILE, Results, competing, size_table, solver_table, summary
from stepsize_validation.bench.worker import climb, judge
from stepsize_validation.cli import main, studies
from stepsize_validation.data import DATA_VARIABLE, Dataset, federated_logistic

STORED = Path(__file__).parents[2] / "docs" / "benchmark"
PLAN = Plan(sizes=(3, 4, 5), native_sizes=(8,), kind_size=None, data=False, solvers=("native", "clarabel"))


def rung(seconds: float, gap: float | None, tol: float = 1e-6, compiled: float = 0.0) -> dict[str, Any]:
    """A rung with the given time and certified gap."""
    times = {"seconds": seconds, "wall": seconds, "compile": compiled, "solve": seconds - compiled}
    proved = {"raw_violation": 1e-8, "gap": gap, "closed_form": False}
    return {"tol": tol, "status": "optimal", **times, **proved, "peak_mb": 5.0}


def run(task: Task, *rungs: dict[str, Any], status: str = "done") -> dict[str, Any]:
    return {**task.row, "run_status": status, "run_message": "", "base_mb": 2.0, "rungs": list(rungs)}


def made_up() -> Results:
    """native in d³/10⁶ s, clarabel in d⁵/10⁷ s but not at d = 40, scs faster than native at d = 20 only, no MOSEK."""
    runs = []
    for problem in size_problems((10, 20, 40)):
        d = problem.d
        native, clarabel, scs, mosek = (Task(problem, name) for name in ("native", "clarabel", "scs", "mosek"))
        runs.append(run(native, rung(d**3 / 1e6, 1e-9)))
        slow = run(clarabel, rung(d**5 / 1e7, 5e-7, compiled=0.5 * d**5 / 1e7))
        runs.append(slow if d < 40 else run(clarabel, status="time limit"))
        # Called optimal at 1e-6, certified to 1e-5 only.
        fine = rung(d**3 / 2e6, 1e-7) if d == 20 else rung(0.1, 1e-5)
        runs.append(run(scs, rung(1e-4, 1e-4, tol=1e-3), fine))
        runs.append(run(mosek, status="no licence"))
    return Results(BenchSettings(), {"processor": "p", "machine": "m", "cores": "2", "numpy": "2"}, runs)


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    written = draw_all(made_up(), tmp_path)
    assert written == ["time-size.png", "time-gap.png", "profiles.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in written)


def test_tables_and_sentences() -> None:
    """Times are those of the first rung within the certified gap; problems, ratios and broken claims are counted."""
    table = size_table(made_up())
    assert list(table.loc["native"]) == ["0.001", "0.008", "0.064", "1e-08"]
    assert list(table.loc["clarabel"]) == ["0.01", "0.32", "time limit", "1e-08"]
    assert list(table.loc["scs"]) == ["gap 1e-05", "0.004", "gap 1e-05", "1e-08"]
    assert list(table.loc["mosek"]) == ["no licence", "–", "–", "–"]
    total, solving = summary(made_up())
    # The fastest other solver takes 10 times the time of native at d = 10 and 0.5 times at d = 20.
    assert "2.24 times" in total and "0.5 on d=20 to 10 on d=10" in total
    assert "1.58" in solving and "0.5, on d=20" in solving
    table = solver_table(made_up())
    assert list(table.loc["native", ["1e-03", "1e-06", "1e-08"]]) == ["3/3", "3/3", "3/3"]
    assert list(table.loc["scs", ["1e-03", "1e-06", "1e-08"]]) == ["3/3", "1/3", "0/3"]
    assert list(table["time"]) == ["1×", "20×", "0.5×", "–"]
    assert list(table["growth"]) == ["d^3.0", "–", "–", "–"]  # two sizes of clarabel are too few for a slope
    # Rungs of scs: three at 1e-3 that keep their word, two at 1e-6 that do not, one that does.
    assert list(table["claims"]) == ["0/3", "0/2", "2/6", "–"]
    assert list(table["MB"]) == ["3", "3", "3", "–"]
    assert table.loc["mosek", "1e-03"] == "no licence"


def test_the_native_solver_without_closed_forms_is_a_row_and_does_not_compete() -> None:
    (problem,) = size_problems((10,))
    tasks = [Task(problem, "clarabel"), Task(problem, "native", iterate=True)]
    results = Results(BenchSettings(), {}, [run(task, rung(1.0, 1e-9)) for task in tasks])
    assert list(competing(results)["label"]) == ["clarabel"]
    assert list(solver_table(results).index) == ["clarabel", "native (iterates)"]
    assert summary(results) == []


def test_the_stored_run_is_one_of_the_default_plan_that_native_solved() -> None:
    results = Results.read(STORED)
    assert results.settings == Plan().settings
    stored = {(run["problem"], run["label"]) for run in results.runs}
    # Data that only the data folder has may be missing here or there.
    tasks = [task for task in Plan().tasks() if task.problem.family != "data"]
    assert {(task.problem.name, task.label) for task in tasks} <= stored
    native = [run for run in results.runs if run["solver"] == "native"]
    assert native and all(run["rungs"][-1]["gap"] <= 1e-8 for run in native)


class TestRunning:
    @pytest.fixture(autouse=True)
    def _scripted(self, monkeypatch, tmp_path: Path) -> None:
        """Answer every task at once, native in 1 s and others in 10 s; draw nothing."""
        seconds = {"native": 1.0}
        monkeypatch.setattr(
            process, "run_task", lambda task, settings: run(task, rung(seconds.get(task.solver, 10.0), 5e-9))
        )
        monkeypatch.setattr("stepsize_validation.bench.draw_all", lambda results, folder: ["figure.png"])
        monkeypatch.chdir(tmp_path)

    def test_a_killed_benchmark_resumes(self, tmp_path: Path) -> None:
        def stop_at_the_third(task: Task, done: int, total: int) -> None:
            if done == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_benchmark(PLAN, tmp_path, say=stop_at_the_third)
        path = tmp_path / RESULTS_FILE
        kept = path.read_text(encoding="utf-8")
        path.write_text(kept + '{"problem": "d=3", "la', encoding="utf-8")  # killed while it wrote
        again: list[int] = []
        results = run_benchmark(PLAN, tmp_path, say=lambda task, done, total: again.append(done))
        tasks = PLAN.tasks()
        sizes = [task.problem.d for task in tasks]
        assert sizes == sorted(sizes) and tasks[0].solver == "native"
        assert {task.solver for task in tasks if task.problem.d == 8} == {"native"}
        assert again == list(range(2, len(tasks)))
        assert [(run["problem"], run["label"]) for run in results.runs] == [(t.problem.name, t.label) for t in tasks]
        assert path.read_text(encoding="utf-8").startswith(kept)
        assert Results.read(tmp_path).runs == results.runs == run_benchmark(PLAN, tmp_path).runs
        assert path.read_text(encoding="utf-8").count("\n") == 1 + len(tasks)

    def test_other_conditions_are_not_mixed(self, tmp_path: Path) -> None:
        run_benchmark(PLAN, tmp_path)
        other = replace(PLAN, settings=BenchSettings(time_limit=6.0))
        with pytest.raises(ValueError, match="time_limit"):
            run_benchmark(other, tmp_path)
        assert run_benchmark(other, tmp_path, resume=False).settings.time_limit == 6.0
        path = tmp_path / RESULTS_FILE
        path.write_text(path.read_text(encoding="utf-8").replace('"numpy": "', '"numpy": "0.'), encoding="utf-8")
        with pytest.raises(ValueError, match="numpy"):
            run_benchmark(other, tmp_path)

    def test_a_file_of_another_kind_or_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=RESULTS_FILE):
            Results.read(tmp_path)
        for text in ("", "[]\n", "{}\n", "no json\n"):
            (tmp_path / RESULTS_FILE).write_text(text, encoding="utf-8")
            with pytest.raises(ValueError, match=RESULTS_FILE):
                Results.read(tmp_path)
        with pytest.raises(ValueError, match="no run"):
            _ = Results(BenchSettings(), {}, []).rungs

    def test_a_solver_that_cannot_run_and_sizes_beyond_a_limit_are_rows(self, tmp_path: Path, monkeypatch) -> None:
        without_mosek_licence(monkeypatch, tmp_path)
        monkeypatch.setattr(process, "run_task", lambda task, settings: run(task, status="time limit"))
        plan = replace(PLAN, solvers=("clarabel", "mosek"))
        rows = {(run["solver"], run["d"]): run["run_status"] for run in run_benchmark(plan, tmp_path).runs}
        assert [rows["clarabel", d] for d in (3, 4, 5)] == ["time limit", "skipped", "skipped"]
        assert {rows["mosek", d] for d in (3, 4, 5)} == {"no licence"}

    def test_the_command_prints_tables_keeps_runs_and_reports_again(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["bench", "--quick", "--solvers", "native,scs", "--sizes", "3,4", "-o", "out"]
        assert main([*words, "--time-limit", "7.5", "--memory-limit", "512"]) == 0
        shown = capsys.readouterr()
        assert ["scs", "10", "10", "1e-08"] in [line.split() for line in shown.out.splitlines()]
        assert "needs 10 times the processor time" in " ".join(shown.out.split()) and "out" in shown.err
        settings = Results.read(Path("out")).settings
        assert (settings.time_limit, settings.memory_mb) == (7.5, 512)
        assert main(["bench", "--report", "-o", "out"]) == 0
        assert capsys.readouterr().out == shown.out
        assert main([*words, "-q"]) == 2  # other conditions than those of the stored runs
        assert main([*words, "-q", "--no-resume"]) == 0
        assert main([*words, "-q", "--sizes", "5"]) == 0
        assert [run["d"] for run in Results.read(Path("out")).runs] == [3, 3, 3, 4, 4, 4, 5, 5, 5]

    def test_the_command_interrupted_or_without_a_package(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(task: Task, settings: BenchSettings) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(process, "run_task", interrupted)
        assert main(["bench", "--quick", "-o", "out"]) == 130
        assert "the same command continues" in capsys.readouterr().err
        monkeypatch.setattr(studies, "find_spec", lambda name: None if name == "pandas" else object())
        assert main(["bench", "--quick", "-o", "out"]) == 2
        assert "pip install pandas" in capsys.readouterr().err


# ----------------------------------------------------------------
# measuring one run: problems, the ladder, processes that misbehave


TINY = Problem("size", 3, condition=10.0)
FAST = BenchSettings(time_limit=5.0, repeats=1)


def test_problems_build_survive_json_and_judge_answers(monkeypatch, tmp_path) -> None:
    problems = [*size_problems((3, 5)), *kind_problems(4), Problem("data", 30, data="breast_cancer")]
    assert len({problem.name for problem in problems}) == len(problems)
    for problem in problems:
        built, again = problem.build(), Problem(**json.loads(json.dumps(asdict(problem)))).build()
        if isinstance(built, ClientsProblem):
            assert len(built.matrices) == problem.clients
            np.testing.assert_array_equal(built.matrices, again.matrices)
        else:
            assert built.program.d == problem.d
            np.testing.assert_array_equal(built.program.families[0].B, again.program.families[0].B)
    built = TINY.build()
    outcome = get_solver("native").solve(built.program, Settings())
    assert judge(built, outcome, 1e-6)["gap"] <= 1e-6
    for broken in (np.full((3, 3), np.nan), np.diag([1.0, 1.0, np.inf])):
        assert judge(built, replace(outcome, X=broken), 1e-6)["gap"] is None
        assert judge(built, replace(outcome, duals=(broken[None],)), 1e-6)["gap"] is None
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert [problem.data for problem in data_problems()] == ["breast_cancer", "digits"]
    (tmp_path / "heart_scale").write_text("")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert [problem.data for problem in data_problems()] == ["heart_scale", "breast_cancer", "digits"]


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


@pytest.mark.parametrize(
    ("gaps", "finest", "expected"),
    [
        ({1e-3: 1e-4, 1e-6: 1e-7, 1e-8: 1e-9}, 0.0, [1e-3, 1e-6, 1e-8]),  # each target at its own tolerance
        ({1e-3: 1e-9}, 0.0, [1e-3]),  # one solve reaches everything
        ({1e-3: 1e-2, 1e-4: 1e-2, 1e-5: 1e-2}, 1e-5, [1e-3, 1e-4, 1e-5]),  # a missed target is refined twice
        ({1e-3: 1e-4, 1e-6: 1e-5, 1e-7: 1e-5}, 1e-7, [1e-3, 1e-6, 1e-7]),  # none below the finest, none twice
        ({1e-3: None, 1e-4: 1e-9}, 0.0, [1e-3, 1e-4]),  # without an answer the ladder goes on
    ],
)
def test_the_ladder_refines_only_missed_targets(gaps: Any, finest: float, expected: list[float]) -> None:
    tried: list[float] = []

    def solve(tol: float) -> float | None:
        tried.append(tol)
        return gaps[min(gaps, key=lambda known: abs(math.log(known / tol)))]

    climb((1e-3, 1e-6, 1e-8), finest, solve)
    assert tried == pytest.approx(expected)


@pytest.mark.slow
def test_native_reaches_every_certified_gap() -> None:
    run = run_task(Task(TINY, "native"), BenchSettings())
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
    run = run_task(Task(TINY, "native"), FAST)
    assert (run["run_status"], run["run_message"]) == ("crashed", "exit code 1: no such thing")


# ----------------------------------------------------------------
# the harness of the speed benchmarks: a miss ends with exit code 1; they compare the same problems


@pytest.mark.parametrize(("value", "code"), [(10.0, 0), (10.1, 1), (math.inf, 1), (math.nan, 1)])
def test_a_miss_ends_with_exit_code_1(value: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def study(quick: bool) -> Iterator[Measured]:
        """Measure a toy."""
        yield Measured("cost", f"quick is {quick}", value, at_most=10.0)
        yield Measured("cost", "harmless", 1.0, at_most=10.0)
        yield Measured("speed", "near", 3.0, at_least=3.0)
        yield Measured("shown", "without a target", 1e9)

    assert harness.main([study], ["--quick"]) == code
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


# ----------------------------------------------------------------
# the baselines of the table on the Flower page: without compression or local steps they are gradient descent


@pytest.fixture
def f() -> Federated:
    rng = np.random.default_rng(0)
    parts = (Dataset("random", rng.standard_normal((30, 6)), rng.choice([-1.0, 1.0], 30)) for _ in range(3))
    return federated_logistic(tuple(parts), 0.01, "ridge")


@pytest.mark.parametrize("method", [flower.dasha, flower.marina])
def test_without_compression_it_is_gradient_descent_and_with_it_it_converges(
    method: Any, f: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "K", 6)
    gammas, X = np.array([0.1, 1.0]), np.zeros((2, 6))
    for found, up, down in islice(method(f.client_gradients, 6, gammas, np.random.default_rng(0)), 9):
        X = X - gammas[:, None] * f.gradient(X)
        np.testing.assert_allclose(found, X, rtol=1e-12)
        assert np.all(np.asarray(up) == 24) and down == 24
    monkeypatch.setattr(flower, "K", 2)
    rounds = method(f.client_gradients, 6, np.full(1, 0.5), np.random.default_rng(0))
    norms = [np.linalg.norm(f.gradient(X)) for X, _, _ in islice(rounds, 2000)]
    assert norms[-1] < 1e-3 * norms[0]


@pytest.mark.parametrize("steps", [1, 5])
def test_fedavg_makes_local_steps_of_every_client(steps: int, f: Federated) -> None:
    gammas, X = np.array([0.1, 1.0]), np.zeros((2, 6))
    for found, up, down in islice(flower.fedavg(f, gammas, steps), 4):
        ends = np.tile(X, (f.n, 1, 1))
        for end, one in zip(ends, f.clients, strict=True):
            for _ in range(steps):
                end -= gammas[:, None] * one.gradient(end)
        gradient_step = X - gammas[:, None] * f.gradient(X)
        X = ends.mean(axis=0)
        assert (steps == 1) == np.allclose(X, gradient_step, rtol=1e-12)
        np.testing.assert_allclose(found, X, rtol=1e-12)
        assert up == down == 24


def test_dead_clients_hold_the_others_back_until_they_are_forgotten() -> None:
    rng = np.random.default_rng(2)
    f = Federated(tuple(Quadratic(np.eye(30), rng.standard_normal(30)) for _ in range(10)))
    gaps = {gap["method"]: gap["gap"] for gap in flower.forgotten(f, 60)}
    assert gaps["forgotten after 20 rounds"] < 0.2 * gaps["never forgotten"]
