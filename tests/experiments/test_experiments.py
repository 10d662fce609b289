"""What each experiment compares and measures, on small data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from shared.small_data import correlated_data, small_data
from stepsize_opt import Feedback, RandK
from stepsize_opt.problems import Federated, Quadratic
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import (
    Dataset,
    federated_logistic,
    load_dataset,
    logistic_regression,
    random_quadratic,
    split,
)
from stepsize_validation.experiments import Plan, baselines, clients, layers, rand_one, rand_tau, sensitivity, versus
from stepsize_validation.experiments.baselines import Trace


def test_rand_one_compares_the_optima_with_the_papers_choices() -> None:
    choices = {choice.label: choice for choice in rand_one.panel(small_data(), Plan()).choices}
    assert len(choices) == 8 and all(choice.feasible for choice in choices.values())
    ours, free = choices["det-CGD1, optimal"], choices["det-CGD1, optimal, descent"]
    assert ours.ours and ours.gap is not None and ours.gap <= 1e-6
    rates = [choice.rate for choice in choices.values() if choice.goal == "paper"]
    assert ours.rate >= max(rates) * (1.0 - 1e-9)
    assert free.ours and free.goal == "descent" and free.rate > ours.rate
    # Rand-1: the optimum of det-CGD2 is the diagonal stepsize.
    assert choices["det-CGD2, optimal"].rate == pytest.approx(choices["det-CGD1, γ₁ diag⁻¹(L)"].rate, rel=1e-9)
    assert choices["CGD"].rate <= choices["CGD-mat"].rate
    table = rand_one.table_1(correlated_data(), Plan())["table 1"]
    assert set(table.loc[table["differs"], "row"]) >= {2, 8}
    assert rand_one.table_1(small_data(d=31), Plan()) == {}


def test_the_papers_choice_of_D2_for_det_cgd1_is_outside_its_condition() -> None:
    """E[SDLDS] ⪯ D fails for D₂* = (E[SLS])⁻¹ unless the two commute; the choice is marked as not feasible."""
    data = load_dataset("breast_cancer")
    choice = next(c for c in rand_tau.panel(data, Plan(), data.d // 2).choices if c.label == "det-CGD1, D₂*")
    D, P = choice.D, choice.sketch.second_moment_matrix
    L = np.asarray(data.A.T @ data.A / (4 * data.m) + 2e-3 * np.eye(data.d))
    assert not choice.feasible and np.linalg.eigvalsh(D - P * (D @ L @ D))[0] < 0.0
    assert rand_tau.taus(small_data(), Plan()) == [1, 3, 4]


def test_layers_show_compression_for_free() -> None:
    choices = {choice.label: choice for choice in layers.panel(small_data(d=8), Plan(layers=2)).choices}
    sent = {label: choice.sketch.expected_nonzeros for label, choice in choices.items()}
    cost = {label: sent[label] / choice.rate for label, choice in choices.items()}
    assert cost["det-CGD2, Bern-q"] == pytest.approx(cost["no compression"], rel=1e-9)
    assert sent["det-CGD2, Bern-q"] == pytest.approx(sent["det-CGD2, rand-k"], rel=1e-12)
    assert cost["det-CGD2, rand-k"] > cost["det-CGD2, Bern-q"]


def test_clients_order_the_stepsizes_and_keep_descent() -> None:
    data = small_data(m=40, d=4)
    assert clients.client_counts(data, Plan()) == [10, 30]
    panel = clients.panel(data, Plan(iterations={"c": 50}), 4)
    K = {choice.label: choice.cost for choice in panel.choices}
    assert K["DCGD"] >= K["DCGD-mat"] * (1 - 1e-9) >= K["D-det-CGD1, diagonal"] * (1 - 1e-5)
    for method in ("D-det-CGD1", "D-det-CGD2"):
        assert K[f"{method}, diagonal"] >= K[f"{method}, full"] * (1 - 1e-5)
    for choice in panel.choices:
        assert choice.lambda_D is not None and choice.lambda_D > 0.0
        assert np.linalg.eigvalsh(np.linalg.inv(panel.objective.smoothness()) - choice.D)[0] > 0.0


def test_an_L_that_is_too_small_leaves_the_condition() -> None:
    plan = Plan(reg=1e-2, seeds=24, epsilon2=1e-2)
    rows = sensitivity.factor_study(load_dataset("breast_cancer"), RandK(30, 1), plan, 200, (0.1, 0.5, 1.0, 2.0))
    assert rows["feasible"].tolist() == [False, False, True, True]
    assert rows["verdict"][0] in ("violated", "diverged")
    assert "violated" not in rows["verdict"][2:].tolist()


def test_a_larger_subsample_needs_a_smaller_margin() -> None:
    plan = Plan(reg=1e-2, draws=2)
    rows = sensitivity.subsample_study(load_dataset("breast_cancer"), RandK(30, 3), plan, (0.1, 0.8))
    assert rows["rows"].tolist() == [57, 455]
    assert rows["margin, 95 %"][0] > rows["margin, 95 %"][1] > 0.9
    worst = sensitivity.worst_margins(rows[::-1].assign(data="breast_cancer"))  # bands in order, whatever comes first
    assert worst["rows per coordinate"].tolist() == ["[0.0, 2.0)", "[10.0, 20.0)"]
    assert worst["margin, 95 %"].tolist() == rows["margin, 95 %"].tolist()


# ----------------------------------------------------------------
# experiment (f): the floats of every method on small data, and the tables that are made of them


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


def test_feedback_counts_indices_and_stays_within_the_budget_after_the_setup() -> None:
    f, problem = federated_logistic(split(DATA, 3, np.random.default_rng(0)), 1e-2, "ridge"), problem_of(DATA)
    entry = problem.feedback("feedback", f, Feedback(f.smoothness(), 2, clients=3))
    steps = np.diff(entry.trace.floats)
    assert set(steps) <= {3.0, 4.0} and 0.9 * problem.budget < entry.trace.floats[-1] <= problem.budget
    assert entry.trace.excess[0, 0] == pytest.approx(problem.excess(problem.start[None])[0])
    assert entry.setup == 21.0 and entry.floats(math.inf) == 21.0 + entry.trace.floats[0]


def test_the_metric_of_L_and_floats_that_a_guarantee_needs(tables: dict[str, Any]) -> None:
    found = tables["conditions"].iloc[0]
    assert 1.0 <= found["L"] < found["coordinates"] and found[["shuffled", "label"]].min() >= 1.0
    L = problem_of(DATA).L
    bound = versus.low_rank_bound(L)
    gap = bound.U @ bound.U.T + bound.shift[0] * np.eye(len(L)) - L
    assert np.linalg.eigvalsh(gap)[0] > -1e-12 and bound.U.shape == (6, 4)
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


# ----------------------------------------------------------------
# the baselines against plain loops for one run, and against what is known of them


ROUNDS = 12
F = federated_logistic(split(small_data(m=40, d=5), 4, np.random.default_rng(0), "label"), 0.1, "ridge")
START = np.linspace(-1.0, 1.0, F.d)
STEPSIZES = np.array([0.1, 0.5, 2.0])


def after(points: Iterator[Matrix], rounds: int = ROUNDS) -> Matrix:
    return list(islice(points, rounds))[-1]


def test_ef21_equals_a_loop_over_clients() -> None:
    """Top-2 by sorting."""
    expected = []
    for gamma in STEPSIZES:
        x, remembered = START.copy(), np.zeros((F.n, F.d))
        for _ in range(ROUNDS):
            for memory, client in zip(remembered, F.clients, strict=True):
                change = client.gradient(x[None])[0] - memory
                kept = sorted(range(F.d), key=lambda j, change=change: -abs(change[j]))[:2]
                memory[kept] += change[kept]
            x -= gamma * sum(remembered) / F.n
        expected.append(x)
    found = after(baselines.ef21(F.client_gradients, START, STEPSIZES, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_power_sgd_of_rank_one_equals_clients_that_average_their_factors() -> None:
    """The messages of each client, as in PyTorch's hook: means of M_i q and of M_iᵀp, an error that each keeps."""
    rows, columns = baselines.power_sgd_shape(F.d)
    assert (rows, columns) == (3, 2)
    q, x = np.random.default_rng(5).standard_normal((1, columns, 1))[0, :, 0], START.copy()
    errors = [np.zeros((rows, columns)) for _ in F.clients]
    for _ in range(ROUNDS):
        gradients = [np.append(client.gradient(x[None])[0], 0.0).reshape(rows, columns) for client in F.clients]
        wanted = [error + gradient for error, gradient in zip(errors, gradients, strict=True)]
        p = np.mean([M @ q for M in wanted], axis=0)
        p /= np.linalg.norm(p)
        q = np.mean([M.T @ p for M in wanted], axis=0)
        errors = [M - np.outer(p, q) for M in wanted]
        x -= 0.5 * np.outer(p, q).ravel()[: F.d]
    found = after(baselines.power_sgd(F.gradient, START, np.array([0.5]), 1, np.random.default_rng(5)))
    np.testing.assert_allclose(found[0], x, rtol=1e-10)


def test_nesterov_keeps_its_rate_on_a_quadratic_that_gradient_descent_does_not() -> None:
    f = random_quadratic(np.geomspace(1e-3, 1.0, 20), np.random.default_rng(2))
    x, kept = np.zeros(20), 1.0 - math.sqrt(1e-3)
    start = float(f.value(x[None])[0]) + 5e-4 * float(f.minimiser @ f.minimiser)
    fast = [f.value(X)[0] for X in islice(baselines.nesterov(f.gradient, x, np.ones(1), 1e-3), 300)]
    assert all(value <= start * kept ** (k + 1) for k, value in enumerate(fast))
    assert f.value(after(baselines.gradient_descent(f.gradient, x, np.ones(1)), 300))[0] > start * kept**300


def test_lbfgs_finds_the_minimum_and_is_newtons_method_in_the_metric_of_a_quadratic() -> None:
    L = np.diag([1.0, 10.0, 100.0])
    f = Quadratic(L, np.ones(3))
    points = baselines.lbfgs(f.value, f.gradient, np.zeros(3), 40)
    assert len(points) <= 40 and f.value(points[-1])[0] < 1e-10
    assert f.value(points[0])[0] < f.value(np.zeros((1, 3)))[0]
    first = baselines.lbfgs(f.value, f.gradient, np.zeros(3), 10, L)
    assert min(f.value(point)[0] for point in first[:4]) < 1e-12


def test_giant_with_one_client_is_newtons_method_with_the_best_length() -> None:
    f = logistic_regression(correlated_data(m=63), 1e-2, "ridge")
    x = np.full(f.d, 0.1)
    H = (f.gradient(x + 1e-6 * np.eye(f.d)) - f.gradient(x - 1e-6 * np.eye(f.d))) / 2e-6
    np.testing.assert_allclose(baselines.ridge_hessian(f, x), H, rtol=1e-6, atol=1e-9)
    direction = np.linalg.solve(H, f.gradient(x[None])[0])
    best = min(f.value((x - length * direction)[None])[0] for length in baselines.GIANT_LENGTHS)
    assert f.value(after(baselines.giant(Federated((f,)), x), 1))[0] == pytest.approx(best)


def test_scaffold_with_one_local_step_is_gradient_descent_and_its_controls_keep_the_optimum() -> None:
    gammas = np.array([0.1, 0.02])
    one = after(baselines.scaffold(F.clients, START, gammas, 1), 5)
    np.testing.assert_allclose(one, after(baselines.gradient_descent(F.gradient, START, gammas), 5), rtol=1e-10)
    far = after(baselines.scaffold(F.clients, START, np.array([0.02]), 4), 2000)
    np.testing.assert_allclose(F.gradient(far), 0.0, atol=1e-8)


def test_a_trace_ends_when_one_stepsize_reaches_the_level_in_the_median_of_the_seeds() -> None:
    f, stepsizes = Quadratic(np.eye(1), np.zeros(1)), np.array([0.5, 0.25, 1e3])
    points = baselines.gradient_descent(f.gradient, np.ones(1), np.tile(stepsizes, 3))
    found = baselines.trace(points, f.value, np.ones(1), floats=2.0, budget=100.0, level=0.5 / 4**5, seeds=3)
    np.testing.assert_array_equal(found.floats, 2.0 * np.arange(6))
    np.testing.assert_allclose(found.excess[:, 0], 0.5 / 4.0 ** np.arange(6))
    assert found.best(0.5 / 4**5) == 0
    short = baselines.trace(iter(points), f.value, np.ones(1), floats=2.0, budget=7.0, level=0.0)
    assert short.floats[-1] == 6.0 and short.best(0.0) != 2
    diverging = baselines.ef21(F.client_gradients, START, np.array([1e300, 0.5]), 2)
    assert baselines.trace(diverging, F.value, START, floats=1.0, budget=30.0, level=0.0).best(1e-9) == 1
    floats, excess = np.array([0.0, 3.0, 6.0, 9.0]), np.array([1.0, 0.2, 0.5, 0.1])
    reached = [baselines.floats_until(floats, excess, level) for level in (1.0, 0.2, 0.1, 0.05)]
    assert reached == [0.0, 3.0, 9.0, math.inf]
