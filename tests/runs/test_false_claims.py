"""False rates are not confirmed and true ones not refuted, judged by the exact mean of the left side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from shared.moments import listed
from stepsize_opt import BernQ, Identity, IndependentSampling, RandK, Sketch, optimal_stepsize
from stepsize_opt.methods import State
from stepsize_opt.problems import Federated, FederatedInfimum, Infimum, Quadratic, find_infimum
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation import Run, check_distributed_rate, check_rate, distributed_lambda, run
from stepsize_validation.data import load_dataset, logistic_regression, random_quadratic

ZERO = Infimum(0.0, 0.0)
FACTORS = (1.3, 2.0, 5.0)
few_seeds = pytest.mark.parametrize("seeds", [3, 4, 8, 16])
HESSIAN = np.array([[1.0, 0.2, 0.1], [0.2, 0.6, 0.0], [0.1, 0.0, 0.3]])


# ---------------------------------------------------------------- exact means


def outcomes(sketch: Sketch) -> list[tuple[float, Matrix]]:
    return list(zip(*listed(sketch), strict=True))


def compressed(D: Matrix, S: Matrix, algorithm: str) -> Matrix:
    return D @ S if algorithm == "det-CGD1" else S @ D


def second_moments(maps: list[tuple[float, Matrix]], start: Vector, steps: int) -> list[Matrix]:
    """Return E[v vᵀ] after 0, …, K random linear maps v⁺ = Tv."""
    weights, T = np.array([weight for weight, _ in maps]), np.array([one for _, one in maps])
    moments = [np.outer(start, start)]
    for _ in range(steps):
        moments.append(np.einsum("r,rij,jk,rlk->il", weights, T, moments[-1], T))
    return moments


def one_node(H: Matrix, D: Matrix, sketch: Sketch, algorithm: str, start: Vector, steps: int) -> list[Matrix]:
    """Return E[x xᵀ] of a run on ½xᵀHx."""
    maps = [(weight, np.eye(len(H)) - compressed(D, S, algorithm) @ H) for weight, S in outcomes(sketch)]
    return second_moments(maps, start, steps)


def final_potential(record: Run, H: Matrix, steps: int, start: Vector) -> float:
    """Return E Ψ at the end of a run with momentum on ½xᵀHx, for the goal ``linear``."""
    assert record.momentum is not None
    rounds, d, basis = record.momentum.rounds, len(H), np.eye(2 * len(H))
    state = State(basis[:, :d], basis[:, d:])
    gradients = (rounds.point(state) @ H)[:, None]
    maps = []
    for weight, S in outcomes(rounds.sketch):
        sent = rounds.steps(gradients, lambda V, B, S=S: (V[:, 0] if B is None else V[:, 0] @ B.T) @ S)
        after = rounds.moved(state, *sent)
        maps.append((weight, np.hstack([after.x, after.z]).T))
    C = second_moments(maps, np.concatenate([start, start]), steps)[-1]
    M = np.linalg.inv(rounds.V * np.eye(d) if isinstance(rounds.V, float) else rounds.V)
    return 0.5 * float(np.trace(H @ C[:d, :d]) + np.trace(M @ C[d:, d:]))


# ---------------------------------------------------------------- many checks of one record


def parts(record: Run, seeds: int) -> Iterator[Run]:
    """Split the seeds of a record into independent records of ``seeds`` each."""
    for first in range(0, record.seeds, seeds):
        some = slice(first, first + seeds)
        arrays = ("squared_norms", "euclidean", "descent", "metric_norms", "decrease", "sent", "values", "final_points")
        part: dict[str, Any] = {name: getattr(record, name)[some] for name in arrays}
        if record.momentum is not None:
            end = record.momentum.end
            part["momentum"] = replace(record.momentum, end=State(end.x[some], end.z[some], end.rounds))
        yield replace(record, **part)


def verdicts(record: Run, seeds: int, **options: Any) -> list[str]:
    return [check_rate(part, ZERO, **options).verdict for part in parts(record, seeds)]


def count(record: Run, seeds: int, largest: dict[str, float]) -> dict[tuple[str, float], list[str]]:
    """Return the verdicts on rates that are false by each factor, and on true ones, for each goal.

    ``largest``: the exact left side of the goal, relative to that of f(x⁰); of ``linear`` E f(x^K)/f(x⁰).
    """
    K, answers = record.iterations, {}
    for (goal, left), factor in product(largest.items(), (0.2, 0.5, 0.999, *FACTORS)):
        if goal == "linear":
            rate = 1.0 - (left / factor) ** (1.0 / K)
        else:
            rate = factor * 2.0 * record.start_value / (left * K)
        if rate > 0.0:
            answers[goal, factor] = verdicts(record, seeds, goal=goal, rate=rate)
    return answers


def left_sides(record: Run, H: Matrix, moments: list[Matrix]) -> dict[str, float]:
    """Return the exact left sides of all goals that the run has, from E[x xᵀ] of each step."""
    sides = {"linear": 0.5 * float(np.trace(H @ moments[-1])) / record.start_value}
    norms = {"paper": record.metric.D / record.rate}
    if record.descent_rate > 0.0:
        norms |= {"descent": record.metric.H / record.descent_rate, "euclidean": np.eye(len(H))}
    for goal, W in norms.items():
        sides[goal] = float(np.mean([np.trace(W @ H @ C @ H) for C in moments[:-1]]))
    return sides


def assert_no_wrong_verdict(answers: dict[Any, list[str]], share: float = 0.0) -> None:
    for (goal, factor), given in answers.items():
        wrong = given.count("holds" if factor > 1.0 else "violated")
        assert wrong <= share * len(given), (goal, factor, wrong, len(given))


# ---------------------------------------------------------------- one node


def product_run(checks: int, seeds: int, steps: int) -> tuple[Run, list[Matrix]]:
    """Run ½x² with x halved in one step of ten: E f(x^K) rests on the runs with few such steps."""
    H, D, sketch, start = np.eye(1), np.array([[0.05]]), IndependentSampling([0.1]), np.ones(1)
    record = run(Quadratic(H, np.zeros(1)), D, sketch, iterations=steps, seeds=checks * seeds, start=start)
    return record, one_node(H, D, sketch, "det-CGD1", start, steps)


@few_seeds
def test_a_linear_rate_is_not_confirmed_by_typical_runs(seeds: int) -> None:
    """With 8 seeds all of them lie far below the mean in half of the checks."""
    record, moments = product_run(50, seeds, steps=100)
    mean = float(moments[-1][0, 0])
    for factor in FACTORS:
        assert "holds" not in verdicts(record, seeds, goal="linear", rate=1.0 - (mean / factor) ** 0.01)


def test_hundreds_of_seeds_confirm_a_linear_rate_over_few_steps() -> None:
    record, moments = product_run(10, 400, steps=10)
    mean = float(moments[-1][0, 0])
    assert set(verdicts(record, 400, goal="linear", rate=1.0 - (2.0 * mean) ** 0.1)) == {"holds"}
    assert set(verdicts(record, 400, goal="linear", rate=1.0 - (0.5 * mean) ** 0.1)) == {"violated"}


def test_rounding_at_the_optimum_violates_no_linear_rate() -> None:
    """After 3000 steps (1 − t)^K is far below the rounding of f − f*."""
    f = logistic_regression(load_dataset("breast_cancer"), 0.1, "ridge")
    result = optimal_stepsize(f.smoothness(), Identity(30), goal="linear", strong_convexity=f.strong_convexity())
    record = run(f, result, iterations=3000, seeds=3)
    assert (1.0 - result.rate) ** 3000 < 1e-17
    least = float(record.values.min())
    infimum = Infimum(least - 1e-12, least - 2e-16)
    assert check_rate(record, infimum, goal="linear", rate=result.rate).verdict == "undecided"


def test_a_run_that_can_grow_confirms_no_linear_rate() -> None:
    """The second coordinate is drawn in one run of six and grows hundredfold then; drawn twice it carries the mean."""
    H, D, sketch = np.eye(2), np.diag([0.5, 0.06]), IndependentSampling([0.5, 0.00545])
    start = np.array([1.0, 0.03])
    record = run(Quadratic(H, np.zeros(2)), D, sketch, iterations=30, seeds=4000, start=start, on_divergence="stop")
    assert record.diverged_at is None and record.metric.growth == pytest.approx((1.0 - 0.06 / 0.00545) ** 2)
    mean = float(np.trace(one_node(H, D, sketch, "det-CGD1", start, 30)[-1]))
    assert mean > 0.3
    assert "holds" not in verdicts(record, 400, goal="linear", rate=1.0 - 0.2 ** (1.0 / 30.0))


@few_seeds
def test_a_stepsize_outside_its_condition_is_not_confirmed_by_typical_runs(seeds: int) -> None:
    """Three times the optimum: f grows in the rare runs, and Theorem 1 promises nothing."""
    sketch = BernQ(0.3, 3)
    D, start = 3.0 * optimal_stepsize(HESSIAN, sketch).D, np.ones(3)
    record = run(Quadratic(HESSIAN, np.zeros(3)), D, sketch, iterations=8, seeds=100 * seeds, start=start)
    sides = left_sides(record, HESSIAN, one_node(HESSIAN, D, sketch, "det-CGD1", start, 8))
    assert_no_wrong_verdict(count(record, seeds, {"paper": sides["paper"]}))


@few_seeds
def test_runs_that_all_began_alike_confirm_no_larger_rate(seeds: int) -> None:
    """Most runs draw both coordinates in the first round; those that do not carry a few per cent of the mean."""
    H, start, sketch = np.array([[0.98, -0.14], [-0.14, 0.13]]), np.array([1.1, 0.1]), IndependentSampling([0.9, 0.9])
    D = optimal_stepsize(H, sketch).D
    record = run(Quadratic(H, np.zeros(2)), D, sketch, iterations=100, seeds=50 * seeds, start=start)
    sides = left_sides(record, H, one_node(H, D, sketch, "det-CGD1", start, 100))
    for goal in ("paper", "euclidean"):
        false = 1.02 * 2.0 * record.start_value / (sides[goal] * 100)
        assert "holds" not in verdicts(record, seeds, goal=goal, rate=false)


@pytest.mark.slow
@few_seeds
@pytest.mark.parametrize("steps", [8, 60])
@pytest.mark.parametrize("scale", [1.0, 1.5, 2.2])
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("sketch", [RandK(3, 1), BernQ(0.3, 3), IndependentSampling([0.05, 0.5, 0.9])], ids=str)
def test_wrong_verdicts_are_rare_for_every_goal(
    sketch: Sketch, algorithm: str, scale: float, steps: int, seeds: int
) -> None:
    D, start = scale * optimal_stepsize(HESSIAN, sketch, algorithm=algorithm).D, np.ones(3)
    f, how = Quadratic(HESSIAN, np.zeros(3)), {"algorithm": algorithm, "iterations": steps, "start": start}
    record = run(f, D, sketch, seeds=500 * seeds, **how)  # type: ignore[arg-type]
    sides = left_sides(record, HESSIAN, one_node(HESSIAN, D, sketch, algorithm, start, steps))
    assert_no_wrong_verdict(count(record, seeds, sides), 0.002)


@pytest.mark.slow
@few_seeds
@pytest.mark.parametrize("steps", [5, 30, 100])
def test_wrong_verdicts_are_rare_for_products(steps: int, seeds: int) -> None:
    record, moments = product_run(500, seeds, steps)
    assert_no_wrong_verdict(count(record, seeds, left_sides(record, np.eye(1), moments)), 0.002)


# ---------------------------------------------------------------- momentum


@few_seeds
@pytest.mark.parametrize("p", [0.1, 0.3])
def test_momentum_is_not_confirmed_by_typical_runs(p: float, seeds: int) -> None:
    """f is less convex than claimed: the mean of Ψ exceeds its bound, and typical runs stay far below it."""
    sketch, start, steps = IndependentSampling([p]), np.ones(1), 100
    result = optimal_stepsize(np.eye(1), sketch, goal="linear", strong_convexity=0.5, momentum=True)
    f = Quadratic(0.35 * np.eye(1), np.zeros(1))
    record = run(f, result, iterations=steps, seeds=40 * seeds, start=start)
    checks = [check_rate(part, find_infimum(f)) for part in parts(record, seeds)]
    assert final_potential(record, f.H, steps, start) > 1.3 * checks[0].bound
    assert "holds" not in [check.verdict for check in checks]


# ---------------------------------------------------------------- clients


@few_seeds
def test_clients_that_overshoot_confirm_no_false_lambda(seeds: int) -> None:
    """D is so large that E‖∇f(xᵏ)‖² grows, and typical runs converge: the smallest mean is that of the start."""
    H, sketch, start, steps = (1.0, 0.3), IndependentSampling([0.1]), np.array([2.0]), 100
    f = Federated(tuple(Quadratic(np.array([[h]]), np.zeros(1)) for h in H))
    D = 0.4 / f.smoothness()
    laws = product(outcomes(sketch), repeat=2)
    slopes = [(a * b, 1.0 - 0.5 * (D * S * H[0] + D * T * H[1])) for (a, S), (b, T) in laws]
    means = [float(C[0, 0]) for C in second_moments(slopes, np.ones(1), steps)]
    assert min(means) == 1.0 and means[-1] > 1e3
    record = run(f, D, sketch, iterations=steps, seeds=60 * seeds, start=start)
    infimum = FederatedInfimum(ZERO, ZERO)
    for factor in FACTORS:
        # The right side is 2(1 + λ/2)^K f(x⁰)/(DK) where all infima are zero.
        least = float(f.smoothness()[0, 0] * start[0]) ** 2 / factor
        power = least * steps * float(D[0, 0]) / (2.0 * record.start_value)
        lambda_D = 2.0 * (power ** (1.0 / steps) - 1.0)
        assert lambda_D < record.metric.lambda_D
        checks = [check_distributed_rate(part, 2, lambda_D, infimum) for part in parts(record, seeds)]
        assert checks[0].bound == pytest.approx(least)
        assert "holds" not in [check.verdict for check in checks]


def test_a_true_lambda_is_confirmed_by_as_many_seeds_as_before() -> None:
    f = Federated(tuple(Quadratic(np.diag([1.0, h]), m * np.ones(2)) for h, m in ((0.3, 1.0), (0.7, -1.0))))
    D, sketch = 0.05 * np.eye(2), RandK(2, 1)
    record = run(f, D, sketch, iterations=60, seeds=160, start=3.0 * np.ones(2))
    least = find_infimum(f)
    infimum = FederatedInfimum(least, ZERO)
    lambda_D = distributed_lambda(D, f.smoothness(), f.client_smoothness(), sketch, "det-CGD1")
    given = [check_distributed_rate(part, 2, lambda_D, infimum).verdict for part in parts(record, 8)]
    assert set(given) == {"holds"}


# ---------------------------------------------------------------- few seeds, and seeds that are all alike


@pytest.mark.slow
def test_few_seeds_do_not_call_a_true_bound_violated() -> None:
    """Sums that are skewed to the left: the bound is nearly an equality, and nearly all seeds lie above the mean."""
    f = random_quadratic([1.0, 2.0, 4.0], np.random.default_rng(0))
    sketch = IndependentSampling([0.05, 0.9, 0.9])
    result = optimal_stepsize(f.smoothness(), sketch, algorithm="det-CGD2")
    for seed in range(30):
        record = run(f, result.D, sketch, algorithm="det-CGD2", iterations=400, seed=seed)
        assert check_rate(record, find_infimum(f), rate=result.rate).verdict != "violated"


def test_seeds_that_drew_nothing_confirm_no_bound() -> None:
    """BernQ(0.001) with a D far outside the condition: nearly all runs stay at the start, and the mean is 1 500 × the
    bound."""
    f, D = Quadratic(np.eye(4), np.ones(4)), 0.1 * np.eye(4)
    for seed in range(20):
        record = run(f, D, BernQ(1e-3, 4), iterations=5, seeds=16, seed=seed)
        assert check_rate(record, find_infimum(f)).verdict != "holds"
        assert check_rate(record, find_infimum(f), goal="linear", rate=0.5).verdict == "undecided"
    # Without a sketch all seeds are alike, too, and decide.
    assert check_rate(run(f, D, Identity(4), iterations=5, seeds=3), find_infimum(f)).verdict == "holds"


def sampled(p: list[float], start: list[float], iterations: int, seeds: int) -> tuple[Run, float]:
    """Run f = ½‖x‖² from ``start`` with D = Diag(p), which is optimal for independent sampling with p.

    Each coordinate is zero after its first draw, so Σ E‖∇f(xᵏ)‖²_D = Σ x_j²(1 − (1 − p_j)^K).  The largest rate whose
    bound is true comes back beside the record.
    """
    x, q = np.array(start), np.array(p)
    record = run(Quadratic(np.eye(len(p)), x), np.diag(q), IndependentSampling(p), iterations=iterations, seeds=seeds)
    return record, record.rate * (x @ x) / float(np.sum(x**2 * (1.0 - (1.0 - q) ** iterations)))


@pytest.mark.parametrize("seeds", [3, 8])
def test_seeds_that_all_missed_a_rare_coordinate_confirm_no_false_rate(seeds: int) -> None:
    """The fourth coordinate carries three quarters of the mean, and 3 seeds all miss it in two of three checks."""
    record, largest = sampled([0.5, 0.5, 0.5, 0.01], [0.5, 0.6, 0.62, 5.0], iterations=14, seeds=150 * seeds)
    for factor in (1.3, 3.0):
        assert "holds" not in verdicts(record, seeds, goal="descent", rate=factor * largest)


@pytest.mark.parametrize("seeds", [3, 4, 8])
def test_equal_norms_violate_no_certified_stepsize(seeds: int) -> None:
    """Seeds that all wait two rounds have equal norms above the bound; at 0.97 of the largest rate most checks have
    seeds that all drew the coordinate, which one run in six does not."""
    record, largest = sampled([0.45], [1.0], iterations=3, seeds=300 * seeds)
    for options in ({}, {"goal": "descent"}, {"rate": 0.97 * largest}):
        assert "violated" not in verdicts(record, seeds, **options)


def test_a_linear_rate_is_not_confirmed_by_seeds_that_all_drew_everything() -> None:
    """E f(x^K) rests on the runs that never draw the first coordinate, one in 400."""
    f, D = Quadratic(np.eye(2), np.array([1.0, 0.01])), np.diag([0.45, 0.4])
    record = run(f, D, IndependentSampling([0.45, 0.9]), iterations=10, seeds=800)
    for seeds in (8, 400):
        assert "holds" not in verdicts(record, seeds, goal="linear", rate=0.55)


def test_few_seeds_decide_where_every_run_draws_everything() -> None:
    """BernQ(0.5) in 50 rounds: all runs end alike, because none misses anything."""
    f, sketch = random_quadratic(np.geomspace(0.1, 10.0, 4), np.random.default_rng(0)), BernQ(0.5, 4)
    record = run(f, optimal_stepsize(f.smoothness(), sketch).D, sketch, iterations=50, seeds=80)
    assert set(verdicts(record, 8, rate=0.9 * record.rate)) == {"holds"}
    assert set(verdicts(record, 8, rate=1.3 * record.rate)) == {"violated"}


def test_six_runs_of_a_skewed_sum_do_not_violate_a_true_bound() -> None:
    """One coordinate carries f and waits for its turn: the sum of squared norms is nearly exponential, and the mean of
    six of them exceeds the bound in many samples.  The bound is true, and no sample calls it violated."""
    d = 20
    f, sketch = Quadratic(np.eye(d), np.eye(d)[0]), RandK(d, 1)
    records = [run(f, np.eye(d) / d, sketch, iterations=100, seeds=6, seed=seed) for seed in range(60)]
    checks = [check_rate(record, ZERO, goal="descent", rate=1.0 / d) for record in records]
    assert sum(check.plain > check.bound for check in checks) >= 10
    assert not any(check.verdict == "violated" for check in checks)
