"""Runs with momentum keep their guarantee, on one node and on clients that share their draws."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest

from shared.goals import arguments_of
from shared.momentum import rounds_of
from shared.small_data import small_data
from stepsize_opt import Gaussian, RandK, optimal_method, optimal_stepsize
from stepsize_opt.goals import MOMENTUM_GOALS
from stepsize_opt.problems import Federated, find_infimum
from stepsize_opt.sketches import generators
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation import check_rate, run
from stepsize_validation.data import federated_logistic, logistic_regression, split
from stepsize_validation.runs.sampling import samples

NODE = logistic_regression(small_data(), 0.02, penalty="ridge")
CLIENTS = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.02, penalty="ridge")
INFIMUM = find_infimum(NODE)
START = np.ones(NODE.d)
every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)
METHODS = ["subspace", "det-CGD1", "det-CGD2"]


def solved(goal: str, method: str, mu: float = 0.02) -> Any:
    asked: dict[str, Any] = {**arguments_of(goal, mu), "momentum": True}
    if method == "subspace":
        return optimal_method(NODE.smoothness(), 2, **asked)
    return optimal_stepsize(NODE.smoothness(), RandK(NODE.d, 2), algorithm=method, **asked)


@every_goal
@pytest.mark.parametrize("method", METHODS)
def test_the_guarantee_is_kept(goal: str, method: str) -> None:
    """The mean over the seeds is below the bound; that rare runs keep it as well is more than seeds can show."""
    result = solved(goal, method)
    record = run(NODE, result, iterations=60, seeds=64, start=START)
    check = check_rate(record, INFIMUM)
    assert check.statement == f"momentum, goal {goal}" and check.verdict == "undecided", check
    assert check.observed < 0.5 * check.bound
    assert record.algorithm == f"{method} with momentum"
    messages = rounds_of(result).messages
    assert np.all(record.sent == 2.0 * messages) and messages == (2 if method == "det-CGD2" else 1)


def test_a_rate_that_is_not_one_is_found_out() -> None:
    """An M above the Hessian promises what no run keeps."""
    wrong = optimal_method(NODE.smoothness(), 2, goal="linear", strong_convexity=0.9 * NODE.smoothness(), momentum=True)
    record = run(NODE, wrong, iterations=50, seeds=64, start=10.0 * START)
    assert check_rate(record, INFIMUM).verdict == "violated"


@dataclass(frozen=True, eq=False)
class Whole:
    """The mean of clients as the objective of one node."""

    clients: Federated

    @property
    def d(self) -> int:
        return self.clients.d

    @property
    def lower_bound(self) -> float:
        return self.clients.lower_bound

    def smoothness(self) -> Matrix:
        return self.clients.smoothness()

    def value(self, X: Matrix) -> Vector:
        return self.clients.value(X)

    def gradient(self, X: Matrix) -> Matrix:
        return np.asarray(self.clients.client_gradients(X).mean(axis=1))


@every_goal
@pytest.mark.parametrize("method", METHODS)
def test_clients_that_share_their_draws_are_one_node_bit_for_bit(goal: str, method: str) -> None:
    result = solved(goal, method)
    arguments: dict[str, Any] = {"iterations": 50, "seeds": 3, "start": START}
    shared, node = run(CLIENTS, result, **arguments), run(Whole(CLIENTS), result, **arguments)
    assert np.array_equal(shared.final_points, node.final_points)
    assert shared.momentum is not None and node.momentum is not None
    assert np.array_equal(shared.momentum.end.z, node.momentum.end.z)
    assert np.array_equal(shared.sent, 3 * node.sent)


@every_goal
def test_messages_make_the_steps_of_a_run(goal: str) -> None:
    """A loop over encode and advance with the draws of a run reaches its last x and z."""
    result = solved(goal, "subspace")
    rounds, state = rounds_of(result), rounds_of(result).start(START)
    for sample in islice(samples([result.sketch], 1, seed=5), 80):
        draw = np.flatnonzero(sample.mean(np.ones((1, 1, NODE.d)), None)[0])
        state = rounds.advance(state, rounds.encode(NODE.gradient(rounds.point(state)[None])[0], draw), draw)
    end = run(NODE, result, iterations=80, seeds=1, seed=5, start=START).momentum.end
    np.testing.assert_allclose(state.x, end.x[0], rtol=1e-11)
    np.testing.assert_allclose(state.z, end.z[0], rtol=1e-11)


@pytest.mark.parametrize("method", METHODS)
def test_the_weights_of_convex_momentum(method: str) -> None:
    """x and z of a run are those of the update as it is stated: a = (K + 1)/2 in round K, A the sum of all a."""
    result = solved("convex", method)
    end = run(NODE, result, iterations=12, seeds=1, start=START).momentum.end
    rounds, drawn = rounds_of(result), islice(samples([result.sketch], 1, seed=0), 12)
    x, z, A = START, START, 0.0
    for K, sample in enumerate(drawn, start=1):
        a = 0.5 * (K + 1)
        y = (A * x + a * z) / (A + a)
        step, along = rounds.steps(NODE.gradient(y[None])[:, None], sample.mean)
        x, z, A = y - step[0], z - a * rounds.memory.t**2 * along[0], A + a
        assert a**2 <= A
    np.testing.assert_allclose(end.x[0], x, rtol=1e-10)
    np.testing.assert_allclose(end.z[0], z, rtol=1e-10)


def test_both_updates_use_one_draw_of_a_sketch_without_a_diagonal() -> None:
    """det-CGD2 sends S∇f beside SD∇f, of the same S."""
    sketch = Gaussian(NODE.d, 2)
    result = optimal_stepsize(
        NODE.smoothness(), sketch, algorithm="det-CGD2", goal="linear", strong_convexity=0.02, momentum=True
    )
    rounds, (rng,) = rounds_of(result), generators(0, 1)
    state = rounds.start(START)
    for _ in range(20):
        draw = rounds.draw(rng)
        state = rounds.advance(state, rounds.encode(NODE.gradient(rounds.point(state)[None])[0], draw), draw)
    end = run(NODE, result, iterations=20, seeds=1, start=START).momentum.end
    np.testing.assert_allclose(state.x, end.x[0], rtol=1e-11)
    np.testing.assert_allclose(state.z, end.z[0], rtol=1e-11)


def test_a_run_is_drawn() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    record = run(NODE, solved("linear", "subspace"), iterations=40, seeds=4)
    axes = record.plot(show="excess", infimum=INFIMUM.found)
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["subspace with momentum", "subspace with momentum, guarantee"]
    bound = axes.get_lines()[1].get_ydata()
    rate = record.momentum.rule.t if record.momentum is not None else 0.0
    assert bound[-1] == pytest.approx(2 * (1 - rate) ** 40 * (record.start_value - INFIMUM.found))


def test_what_is_refused() -> None:
    result = solved("linear", "det-CGD1")
    with pytest.raises(ValueError, match="shared"):
        run(CLIENTS, result, client_seeds="independent", iterations=2)
    with pytest.raises(ValueError, match="of their own"):
        run(NODE, result, RandK(NODE.d, 1), iterations=2)
    with pytest.raises(ValueError, match="find_infimum"):
        check_rate(run(NODE, result, iterations=2))
    record = run(NODE, result, iterations=2)
    with pytest.raises(ValueError, match="goal"):
        check_rate(record, INFIMUM, goal="euclidean")
