"""Sweeps, tables and figures: jobs that finished are not run again, and the tables hold what the runs measured."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shared.small_data import correlated_data
from stepsize_opt import __version__
from stepsize_validation import run
from stepsize_validation.cli import main
from stepsize_validation.data import load_dataset
from stepsize_validation.experiments import Plan, rand_one, reproduce, sweep
from stepsize_validation.experiments.report import EXPERIMENTS, Reproduction
from stepsize_validation.experiments.spec import Experiment, Figure, Tables

pytestmark = pytest.mark.slow

STEPS = {"a": 300, "b": 40, "c": 30, "d": 60, "e": 60, "f": 5, "sensitivity": 20}
PLAN = replace(Plan.quick(("first",)), seeds=8, iterations=STEPS, clients=(3,), layers=2, epsilon2=0.02, draws=1)


def silent(line: str) -> None:
    """Swallow a line of progress."""


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for results; two small data sets are files beside it."""
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("first", 1), ("second", 2)):
        data = correlated_data(seed)
        rows = zip(data.A.tolist(), data.b.tolist(), strict=True)
        lines = (f"{b:g} " + " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row)) for row, b in rows)
        (folder / name).write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSIZE_OPT_DATA", str(folder))
        yield folder / "results"


@pytest.fixture(scope="module")
def done(folder: Path) -> Reproduction:
    """Every experiment, with one figure of curves each: drawing takes longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, experiment in EXPERIMENTS.items():
            patch.setitem(EXPERIMENTS, name, replace(experiment, figures=experiment.figures[-1:]))
        return reproduce(["all"], folder, PLAN, workers=1, say=silent)


def test_every_bound_is_checked_and_none_violated(done: Reproduction) -> None:
    counts = done.verdicts.set_index(["experiment", "bounds"])
    runs = {name: tables["runs"] for name, tables in done.tables.items() if "runs" in tables}
    assert set(runs) == {"a", "b", "c", "d", "e"}
    for name, group in runs.items():
        assert ((name, "descent metric") in counts.index) == (name != "c")  # Theorem 3 has no bound in H
        if name != "c":
            assert counts.loc[(name, "descent metric")].sum() == group["descent_verdict"].notna().sum()
        assert counts.loc[(name, "condition")].sum() == (group["feasible"] & (group["goal"] == "paper")).sum()
    satisfied = counts.drop("condition not satisfied", level="bounds", errors="ignore")
    assert satisfied["violated"].sum() == satisfied["diverged"].sum() == 0 and done.all_hold
    assert counts.loc[("a", "descent metric"), "holds"] >= 5


def test_the_tables_hold_what_the_runs_measured(done: Reproduction) -> None:
    tables, panel = done.tables["a"], rand_one.panel(load_dataset("first"), PLAN)
    for choice in (panel.choices[1], panel.choices[-1]):
        record = run(panel.objective, choice.D, choice.sketch, algorithm=choice.algorithm, iterations=300, seeds=8)
        means = record.means("metric") if choice.goal == "descent" else record.means()
        curve = tables["curves"][tables["curves"]["method"] == choice.label]
        np.testing.assert_array_equal(curve["weighted"], means.mean(axis=0))
        np.testing.assert_array_equal(curve["floats"], record.floats())
        values = curve["excess"].dropna() + panel.infimum.found
        np.testing.assert_allclose(values, record.values.mean(axis=0)[1:], rtol=1e-12)
        row = tables["to level"].set_index("method").loc[choice.label]
        assert row["K"] == np.flatnonzero(means.mean(axis=0) <= row["level"])[0] + 1 and row["floats"] == row["K"]


def test_savings_compare_the_best_of_both_sides(done: Reproduction) -> None:
    rates = done.tables["a"]["runs"].set_index("method")["rate"]
    saved = done.savings.set_index(["experiment", "variant", "goal"]).loc[("a", "rand-1")]
    assert saved.loc["paper", "predicted"] == rates["det-CGD1, optimal"] / rates["det-CGD2, optimal"]
    assert saved.loc["descent", "predicted"] > saved.loc["paper", "predicted"] > 1.0
    assert "gradient descent" not in set(done.savings["best of the paper"])  # it sends d floats per round
    # A saving is observed, or there is a reason why not.
    assert (done.savings["observed"].isna() == (done.savings["why not observed"] != "")).all()
    assert done.savings["observed"].notna().any()


def test_tables_and_figures_are_written_with_the_command_and_the_version(done: Reproduction) -> None:
    for name, experiment in EXPERIMENTS.items():
        pictures = {path.stem for path in (done.folder / "figures").glob(f"{name}_*.png")}
        assert pictures == {f"{name}_{figure.name}" for figure in experiment.figures[-1:]}
    text = (done.folder / "tables" / "b_savings.csv").read_text(encoding="utf-8")
    assert text.startswith(f"# stepsize-opt reproduce b --datasets first; version {__version__}, ")
    stored = pd.read_csv(io.StringIO(text), comment="#")
    pd.testing.assert_series_equal(stored["predicted"], done.tables["b"]["savings"]["predicted"])
    table = pd.read_csv(done.folder / "tables" / "a_table-1.csv", comment="#")
    assert {2, 8} <= set(table["row"][table["differs"]])
    settings = json.loads((done.folder / "settings.json").read_text(encoding="utf-8"))
    assert settings["settings"]["seeds"] == 8 and "numpy" in settings["versions"]


def test_a_killed_sweep_runs_only_what_had_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, datasets=("first", "second"))
    code = (
        "from pathlib import Path; from stepsize_validation.experiments import Plan, reproduce\n"
        f"reproduce(['b'], Path({str(tmp_path)!r}), {plan!r}, workers=1)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "2/6" in line)
        process.kill()
    finished = len(list(tmp_path.rglob("output.pkl")))
    calls, true = [], sweep.run_panel
    monkeypatch.setattr(sweep, "run_panel", lambda panel, *rest: (calls.append(panel.variant), true(panel, *rest))[1])
    for _ in range(2):  # the second sweep has nothing left to run
        sweep.sweep([EXPERIMENTS["b"]], plan, tmp_path / "cache", workers=1, say=silent)
        assert 2 <= finished < 6 and len(calls) == 6 - finished
    sweep.sweep([EXPERIMENTS["b"]], replace(PLAN, seed=1), tmp_path / "cache", workers=1, say=silent)
    assert len(calls) == 6 - finished + 3  # other settings, other results


def test_two_processes_measure_the_same(done: Reproduction, tmp_path: Path) -> None:
    said: list[str] = []
    found = sweep.sweep([EXPERIMENTS["d"], EXPERIMENTS["b"]], PLAN, tmp_path, workers=2, say=said.append)
    for name in ("b", "d"):
        pd.testing.assert_frame_equal(found[name]["curves"], done.tables[name]["curves"])
    assert len(said) == 4 and "4/4" in said[-1]


def test_an_experiment_may_measure_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new experiment is one object: jobs, resumption, tables and figures follow."""

    def draw(tables: Tables, title: str, path: Path) -> None:
        path.parent.mkdir()
        path.write_text(f"{title}: {tables['most']}")

    toy = Experiment(
        name="toy",
        title="A toy",
        settings=("reg",),
        parameters=lambda data, plan: (1, 2) if data.name == "first" else (),
        measure=lambda data, plan, k: {"floats": pd.DataFrame({"k": [k], "sent": [k * data.d]})},
        summarise=lambda tables: {"most": tables["floats"].nlargest(1, "sent")},
        figures=(Figure("own", draw),),
    )
    monkeypatch.setitem(EXPERIMENTS, "toy", toy)
    done = reproduce(["toy"], tmp_path, replace(PLAN, datasets=("first", "second")), workers=1, say=silent)
    assert done.tables["toy"]["floats"].to_dict("list") == {"data": ["first"] * 2, "k": [1, 2], "sent": [6, 12]}
    assert (tmp_path / "tables" / "toy_most.csv").read_text(encoding="utf-8").splitlines()[1:] == [
        "data,k,sent",
        "first,2,12",
    ]
    assert (tmp_path / "figures" / "toy_own.png").read_text(encoding="utf-8").startswith("A toy") and done.all_hold


def test_mistakes_are_found_before_the_runs(tmp_path: Path) -> None:
    for settings, name in (({"iterations": {"a": 0}}, "iterations"), ({"fraction": 0.0}, "fraction")):
        with pytest.raises(ValueError, match=name):
            Plan(**settings)
    for names, workers, message in ((["z"], 1, "unknown experiment z"), (["a"], 0, "workers")):
        with pytest.raises(ValueError, match=message):
            reproduce(names, tmp_path, PLAN, workers=workers)
    with pytest.raises(ValueError, match="runs on first"):
        sweep.sweep([replace(EXPERIMENTS["a"], parameters=lambda *_: ())], PLAN, tmp_path, workers=1, say=silent)


def test_reproduce_command(
    done: Reproduction, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "quick", staticmethod(lambda **sets: PLAN))
    monkeypatch.setitem(EXPERIMENTS, "d", replace(EXPERIMENTS["d"], figures=()))
    words = ["reproduce", "d", "--quick", "--seeds", "8", "--workers", "1", "-o", str(folder)]
    assert main(words) == 0
    out = capsys.readouterr()
    assert f"tables and figures: {done.folder}" in out.out and "(d) first" in out.err
    assert main([*words, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
