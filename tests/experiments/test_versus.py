"""Experiment (f): the floats of every method on small data, and the tables that are made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shared.small_data import correlated_data
from stepsize_opt import Feedback
from stepsize_validation.data import Dataset, federated_logistic, load_dataset, logistic_regression, split
from stepsize_validation.experiments import Plan, versus
from stepsize_validation.experiments.baselines import Trace

PLAN = replace(Plan.quick(), seeds=3, iterations={"f": 60})
DATA = correlated_data(m=63)
LEVELS = ["0.01", "0.0001", "1e-06"]


def problem_of(data: Dataset) -> versus.Problem:
    return versus.Problem(logistic_regression(data, 1e-2, "ridge"), 20.0 * data.d, 3, 0)


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    unused = Dataset("small", np.hstack([DATA.A, np.zeros((DATA.m, 1))]), DATA.b)
    found = versus.measure(unused, PLAN, 0)
    for table in found.values():
        table.insert(0, "data", "small")
    return found


PROVED = ["momentum subspace", "subspace", "det-CGD1, optimal D"]


def test_every_method_runs_in_every_panel(tables: dict[str, Any]) -> None:
    floats = tables["floats"]
    assert set(floats["d"]) == {6} and set(floats["k"]) == {0, 1}  # the column that never occurs is left out
    assert floats.groupby("split", sort=False).size().to_dict() == {"any": 8, "shuffled": 9, "label": 9}
    panels = versus.by_panel(floats)
    assert panels.groupby("split")["method"].nunique().to_dict() == {"shuffled": 15, "label": 15}
    setup = panels.drop_duplicates("method").set_index("method")["setup"]
    assert setup["feedback, eigenbasis"] == setup["subspace"] == setup["L-BFGS, metric of L"] == 21
    assert setup["feedback, rank 4"] == 30 and setup["feedback, one client"] == 5
    assert setup["feedback, coordinates"] == setup["EF21, top-k"] == setup["GIANT"] == 0


def test_levels_are_reached_in_order_after_the_setup_and_within_the_guarantee(tables: dict[str, Any]) -> None:
    floats = tables["floats"]
    reached = floats[LEVELS].fillna(math.inf)
    assert (reached["0.01"] <= reached["0.0001"]).all() and (reached["0.0001"] <= reached["1e-06"]).all()
    assert (reached["0.01"] > floats["setup"]).all()
    assert np.isfinite(reached[floats["split"] != "any"]["1e-06"]).any()
    proved = floats.set_index("method").loc[PROVED]
    assert proved.loc["momentum subspace", "1e-06"] > 0.0 and not (proved["1e-06"] > proved["guarantee"]).any()
    assert proved["guarantee"].idxmin() == "momentum subspace"
    assert floats["guarantee"].notna().sum() == 3
    untuned = floats[floats["stepsize"].isna()]["method"]
    assert set(untuned[~untuned.str.startswith("feedback")]) == {*PROVED, "L-BFGS", "L-BFGS, metric of L", "GIANT"}


def test_curves_begin_after_the_setup_and_those_of_feedback_never_rise(tables: dict[str, Any]) -> None:
    setups = tables["floats"].groupby(["split", "method"])["setup"].max()
    for (kind, method, _), curve in tables["curves"].groupby(["split", "method", "k"]):
        if method.startswith("feedback"):
            assert (np.diff(curve["excess"]) <= 0.0).all()
        assert (curve["excess"] > -1e-12).all() and curve["floats"].min() >= setups[kind, method]
    assert set(tables["curves"].dropna(subset="bound")["method"]) == set(PROVED)


def test_the_metric_of_L_lowers_the_condition_number(tables: dict[str, Any]) -> None:
    found = tables["conditions"].iloc[0]
    assert 1.0 <= found["L"] < found["coordinates"] and found[["shuffled", "label"]].min() >= 1.0


def test_the_clients_share_one_objective() -> None:
    data = load_dataset("breast_cancer").rows(np.arange(500))
    f, X = logistic_regression(data, 1e-3, "ridge"), np.random.default_rng(0).standard_normal((3, 30))
    for n, kind in ((10, "shuffled"), (100, "label")):
        clients = federated_logistic(split(data, n, np.random.default_rng(1), kind), 1e-3, "ridge")
        np.testing.assert_allclose(clients.value(X), f.value(X), rtol=1e-12)
        np.testing.assert_allclose(clients.gradient(X), f.gradient(X), rtol=1e-9, atol=1e-12)


def test_feedback_counts_indices_and_stays_within_the_budget_after_the_setup() -> None:
    f, problem = federated_logistic(split(DATA, 3, np.random.default_rng(0)), 1e-2, "ridge"), problem_of(DATA)
    entry = problem.feedback("feedback", f, Feedback(f.smoothness(), 2, clients=3))
    steps = np.diff(entry.trace.floats)
    assert set(steps) <= {3.0, 4.0} and 0.9 * problem.budget < entry.trace.floats[-1] <= problem.budget
    assert entry.trace.excess[0, 0] == pytest.approx(problem.excess(problem.start[None])[0])
    assert entry.setup == 21.0 and entry.floats(math.inf) == 21.0 + entry.trace.floats[0]


def test_the_low_rank_bound_lies_above_L() -> None:
    L = problem_of(DATA).L
    bound = versus.low_rank_bound(L)
    gap = bound.U @ bound.U.T + bound.shift[0] * np.eye(len(L)) - L
    assert np.linalg.eigvalsh(gap)[0] > -1e-12 and bound.U.shape == (6, 4)


def test_floats_that_a_guarantee_needs() -> None:
    entry = versus.Entry("proved", Trace(np.array([0.0, 3.0]), np.array([[7.0], [1.0]])), rate=0.5, factor=2.0)
    assert entry.guaranteed(1.0) == 12.0  # 2 · 7 · 2⁻⁴ < 1 < 2 · 7 · 2⁻³: four rounds of 3 floats
    assert entry.floats(1.0) == 3.0 and math.isnan(replace(entry, rate=0.0).guaranteed(1.0))


def test_ranking_takes_the_better_k_and_compares_with_ef21() -> None:
    place = {"data": "one", "d": 4, "λ": 1e-3}
    rows = [
        place | {"split": kind, "method": method, "k": k, "setup": 8.0, **dict.fromkeys(LEVELS, floats)}
        for kind, method, k, floats in (
            ("shuffled", "ours", 1, 5.0),
            ("label", "ours", 1, 4.0),
            ("label", "ours", 2, 3.0),
            ("shuffled", versus.EF21, 1, 10.0),
            ("label", versus.EF21, 1, 2.0),
        )
    ]
    third = {"split": "any", "method": "third", "k": 0, "setup": 0.0, **dict.fromkeys(LEVELS, math.nan)}
    panels = versus.by_panel(pd.DataFrame([*rows, place | third]))
    ranks = versus.ranking(panels).set_index("method")
    assert ranks["best, 1e-06"].to_dict() == {"ours": 1, versus.EF21: 1, "third": 0}
    assert ranks["ratio, 1e-06"].to_dict() == {"ours": 1.0, versus.EF21: 1.0, "third": math.inf}  # of 0.5 and 1.5
    assert ranks["setup/d"].to_dict() == {"ours": 2.0, versus.EF21: 2.0, "third": 0.0}


def test_the_figure_has_a_panel_for_each_of_the_first_data_sets(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(versus, "save_figure", lambda figure, path, dpi: figures.append(figure))
    curves = pd.concat([tables["curves"].assign(data=f"set {i}") for i in range(9)])
    versus.draw({"figure": versus.shown_curves(curves)}, "", tmp_path / "figure.png")
    axes = [axis for axis in figures[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == [f"set {i}, d = 6" for i in range(8)]
    lines = axes[0].get_lines()
    dashed = [line for line in lines if line.get_linestyle() == "--"]
    assert len(lines) == 6 + 1 + 1 and len(dashed) == 1  # the runs, the guarantee, and one dense gradient
