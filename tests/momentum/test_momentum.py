"""Momentum: its theorems in rational arithmetic for the floats that are returned, its results, messages and runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigvalsh

from shared.goals import arguments_of
from shared.momentum import ExactRounds, rounds_of
from shared.small_data import small_data
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    BlockDiagonal,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    compare,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS, Goal, MomentumGoal, floors
from stepsize_opt.problems import find_infimum
from stepsize_opt.results import StepsizeResult
from stepsize_opt.sketches.draws import generators
from stepsize_validation import check_rate, run
from stepsize_validation.cli import main
from stepsize_validation.data import federated_logistic, logistic_regression, random_smoothness, split
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    descent_metric,
    inverse,
    is_positive_semidefinite,
    rational,
    second_moment,
)
from stepsize_validation.properties.strategies import Matrix, problems, smoothness_matrices
from stepsize_validation.runs.sampling import samples

every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)
shares = st.floats(0.001, 1.0)


def curvature(L: Matrix, share: float) -> Matrix:
    """Some M ⪯ L that does not commute with L."""
    tilted = L[::-1, ::-1] * (np.linalg.eigvalsh(L)[0] / np.linalg.eigvalsh(L)[-1])
    return share * (0.5 * L + 0.5 * tilted)


def exceeds(A: Rational, B: Rational) -> bool:
    """Whether A ⪰ B."""
    return is_positive_semidefinite(combine((1, A), (-1, B)))


@every_goal
@given(L=smoothness_matrices(max_d=3, max_condition=1e4, rescaled=True), share=shares, k=st.floats(0.02, 1.0))
@settings(max_examples=15, deadline=None)
def test_every_state_of_the_subspace_method(goal: str, L: Matrix, share: float, k: float) -> None:
    """E Ψ⁺ ≤ (1 − t)Ψ by enumeration for quadratics between M and L, and M̂ ⪯ M, t²w ≤ h, all without rounding."""
    M = curvature(L, share)
    method = optimal_method(L, k * len(L), **arguments_of(goal, M), momentum=True)
    rounds = ExactRounds.of_subspace(method)
    wanted = rational(M) if goal == "linear" else rational(np.eye(len(L)))
    assert exceeds(rounds.V, inverse(wanted))
    for w, h in zip(method.weights, method.probabilities, strict=True):
        assert rounds.t**2 * Fraction(float(w)) <= Fraction(float(h))
    hessians = [rational(M), rational(L)] if goal == "linear" else [rational(L), rational(0.25 * L)]
    for F in hessians:
        for number in (1, 2, 7):
            assert is_positive_semidefinite(rounds.decrease(F, number))


EXACT_SKETCHES = [
    RandK(2, 1),
    RandK(2, 2),
    IndependentSampling([0.5, 0.25]),
    IndependentSampling([1.0, 0.5, 0.125]),
    FiniteSketch(np.array([[[1.0, 1.0], [1.0, 1.0]], [[1.0, -1.0], [-1.0, 1.0]]]), [0.5, 0.5]),
]


@every_goal
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("sketch", EXACT_SKETCHES, ids=str)
def test_every_state_of_a_sketch(goal: str, algorithm: str, sketch: Sketch) -> None:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((sketch.d, sketch.d))
    L = X @ X.T + 0.1 * np.eye(sketch.d)
    M = curvature(L, 0.3)
    result = optimal_stepsize(L, sketch, algorithm=algorithm, **arguments_of(goal, M), momentum=True)
    rounds = ExactRounds.of_sketch(
        result.D,
        result.inverse_curvature,
        result.rate,
        sketch,
        strong=goal == "linear",
        last=algorithm == "det-CGD2",
    )
    for F in (rational(M), rational(L)):
        assert is_positive_semidefinite(rounds.decrease(F, 2))


@every_goal
def test_a_larger_rate_breaks_the_inequality(goal: str) -> None:
    """The check can fail: with a t that is 1 % larger there are states in which Ψ grows too much."""
    L = np.diag([1.0, 3.0])
    method = optimal_method(L, 1, **arguments_of(goal, 0.5), momentum=True)
    rounds = ExactRounds.of_subspace(method)
    larger = ExactRounds(rounds.outcomes, rounds.V, rounds.t * Fraction(101, 100), strong=goal == "linear")
    assert not is_positive_semidefinite(larger.decrease(rational(L)))


@every_goal
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@given(problem=problems(max_d=4, max_condition=1e3), share=shares)
@settings(max_examples=25, deadline=None)
def test_condition_and_bounds_for_every_sketch(
    goal: str, algorithm: str, problem: tuple[Matrix, Sketch], share: float
) -> None:
    """V ⪰ M⁻¹ and t²𝒫(V) ⪯ H for the floats returned; M′ lies where the proof of the upper bound needs it."""
    L, sketch = problem
    d, M = len(L), curvature(L, share)
    asked: dict[str, Any] = {**arguments_of(goal, M), "momentum": True}
    result = optimal_stepsize(L, sketch, algorithm=algorithm, **asked)
    given = rational(M) if goal == "linear" else rational(np.eye(d))
    number = result.inverse_curvature
    V, law = rational(number * np.eye(d) if isinstance(number, float) else number), partial(second_moment, sketch)
    assert exceeds(V, inverse(given))
    t = Fraction(result.rate)
    H = descent_metric(rational(result.D), rational(L), sketch, algorithm)
    assert exceeds(H, combine((t * t, law(V))))
    own = Goal.read(goal, asked["strong_convexity"], d, momentum=True).for_sketch(sketch.map)
    assert isinstance(own, MomentumGoal)
    floor = inverse(rational(floors.block_of(own.M, np.arange(d))))  # M′⁻¹
    assert exceeds(floor, law(V))
    # 1 + loss ≤ e^loss.
    assert exceeds(combine((1 + Fraction(own.loss), law(inverse(given)))), floor)
    assert own.loss <= 1e-6
    assert result.status == "optimal" and result.gap <= result.tol
    upper = compression_limit(L, min(sketch.expected_rank, d), **asked).upper
    assert result.rate <= upper * (1 + 1e-9) and result.rate <= result.limit
    if sketch.is_exactly_unbiased:
        assert result.limit == pytest.approx(upper, rel=1e-6) and result.efficiency <= 1.0


# ----------------------------------------------------------------
# the limit of momentum: a closed form, above every sketch, attained by the subspace method


@every_goal
@given(L=smoothness_matrices(max_condition=1e4, rescaled=True), share=shares, k=st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_closed_form(goal: str, L: Matrix, share: float, k: float) -> None:
    """t = min(k/Σ√ℓ, 1/√ℓmax) from both sides; D ⪯ L⁻¹, tr(LD) ≤ k and DLD ⪰ t²M⁻¹; the subspace method has it."""
    d, budget = len(L), k * len(L)
    M = curvature(L, share) if goal == "linear" else np.eye(d)
    asked: dict[str, Any] = {**arguments_of(goal, M), "momentum": True}
    root = np.sqrt(eigvalsh(L, M))
    expected = min(budget / root.sum(), 1.0 / root.max())
    limit = compression_limit(L, budget, **asked)
    assert limit.value <= expected * (1 + 1e-9) and limit.upper >= expected * (1 - 1e-9)
    assert limit.gap <= 1e-6
    assert limit.probabilities.sum() <= budget * (1 + 1e-9)
    assert float(np.sum(L * limit.D)) <= budget * (1 + 1e-9)
    floor = limit.value**2 * np.linalg.inv(M)
    assert np.linalg.eigvalsh(limit.D @ L @ limit.D - floor)[0] >= -1e-6 * np.abs(floor).max()
    method = optimal_method(L, budget, **asked)
    assert method.momentum and method.rate == pytest.approx(expected, rel=1e-6)
    assert 0.0 <= 1.0 - method.efficiency <= 1e-6
    assert method.rate <= limit.upper


@given(L=smoothness_matrices(max_condition=1e4), share=shares, k=st.floats(0.05, 1.0))
@settings(max_examples=15, deadline=None)
def test_momentum_is_not_slower(L: Matrix, share: float, k: float) -> None:
    """The rate is at least that without memory: for the limit, and for rand-k with M = μI."""
    d, mu = len(L), share * float(np.linalg.eigvalsh(L)[0])
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": mu}
    assert compression_limit(L, k * d, **asked, momentum=True).upper >= compression_limit(L, k * d, **asked).value
    sketch = RandK(d, max(1, int(k * d)))
    plain = optimal_stepsize(L, sketch, **asked)
    assert optimal_stepsize(L, sketch, **asked, momentum=True).rate >= plain.rate * (1 - 1e-6)


@given(L=smoothness_matrices(max_condition=1e4, rescaled=True))
@settings(max_examples=20, deadline=None)
def test_all_floats_and_known_curvature_need_one_round(L: Matrix) -> None:
    """k = d and M = L: t = 1."""
    d = len(L)
    for answer in (
        optimal_method(L, d, goal="linear", strong_convexity=L, momentum=True),
        optimal_stepsize(L, Identity(d), goal="linear", strong_convexity=L, momentum=True),
    ):
        assert 1.0 - 1e-6 <= answer.rate <= 1.0


@every_goal
@pytest.mark.parametrize("k", [1, 3.5, 12])
def test_a_low_rank_smoothness_matrix_agrees_with_a_dense_one(goal: str, k: float) -> None:
    L = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((12, 3)), 0.1)
    asked: dict[str, Any] = {**arguments_of(goal, 0.05), "momentum": True}
    thin, whole = optimal_method(L, k, **asked), optimal_method(L.todense(), k, **asked)
    assert thin.rate == pytest.approx(whole.rate, rel=1e-8)
    limit = compression_limit(L, k, **asked)
    assert limit.value <= compression_limit(L.todense(), k, **asked).upper and thin.rate <= limit.upper
    assert limit.gap <= 1e-9
    sketch = RandK(12, 3)
    for algorithm in ("det-CGD1", "det-CGD2"):
        large, dense = (
            optimal_stepsize(one, sketch, structure="scalar", algorithm=algorithm, **asked) for one in (L, L.todense())
        )
        assert large.rate == pytest.approx(dense.rate, rel=1e-6)
        assert large.limit == pytest.approx(dense.limit, rel=1e-9)
    A, w, h = thin.directions @ np.eye(12), thin.weights, thin.probabilities
    V = (A * (h * w)) @ A.T
    assert np.linalg.eigvalsh(V - (1 / 0.05 if goal == "linear" else 1.0) * np.eye(12))[0] >= -1e-9


# ----------------------------------------------------------------
# results with momentum: structures, certificates, messages, and what is refused


L = random_smoothness(np.random.default_rng(1), 6, 50.0)
MU = 0.5 * float(np.linalg.eigvalsh(L)[0])
SKETCH = RandK(6, 2)


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


@every_goal
@pytest.mark.parametrize("method", METHODS)
def test_clients_that_share_their_draws_are_one_node(goal: str, method: str) -> None:
    result = problem_and_answer(goal, method)
    arguments: dict[str, Any] = {"iterations": 50, "seeds": 3, "start": START}
    shared, node = run(CLIENTS, result, **arguments), run(NODE, result, **arguments)
    np.testing.assert_allclose(shared.final_points, node.final_points, rtol=1e-9)
    assert shared.momentum is not None and node.momentum is not None
    np.testing.assert_allclose(shared.momentum.end.z, node.momentum.end.z, rtol=1e-9)
    assert np.array_equal(shared.sent, 2 * node.sent)


@every_goal
@pytest.mark.parametrize("method", METHODS)
def test_a_run_makes_the_updates_as_they_are_stated(goal: str, method: str) -> None:
    """In round K of convex momentum a = (K + 1)/2, and A is the sum of all a."""
    result = problem_and_answer(goal, method, 0.3 * NODE.smoothness())
    end = run(NODE, result, iterations=12, seeds=1, start=START).momentum.end
    rounds, t, x, z, A = rounds_of(result), result.rate, START, START, 0.0
    for K, sample in enumerate(islice(samples([result.sketch], 1, seed=0), 12), start=1):
        a = 0.5 * (K + 1)
        y = (x + t * z) / (1 + t) if goal == "linear" else (A * x + a * z) / (A + a)
        gradient = NODE.gradient(y[None])[:, None]
        if method == "subspace":
            step, along = rounds.steps(gradient, sample.mean)
        else:
            sketched = sample.mean(gradient, None)
            step = sketched @ result.D if method == "det-CGD1" else sample.mean(gradient, result.D)
            along = np.dot(sketched, result.inverse_curvature)
        x, A = y - step[0], A + a
        z = (1 - t) * z + t * y - t * along[0] if goal == "linear" else z - a * t**2 * along[0]
        assert a**2 <= A
    np.testing.assert_allclose(end.x[0], x, rtol=1e-9)
    np.testing.assert_allclose(end.z[0], z, rtol=1e-9)


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
