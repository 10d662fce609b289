"""The theorems on runs and step by step: exact enumeration, verdicts that can fail."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shared.moments import descent_metric, listed
from shared.one_step import distributed_one_step, one_step
from shared.small_data import small_data
from stepsize_opt import BernQ, Direction, Identity, LayerWise, RandK, Sketch, optimal_stepsize
from stepsize_opt.problems import (
    Federated,
    FederatedInfimum,
    Infimum,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    find_federated_infimum,
    find_infimum,
)
from stepsize_opt.results import StepsizeResult
from stepsize_validation import RateCheck, check_distributed_rate, check_rate, distributed_lambda, run
from stepsize_validation.data import federated_logistic, layered_logistic, logistic_regression, random_quadratic, split
from stepsize_validation.properties.strategies import problems
from stepsize_validation.runs.confidence import mean_bounds

METHODS = ("det-CGD1", "det-CGD2")
ZERO = Infimum(0.0, 0.0)
BOTH_ZERO = FederatedInfimum(ZERO, ZERO)


def quadratic(d: int, seed: int = 0) -> Quadratic:
    return random_quadratic(np.geomspace(0.1, 10.0, d), np.random.default_rng(seed))


@pytest.mark.parametrize("algorithm", METHODS)
def test_distributed_one_step_inequality_by_enumeration(algorithm: str) -> None:
    clients = tuple(quadratic(3, seed) for seed in range(2))
    f, sketch = Federated(clients), RandK(3, 1)
    L = f.smoothness()
    for scale in (1.0, 0.3):
        D = scale * np.linalg.inv(L)
        lam = distributed_lambda(D, L, f.client_smoothness(), sketch, algorithm)
        X = np.random.default_rng(1).standard_normal((40, 3)) * 2.0
        # Both clients reach 0, so (1/n) Σ fᵢ^inf = 0.
        assert distributed_one_step(f, D, sketch, X, 0.0, lam, algorithm).holds
        assert not distributed_one_step(f, D, sketch, X, 0.0, 0.05 * lam, algorithm).holds


def test_distributed_lambda_by_enumeration() -> None:
    clients = [quadratic(3, seed).H for seed in range(3)]
    L = np.mean(clients, axis=0)
    sketches = [RandK(3, 1), RandK(3, 2), BernQ(0.5, 3)]
    D = 0.1 * np.eye(3) + 0.02 * np.ones((3, 3))
    for algorithm in ("det-CGD1", "det-CGD2"):
        largest = 0.0
        for Li, sketch in zip(clients, sketches, strict=True):
            w, V = np.linalg.eigh(Li)
            root = (V * np.sqrt(w)) @ V.T
            M = np.zeros((3, 3))
            for weight, S in zip(*listed(sketch), strict=True):
                C = S - np.eye(3)
                M += weight * (D @ C @ L @ C @ D if algorithm == "det-CGD2" else C @ D @ L @ D @ C)
            largest = max(largest, float(np.linalg.eigvalsh(root @ M @ root)[-1]))
        assert distributed_lambda(D, L, clients, sketches, algorithm) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("algorithm", METHODS)
def test_theorem_1_holds_for_the_optimum_and_fails_past_the_boundary(algorithm: str) -> None:
    f, sketch = quadratic(5), RandK(5, 2)
    D = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm).D
    # On a quadratic E[f(x⁺)] = f(x) − ½‖∇f(x)‖²_D exactly for the optimal D of det-CGD2: the bound is reached as
    # K → ∞, and no number of seeds decides an equality.  Inside the boundary it is strict.
    edge = check_rate(run(f, D, sketch, algorithm=algorithm, iterations=400, seeds=16), find_infimum(f))
    assert edge.verdict != "violated", edge
    good = check_rate(run(f, 0.7 * D, sketch, algorithm=algorithm, iterations=400, seeds=64), find_infimum(f))
    assert good.verdict == "holds", good
    wild = run(f, 4.0 * D, sketch, algorithm=algorithm, iterations=400, seeds=16, on_divergence="stop")
    assert wild.diverged_at is not None or check_rate(wild).verdict == "violated"


def test_a_bound_that_fails_without_divergence_is_called_violated() -> None:
    """Gradient descent with 1.9/L stays bounded but breaks 2Δ⁰/(γK): f decreases by less than ½γ‖∇f‖²."""
    f = Quadratic(np.eye(2), np.ones(2))
    how: dict[str, Any] = {"iterations": 50, "seeds": 3}
    assert check_rate(run(f, 1.9 * np.eye(2), Identity(2), **how)).verdict == "violated"
    clients = run(Federated((f, f)), 1.9 * np.eye(2), Identity(2), **how)
    assert check_distributed_rate(clients, 2, 0.0, BOTH_ZERO).verdict == "violated"


@pytest.mark.slow
def test_theorem_2_layer_by_layer() -> None:
    f = layered_logistic(small_data(), 0.1, 3)
    L = f.smoothness()
    sketch = LayerWise([RandK(size, 1) for size in f.sizes])
    D = optimal_stepsize(L, sketch, structure=Direction(np.diag(1.0 / np.diagonal(L)), f.sizes)).D
    check = check_rate(run(f, D, sketch, iterations=500, seeds=16), find_infimum(f))
    assert check.verdict == "holds", check


@pytest.mark.parametrize("algorithm", METHODS)
@pytest.mark.parametrize("kind", ["shuffled", "label"])
def test_theorem_3(kind: str, algorithm: str) -> None:
    f = federated_logistic(split(small_data(), 5, np.random.default_rng(0), kind), 0.1)
    sketch, L = RandK(6, 1), f.smoothness()
    D = 0.05 * np.linalg.inv(L)
    lam = distributed_lambda(D, L, f.client_smoothness(), sketch, algorithm)
    record = run(f, D, sketch, algorithm=algorithm, iterations=300, seeds=12)
    infimum = find_federated_infimum(f)
    assert infimum.delta_inf > 0.0
    check = check_distributed_rate(record, f.n, lam, infimum)
    assert check.verdict == "holds", check
    with pytest.raises(ValueError, match="clients=4"):
        check_distributed_rate(record, 4, lam, infimum)


def test_the_verdict_follows_from_the_confidence_bounds() -> None:
    def check(lower: float, upper: float, bound: float, loose: float, plain: float = 0.0) -> str:
        return RateCheck("", 0.5 * (lower + upper), 0.0, lower, upper, bound, loose, 10, 5, 0.999, plain).verdict

    assert check(0.8, 1.0, 1.0, 2.0) == "holds"
    assert check(0.8, 1.1, 1.0, 2.0) == "undecided"
    assert check(1.5, 1.8, 1.0, 2.0) == "undecided"  # f^inf may lie as low as its proved bound
    assert check(2.5, 2.8, 1.0, 2.0) == check(2.1, 2.1, 1.0, 2.0) == "violated"
    assert check(0.8, 1.0, 1.0, 2.0, plain=2.1) == "violated"


def test_nan_and_infinite_numbers_are_refused() -> None:
    nan, inf, f = np.nan, np.inf, quadratic(3)
    record, broken = run(f, 0.01 * np.eye(3), RandK(3, 1), iterations=10, seeds=3), np.diag([1.0, 2.0, nan])
    numbers = [0.9, 0.0, 0.8, 1.0, 1.0, 2.0]
    calls: list[tuple[str, Any]] = [
        ("NaN", partial(RateCheck, "Theorem 1", *numbers[:i], nan, *numbers[i + 1 :], 10, 5, 0.999)) for i in range(6)
    ]
    calls += [
        ("found", partial(Infimum, *ends)) for ends in ((0.0, nan), (nan, 0.0), (0.0, inf), (1.0, 0.5), (-inf, -inf))
    ]
    for name, message in (("values", "found"), ("descent", "observed")):
        lost = replace(record, **{name: np.full_like(getattr(record, name), nan)})
        calls.append((message, partial(check_rate, lost)))
    calls += [("lambda_D", partial(check_distributed_rate, record, 2, x, BOTH_ZERO)) for x in (nan, inf, -1.0)]
    for name, change in (("D", (broken, f.H, [f.H])), ("L", (f.H, broken, [f.H])), ("client_L", (f.H, f.H, [broken]))):
        calls.append((f"{name}.* finite", partial(distributed_lambda, *change, RandK(3, 1), "det-CGD1")))
    for message, call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_right_sides_follow_the_infimum() -> None:
    """A larger f^inf gives a smaller right side, which makes both verdicts safe; beyond the floats it is infinite."""
    f = Federated((quadratic(3), quadratic(3, 1)))
    record = run(f, 0.01 * np.eye(3), RandK(3, 1), iterations=30, seeds=3)
    bounds = [
        check_distributed_rate(record, 2, 0.3, FederatedInfimum(Infimum(0.0, whole), Infimum(0.0, parts))).bound
        for whole, parts in ((0.0, 0.0), (0.2, 0.0), (0.2, 0.1))
    ]
    assert bounds[0] > bounds[1] > bounds[2]
    assert check_distributed_rate(record, 2, 1e12, BOTH_ZERO).bound == np.inf
    at_once = FederatedInfimum(Infimum(0.0, record.start_value), ZERO)
    record = replace(record, values=np.full_like(record.values, record.start_value))
    assert np.isfinite(check_distributed_rate(record, 2, 1e12, at_once).bound)
    one = run(Quadratic(np.eye(2), np.ones(2)), 0.5 * np.eye(2), Identity(2), iterations=5, seeds=3)
    reached = check_rate(one, Infimum(0.0, float(one.values.min())))
    assert check_rate(one, Infimum(0.0, 0.9)).bound == pytest.approx(reached.bound)


def test_rounding_does_not_make_a_true_bound_violated_or_stop_a_certified_stepsize() -> None:
    """D is symmetric, but D @ L @ D is so only up to the rounding of its largest terms."""
    f = Quadratic(np.diag([10.0]), np.array([0.3]))
    record = run(f, np.array([[np.nextafter(0.1, 0.0)]]), Identity(1), iterations=1, seeds=3)
    assert check_rate(record, find_infimum(f)).verdict != "violated"
    f = random_quadratic([1e-3, 1.0, 1e6], np.random.default_rng(1))
    for sketch in (Identity(3), RandK(3, 2)):
        D = optimal_stepsize(f.smoothness(), sketch).D
        assert run(f, D, sketch, iterations=2, seeds=3).iterations == 2


def test_a_theorem_is_named_where_its_condition_holds() -> None:
    f, sketch = quadratic(3), RandK(3, 1)
    outside, inside = (optimal_stepsize(f.smoothness(), sketch, goal=goal).D for goal in ("descent", "paper"))
    for D, name in ((outside, "bound of Theorem 1 (D outside its condition)"), (inside, "Theorem 1")):
        assert check_rate(run(f, D, sketch, iterations=20, seeds=3)).statement == name
    clients = Federated((f, quadratic(3, 1)))
    inverse = np.linalg.inv(clients.smoothness())
    for scale, name in ((0.5, "Theorem 3"), (1.5, "bound of Theorem 3 (D outside its condition)")):
        record = run(clients, scale * 0.5 * (inverse + inverse.T), sketch, iterations=2, seeds=3)
        assert check_distributed_rate(record, 2, 0.0, BOTH_ZERO).statement == name


# ----------------------------------------------------------------
# the guarantees of the descent metric on runs and step by step: equalities by enumeration, verdicts that can fail


def of_condition(d: int, condition: float = 100.0, seed: int = 0) -> Quadratic:
    return random_quadratic(np.geomspace(1.0 / condition, 1.0, d), np.random.default_rng(seed))


def ridge(d: int = 6, reg: float = 0.1) -> LogisticRegression:
    return logistic_regression(small_data(d=d), reg, "ridge")


def best(f: Any, sketch: Sketch, goal: Any = "descent", **options: Any) -> StepsizeResult:
    return optimal_stepsize(f.smoothness(), sketch, goal=goal, **options)


# ---------------------------------------------------------------- one step, by enumeration


@settings(max_examples=40)
@given(problems(max_d=4), st.sampled_from(METHODS), st.floats(0.2, 3.0), st.integers(0, 2**32 - 1))
def test_on_a_quadratic_one_step_is_an_equality_for_every_stepsize(
    problem: tuple[Any, Sketch], algorithm: str, scale: float, seed: int
) -> None:
    """E f(x⁺) = f(x) − ½‖∇f(x)‖²_H, whether or not the condition holds or H is positive definite."""
    L, sketch = problem
    rng = np.random.default_rng(seed)
    d = len(L)
    root = rng.standard_normal((d, d))
    D = scale * (root @ root.T + 0.1 * np.eye(d)) / np.trace(L)
    H = descent_metric(algorithm, D, L, sketch)
    f = Quadratic(L, rng.standard_normal(d))
    try:
        check = one_step(f, D, sketch, rng.standard_normal((5, d)), algorithm, metric=H)
    except ValueError:  # the Gaussian sketch has no law that can be listed; Hypothesis fails if most have none
        reject()
    assert check.is_equality, (check.excess, check.rounding)


@pytest.mark.parametrize("algorithm", METHODS)
def test_one_step_of_logistic_regression_descends_and_contracts(algorithm: str) -> None:
    f, sketch = ridge(4), RandK(4, 2)
    result = best(f, sketch, goal="linear", strong_convexity=f.strong_convexity(), algorithm=algorithm)
    H = descent_metric(algorithm, result.D, f.smoothness(), sketch)
    X = np.random.default_rng(1).standard_normal((100, 4)) * 4.0
    assert one_step(f, result.D, sketch, X, algorithm, metric=H).holds
    inside = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm)
    assert one_step(f, inside.D, sketch, X, algorithm).holds
    least = find_infimum(f).found
    assert one_step(f, result.D, sketch, X, algorithm, contraction=(result.rate, least)).holds
    # f is far from its bounds on the curvature, but not so far.
    assert not one_step(f, result.D, sketch, X, algorithm, contraction=(1.0, least)).holds


# ---------------------------------------------------------------- runs


def test_the_bound_of_convex_momentum_is_that_of_the_theorem() -> None:
    """E Ψ ≤ ‖x⁰ − x*‖²/(2t²) with Ψ ≥ K(K + 3)/4 (f − f*)."""
    f, start = Quadratic(np.diag([1.0, 0.5, 0.1]), np.zeros(3)), np.ones(3)
    result = optimal_stepsize(f.smoothness(), RandK(3, 1), goal="convex", momentum=True)
    check = check_rate(run(f, result, iterations=20, seeds=8, start=start), find_infimum(f))
    assert check.bound == pytest.approx(0.5 * start @ start / result.rate**2, rel=1e-6)


@pytest.mark.parametrize(
    ("goal", "algorithm", "sketch", "condition", "true", "false"),
    [
        ("descent", "det-CGD1", RandK(5, 2), 10.0, 0.99, 1.05),
        ("descent", "det-CGD2", RandK(5, 2), 10.0, 0.99, 1.05),
        ("euclidean", "det-CGD1", RandK(4, 3), 3.0, 0.9, 1.2),
    ],
)
def test_a_rate_that_is_too_large_is_found_out(
    goal: Any, algorithm: str, sketch: Sketch, condition: float, true: float, false: float
) -> None:
    """On a quadratic the sum of E‖∇f‖²_H is 2(f(x⁰) − E f(x^K)): no rate beyond 1/(1 − E f(x^K)/f(x⁰)) is true.

    No number of seeds decides an equality, which the optimum is.
    """
    f = of_condition(sketch.d, condition)
    result = best(f, sketch, goal, algorithm=algorithm)
    record = run(f, result.D, sketch, algorithm=algorithm, iterations=400, seeds=200)
    own = record.descent_rate if goal == "descent" else record.metric.smallest
    assert own == pytest.approx(result.rate, rel=1e-6)
    assert check_rate(record, ZERO, goal=goal).verdict != "violated"
    claimed = check_rate(record, ZERO, goal=goal, rate=true * result.rate)
    assert claimed.statement == f"goal {goal}" and claimed.verdict == "holds", claimed
    for factor in (false, 2.0):
        assert check_rate(record, ZERO, goal=goal, rate=factor * result.rate).verdict == "violated"


def test_theorem_1_and_the_descent_metric_of_one_run() -> None:
    """The optimum of the descent metric is outside condition (3); its own bound holds, and is the better one."""
    f, sketch = logistic_regression(small_data(), 0.1), RandK(6, 2)
    inside, free = optimal_stepsize(f.smoothness(), sketch), best(f, sketch)
    assert not free.satisfies_condition
    infimum = find_infimum(f)
    first = run(f, inside.D, sketch, iterations=300, seeds=24)
    second = run(f, free.D, sketch, iterations=300, seeds=24)
    checks = [
        check_rate(first, infimum),
        check_rate(first, infimum, goal="descent"),
        check_rate(second, infimum, goal="descent"),
        check_rate(second, infimum, goal="euclidean"),
    ]
    assert [check.verdict for check in checks] == ["holds"] * 4, checks
    assert checks[0].bound > checks[1].bound > checks[2].bound
    # Both estimates of one left side agree within their bounds.
    for check in checks:
        assert check.lower <= check.plain_upper and check.plain_lower <= check.upper
    np.testing.assert_allclose(second.means("metric")[:, -1].mean(), checks[2].plain, rtol=1e-12)


@pytest.mark.parametrize("f", [ridge(), LeastSquares(small_data().A, small_data().b, 0.05)], ids=["ridge", "squares"])
@pytest.mark.parametrize("algorithm", METHODS)
def test_linear_holds_and_fails(f: Any, algorithm: str) -> None:
    sketch = RandK(6, 3)
    result = best(f, sketch, goal="linear", strong_convexity=f.strong_convexity(), algorithm=algorithm)
    infimum = find_infimum(f)
    steps = 4  # after many more the mean of (f(x^K) − f*)/(1 − t)^K rests on few seeds
    record = run(f, result.D, sketch, algorithm=algorithm, iterations=steps, seeds=600)
    assert check_rate(record, infimum, goal="linear", rate=result.rate).verdict != "violated"
    # Least squares are nearly an equality, which no number of seeds decides.
    check = check_rate(record, infimum, goal="linear", rate=0.9 * result.rate)
    assert check.verdict == "holds" and check.statement == "goal linear", check
    kept = np.mean(record.values[:, -1] - infimum.found) / (record.start_value - infimum.found)
    assert 0.0 < kept <= (1.0 - result.rate) ** steps
    # A rate whose bound is half of what is observed after these steps is found out.
    false = 1.0 - (0.5 * kept) ** (1.0 / steps)
    assert check_rate(record, infimum, goal="linear", rate=false).verdict == "violated"


def test_a_sampler_with_another_distribution_than_declared_violates_the_bound() -> None:
    """Bern-q drawn with a smaller q than declared: unbiased, but of a larger second moment.  The low-variance estimate
    is below 2Δ⁰ in every run; the squared norms are not."""
    f = of_condition(3, condition=2.0)
    declared, drawn = BernQ(0.5, 3), BernQ(0.3, 3)
    D = optimal_stepsize(f.H, declared, goal="descent").D
    record = run(f, D, drawn, iterations=100, seeds=400)
    # The metric that is claimed is the one of the law declared.
    H = descent_metric("det-CGD1", D, f.H, declared)
    true = record.metric_norms.sum(axis=1) / record.descent_rate
    assert np.all(record.decrease.sum(axis=1) <= 2.0 * record.start_value * (1.0 + 1e-12))
    scale = np.linalg.eigvalsh(np.linalg.solve(descent_metric("det-CGD1", D, f.H, drawn), H))[0]
    assert scale > 1.2  # H ⪰ 1.2 × the metric of the law drawn
    claimed = replace(record, metric_norms=scale * record.metric_norms)
    assert true.min() > 0.0
    check = check_rate(claimed, ZERO, goal="descent")
    assert check.verdict == "violated" and check.lower < check.loose_bound < check.plain_lower, check


def test_a_metric_that_is_not_positive_definite_has_no_guarantee() -> None:
    wild = run(of_condition(3), 0.9 * np.eye(3), RandK(3, 1), iterations=3, seeds=3)
    assert wild.descent_rate == 0.0 > wild.metric.smallest
    for goal in ("descent", "euclidean"):
        with pytest.raises(ValueError, match="promises nothing"):
            check_rate(wild, ZERO, goal=goal)
    with pytest.raises(ValueError, match="not positive definite"):
        wild.means("metric")


# ---------------------------------------------------------------- confidence


def test_bounds_of_a_skewed_mean_cover_it() -> None:
    """Exponential numbers at 99.9 %: Student's upper bound misses in 1.8 % of the samples of 16, this one in 0.5 %."""
    rng = np.random.default_rng(0)
    for n, most in ((16, 0.008), (256, 0.003)):
        samples = rng.exponential(size=(4000, n))
        found = [mean_bounds(row, 0.999) for row in samples]
        assert np.mean([bounds.upper < 1.0 for bounds in found]) <= most
        assert np.mean([bounds.lower > 1.0 for bounds in found]) <= 0.002


def test_bounds_of_few_or_equal_numbers() -> None:
    for few in ([1.0], [1.0, 2.0]):
        assert mean_bounds(np.array(few), 0.999) == (-np.inf, np.inf)
    assert mean_bounds(np.ones(5), 0.999) == (1.0, 1.0)
    mirrored = mean_bounds(-np.array([1.0, 2.0, 9.0, 4.0]), 0.99)
    straight = mean_bounds(np.array([1.0, 2.0, 9.0, 4.0]), 0.99)
    np.testing.assert_allclose((mirrored.lower, mirrored.upper), (-straight.upper, -straight.lower), rtol=1e-12)


def test_the_probability_that_a_run_misses_a_draw_by_enumeration() -> None:
    f, sketch = of_condition(3), RandK(3, 1)
    record = run(f, 0.01 * np.eye(3), sketch, iterations=2, seeds=3)
    # Of the nine pairs of draws each coordinate is absent from four.
    assert record.is_random and record.missing_probability(2) == 1.0
    assert record.missing_probability(6) == pytest.approx(3 * (2 / 3) ** 6)
    clients = run(Federated((f, f)), 0.01 * np.eye(3), [sketch, BernQ(0.5, 3)], iterations=2, seeds=3)
    assert clients.missing_probability(20) == pytest.approx(3 * (2 / 3) ** 20 + 0.5**20)
    same = run(f, 0.01 * np.eye(3), RandK(3, 3), iterations=2, seeds=3)
    assert not same.is_random and same.missing_probability(1) == 0.0
