"""Runs of the subspace method keep its guarantees; one step is exact on a quadratic."""

from __future__ import annotations

import numpy as np
import pytest

from shared.goals import arguments_of
from shared.small_data import small_data
from stepsize_opt import optimal_method
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.problems import find_infimum
from stepsize_validation import check_rate, run
from stepsize_validation.data import logistic_regression, random_quadratic

NODE = logistic_regression(small_data(), 0.1)
START = np.ones(NODE.d)


@pytest.mark.parametrize("basis", ["eigenvectors", "root"])
def test_descent_holds_in_every_basis(basis: str) -> None:
    method = optimal_method(NODE.smoothness(), NODE.d / 4, basis=basis)
    record = run(NODE, method, iterations=300, start=START)
    assert record.algorithm == "subspace"
    assert check_rate(record, find_infimum(NODE), rate=method.rate).verdict == "holds"


def test_euclidean_holds_and_counts_its_numbers() -> None:
    method = optimal_method(NODE.smoothness(), 1.5, goal="euclidean")
    record = run(NODE, method, iterations=300, start=START)
    check = check_rate(record, find_infimum(NODE), goal="euclidean", rate=method.rate)
    assert check.verdict == "holds"
    assert set(np.unique(record.sent)) == {1.0, 2.0}
    assert record.sent.mean() == pytest.approx(1.5, abs=0.1)
    assert record.floats()[0] == record.sent[:, 0].mean()


def test_linear_holds() -> None:
    f = random_quadratic([1.0, 2.0, 5.0, 10.0], np.random.default_rng(0))
    method = optimal_method(f.smoothness(), 2, goal="linear", strong_convexity=f.smoothness())
    assert method.rate == pytest.approx(0.5, rel=1e-9)  # k/tr(LL⁻¹)
    record = run(f, method, iterations=5, seeds=400, start=np.ones(4))
    check = check_rate(record, goal="linear", rate=method.rate)
    assert check.verdict != "violated"
    # On a quadratic with Hessian L = M a step has E f(x⁺) = (1 − t) f(x) exactly.
    drop = record.values[:, -1].mean() / record.start_value
    assert drop == pytest.approx(0.5**5, rel=0.5)


@pytest.mark.parametrize("d", [1, 3, 6])
@pytest.mark.parametrize("k", [0.5, 1.0, 2.5])
def test_one_step_is_exact_on_a_quadratic(d: int, k: float) -> None:
    """Enumerated: E f(x⁺) = f(x) − ½‖∇f(x)‖²_D for Hessian L, every goal; no step makes f larger."""
    rng, k = np.random.default_rng(d), min(k, float(d))
    f = random_quadratic(np.geomspace(1.0, 20.0, d), rng)
    L, x = f.smoothness(), rng.standard_normal(d)
    for goal in METRIC_GOALS:
        method = optimal_method(L, k, **arguments_of(goal, 0.5 * L))
        gradient = f.gradient(x[None])[0]
        weights, outcomes = method.sketch.support()
        after = []
        for s in outcomes:
            draw = np.flatnonzero(s)
            step = method.decode(method.encode(gradient, draw), draw)
            after.append(float(f.value((x - step)[None])[0]))
        before = float(f.value(x[None])[0])
        assert max(after) <= before * (1.0 + 1e-12)
        assert weights @ after == pytest.approx(before - 0.5 * gradient @ method.D @ gradient, rel=1e-9)
