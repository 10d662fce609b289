"""The solver benchmark: problems, ladders, processes that misbehave, resuming, the stored run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepsize_opt.problems.data import DATA_VARIABLE
from stepsize_solvers.conic.model import Lift, Objective, choose_lift, conic_model, forget_models
from stepsize_solvers.programs import Matrix
from stepsize_validation.bench import process as bench_process
from stepsize_validation.bench.problems import (
    DATA_SIZES,
    ClientsProblem,
    NodeProblem,
    ProblemSpec,
    data_problems,
    kind_problems,
    size_problems,
)
from stepsize_validation.bench.process import run_task
from stepsize_validation.bench.records import (
    CRASHED,
    DONE,
    MEMORY_LIMIT,
    NO_LICENCE,
    NOT_INSTALLED,
    SKIPPED,
    TIME_LIMIT,
    UNSUPPORTED,
    BenchRun,
    BenchSettings,
    Configuration,
    Task,
    all_configurations,
    default_configuration,
)
from stepsize_validation.bench.report import PAGE, page, write_report
from stepsize_validation.bench.solvers import Plan, run_benchmark
from stepsize_validation.bench.store import RESULTS_FILE, Results, open_results, write_csv
from stepsize_validation.bench.worker import climb, unavailable_status

ROOT = Path(__file__).parents[2]
STORED = ROOT / "docs" / "benchmark"
TINY = ProblemSpec("size", 3, condition=10.0)
FAST = BenchSettings(time_limit=5.0, repeats=1)

# Solvers that misbehave, known in the process of a run and nowhere else.
_BAD_SOLVERS = """
import os, sys, time
import numpy as np
from stepsize_solvers.programs.contract import Settings, Solver, SolverUnavailable
from stepsize_solvers.native import NativeSolver
from stepsize_validation.bench import worker

class Bad(NativeSolver):
    def __init__(self, name, deed):
        self.name, self.deed = name, deed
    def solve(self, program, settings):
        if program.d > 2 and settings.tol < 1e-3:  # the warm-up and the first rung go well
            self.deed()
        return super().solve(program, settings)

def burn():
    while True:
        pass

def unlicensed():
    raise SolverUnavailable("the license is for smaller problems")

def noisy_abort():
    print("memory allocation of 1099511627776 bytes failed", file=sys.stderr, flush=True)
    os.abort()

def chatty():
    os.write(1, b"printed by native code\\n")

deeds = {
    "aborts": os.abort, "exits": lambda: os._exit(7), "burns": burn, "sleeps": lambda: time.sleep(60.0),
    "hungry": lambda: np.ones(2**33), "oom": noisy_abort, "unlicensed": unlicensed, "chatty": chatty,
}
worker.get_solver = {name: Bad(name, deed) for name, deed in deeds.items()}.__getitem__
worker.main()
"""


def _clients_configurations(problem: ProblemSpec) -> list[Configuration]:
    return [default_configuration(name, problem) for name in ("native", "clarabel")]


@pytest.fixture
def bad_solvers(tmp_path, monkeypatch) -> None:
    script = tmp_path / "bad_worker.py"
    script.write_text(_BAD_SOLVERS, encoding="utf-8")
    monkeypatch.setattr(bench_process, "WORKER", (sys.executable, str(script)))


class TestProblems:
    def test_every_problem_of_the_plan_builds(self) -> None:
        specs = [*size_problems((3, 5)), *kind_problems(4), ProblemSpec("data", 30, data="breast_cancer")]
        assert len({spec.name for spec in specs}) == len(specs)
        for spec in specs:
            problem = spec.build()
            if isinstance(problem, ClientsProblem):
                assert {M.shape for M in problem.matrices} == {problem.L.shape} == {(spec.d, spec.d)}
                assert len(problem.matrices) == spec.clients and not spec.quadratic
                continue
            assert spec.clients == 0 and problem.program.d == spec.d == len(problem.scale)
            # The quadratic lift is claimed only where it applies.
            assert choose_lift(problem.program) is Lift.QUADRATIC or not spec.quadratic

    def test_a_problem_survives_json_and_is_the_same_in_every_process(self) -> None:
        for spec in kind_problems(4):
            again = ProblemSpec(**json.loads(json.dumps(spec.to_dict())))
            assert again == spec
            for one, two in zip(self.matrices(spec), self.matrices(again), strict=True):
                np.testing.assert_array_equal(one, two)

    @staticmethod
    def matrices(spec: ProblemSpec) -> list[Matrix]:
        problem = spec.build()
        if isinstance(problem, ClientsProblem):
            return [*problem.matrices, problem.L]
        return [B for family in problem.program.families if (B := family.B) is not None]

    def test_rows_of_clients_are_the_call_that_users_make(self) -> None:
        """Both solvers end with the same rate, within the gaps of their results."""
        task = Task(kind_problems(4)[-1], Configuration("native"))
        runs = [run_task(replace(task, configuration=how), FAST) for how in _clients_configurations(task.problem)]
        assert [run.status for run in runs] == [DONE, DONE]
        best = [run.rungs[-1] for run in runs]
        problem = task.problem.build()
        assert isinstance(problem, ClientsProblem)
        result = problem.solve("native", best[0].tol)
        assert result.rate == best[0].rate and result.gap == best[0].gap
        assert set(result.binding) == {"λ_D ≤ n/K", "D ⪯ L⁻¹"}
        assert abs(math.log(best[0].rate / best[1].rate)) <= max(best[0].gap, best[1].gap) <= 1e-6

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"family": "other"}, "unknown family 'other'"),
            ({"sketch": "top-k"}, "unknown sketch 'top-k'"),
            ({"structure": "band"}, "unknown structure 'band'"),
            ({"d": 1}, "d must be at least 2, got 1"),
            ({"condition": 0.5}, "condition must be at least 1"),
            ({"data": "a1a", "d": 5}, "'a1a' with d=5"),
        ],
    )
    def test_bad_problems(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(TINY, **change)

    def test_embedded_data_is_always_there(self, monkeypatch, tmp_path) -> None:
        monkeypatch.delenv(DATA_VARIABLE, raising=False)
        assert [spec.data for spec in data_problems()] == ["breast_cancer", "digits"]
        (tmp_path / "heart_scale").write_text("")
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
        assert [spec.data for spec in data_problems()] == ["heart_scale", "breast_cancer", "digits"]
        assert DATA_SIZES["digits"] == len(self.matrices(ProblemSpec("data", 61, data="digits"))[0])


class TestConfigurations:
    def test_formulations(self) -> None:
        assert len(all_configurations("clarabel", TINY)) == 4
        assert len(all_configurations("cvxopt", TINY)) == 2
        assert all_configurations("native", TINY) == [Configuration("native")]
        compact_only = ProblemSpec("sketch", 3, condition=10.0, sketch="gaussian")
        assert {how.lift for how in all_configurations("scs", compact_only)} == {"compact"}
        assert all_configurations("scs", TINY)[0] == default_configuration("scs", TINY)

    def test_labels_are_unique(self) -> None:
        found = [how for name in ("native", "clarabel", "scs") for how in all_configurations(name, TINY)]
        found.append(Configuration("native", iterate=True))
        assert len({how.label for how in found}) == len(found)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"targets": (1e-6, 1e-3)}, "falling"),
            ({"targets": ()}, "falling"),
            ({"time_limit": 0.0}, "time_limit must be positive"),
            ({"repeats": 0}, "repeats must be positive"),
        ],
    )
    def test_bad_settings(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(FAST, **change)

    def test_unknown_status(self) -> None:
        with pytest.raises(ValueError, match="unknown status 'fine'"):
            BenchRun(Task(TINY, Configuration("native")), "fine")


class TestLadder:
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
    def test_tolerances(self, gaps: dict[float, float | None], finest: float, expected: list[float]) -> None:
        tried: list[float] = []

        def solve(tol: float) -> float | None:
            tried.append(tol)
            return gaps[min(gaps, key=lambda known: abs(math.log(known / tol)))]

        climb((1e-3, 1e-6, 1e-8), finest, solve)
        assert tried == pytest.approx(expected)


class TestProcesses:
    def test_native(self) -> None:
        run = run_task(Task(TINY, Configuration("native")), BenchSettings())
        assert run.status == DONE
        for target in (1e-3, 1e-6, 1e-8):
            rung = run.first_within(target)
            assert rung is not None
            assert rung.seconds > 0.0
            assert rung.wall == pytest.approx(rung.setup + rung.compile + rung.solve, abs=1e-6)
        assert run.rungs[0].repeats == 3
        assert run.rungs[-1].peak_mb >= run.base_mb > 10.0
        # The certified interval of the best rung contains the rates of the others.
        best = run.rungs[-1]
        assert all(rung.rate <= best.rate * math.exp(best.gap) for rung in run.rungs)

    def test_cvxpy(self) -> None:
        """Every rung compiles anew: nothing is warm-started from the one before."""
        task = Task(TINY, default_configuration("scs", TINY))
        run = run_task(task, replace(FAST, targets=(1e-3, 1e-6)))
        assert run.status == DONE
        assert run.seconds_to(1e-6) is not None
        assert all(rung.compile > 0.0 and rung.iterations > 10 for rung in run.rungs)

    def test_unsupported(self) -> None:
        task = Task(ProblemSpec("structure", 4, condition=10.0, structure="blocks"), Configuration("copt", "compact"))
        run = run_task(task, FAST)
        # Without COPT the same task says so.
        assert run.status in (UNSUPPORTED, NOT_INSTALLED)
        assert run.rungs == ()

    @pytest.mark.parametrize(
        ("name", "status", "message"),
        [
            ("aborts", CRASHED, "SIGABRT"),
            ("exits", CRASHED, "exit code 7"),
            ("hungry", MEMORY_LIMIT, "allocate"),
            ("oom", MEMORY_LIMIT, "memory allocation of"),
            ("burns", TIME_LIMIT, "processor seconds"),
            ("sleeps", TIME_LIMIT, "processor seconds"),
            ("unlicensed", NO_LICENCE, "license"),
        ],
    )
    def test_misbehaviour_is_a_row(self, bad_solvers, monkeypatch, name: str, status: str, message: str) -> None:
        monkeypatch.setattr(bench_process, "_CLOCK_FACTOR", 4.0)
        settings = replace(FAST, time_limit=0.7, memory_mb=1024)
        run = run_task(Task(TINY, Configuration(name)), settings)
        assert run.status == status
        assert message in run.message
        # What was measured before is kept.
        assert [rung.tol for rung in run.rungs] == [1e-3]
        assert run.seconds_to(1e-3) is not None
        assert run.seconds_to(1e-6) is None

    def test_what_a_solver_prints_does_not_disturb(self, bad_solvers) -> None:
        run = run_task(Task(TINY, Configuration("chatty")), FAST)
        assert run.status == DONE
        assert run.seconds_to(1e-8) is not None

    def test_a_process_that_does_not_start(self, monkeypatch) -> None:
        monkeypatch.setattr(bench_process, "WORKER", (sys.executable, "-c", "raise SystemExit('no such thing')"))
        run = run_task(Task(TINY, Configuration("native")), FAST)
        assert (run.status, run.message) == (CRASHED, "exit code 1: no such thing")

    def test_reasons(self) -> None:
        assert unavailable_status("MOSEK found no licence.") == NO_LICENCE
        assert unavailable_status("not installed: pip install x") == NOT_INSTALLED


def test_models_are_forgotten() -> None:
    problem = TINY.build()
    assert isinstance(problem, NodeProblem)
    program = problem.program
    forget_models()
    assert not conic_model(program, Lift.COMPACT, Objective.ROOT_DET)[1]
    assert conic_model(program, Lift.COMPACT, Objective.ROOT_DET)[1]
    forget_models()
    assert not conic_model(program, Lift.COMPACT, Objective.ROOT_DET)[1]


# A stand-in for the worker: times are d²/1000 s for the native solver and ten times that for the others.
_SCRIPTED = """
import json, sys
request = json.load(sys.stdin)
d, solver = request["problem"]["d"], request["configuration"]["solver"]
seconds = d**2 / 1000.0 * (1.0 if solver == "native" else 10.0)
print(json.dumps({"event": "ready", "base_mb": 1.0}))
for tol in request["settings"]["targets"]:
    rung = dict(tol=tol, status="optimal", seconds=seconds, wall=seconds, setup=0.0, compile=0.0, solve=seconds)
    rung |= dict(iterations=5, raw_violation=1e-9, rate=1.0, gap=tol / 2, certify=0.0, peak_mb=2.0, repeats=1)
    print(json.dumps({"event": "rung", "closed_form": False, **rung}))
print(json.dumps({"event": "end", "status": "done", "message": ""}), flush=True)
"""


@pytest.fixture
def scripted(tmp_path, monkeypatch) -> None:
    script = tmp_path / "scripted_worker.py"
    script.write_text(_SCRIPTED, encoding="utf-8")
    monkeypatch.setattr(bench_process, "WORKER", (sys.executable, "-S", str(script)))


PLAN = Plan(FAST, sizes=(3, 4, 5), native_sizes=(8,), kind_size=None, data=False, solvers=("native", "clarabel"))


class TestRunning:
    def test_interrupted_and_resumed(self, scripted, tmp_path) -> None:
        folder = tmp_path / "out"
        seen = []

        def stop_at_the_third(*step) -> None:
            seen.append(step)
            if len(seen) == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_benchmark(PLAN, folder, say=stop_at_the_third)
        kept = Results.load(folder)
        assert len(kept.runs) == 2
        again = []
        results = run_benchmark(PLAN, folder, say=lambda *step: again.append(step))
        assert len(again) == len(PLAN.tasks()) - 2
        assert [run.task for run in results.runs] == PLAN.tasks()
        # The runs of before were read back, not made again.
        assert [run.elapsed for run in results.runs[:2]] == [run.elapsed for run in kept.runs]
        assert again[0] == (PLAN.tasks()[2], 2, len(PLAN.tasks()))
        nothing_left: list[object] = []
        run_benchmark(PLAN, folder, say=lambda *step: nothing_left.append(step))
        assert nothing_left == []
        assert len(Results.load(folder).runs) == len(PLAN.tasks())

    def test_small_and_native_first(self) -> None:
        tasks = PLAN.tasks()
        assert [task.problem.d for task in tasks] == sorted(task.problem.d for task in tasks)
        assert tasks[0].configuration == Configuration("native")
        assert {task.configuration.solver for task in tasks if task.problem.d == 8} == {"native"}

    def test_other_conditions_are_not_mixed(self, scripted, tmp_path) -> None:
        run_benchmark(replace(PLAN, sizes=(3,), native_sizes=()), tmp_path)
        other = replace(FAST, time_limit=6.0)
        with pytest.raises(ValueError, match="measured under other conditions"):
            open_results(tmp_path, other, resume=True)
        assert open_results(tmp_path, other, resume=False).runs == ()
        text = (tmp_path / RESULTS_FILE).read_text()
        (tmp_path / RESULTS_FILE).write_text(text.replace('"numpy": "', '"numpy": "0.'))
        with pytest.raises(ValueError, match=r"numpy was 0\.\S+, is .*--no-resume"):
            run_benchmark(PLAN, tmp_path)

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "runs": []}'])
    def test_a_file_of_another_kind(self, text: str, tmp_path) -> None:
        (tmp_path / RESULTS_FILE).write_text(text)
        with pytest.raises(ValueError, match="is not a file of benchmark results"):
            Results.load(tmp_path)
        with pytest.raises(FileNotFoundError, match="no benchmark results"):
            Results.load(tmp_path / "nowhere.json")

    def test_a_solver_without_licence_is_a_row(self, scripted, tmp_path, monkeypatch) -> None:
        monkeypatch.delenv("MOSEKLM_LICENSE_FILE", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        results = run_benchmark(replace(PLAN, sizes=(3,), native_sizes=(), solvers=("mosek",)), tmp_path)
        assert {run.status for run in results.runs} <= {NO_LICENCE, NOT_INSTALLED}
        assert results.runs[0].message

    def test_beyond_a_limit_larger_sizes_are_skipped(self, scripted, tmp_path) -> None:
        plan = replace(PLAN, all_formulations_up_to=0)
        slow = default_configuration("clarabel", TINY)
        stopped = BenchRun(Task(replace(TINY, condition=1e3), slow), TIME_LIMIT, "no answer", (), 9.0)
        Results(plan.settings, runs=(stopped,)).save(tmp_path)
        results = run_benchmark(plan, tmp_path)
        statuses = {run.task.problem.d: run.status for run in results.runs if run.task.configuration == slow}
        assert statuses == {3: TIME_LIMIT, 4: SKIPPED, 5: SKIPPED}

    @pytest.mark.parametrize(
        ("change", "message"), [({"solvers": ("simplex",)}, "unknown solver simplex"), ({"sizes": (1,)}, "at least 2")]
    )
    def test_bad_plans(self, change: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            replace(PLAN, **change)

    def test_quick_plan_is_small(self) -> None:
        assert max(task.problem.d for task in Plan.quick().tasks()) <= 20
        assert {task.problem.d for task in PLAN.with_sizes([7, 6]).tasks()} == {6, 7}


class TestFiles:
    def test_round_trip_and_csv(self, scripted, tmp_path) -> None:
        results = run_benchmark(PLAN, tmp_path)
        assert Results.load(tmp_path).runs[0].rungs == results.runs[0].rungs
        path = tmp_path / "rungs.csv"
        write_csv(results, path)
        lines = path.read_text().splitlines()
        assert len(lines) == 1 + sum(len(run.rungs) for run in results.runs)

    def test_report(self, scripted, tmp_path) -> None:
        results = run_benchmark(PLAN, tmp_path)
        names = {path.name for path in write_report(results, tmp_path)}
        assert names == {RESULTS_FILE, "rungs.csv", PAGE, "time-size.png", "time-gap.png", "profiles.png"}
        text = (tmp_path / PAGE).read_text()
        assert "10 times the processor time of native" in text
        assert "![" in text
        assert str(tmp_path) not in text


class TestStored:
    """The run that the documentation shows."""

    def test_the_page_is_what_the_runs_say(self, tmp_path) -> None:
        results = Results.load(STORED)
        figures = sorted(STORED.glob("*.png"))
        assert {path.name for path in figures} == {"time-size.png", "time-gap.png", "profiles.png"}
        assert (STORED / PAGE).read_text(encoding="utf-8") == page(results, [path.name for path in figures])
        write_csv(results, tmp_path / "rungs.csv")
        assert (STORED / "rungs.csv").read_text(encoding="utf-8") == (tmp_path / "rungs.csv").read_text(
            encoding="utf-8"
        )

    def test_it_is_a_run_of_the_default_plan(self) -> None:
        results = Results.load(STORED)
        assert results.settings == Plan().settings
        stored = {run.task for run in results.runs}
        # Data that only the data folder has may be missing here or there.
        assert {task for task in Plan().tasks() if task.problem.family != "data"} <= stored

    def test_the_native_solver_solved_everything(self) -> None:
        runs = [run for run in Results.load(STORED).runs if run.task.configuration.solver == "native"]
        assert runs
        assert all(run.seconds_to(1e-8) is not None for run in runs)
