"""The guarantees of the descent metric on runs and step by step: equalities by enumeration, verdicts that can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from shared.moments import descent_metric
from shared.one_step import one_step
from shared.small_data import small_data
from stepsize_opt import BernQ, RandK, Sketch, optimal_stepsize
from stepsize_opt.problems import (
    Federated,
    Infimum,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    find_infimum,
)
from stepsize_opt.results import StepsizeResult
from stepsize_validation import check_rate, run
from stepsize_validation.data import logistic_regression, random_quadratic
from stepsize_validation.properties.strategies import problems
from stepsize_validation.runs.confidence import mean_bounds

METHODS = ("det-CGD1", "det-CGD2")
ZERO = Infimum(0.0, 0.0)


def quadratic(d: int, condition: float = 100.0, seed: int = 0) -> Quadratic:
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


@pytest.mark.parametrize("algorithm", METHODS)
def test_the_contraction_of_a_quadratic_is_reached(algorithm: str) -> None:
    """M = L is the Hessian: at the worst point E f(x⁺) = (1 − t) f(x), so that no larger t is true."""
    f, sketch = quadratic(4), RandK(4, 2)
    result = best(f, sketch, goal="linear", strong_convexity=f.strong_convexity(), algorithm=algorithm)
    H, t = descent_metric(algorithm, result.D, f.H, sketch), result.rate
    # f(x) = ½‖g‖²_{L⁻¹}, so the worst gradient is the one with the smallest ‖g‖²_H/‖g‖²_{L⁻¹}.
    root = np.linalg.cholesky(f.H)
    g = root @ np.linalg.eigh(root.T @ H @ root)[1][:, 0]
    X = np.vstack([f.minimiser + np.linalg.solve(f.H, g), np.random.default_rng(0).standard_normal((50, 4))])
    assert one_step(f, result.D, sketch, X, algorithm, contraction=(t * (1 - 1e-9), 0.0)).holds
    assert not one_step(f, result.D, sketch, X, algorithm, contraction=(t * (1 + 1e-4), 0.0)).holds


# ---------------------------------------------------------------- runs


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_rate_that_is_too_large_is_found_out(algorithm: str) -> None:
    """On a quadratic the sum of E‖∇f‖²_H is 2(f(x⁰) − E f(x^K)): no rate beyond 1/(1 − E f(x^K)/f(x⁰)) is true."""
    f, sketch = quadratic(5, condition=10.0), RandK(5, 2)
    result = best(f, sketch, algorithm=algorithm)
    record = run(f, result.D, sketch, algorithm=algorithm, iterations=400, seeds=40)
    assert record.descent_rate == pytest.approx(result.rate, rel=1e-9)
    claimed = check_rate(record, ZERO, goal="descent", rate=0.99 * result.rate)
    assert claimed.statement == "goal descent" and claimed.verdict == "holds", claimed
    for factor in (1.05, 2.0):
        false = check_rate(record, ZERO, goal="descent", rate=factor * result.rate)
        assert false.verdict == "violated", false


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


def test_euclidean_holds_and_fails() -> None:
    f, sketch = quadratic(4, condition=3.0), RandK(4, 3)
    result = best(f, sketch, goal="euclidean")
    record = run(f, result.D, sketch, iterations=200, seeds=200)
    assert record.metric.smallest == pytest.approx(result.rate, rel=1e-6)
    # The best H is nearly λmin(H) I, and on a quadratic the bound is reached: no number of seeds decides an equality.
    assert check_rate(record, ZERO, goal="euclidean").verdict != "violated"
    true = check_rate(record, ZERO, goal="euclidean", rate=0.9 * result.rate)
    assert true.verdict == "holds" and true.statement == "goal euclidean", true
    assert check_rate(record, ZERO, goal="euclidean", rate=1.2 * result.rate).verdict == "violated"


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
    f = quadratic(3, condition=2.0)
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


def test_six_runs_of_a_skewed_sum_do_not_violate_a_true_bound() -> None:
    """One coordinate carries f and waits for its turn: the sum of squared norms is nearly exponential, and the mean of
    six of them exceeds the bound in many samples.  The bound is true, and no sample calls it violated."""
    d = 20
    f, sketch = Quadratic(np.eye(d), np.eye(d)[0]), RandK(d, 1)
    records = [run(f, np.eye(d) / d, sketch, iterations=100, seeds=6, seed=seed) for seed in range(60)]
    checks = [check_rate(record, ZERO, goal="descent", rate=1.0 / d) for record in records]
    assert sum(check.plain > check.bound for check in checks) >= 10
    assert not any(check.verdict == "violated" for check in checks)


def test_a_metric_that_is_not_positive_definite_has_no_guarantee() -> None:
    wild = run(quadratic(3), 0.9 * np.eye(3), RandK(3, 1), iterations=3, seeds=3)
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
    assert mean_bounds(np.array([1.0, 2.0]), 0.999) == (-np.inf, np.inf)
    assert mean_bounds(np.ones(5), 0.999) == (1.0, 1.0)
    mirrored = mean_bounds(-np.array([1.0, 2.0, 9.0, 4.0]), 0.99)
    straight = mean_bounds(np.array([1.0, 2.0, 9.0, 4.0]), 0.99)
    np.testing.assert_allclose((mirrored.lower, mirrored.upper), (-straight.upper, -straight.lower), rtol=1e-12)


def test_the_probability_that_a_run_misses_a_draw_by_enumeration() -> None:
    f, sketch = quadratic(3), RandK(3, 1)
    record = run(f, 0.01 * np.eye(3), sketch, iterations=2, seeds=3)
    # Of the nine pairs of draws each coordinate is absent from four.
    assert record.is_random and record.missing_probability(2) == 1.0
    assert record.missing_probability(6) == pytest.approx(3 * (2 / 3) ** 6)
    clients = run(Federated((f, f)), 0.01 * np.eye(3), [sketch, BernQ(0.5, 3)], iterations=2, seeds=3)
    assert clients.missing_probability(20) == pytest.approx(3 * (2 / 3) ** 20 + 0.5**20)
    same = run(f, 0.01 * np.eye(3), RandK(3, 3), iterations=2, seeds=3)
    assert not same.is_random and same.missing_probability(1) == 0.0
