"""The command ``bench``: good and bad input, exit codes, what is printed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepsize_validation.bench import process as bench_process
from stepsize_validation.bench import report as bench_report
from stepsize_validation.bench import solvers as solver_benchmark
from stepsize_validation.bench.plots import draw_all
from stepsize_validation.bench.solvers import Plan
from stepsize_validation.bench.store import Results
from stepsize_validation.cli import bench as cli_bench

# Answers at once: native in 1 s, others in the seconds that the environment says.
_WORKER = """
import json, os, sys
request = json.load(sys.stdin)
native = request["configuration"]["solver"] == "native"
seconds = 1.0 if native else float(os.environ["OTHER_SECONDS"])
print(json.dumps({"event": "ready", "base_mb": 1.0}))
rung = dict(tol=1e-8, status="optimal", seconds=seconds, wall=seconds, setup=0.0, compile=0.0, solve=seconds)
rung |= dict(iterations=5, raw_violation=1e-9, rate=1.0, gap=5e-9, certify=0.0, peak_mb=2.0, repeats=1)
print(json.dumps({"event": "rung", "closed_form": False, **rung}))
print(json.dumps({"event": "end", "status": "done", "message": ""}), flush=True)
"""


def bench(*arguments: str) -> int:
    """The command as the command line calls it."""
    parser = argparse.ArgumentParser()
    cli_bench.add_parsers(parser.add_subparsers(required=True))
    args = parser.parse_args(["bench", *arguments])
    return int(args.run(args))


@pytest.fixture(autouse=True)
def worker(tmp_path, monkeypatch) -> None:
    script = tmp_path / "worker.py"
    script.write_text(_WORKER, encoding="utf-8")
    monkeypatch.setattr(bench_process, "WORKER", (sys.executable, "-S", str(script)))
    monkeypatch.setenv("OTHER_SECONDS", "10")
    # The quick plan without the families that --sizes does not touch, and figures in one test only: both take time.
    quick = replace(Plan.quick(), kind_size=None)
    monkeypatch.setattr(Plan, "quick", staticmethod(lambda: quick))
    monkeypatch.setattr(bench_report, "draw_all", lambda results, folder: [])
    monkeypatch.chdir(tmp_path)


SMALL: Sequence[str] = ("--quick", "--solvers", "native,scs", "--sizes", "3,4", "-o", "out")


def test_tables_and_files(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(bench_report, "draw_all", draw_all)
    assert bench(*SMALL) == 0
    shown = capsys.readouterr()
    assert "time to certified gap 1e-06" in shown.out
    assert "10 times the" in shown.out
    assert "written to out" in shown.err
    assert "profiles.png" in (tmp_path / "out" / "benchmark.md").read_text()
    assert (tmp_path / "out" / "profiles.png").is_file()


def test_earlier_runs_stay(tmp_path) -> None:
    assert bench(*SMALL, "-q") == 0
    before = Results.load(tmp_path / "out").runs
    assert bench(*SMALL, "-q", "--sizes", "5") == 0
    after = Results.load(tmp_path / "out").runs
    assert after[: len(before)] == before
    assert {run.task.problem.d for run in after} == {3, 4, 5}


def test_json(capsys) -> None:
    assert bench(*SMALL, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert {run["configuration"]["solver"] for run in answer["runs"]} == {"native", "scs"}
    assert answer["summary"]
    assert answer["environment"]["numpy"]


def test_quiet(capsys) -> None:
    assert bench(*SMALL, "-q") == 0
    assert capsys.readouterr() == ("", "")


def test_limits_reach_the_runs(tmp_path) -> None:
    assert bench(*SMALL, "-q", "--time-limit", "7.5", "--memory-limit", "512") == 0
    settings = Results.load(tmp_path / "out").settings
    assert (settings.time_limit, settings.memory_mb) == (7.5, 512)
    with pytest.raises(ValueError, match="other conditions"):
        bench(*SMALL, "-q", "--time-limit", "8")
    assert bench(*SMALL, "-q", "--time-limit", "8", "--no-resume") == 0


def test_interruption_says_how_to_go_on(monkeypatch, capsys, tmp_path) -> None:
    calls = []
    original = solver_benchmark.run_task

    def interrupted(task, settings):
        calls.append(task)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(task, settings)

    monkeypatch.setattr(solver_benchmark, "run_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(*SMALL)
    assert "the same command continues" in capsys.readouterr().err
    assert len(Results.load(tmp_path / "out").runs) == 1
    monkeypatch.setattr(solver_benchmark, "run_task", original)
    assert bench(*SMALL, "-q") == 0


class TestCheck:
    @pytest.fixture(autouse=True)
    def stored(self) -> None:
        assert bench(*SMALL, "-q") == 0

    def test_holds(self, capsys) -> None:
        assert bench("--check", "--stored", "out/results.json") == 0
        assert "the stored ratios hold on this machine" in capsys.readouterr().out

    def test_does_not_hold(self, capsys, monkeypatch) -> None:
        monkeypatch.setenv("OTHER_SECONDS", "100")
        assert bench("--check", "--stored", "out/results.json", "--json") == 1
        answer = json.loads(capsys.readouterr().out)
        assert not answer["holds"]
        assert answer["ratios"][0]["now"] == pytest.approx(100.0)

    def test_missing_file(self, monkeypatch, tmp_path) -> None:
        with pytest.raises(FileNotFoundError, match="no benchmark results at nowhere"):
            bench("--check", "--stored", "nowhere")
        monkeypatch.setattr("stepsize_validation.bench.STORED", tmp_path / "absent.json")
        with pytest.raises(FileNotFoundError, match="with --stored"):
            bench("--check")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sizes", "0"), "positive whole number"),
        (("--sizes", "a"), "positive whole number"),
        (("--solvers", ","), "names with commas"),
        (("--time-limit", "-1"), "positive number of seconds"),
        (("--memory-limit", "lots"), "positive whole number"),
    ],
)
def test_mistakes_found_by_the_parser(arguments: Sequence[str], message: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        bench(*arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_mistakes_found_later() -> None:
    with pytest.raises(ValueError, match="unknown solver simplex"):
        bench("--solvers", "simplex")
    with pytest.raises(ValueError, match="--stored goes with --check"):
        bench("--stored", "x.json")
    with pytest.raises(ValueError, match="at least 2"):
        bench("--sizes", "1")


def test_help_has_examples(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        bench("--help")
    assert stop.value.code == 0
    assert "stepsize-opt bench --check" in capsys.readouterr().out
