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


def problem_of(data: Dataset, k: int) -> versus.Problem:
    return versus.Problem(logistic_regression(data, 1e-2, "ridge"), k, 20.0 * data.d, 3, 0)


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    unused = Dataset("small", np.hstack([DATA.A, np.zeros((DATA.m, 1))]), DATA.b)
    found = versus.measure(unused, PLAN, 0)
    for table in found.values():
        table.insert(0, "data", "small")
    return found


def test_every_method_runs_in_every_setting(tables: dict[str, Any]) -> None:
    floats = tables["floats"]
    assert set(floats["d"]) == {6} and set(floats["k"]) == {1}  # the column that never occurs is left out
    settings = floats[["clients", "split"]].drop_duplicates().to_numpy().tolist()
    assert settings == [["any", "any"], [1, "shuffled"], [5, "shuffled"], [5, "label"]]
    assert floats.groupby(["clients", "split"]).size().tolist() == [6, 6, 6, 8]
    assert (versus.by_setting(floats).groupby(["clients", "split"])["method"].nunique() == 14).all()
    setup = floats.drop_duplicates("method").set_index("method")["setup"]
    assert setup["feedback, eigenbasis"] == setup["subspace"] == 21 and setup["feedback, rank 4"] == 24
    assert setup["feedback, coordinates"] == setup["EF21, top-k"] == 0


def test_levels_are_reached_in_order_and_within_the_guarantee(tables: dict[str, Any]) -> None:
    floats = tables["floats"]
    reached = floats[LEVELS].fillna(math.inf)
    assert (reached["0.01"] <= reached["0.0001"]).all() and (reached["0.0001"] <= reached["1e-06"]).all()
    assert np.isfinite(reached[floats["clients"] != "any"]["1e-06"]).any()
    proved = floats.set_index("method").loc[["momentum subspace", "subspace", "det-CGD1, optimal D"]]
    assert proved.loc["momentum subspace", "1e-06"] > 0.0 and not (proved["1e-06"] > proved["guarantee"]).any()
    assert proved["guarantee"].idxmin() == "momentum subspace"
    assert (
        floats["guarantee"].notna().sum() == 3
        and (floats["stepsize"].notna() == ~floats["ours"]).sum() == len(floats) - 1
    )


def test_curves_of_feedback_never_rise_and_bounds_lie_above_the_start_of_proved_ones(tables: dict[str, Any]) -> None:
    for (_, _, method), curve in tables["curves"].groupby(["clients", "split", "method"]):
        if method.startswith("feedback"):
            assert (np.diff(curve["excess"]) <= 0.0).all()
        assert (curve["excess"] > -1e-12).all()
    bounded = tables["curves"].dropna(subset="bound")
    assert set(bounded["method"]) == {"momentum subspace", "subspace", "det-CGD1, optimal D"}


def test_the_clients_share_one_objective() -> None:
    data = load_dataset("breast_cancer").rows(np.arange(500))
    f, X = logistic_regression(data, 1e-3, "ridge"), np.random.default_rng(0).standard_normal((3, 30))
    for n, kind in ((10, "shuffled"), (100, "label")):
        clients = federated_logistic(split(data, n, np.random.default_rng(1), kind), 1e-3, "ridge")
        np.testing.assert_allclose(clients.value(X), f.value(X), rtol=1e-12)
        np.testing.assert_allclose(clients.gradient(X), f.gradient(X), rtol=1e-9, atol=1e-12)


def test_the_trace_of_feedback_counts_places_and_stays_within_the_budget() -> None:
    f, problem = federated_logistic(split(DATA, 3, np.random.default_rng(0)), 1e-2, "ridge"), problem_of(DATA, 2)
    trace = versus.feedback_trace(problem, f, Feedback(f.smoothness(), 2, clients=3))
    steps = np.diff(trace.floats)
    assert set(steps) <= {3.0, 4.0} and 0.9 * problem.budget < trace.floats[-1] <= problem.budget
    assert trace.excess[0, 0] == pytest.approx(problem.excess(problem.start[None])[0])


def test_the_low_rank_bound_lies_above_L() -> None:
    L = problem_of(DATA, 1).L
    bound = versus.low_rank_bound(L)
    gap = bound.U @ bound.U.T + bound.shift[0] * np.eye(len(L)) - L
    assert np.linalg.eigvalsh(gap)[0] > -1e-12 and bound.U.shape == (6, 4)


def test_floats_that_a_guarantee_needs() -> None:
    entry = versus.Entry("proved", Trace(np.array([0.0, 3.0]), np.array([[8.0], [1.0]])), rate=0.5, factor=2.0)
    assert entry.guaranteed(1.0) == 12.0  # 2 · 8 · 2⁻⁴ = 1, in four rounds of 3 floats
    assert entry.floats(1.0) == 3.0 and math.isnan(replace(entry, rate=0.0).guaranteed(1.0))


def test_ranking_counts_who_needs_the_fewest_floats() -> None:
    place = {"data": "one", "d": 4, "λ": 1e-3, "share": 20, "k": 1}
    rows = [
        place | {"clients": n, "split": "shuffled", "method": method, "setup": 8.0, **dict.fromkeys(LEVELS, floats)}
        for n, method, floats in ((10, "first", 5.0), (100, "first", 4.0), (10, "second", 10.0), (100, "second", 2.0))
    ]
    shared = place | {
        "clients": "any",
        "split": "any",
        "method": "third",
        "setup": 0.0,
        **dict.fromkeys(LEVELS, math.nan),
    }
    table = versus.by_setting(pd.DataFrame([*rows, shared]))
    ranks = versus.ranking(table).set_index("method")
    assert ranks["best, 1e-06"].to_dict() == {"first": 1, "second": 1, "third": 0}
    assert ranks["ratio, 1e-06"].to_dict() == {"first": 1.5, "second": 1.5, "third": math.inf}
    assert ranks["setup/d"].to_dict() == {"first": 2.0, "second": 2.0, "third": 0.0}
    shown = versus.shown_setting(table).set_index("method")["one"]
    assert shown.to_dict() == {"first": "5 / 5 / 5", "second": "10 / 10 / 10", "third": "— / — / —"}


def test_the_figure_has_a_panel_for_each_of_the_first_data_sets(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(versus, "save_figure", lambda figure, path, dpi: figures.append(figure))
    curves = pd.concat([tables["curves"].assign(data=f"set {i}") for i in range(7)])
    versus.draw({"figure": versus.shown_curves(curves)}, "", tmp_path / "figure.png")
    axes = [axis for axis in figures[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in axes] == [f"set {i}, d = 6, k = 1" for i in range(6)]
    lines = axes[0].get_lines()
    dashed = [line for line in lines if line.get_linestyle() == "--"]
    assert len(lines) == 8 + 2 + 1 and len(dashed) == 2  # the runs, the guarantees, and one dense gradient
