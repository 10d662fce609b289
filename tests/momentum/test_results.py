"""Results with momentum: structures, certificates, messages, files, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.goals import arguments_of
from shared.momentum import rounds_of
from shared.small_data import small_data
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    BlockDiagonal,
    Gaussian,
    IndependentSampling,
    RandK,
    certify,
    compare,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS
from stepsize_opt.problems import Federated, find_infimum
from stepsize_opt.results import StepsizeResult
from stepsize_opt.sketches.draws import generators
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation import check_rate, run
from stepsize_validation.cli import main
from stepsize_validation.data import federated_logistic, logistic_regression, random_smoothness, split
from stepsize_validation.runs.sampling import samples

L = random_smoothness(np.random.default_rng(1), 6, 50.0)
MU = 0.5 * float(np.linalg.eigvalsh(L)[0])
SKETCH = RandK(6, 2)
every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)


def solved(goal: str = "linear", **arguments: Any) -> StepsizeResult:
    asked = {**arguments_of(goal, MU), "momentum": True, **arguments}
    return optimal_stepsize(L, asked.pop("sketch", SKETCH), **asked)


@every_goal
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((2, 4))], ids=str)
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_structures(goal: str, structure: Any, algorithm: str) -> None:
    """A smaller set has no better t, and the root of τ is that of the program of linear with M′."""
    result = solved(goal, structure=structure, algorithm=algorithm)
    assert result.status == "optimal" and result.momentum
    assert result.rate <= solved(goal, algorithm=algorithm).rate * (1 + 2e-6)
    # For rand-k 𝒫(I/μ) = (d/k)I/μ, so that M′ = μk/d.
    number = MU if goal == "linear" else 1.0
    plain = optimal_stepsize(L / number, SKETCH, structure=structure, algorithm=algorithm, goal="euclidean")
    assert result.rate == pytest.approx(np.sqrt(plain.rate * 2 / 6), rel=2e-6)


def test_components_are_solved_alone() -> None:
    whole = np.zeros((6, 6))
    whole[:3, :3], whole[3:, 3:] = random_smoothness(np.random.default_rng(2), 3, 10.0), 5.0 * np.eye(3)
    sketch = IndependentSampling([0.5, 0.2, 1.0, 0.5, 0.3, 0.9])
    M = 0.1 * np.diag([1.0, 2.0, 1.0, 3.0, 1.0, 2.0]) * np.linalg.eigvalsh(whole)[0]
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": M, "momentum": True}
    split, together = (solve(whole, sketch, **asked) for solve in (optimal_stepsize, optimal_unreduced))
    assert "splits" in " ".join(split.reductions)
    assert split.rate == pytest.approx(together.rate, rel=2e-6)


@every_goal
def test_certify_agrees(goal: str) -> None:
    result = solved(goal)
    M = MU if goal == "linear" else None
    check = certify(result, L, strong_convexity=M)
    assert check.momentum and check.rate == pytest.approx(result.rate, rel=1e-9) and check.gap <= 1e-6
    assert "with momentum" in repr(check)
    worse = certify(0.3 * result.D, L, SKETCH, goal=goal, strong_convexity=M, momentum=True, optimum=result)
    assert worse.rate < result.rate and worse.gap > 1e-2


@pytest.mark.parametrize(
    ("algorithm", "structure", "messages"),
    [("det-CGD1", "full", 1), ("det-CGD2", "full", 2), ("det-CGD2", "diagonal", 1), ("subspace", "", 1)],
)
@every_goal
def test_messages_of_clients(goal: str, algorithm: str, structure: Any, messages: int) -> None:
    """The mean of the clients' messages makes the round of one node; both updates use what was sent."""
    if algorithm == "subspace":
        result: Any = optimal_method(L, 2, **arguments_of(goal, MU), momentum=True)
    else:
        result = solved(goal, algorithm=algorithm, structure=structure)
        assert result.expected_nonzeros == 2 * messages
    rounds, rng = rounds_of(result), np.random.default_rng(0)
    assert rounds.messages == messages and rounds.memory is not None
    states = [rounds.start(np.ones(6))] * 2
    for number in range(1, 4):
        gradients = rng.standard_normal((3, 6))
        draw = rounds.draw(np.random.default_rng(number))
        sent = [rounds.encode(g, draw) for g in gradients]
        assert {len(one) for one in sent} == {2 * messages}
        ways = (np.mean(sent, axis=0), rounds.encode(gradients.mean(axis=0), draw))
        states = [rounds.advance(state, numbers, draw) for state, numbers in zip(states, ways, strict=True)]
        np.testing.assert_allclose(states[0].x, states[1].x, rtol=1e-12)
        np.testing.assert_allclose(states[0].z, states[1].z, rtol=1e-12)
        assert states[0].rounds == number


def test_the_update_is_the_formula() -> None:
    result = solved(strong_convexity=0.3 * L)
    rounds, t = rounds_of(result), result.rate
    x, z, g = np.random.default_rng(0).standard_normal((3, 6))
    state = type(rounds.start(x))(x, z, 4)
    y = (x + t * z) / (1 + t)
    np.testing.assert_allclose(rounds.point(state), y, rtol=1e-12)
    draw = rounds.draw(np.random.default_rng(0))
    S = draw.decode(draw.encode(np.eye(6))).T
    after = rounds.advance(state, rounds.encode(g, draw), draw)
    np.testing.assert_allclose(after.x, y - result.D @ S @ g, rtol=1e-9)
    expected = (1 - t) * z + t * y - t * result.inverse_curvature @ S @ g
    np.testing.assert_allclose(after.z, expected, rtol=1e-9)


def test_rows_of_compare() -> None:
    """Rows with momentum are those of optimal_stepsize; the limit shown stays the one without memory."""
    table = compare(L, SKETCH, goal="linear", strong_convexity=MU)
    rows = {row.method: row for row in table.rows if row.stepsize == "optimal, momentum"}
    assert rows["det-CGD1"].rate == pytest.approx(solved().rate, rel=1e-5)
    assert rows["det-CGD1"].share_of_limit is None and rows["det-CGD2"].k == 4.0
    ((_, rounds),) = table.limits["linear"]
    limit = compression_limit(L, 2, goal="linear", strong_convexity=MU)
    assert rounds == pytest.approx(-1.0 / math.log1p(-limit.value), rel=1e-5)
    assert 2 * rounds == pytest.approx(limit.floats_sent, rel=1e-5)


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.npz"
    data = ["--data", "breast_cancer", "--reg", "0.1", "--penalty", "ridge"]
    asked = ["--sketch", "randk:7", "--goal", "linear", "--momentum"]
    assert main(["solve", *data, *asked, "--output", str(saved)]) == 0
    assert "momentum, linear" in capsys.readouterr().out
    assert main(["certify", str(saved), *data]) == 0
    assert "linear with momentum" in capsys.readouterr().out
    assert main(["solve", "--data", "breast_cancer", "--reg", "0.1", "--sketch", "randk:7", "--momentum"]) != 0
    assert "not convex" in capsys.readouterr().err


# ----------------------------------------------------------------
# runs with momentum keep their guarantee, on one node and on clients that share their draws


NODE = logistic_regression(small_data(), 0.02, penalty="ridge")
CLIENTS = federated_logistic(split(small_data(), 2, np.random.default_rng(0)), 0.02, penalty="ridge")
INFIMUM = find_infimum(NODE)
START = np.ones(NODE.d)
METHODS = ["subspace", "det-CGD1", "det-CGD2"]


def problem_and_answer(goal: str, method: str, mu: float = 0.02) -> Any:
    asked: dict[str, Any] = {**arguments_of(goal, mu), "momentum": True}
    if method == "subspace":
        return optimal_method(NODE.smoothness(), 2, **asked)
    return optimal_stepsize(NODE.smoothness(), RandK(NODE.d, 2), algorithm=method, **asked)


@every_goal
@pytest.mark.parametrize("method", METHODS)
def test_the_guarantee_is_kept(goal: str, method: str) -> None:
    """The mean over the seeds is below the bound; that rare runs keep it as well is more than seeds can show."""
    result = problem_and_answer(goal, method)
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
    result = problem_and_answer(goal, method)
    arguments: dict[str, Any] = {"iterations": 50, "seeds": 3, "start": START}
    shared, node = run(CLIENTS, result, **arguments), run(Whole(CLIENTS), result, **arguments)
    assert np.array_equal(shared.final_points, node.final_points)
    assert shared.momentum is not None and node.momentum is not None
    assert np.array_equal(shared.momentum.end.z, node.momentum.end.z)
    assert np.array_equal(shared.sent, 2 * node.sent)


def assert_messages_make_the_run(result: Any, draws: Iterable[Any], steps: int) -> None:
    """A loop over encode and advance with the draws of a run reaches its last x and z."""
    rounds, state = rounds_of(result), rounds_of(result).start(START)
    for draw in islice(draws, steps):
        state = rounds.advance(state, rounds.encode(NODE.gradient(rounds.point(state)[None])[0], draw), draw)
    end = run(NODE, result, iterations=steps, seeds=1, seed=5, start=START).momentum.end
    np.testing.assert_allclose(state.x, end.x[0], rtol=1e-11)
    np.testing.assert_allclose(state.z, end.z[0], rtol=1e-11)


@every_goal
def test_messages_make_the_steps_of_a_run(goal: str) -> None:
    result = problem_and_answer(goal, "subspace")
    drawn = (sample.mean(np.ones((1, 1, NODE.d)), None)[0] for sample in samples([result.sketch], 1, seed=5))
    assert_messages_make_the_run(result, map(np.flatnonzero, drawn), 80)


@pytest.mark.parametrize("method", METHODS)
def test_the_weights_of_convex_momentum(method: str) -> None:
    """x and z of a run are those of the update as it is stated: a = (K + 1)/2 in round K, A the sum of all a."""
    result = problem_and_answer("convex", method)
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
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": 0.02, "momentum": True}
    result = optimal_stepsize(NODE.smoothness(), Gaussian(NODE.d, 2), algorithm="det-CGD2", **asked)
    (rng,) = generators(5, 1)
    assert_messages_make_the_run(result, (rounds_of(result).draw(rng) for _ in count()), 20)


def test_a_run_is_drawn() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    record = run(NODE, problem_and_answer("linear", "subspace"), iterations=40, seeds=4)
    axes = record.plot(show="excess", infimum=INFIMUM.found)
    labels = [line.get_label() for line in axes.get_lines()]
    assert labels == ["subspace with momentum", "subspace with momentum, guarantee"]
    bound = axes.get_lines()[1].get_ydata()
    rate = record.momentum.rule.t if record.momentum is not None else 0.0
    assert bound[-1] == pytest.approx(2 * (1 - rate) ** 40 * (record.start_value - INFIMUM.found))


def test_what_a_run_refuses() -> None:
    result = problem_and_answer("linear", "det-CGD1")
    with pytest.raises(ValueError, match="shared"):
        run(CLIENTS, result, client_seeds="independent", iterations=2)
    with pytest.raises(ValueError, match="of their own"):
        run(NODE, result, RandK(NODE.d, 1), iterations=2)
    with pytest.raises(ValueError, match="find_infimum"):
        check_rate(run(NODE, result, iterations=2))
    record = run(NODE, result, iterations=2)
    with pytest.raises(ValueError, match="goal"):
        check_rate(record, INFIMUM, goal="euclidean")
