"""What each experiment compares and measures, on small data."""

from __future__ import annotations

import numpy as np
import pytest

from shared.small_data import correlated_data, small_data
from stepsize_opt.sketches import RandK
from stepsize_validation.data import load_dataset
from stepsize_validation.experiments import Plan, clients, layers, rand_one, rand_tau, sensitivity


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


def test_without_runs_the_saving_is_the_ratio_of_the_rates() -> None:
    tables = rand_one.without_runs(correlated_data(), Plan())
    small, large = tables["predicted"].to_dict("records")
    assert small["λ"] == 1e-3 and small["saving, descent"] > small["saving"] > large["saving"] >= 1.0 - 1e-9
    assert set(tables["table 1"].loc[tables["table 1"]["differs"], "row"]) >= {2, 8}
    assert "table 1" not in rand_one.without_runs(small_data(d=31), Plan())


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
    assert rows["relative rate"].tolist() == [10.0, 2.0, 1.0, 0.5]
    assert rows["verdict"][0] in ("violated", "diverged")
    assert "violated" not in rows["verdict"][2:].tolist()


def test_a_larger_subsample_needs_a_smaller_margin() -> None:
    plan = Plan(reg=1e-2, draws=2)
    rows = sensitivity.subsample_study(load_dataset("breast_cancer"), RandK(30, 3), plan, (0.1, 0.8))
    assert rows["rows"].tolist() == [57, 455]
    assert rows["margin, 95 %"][0] > rows["margin, 95 %"][1] > 0.9
    # The spectral margin always suffices, so it is never below the one that is needed.
    assert (rows["spectral margin, 95 %"] >= rows["margin, 95 %"] * (1.0 - 1e-6)).all()
    assert rows["relative rate"].between(0.3, 1.0 + 1e-6).all()
    worst = sensitivity.worst_margins(rows[::-1].assign(data="breast_cancer"))  # bands in order, whatever comes first
    assert worst["rows per coordinate"].tolist() == ["[0.0, 2.0)", "[10.0, 20.0)"]
    assert worst["margin, 95 %"].tolist() == rows["margin, 95 %"].tolist()
