"""The runner against a naive implementation with shared randomness; divergence; seeds; arguments."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.figure import Figure

from shared.small_data import small_data
from stepsize_opt import (
    BernQ,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.problems import Federated, Quadratic, find_infimum
from stepsize_validation import check_rate
from stepsize_validation.data import federated_logistic, layered_logistic, logistic_regression, random_quadratic, split
from stepsize_validation.properties.strategies import sketches
from stepsize_validation.runs import Divergence, first_below, log_steps, run
from stepsize_validation.runs.sampling import Sample, samples

# Long enough to pass a chunk of every kind of draw (256 steps).
STEPS, SEEDS = 300, 3


def diagonals(sample: Sample, seeds: int, n: int, d: int) -> np.ndarray:
    """The draws of one step, shape (s, n, d): each client in turn sends a vector of ones."""
    out = np.empty((seeds, n, d))
    for i in range(n):
        V = np.zeros((seeds, n, d))
        V[:, i] = n
        out[:, i] = sample.mean(V, None)
    return out


def naive(f: Any, D: np.ndarray, sketches: list[Sketch], algorithm: str, seeds: int, steps: int) -> dict[str, Any]:
    """One seed after the other, one client after the other, with dense sketch matrices, as the paper writes it."""
    n, clients = len(sketches), f.clients if isinstance(f, Federated) else (f,)
    drawn = [diagonals(sample, seeds, n, f.d) for sample in islice(samples(sketches, seeds, 0), steps)]
    rate = np.linalg.det(D) ** (1.0 / f.d)
    out: dict[str, Any] = {"norms": np.empty((seeds, steps)), "sent": np.empty((seeds, steps)), "x": []}
    for s in range(seeds):
        x = np.zeros(f.d)
        for k in range(steps):
            gradients = [client.gradient(x[None])[0] for client in clients]
            mean = sum(gradients) / n
            out["norms"][s, k] = mean @ D @ mean / rate
            step = np.zeros(f.d)
            for i, g in enumerate(gradients):
                S = np.diag(drawn[k][s, i])
                step += (S @ D @ g if algorithm == "det-CGD2" else D @ S @ g) / n
            out["sent"][s, k] = np.count_nonzero(drawn[k][s])
            x = x - step
        out["x"].append(x)
    return out


def stepsize(L: np.ndarray, scale: float) -> np.ndarray:
    """A full matrix, small enough for every sketch of the tests."""
    w, V = np.linalg.eigh(L)
    return np.asarray(scale * (V / np.sqrt(w)) @ V.T)


CASES: dict[str, tuple[Any, Any]] = {
    "one node, rand-1": (logistic_regression(small_data(), 0.1), RandK(6, 1)),
    "one node, rand-3": (logistic_regression(small_data(sparse_rows=True), 0.1), RandK(6, 3)),
    "layers": (
        layered_logistic(small_data(), 0.1, 3),
        LayerWise([RandK(2, 1), BernQ(0.5, 2), IndependentSampling([0.3, 0.9])]),
    ),
    "clients, rand-1": (federated_logistic(split(small_data(), 5, np.random.default_rng(0)), 0.1), RandK(6, 1)),
    "clients, Bern-q": (
        federated_logistic(split(small_data(), 4, np.random.default_rng(0), "dirichlet"), 0.1),
        BernQ(0.5, (2, 4)),
    ),
    "clients, their own sketches": (
        federated_logistic(split(small_data(), 3, np.random.default_rng(0), "label"), 0.1),
        [RandK(6, 2), Identity(6), BernQ(0.3, 6)],
    ),
}


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("name", list(CASES))
def test_agrees_with_a_naive_implementation(name: str, algorithm: str) -> None:
    f, sketch = CASES[name]
    D = stepsize(f.smoothness(), 0.05)
    n = f.n if isinstance(f, Federated) else 1
    sketches = [sketch] * n if isinstance(sketch, Sketch) else sketch
    record = run(f, D, sketch, algorithm=algorithm, iterations=STEPS, seeds=SEEDS)
    expected = naive(f, D, sketches, algorithm, SEEDS, STEPS)
    np.testing.assert_allclose(record.squared_norms, expected["norms"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(record.final_points, expected["x"], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(record.sent, expected["sent"])
    np.testing.assert_allclose(record.values[:, -1], f.value(np.array(expected["x"])), rtol=1e-12)


TARGETS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
NODE = logistic_regression(small_data(), 0.1)
CLIENTS = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)
MATRICES = CLIENTS.client_smoothness()
# An answer, and the arguments that it stands for.
SECOND: dict[str, Any] = {"sketch": RandK(6, 2), "algorithm": "det-CGD2"}
LAWS = [RandK(6, 1), RandK(6, 2), RandK(6, 3)]
SHARED = optimal_distributed_stepsize(MATRICES, **SECOND, seeds="shared", **TARGETS)
ANSWERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "one node": (NODE, optimal_stepsize(NODE.smoothness(), **SECOND), SECOND),
    "clients": (CLIENTS, optimal_distributed_stepsize(MATRICES, LAWS, **TARGETS), {"sketch": LAWS}),
    "clients with shared seeds": (CLIENTS, SHARED, {**SECOND, "client_seeds": "shared"}),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_brings_its_stepsize_sketch_method_and_seeds(kind: str) -> None:
    f, answer, arguments = ANSWERS[kind]
    own, given = run(f, answer, iterations=20), run(f, answer.D, iterations=20, **arguments)
    assert own.algorithm == given.algorithm
    np.testing.assert_array_equal(own.squared_norms, given.squared_norms)
    np.testing.assert_array_equal(own.sent, given.sent)


RATES = {"weighted": "rate", "metric": "descent_rate", "euclidean": "smallest"}


@pytest.mark.parametrize(("show", "rate"), RATES.items())
def test_a_plot_draws_the_mean_over_the_seeds_below_its_guarantee(show: str, rate: str) -> None:
    record, ax = run(NODE, ANSWERS["one node"][1], iterations=50, start=np.ones(6)), Figure().subplots()
    assert record.plot(ax, show=show, infimum=record.lower_bound, label="ours") is ax
    record.plot(ax, show="excess", infimum=0.1)
    means, guarantee, excess = ax.get_lines()
    k = log_steps(50, 300)
    bound = 2.0 * (record.start_value - record.lower_bound) / (getattr(record.metric, rate) * k)
    np.testing.assert_allclose(means.get_xdata(), 2.0 * k)  # rand-2
    np.testing.assert_allclose(means.get_ydata(), record.means(show).mean(axis=0)[k - 1])
    np.testing.assert_allclose(guarantee.get_ydata(), bound)
    assert np.all(np.asarray(means.get_ydata()) <= guarantee.get_ydata())
    assert [means.get_label(), guarantee.get_label()] == ["ours", "ours, guarantee"]
    assert excess.get_xydata()[-1] == pytest.approx([100.0, record.values[:, -1].mean() - 0.1])


def test_a_plot_draws_no_guarantee_that_does_not_hold() -> None:
    f, D, sketch = NODE, 3.0 * ANSWERS["one node"][1].D, ANSWERS["one node"][1].sketch
    record = run(f, D, sketch, iterations=10, start=0.01 * np.ones(6))
    assert record.metric.condition > 1.0 and record.curve("weighted").bound is None
    assert run(f, 0.3 * D, sketch, iterations=10).curve("weighted").bound is not None
    assert run(CLIENTS, 0.1 * D, sketch, iterations=10).curve("weighted").bound is None


def test_a_seed_does_not_depend_on_those_beside_it() -> None:
    f = logistic_regression(small_data(), 0.1)
    D, sketch = stepsize(f.smoothness(), 0.1), RandK(6, 2)
    many = run(f, D, sketch, iterations=50, seeds=5)
    few = run(f, D, sketch, iterations=50, seeds=2)
    np.testing.assert_allclose(few.squared_norms, many.squared_norms[:2], rtol=1e-12)
    again = run(f, D, sketch, iterations=50, seeds=5)
    np.testing.assert_array_equal(again.squared_norms, many.squared_norms)
    other = run(f, D, sketch, iterations=50, seeds=5, seed=1)
    assert not np.array_equal(other.squared_norms, many.squared_norms)


def test_a_start_without_a_value_is_refused_and_infinite_norms_diverge() -> None:
    class Given(Quadratic):
        values: tuple[float, float] = (0.0, 0.0)

        @property
        def lower_bound(self) -> float:
            return self.values[0]

        def value(self, X: np.ndarray) -> np.ndarray:
            return np.full(len(X), self.values[1])

    for lower, value in ((0.0, np.nan), (np.nan, 1.0), (0.0, np.inf), (2.0, 1.0), (np.inf, 1.0)):
        Given.values = (lower, value)
        with pytest.raises(ValueError, match=r"f\(start\)"):
            run(Given(np.eye(2), np.ones(2)), 0.1 * np.eye(2), RandK(2, 1), iterations=5, seeds=1)
    Given.values = (-np.inf, 1.0)  # no bound is known: only what leaves the floats is called divergence
    known = random_quadratic([1.0, 10.0], np.random.default_rng(0))
    for f, scale in ((Given(np.eye(2), np.ones(2)), 9.0), (known, 1.0)):
        given: Any = (f, scale * np.eye(2), Identity(2))  # far above 1/L
        with pytest.raises(Divergence):
            run(*given, iterations=1000)
        record = run(*given, iterations=1000, on_divergence="stop")
        assert record.diverged_at == record.iterations < 1000
        assert np.all(np.isfinite(record.squared_norms))


def test_means_steps_and_memory_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Quadratic(np.diag([1.0, 2.0]), np.ones(2))
    record = run(f, 0.1 * np.eye(2), RandK(2, 1), iterations=30, seeds=2)
    np.testing.assert_allclose(record.means()[:, -1].mean(), record.squared_norms.mean())
    np.testing.assert_allclose(record.means("euclidean")[:, -1], record.euclidean.mean(axis=1))
    assert record.start_value == 1.5 and record.values.shape == (2, 31)
    np.testing.assert_array_equal(record.values[:, -1], f.value(record.final_points))
    assert record.floats()[-1] == 30.0
    assert first_below(np.array([3.0, 2.0, 1.0]), 2.0) == 2
    assert first_below(np.array([3.0, 2.0]), 0.5) is None
    steps = log_steps(1000, 20)
    assert steps[0] == 1 and steps[-1] == 1000 and len(steps) <= 20 and np.all(np.diff(steps) > 0)
    monkeypatch.setattr("stepsize_opt.inputs.checks.memory_size", lambda: 6 * 8 * 100 * 7)
    with pytest.raises(ValueError, match="100 iterations"):  # seven numbers for each step and seed
        run(f, 0.1 * np.eye(2), RandK(2, 1), iterations=100, seeds=7)


# ---------------------------------------------------------------- clients with shared seeds are one node


def assert_one_node(D: Any, sketch: Sketch | None = None, algorithm: str | None = None) -> None:
    arguments: dict[str, Any] = {"sketch": sketch, "algorithm": algorithm, "iterations": 60, "seeds": 2}
    shared = run(CLIENTS, D, client_seeds="shared", **arguments)
    node = run(NODE, D, **arguments)
    for field in ("squared_norms", "descent", "metric_norms", "decrease", "final_points"):
        np.testing.assert_allclose(getattr(shared, field), getattr(node, field), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shared.sent, 3 * node.sent)
    assert check_rate(shared).statement == check_rate(node).statement == "Theorem 1"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@given(sketches(6))
@settings(max_examples=20)
def test_clients_that_share_their_draws_are_one_node(algorithm: str, sketch: Sketch) -> None:
    assert_one_node(0.02 * np.linalg.inv(NODE.smoothness()), sketch, algorithm)


def test_clients_that_share_their_draws_are_one_node_of_a_result() -> None:
    assert_one_node(optimal_method(NODE.smoothness(), 2))
    assert_one_node(0.1 * optimal_stepsize(NODE.smoothness(), RandK(6, 1)).D, RandK(6, 1))


# ---------------------------------------------------------------- the subspace method


@pytest.mark.parametrize("options", [{"basis": "eigenvectors"}, {"basis": "root"}, {"goal": "euclidean"}], ids=str)
def test_the_subspace_method_keeps_its_bound_and_counts_its_floats(options: dict[str, Any]) -> None:
    method = optimal_method(NODE.smoothness(), 1.5, **options)
    record = run(NODE, method, iterations=300, start=np.ones(6))
    check = check_rate(record, find_infimum(NODE), goal=options.get("goal", "paper"), rate=method.rate)
    assert record.algorithm == "subspace" and check.verdict == "holds"
    assert set(np.unique(record.sent)) <= {1.0, 2.0}
    assert record.sent.mean() == pytest.approx(1.5, abs=0.1)
    assert record.floats()[0] == record.sent[:, 0].mean()
