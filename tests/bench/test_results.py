"""The runs together: resuming, tables and sentences, the command ``bench``, the stored benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shared.licences import without_mosek_licence
from stepsize_validation.bench import draw_all, process
from stepsize_validation.bench.plan import BenchSettings, Plan, Task, size_problems
from stepsize_validation.bench.process import run_benchmark
from stepsize_validation.bench.results import RESULTS_FILE, Results, competing, size_table, solver_table, summary
from stepsize_validation.cli import main, studies

STORED = Path(__file__).parents[2] / "docs" / "benchmark"
PLAN = Plan(sizes=(3, 4, 5), native_sizes=(8,), kind_size=None, data=False, solvers=("native", "clarabel"))


def rung(seconds: float, gap: float | None, tol: float = 1e-6, compiled: float = 0.0) -> dict[str, Any]:
    """A rung with the given time and certified gap."""
    times = {"seconds": seconds, "wall": seconds, "compile": compiled, "solve": seconds - compiled}
    proved = {"raw_violation": 1e-8, "gap": gap, "closed_form": False}
    return {"tol": tol, "status": "optimal", **times, **proved, "peak_mb": 5.0}


def run(task: Task, *rungs: dict[str, Any], status: str = "done") -> dict[str, Any]:
    return {**task.row, "run_status": status, "run_message": "", "base_mb": 2.0, "rungs": list(rungs), "elapsed": 1.0}


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


def test_times_are_those_of_the_first_rung_within_the_certified_gap() -> None:
    table = size_table(made_up())
    assert list(table.loc["native"]) == ["0.001", "0.008", "0.064", "1e-08"]
    assert list(table.loc["clarabel"]) == ["0.01", "0.32", "time limit", "1e-08"]
    assert list(table.loc["scs"]) == ["gap 1e-05", "0.004", "gap 1e-05", "1e-08"]
    assert list(table.loc["mosek"]) == ["no licence", "–", "–", "–"]


def test_the_table_of_solvers_counts_problems_ratios_and_broken_claims() -> None:
    table = solver_table(made_up())
    assert list(table.loc["native", ["1e-03", "1e-06", "1e-08"]]) == ["3/3", "3/3", "3/3"]
    assert list(table.loc["scs", ["1e-03", "1e-06", "1e-08"]]) == ["3/3", "1/3", "0/3"]
    assert list(table["time"]) == ["1×", "20×", "0.5×", "–"]
    assert list(table["growth"]) == ["d^3.0", "–", "–", "–"]  # two sizes of clarabel are too few for a slope
    # Rungs of scs: three at 1e-3 that keep their word, two at 1e-6 that do not, one that does.
    assert list(table["claims"]) == ["0/3", "0/2", "2/6", "–"]
    assert list(table["MB"]) == ["3", "3", "3", "–"]
    assert table.loc["mosek", "1e-03"] == "no licence"


def test_the_summary_has_the_mean_and_the_extreme_ratios() -> None:
    total, solving = summary(made_up())
    # The fastest other solver takes 10 times the time of native at d = 10 and 0.5 times at d = 20.
    assert "2.24 times" in total and "0.5 on d=20 to 10 on d=10" in total
    assert "1.58" in solving and "0.5, on d=20" in solving


def test_the_native_solver_without_closed_forms_is_a_row_and_does_not_compete() -> None:
    (problem,) = size_problems((10,))
    tasks = [Task(problem, "clarabel"), Task(problem, "native", iterate=True)]
    results = Results(BenchSettings(), {}, [run(task, rung(1.0, 1e-9)) for task in tasks])
    assert list(competing(results)["label"]) == ["clarabel"]
    assert list(solver_table(results).index) == ["clarabel", "native (iterates)"]
    assert summary(results) == []


@pytest.mark.slow
def test_every_figure_is_drawn(tmp_path: Path) -> None:
    written = draw_all(made_up(), tmp_path)
    assert written == ["time-size.png", "time-gap.png", "profiles.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in written)


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
        assert again == list(range(2, len(tasks)))
        assert [(run["problem"], run["label"]) for run in results.runs] == [(t.problem.name, t.label) for t in tasks]
        assert path.read_text(encoding="utf-8").startswith(kept)
        assert Results.read(tmp_path).runs == results.runs == run_benchmark(PLAN, tmp_path).runs
        assert path.read_text(encoding="utf-8").count("\n") == 1 + len(tasks)

    def test_small_and_native_first(self) -> None:
        tasks = PLAN.tasks()
        assert [task.problem.d for task in tasks] == sorted(task.problem.d for task in tasks)
        assert tasks[0] == Task(tasks[0].problem, "native")
        assert {task.solver for task in tasks if task.problem.d == 8} == {"native"}

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
