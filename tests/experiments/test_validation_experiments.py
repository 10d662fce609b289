"""The experiments end to end in small sizes: choices, caching, resuming, tables, figures, report, sensitivity."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.small_data import small_data
from stepsize_opt.problems import Federated, FederatedInfimum, LogisticRegression, load_dataset
from stepsize_opt.sketches import RandK
from stepsize_validation import run
from stepsize_validation.cli import reproduce as cli_validation
from stepsize_validation.experiments import (
    Plan,
    clients,
    demo_figure,
    layers,
    rand_one,
    rand_tau,
    reproduce,
    running,
)
from stepsize_validation.experiments.catalogue import EXPERIMENTS
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.jobs import Job, jobs_of, run_plan
from stepsize_validation.experiments.sensitivity import (
    Task,
    factor_study,
    run_tasks,
    subsample_study,
    tasks_of,
    worst_margins,
)
from stepsize_validation.experiments.tables import curve_records, saved_iterations, savings, verdicts

PLAN = replace(
    Plan.quick(),
    seeds=4,
    iterations={"a": 120, "b": 40, "c": 30, "d": 60, "e": 60},
    epsilon2=0.05,
    draws=1,
)


@pytest.fixture(scope="module")
def reproduction(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return reproduce(["all"], tmp_path_factory.mktemp("results"), PLAN, workers=1, say=lambda line: None)


def test_choices_of_the_single_node_experiments() -> None:
    data = small_data()
    a = {choice.label: choice for choice in rand_one.panel(data, Plan()).choices}
    assert len(a) == 8 and all(choice.feasible for choice in a.values())
    ours = a["det-CGD1, optimal"]
    assert ours.ours and ours.gap is not None and ours.gap <= 1e-6
    assert all(ours.rate >= choice.rate * (1.0 - 1e-9) for choice in a.values() if choice.guarantee == "condition")
    free = a["det-CGD1, optimal, descent"]
    assert free.ours and free.guarantee == "descent" and free.rate > ours.rate
    # Rand-1: the optimum of det-CGD2 is the diagonal stepsize.
    assert a["det-CGD2, optimal"].rate == pytest.approx(a["det-CGD1, γ₁ diag⁻¹(L)"].rate, rel=1e-9)
    assert a["CGD"].rate <= a["CGD-mat"].rate
    b = {choice.label: choice for choice in rand_tau.panel(data, Plan(), 3).choices}
    np.testing.assert_array_equal(b["det-CGD1, D₂*"].D, b["det-CGD2, optimal"].D)
    assert rand_tau.taus(data, Plan()) == [1, 3, 4]


def test_the_papers_choice_of_D2_for_det_cgd1_is_outside_its_condition() -> None:
    """E[SDLDS] ⪯ D fails for D₂* = (E[SLS])⁻¹ unless the two commute; the record says so."""
    data = load_dataset("breast_cancer")
    choice = next(c for c in rand_tau.panel(data, Plan(), data.d // 2).choices if c.label == "det-CGD1, D₂*")
    assert not choice.feasible
    D, P = choice.D, choice.sketch.second_moment_matrix
    L = np.asarray(data.A.T @ data.A / (4 * data.m) + 2e-3 * np.eye(data.d))
    assert np.linalg.eigvalsh(D - P * (D @ L @ D))[0] < 0.0


def test_compression_for_free() -> None:
    panel = layers.panel(small_data(d=8), Plan(layers=2))
    cost = {choice.label: choice.sketch.expected_nonzeros / choice.rate for choice in panel.choices}
    sent = {choice.label: choice.sketch.expected_nonzeros for choice in panel.choices}
    assert cost["det-CGD2, Bern-q"] == pytest.approx(cost["no compression"], rel=1e-9)
    assert sent["det-CGD2, Bern-q"] == pytest.approx(sent["det-CGD2, rand-k"], rel=1e-12)
    assert cost["det-CGD2, rand-k"] > cost["det-CGD2, Bern-q"]


def test_distributed_panel() -> None:
    panel = clients.panel(small_data(m=40, d=4), Plan(iterations={"c": 50}, time_limit=60.0), 4)
    assert isinstance(panel.objective, Federated)
    assert isinstance(panel.infimum, FederatedInfimum) and panel.infimum.delta_inf > 0.0
    theory = {choice.label: choice.theory_iterations or 0.0 for choice in panel.choices}
    assert theory["DCGD"] >= theory["DCGD-mat"] * (1 - 1e-9) >= theory["D-det-CGD1, diagonal"] * (1 - 1e-5)
    assert theory["D-det-CGD1, diagonal"] >= theory["D-det-CGD1, full"] * (1 - 1e-5)
    assert theory["D-det-CGD2, diagonal"] >= theory["D-det-CGD2, full"] * (1 - 1e-5)
    L = panel.objective.smoothness()
    for choice in panel.choices:
        assert choice.lambda_D is not None and choice.lambda_D > 0.0
        assert np.linalg.eigvalsh(np.linalg.inv(L) - choice.D)[0] > 0.0


def test_every_bound_is_checked_and_none_violated(reproduction: Any) -> None:
    counts = verdicts(reproduction.curves)
    for name in ("a", "b", "c", "d", "e"):
        assert set(counts[f"({name}) descent metric"]) <= {"holds", "undecided"}
    assert counts["(a) descent metric"]["holds"] == 8
    assert {"(a)", "(b)", "(c)", "(d)"} <= set(counts)
    assert all("violated" not in counts[name] and "diverged" not in counts[name] for name in "(a) (b) (c) (d)".split())
    assert reproduction.all_hold
    assert counts["(a)"]["holds"] >= 5


def test_tables(reproduction: Any) -> None:
    curves = list(reproduction.curves)
    records = curve_records(curves)
    assert len(records) == len(curves) == 8 + 3 * 6 + 6 + 6 + 8
    saved = {(record["experiment"], record["variant"], record["guarantee"]): record for record in savings(curves)}
    first, free = saved["a", "rand-1", "condition"], saved["a", "rand-1", "descent"]
    assert first["predicted"] > 1.5 and first["observed"] > 1.2  # breast_cancer: a strong correlation
    assert free["predicted"] > first["predicted"]  # the best of the paper is diagonal, with H = D
    assert all(record["final f, paper"] > 0.0 and record["final f, ours"] > 0.0 for record in saved.values())
    for record in records:
        descent = record["method"].endswith((", descent", ", euclidean", ", linear"))
        assert (record["rate"] is None) == (descent or record["condition"] == "not satisfied")
        assert record["experiment"] == "c" or record["rate"] is None or record["descent rate"] > 0.999 * record["rate"]
    assert all(record["best of the paper"] != "gradient descent" for record in saved.values())  # it sends d numbers
    assert all(record["predicted, det-CGD1 only"] > 0.999 for record in saved.values() if record["experiment"] != "c")
    for share, record in zip(saved_iterations(savings(curves)), savings(curves), strict=True):
        assert share["data"] == record["data"] == "breast_cancer"
        np.testing.assert_allclose(float(share["predicted"][:-2]), 100 * (1 - 1 / record["predicted"]), atol=0.051)
    few = {**first, "observed": None, "why not observed": "3 steps against 1: too few to compare"}
    assert saved_iterations([few])[0]["observed"] == "3 steps against 1: too few to compare"
    for record in saved.values():  # a saving is observed, or there is a reason why not
        assert (record["observed"] is None) == bool(record["why not observed"])
    assert saved_iterations([{**first, "observed": 0.5}])[0]["observed"] == "-100.0 %"
    reached = [record for record in records if record["K"] is not None and record["experiment"] == "a"]
    assert reached and all(record["bits"] == 64 * record["K"] for record in reached)


def test_report_is_self_contained(reproduction: Any) -> None:
    page = reproduction.report.read_text(encoding="utf-8")
    for title in ("(a) One node", "(b) One node", "(c) Distributed", "(d) Layers", "(e) One", "Sensitivity", "Table 1"):
        assert title in page
    assert "Iterations saved by the optimal D" in page and 'name="viewport"' in page
    for record in saved_iterations(savings(reproduction.curves)):
        assert record["predicted"] in page and (record["observed"] is None or record["observed"] in page)
    assert page.count("data:image/png;base64,") == page.count("<figcaption>") == 3 + 3 + 4 + 3 + 4 + 1
    captions = "".join(re.findall("<figcaption>(.*?)</figcaption>", page, re.S))
    assert "f(x^K) − f^inf against iterations K" in captions and not set("${}") & set(captions)
    assert re.findall(r'="(https?://[^"]*)"', page) == ["https://arxiv.org/abs/2305.12568"]  # a link, nothing loaded
    assert "99.9% upper confidence bound" in page and "confidence level of a verdict" in page
    headings = re.findall("<th>(.*?)</th>", page)
    assert headings and not any("_" in heading for heading in headings)
    assert not re.search(r"<td>(True|False|None)</td>", page)
    tables = json.loads((reproduction.output / "tables.json").read_text(encoding="utf-8"))
    assert tables["settings"]["seeds"] == 4 and "numpy" in tables["versions"]
    assert {2, 8} <= {row["row"] for row in tables["table 1"]["rows"] if row["differs"]}


def test_results_are_cached_and_settings_are_part_of_the_key(
    reproduction: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def counted(panel: Any, choice: Any, *rest: Any) -> Curve:
        calls.append(choice.label)
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "curve_of", counted)
    again = run_plan(PLAN, ["a", "d"], reproduction.output, workers=1, say=lambda line: None)
    assert not calls and len(again) == 14
    with pytest.raises(KeyboardInterrupt):
        run_plan(replace(PLAN, seed=1), ["a"], reproduction.output, workers=1, say=lambda line: None)
    assert calls == ["CGD"]


def test_a_stopped_study_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(PLAN, iterations={"a": 30})
    true, done = running.curve_of, []

    def stops(panel: Any, choice: Any, *rest: Any) -> Curve:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(choice.label)
        return true(panel, choice, *rest)

    monkeypatch.setattr(running, "curve_of", stops)
    with pytest.raises(KeyboardInterrupt):
        run_plan(plan, ["a"], tmp_path, workers=1, say=lambda line: None)
    done.clear()
    monkeypatch.setattr(running, "curve_of", lambda p, c, *rest: (done.append(c.label), true(p, c, *rest))[1])
    assert len(run_plan(plan, ["a"], tmp_path, workers=1, say=lambda line: None)) == 8
    assert len(done) == 5


def test_an_experiment_is_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new experiment is one entry: jobs, cache, tables, figures and report follow."""
    toy = replace(
        rand_one.EXPERIMENT,
        letter="f",
        title="(f) A toy",
        panel=lambda data, plan, parameter: replace(rand_one.panel(data, plan), experiment="f", variant=f"{parameter}"),
        parameters=lambda data, plan: (1, 2),
        iterations=7,
    )
    monkeypatch.setitem(EXPERIMENTS, "f", toy)
    assert jobs_of(replace(PLAN, short=False), ["f"]) == [Job("f", "breast_cancer", 1), Job("f", "breast_cancer", 2)]
    done = reproduce(["f"], tmp_path, replace(PLAN, short=False), workers=1, say=lambda line: None)
    assert {curve.meta["iterations"] for curve in done.curves} == {7}
    assert [record["variant"] for record in done.tables["savings"]] == ["1", "1", "2", "2"]
    page = done.report.read_text(encoding="utf-8")
    assert "(f) A toy" in page and page.count("data:image/png") == len(toy.figures) + 1


def test_plans_are_checked() -> None:
    with pytest.raises(ValueError, match="iterations\\['a'\\]"):
        Plan(iterations={"a": 0})
    with pytest.raises(ValueError, match="fraction"):
        Plan(fraction=0.0)
    with pytest.raises(ValueError, match="unknown experiment f"):
        jobs_of(PLAN, ["f"])
    with pytest.raises(ValueError, match="unknown experiment"):
        reproduce(["f"], Path("unused"), PLAN)


def test_sensitivity_to_a_factor() -> None:
    data, sketch = load_dataset("breast_cancer"), RandK(30, 1)
    rows = factor_study(data, sketch, 1e-2, factors=(0.1, 0.5, 1.0, 2.0), iterations=300, seeds=24, epsilon2=1e-2)
    assert [row.feasible for row in rows] == [False, False, True, True]
    assert [row.relative_rate for row in rows] == [10.0, 2.0, 1.0, 0.5]
    assert rows[0].verdict in ("violated", "diverged")
    assert all(row.verdict != "violated" for row in rows[2:])


def test_sensitivity_to_a_subsample() -> None:
    data, sketch = load_dataset("breast_cancer"), RandK(30, 3)
    few, many = subsample_study(data, sketch, 1e-2, fractions=(0.1, 0.8), draws=2)
    assert few.rows == 57 and many.rows == 455
    assert few.margin_95 > many.margin_95 > 0.9
    for row in (few, many):
        # The spectral margin always suffices, so it is never below the one that is needed.
        assert row.spectral_95 >= row.margin_95 * (1.0 - 1e-6)
        assert 0.3 < row.relative_rate <= 1.0 + 1e-6


def test_sensitivity_of_several_data_sets_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seed in (("first", 1), ("second", 2)):
        data = small_data(seed, m=40, d=3)
        lines = [f"{b:g} " + " ".join(f"{j + 1}:{v!r}" for j, v in enumerate(row.tolist())) for row, b in rows_of(data)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("STEPSIZE_OPT_DATA", str(tmp_path))
    settings: dict[str, Any] = {"iterations": 20, "seeds": 2, "epsilon2": 1e-2, "draws": 2}
    tasks = [*tasks_of(("first",), 0.1, **settings), Task("second", 2, 0.1, **settings)]
    assert [(task.data, task.k) for task in tasks] == [("first", 1), ("second", 2)]  # d // 2 = 1 for d = 3
    said: list[str] = []
    found = run_tasks(tasks, tmp_path / "kept", say=said.append)
    assert said == ["sensitivity: first, rand-1", "sensitivity: second, rand-2"]
    assert [row["data"] for row in found["factors"]] == ["first"] * 8 + ["second"] * 8
    assert len(found["subsamples"]) == 8
    assert [row["rows"] for row in found["subsamples"][:4]] == [2, 4, 8, 20]
    worst = {row["rows_per_coordinate"]: row for row in worst_margins(found["subsamples"])}
    assert list(worst) == ["0 to 2", "2 to 5", "5 to 10"]  # 2/3 and 4/3, 8/3, 20/3 rows for each coordinate
    few = [row for row in found["subsamples"] if row["rows"] < 6]
    assert worst["0 to 2"]["margin_95"] == max(row["margin_95"] for row in few)

    def never(task: Task) -> Any:
        raise AssertionError(task)

    monkeypatch.setattr(Task, "run", never)
    assert run_tasks(tasks, tmp_path / "kept") == found
    with pytest.raises(AssertionError):
        run_tasks([replace(tasks[0], seeds=3)], tmp_path / "kept")


def rows_of(data: Any) -> Any:
    return zip(data.A, data.b, strict=True)


def test_sensitivity_tasks_in_two_processes(tmp_path: Path) -> None:
    tasks = [Task("breast_cancer", k, 1e-2, iterations=5, seeds=2, epsilon2=1e-2, draws=1) for k in (1, 15)]
    together = run_tasks(tasks, tmp_path / "two", workers=2)
    assert [row["sketch"] for row in together["subsamples"][::4]] == ["randk:1", "randk:15"]


def test_demo_figure(tmp_path: Path) -> None:
    objective = LogisticRegression.from_dataset(load_dataset("breast_cancer"), 0.1)
    record = run(objective, 1e-3 * np.eye(30), RandK(30, 3), iterations=40, seeds=2)
    runs = {"det-CGD1, γ I": record, "det-CGD1, optimal": record}
    path = demo_figure(tmp_path / "demo.png", "a title", runs, "breast_cancer", "randk:3")
    assert path.read_bytes().startswith(b"\x89PNG")


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    cli_validation.add_parsers(parser.add_subparsers(required=True))
    args = parser.parse_args(words)
    return int(args.run(args))


def test_table_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "L.npy"
    np.save(path, np.array([[16.0, 3.9], [3.9, 1.0]]))
    assert command("table", str(path)) == 0
    text = capsys.readouterr().out
    assert "≠ row 2" in text and "15.8" in text
    assert command("table", str(path), "-k", "2", "--bern", "0.25", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 19 and rows[0]["row"] == 1
    assert command("table", str(path), "-q") == 0
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="either a matrix file or --data"):
        command("table")


def test_reproduce_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "quick", staticmethod(lambda *names: PLAN))
    words = ("reproduce", "d", "--quick", "--workers", "1", "-o", str(tmp_path))
    assert command(*words) == 0
    out = capsys.readouterr()
    assert "report:" in out.out and "(d) breast_cancer" in out.err
    assert command(*words, "--json") == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["savings"] and out.err == ""
    with pytest.raises(SystemExit):
        command("reproduce", "--workers", "0")
