"""The command ``bench``: good and bad input, exit codes, what is printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stepsize_validation.bench import process, report
from stepsize_validation.bench.plan import Plan
from stepsize_validation.bench.results import Results
from stepsize_validation.cli import bench as command
from stepsize_validation.cli import main

SMALL: Sequence[str] = ("bench", "--quick", "--solvers", "native,scs", "--sizes", "3,4", "-o", "out")


@pytest.fixture(autouse=True)
def _scripted(tmp_path: Path, monkeypatch) -> None:
    """Answer at once: native in 1 s, others in 10 s; without figures, which take time."""

    def run_task(task, settings):
        seconds = 1.0 if task.solver == "native" else 10.0
        times = {"seconds": seconds, "wall": seconds, "solve": seconds, "peak_mb": 2.0}
        proved = {"raw_violation": 0.0, "gap": 5e-9, "closed_form": False}
        row = {**task.row, "run_status": "done", "run_message": "", "base_mb": 1.0, "elapsed": 1.0}
        return {**row, "rungs": [{"tol": 1e-8, "status": "optimal", **times, **proved}]}

    monkeypatch.setattr(process, "run_task", run_task)
    monkeypatch.setattr(report, "draw_all", lambda results, folder: [])
    # The quick plan without the families that --sizes does not touch.
    quick = replace(Plan.quick(), kind_size=None)
    monkeypatch.setattr(Plan, "quick", staticmethod(lambda: quick))
    monkeypatch.chdir(tmp_path)


def test_tables_files_and_the_report_again(capsys) -> None:
    assert main(SMALL) == 0
    shown = capsys.readouterr()
    assert "| d=4       |        1 |    10 |" in shown.out
    assert "needs 10 times the processor time" in shown.out
    assert "written to out" in shown.err
    text = Path("out/benchmark.md").read_text(encoding="utf-8")
    assert "needs 10 times the processor time" in text
    Path("out/benchmark.md").unlink()
    assert main(["bench", "--report", "-o", "out", "-q"]) == 0
    assert Path("out/benchmark.md").read_text(encoding="utf-8") == text
    assert capsys.readouterr() == ("", "")


def test_json_and_earlier_runs_stay(capsys) -> None:
    assert main([*SMALL, "-q"]) == 0
    assert main([*SMALL, "--json", "--sizes", "5"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {run["solver"] for run in answer["runs"]} == {"native", "scs"}
    assert [run["d"] for run in answer["runs"]] == [3, 3, 3, 4, 4, 4, 5, 5, 5]
    assert answer["summary"] and answer["environment"]["numpy"]


def test_limits_reach_the_runs() -> None:
    assert main([*SMALL, "-q", "--time-limit", "7.5", "--memory-limit", "512"]) == 0
    settings = Results.read(Path("out")).settings
    assert (settings.time_limit, settings.memory_mb) == (7.5, 512)
    assert main([*SMALL, "-q", "--time-limit", "8"]) == 2  # other conditions than those of the stored runs
    assert main([*SMALL, "-q", "--time-limit", "8", "--no-resume"]) == 0


def test_interruption_tells_how_to_go_on(monkeypatch, capsys) -> None:
    answer = process.run_task

    def interrupted(task, settings):
        if task.problem.d == 4:
            raise KeyboardInterrupt
        return answer(task, settings)

    monkeypatch.setattr(process, "run_task", interrupted)
    assert main(SMALL) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert {run["d"] for run in Results.read(Path("out")).runs} == {3}


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "tabulate" else object())
    assert main(SMALL) == 2
    assert capsys.readouterr().err == "error: bench needs tabulate: pip install 'stepsize-opt[reports]'\n"
