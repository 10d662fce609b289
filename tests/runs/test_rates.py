"""The theorems on runs and step by step: exact enumeration, verdicts that can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shared.one_step import distributed_one_step
from shared.small_data import small_data
from stepsize_opt import BernQ, Direction, Identity, IndependentSampling, LayerWise, RandK, optimal_stepsize
from stepsize_opt.problems import Federated, FederatedInfimum, Infimum, Quadratic, find_federated_infimum, find_infimum
from stepsize_validation import (
    RateCheck,
    Run,
    check_distributed_rate,
    check_rate,
    distributed_lambda,
    run,
)
from stepsize_validation.data import federated_logistic, layered_logistic, random_quadratic, split

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
            weights, diagonals = sketch.support()
            w, V = np.linalg.eigh(Li)
            root = (V * np.sqrt(w)) @ V.T
            M = np.zeros((3, 3))
            for weight, s in zip(weights, diagonals, strict=True):
                C = np.diag(s) - np.eye(3)
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
    with pytest.raises(ValueError, match="clients=4, but the run has 5"):
        check_distributed_rate(record, 4, lam, infimum)


@pytest.mark.slow
def test_descent_estimates_the_squared_norms_without_bias_and_with_less_variance() -> None:
    f, sketch = quadratic(4), BernQ(0.3, (2, 2))
    D = optimal_stepsize(f.smoothness(), sketch).D
    record = run(f, D, sketch, iterations=60, seeds=4000)
    plain, descent = record.squared_norms.mean(axis=1), record.descent.mean(axis=1)
    error = np.hypot(plain.std(), descent.std()) / np.sqrt(4000)
    assert abs(plain.mean() - descent.mean()) < 4.0 * error
    assert descent.std() < 0.2 * plain.std()


def test_the_verdict_follows_from_the_confidence_bounds() -> None:
    def check(lower: float, upper: float, bound: float, loose: float, plain: float = 0.0) -> str:
        return RateCheck("", 0.5 * (lower + upper), 0.0, lower, upper, bound, loose, 10, 5, 0.999, plain).verdict

    assert check(0.8, 1.0, 1.0, 2.0) == "holds"
    assert check(0.8, 1.1, 1.0, 2.0) == "undecided"
    assert check(1.5, 1.8, 1.0, 2.0) == "undecided"  # f^inf may lie as low as its proved bound
    assert check(2.5, 2.8, 1.0, 2.0) == check(2.1, 2.1, 1.0, 2.0) == "violated"
    assert check(0.8, 1.0, 1.0, 2.0, plain=2.1) == "violated"


def test_nan_and_infinite_numbers_are_refused() -> None:
    nan, inf = float("nan"), float("inf")
    for place in range(1, 7):
        numbers = ["Theorem 1", 0.9, 0.0, 0.8, 1.0, 1.0, 2.0]
        numbers[place] = nan
        with pytest.raises(ValueError, match="is NaN"):
            RateCheck(*numbers, 10, 5, 0.999)  # type: ignore[arg-type]
    for proved, found in ((0.0, nan), (nan, 0.0), (0.0, inf), (1.0, 0.5), (-inf, -inf)):
        with pytest.raises(ValueError, match="found must be finite"):
            Infimum(proved, found)
    f = quadratic(3)
    record = run(f, 0.01 * np.eye(3), RandK(3, 1), iterations=10, seeds=3)
    for name, message in (("values", "found must be finite"), ("descent", "observed is NaN")):
        with pytest.raises(ValueError, match=message):
            check_rate(replace(record, **{name: np.full_like(getattr(record, name), nan)}))
    for lam in (nan, inf, -1.0):
        with pytest.raises(ValueError, match="lambda_D must be"):
            check_distributed_rate(record, 2, lam, BOTH_ZERO)
    broken = np.diag([1.0, 2.0, nan])
    for name, change in (("D", (broken, f.H, [f.H])), ("L", (f.H, broken, [f.H])), ("client_L", (f.H, f.H, [broken]))):
        with pytest.raises(ValueError, match=f"{name}.* must be finite"):
            distributed_lambda(*change, RandK(3, 1), "det-CGD1")


def test_wrong_arguments_are_named() -> None:
    record = run(quadratic(3), 1e-6 * np.eye(3), RandK(3, 1), iterations=10, seeds=1)
    for options, words in (
        ({"level": 1.0}, "level must be"),
        ({"goal": "descend"}, "goal must be"),
        ({"goal": "convex"}, "goal must be"),
        ({"goal": "linear"}, "needs rate"),
        ({"rate": -1.0}, "rate must be"),
    ):
        with pytest.raises(ValueError, match=words):
            check_rate(record, ZERO, **options)
    with pytest.raises(TypeError, match="infimum must be"):
        check_rate(record, 0.3)  # type: ignore[arg-type]


def test_a_bound_beyond_the_range_of_floats_is_infinite() -> None:
    f = Federated((quadratic(3), quadratic(3, 1)))
    record = run(f, 0.01 * np.eye(3), RandK(3, 1), iterations=30, seeds=3)
    assert check_distributed_rate(record, 2, 1e12, BOTH_ZERO).bound == np.inf
    at_once = FederatedInfimum(Infimum(0.0, record.start_value), ZERO)
    record = replace(record, values=np.full_like(record.values, record.start_value))
    assert np.isfinite(check_distributed_rate(record, 2, 1e12, at_once).bound)


def test_a_single_seed_decides_nothing() -> None:
    record = run(quadratic(3), 1e-6 * np.eye(3), RandK(3, 1), iterations=10, seeds=1)
    assert check_rate(record).verdict == "undecided"


def test_bounds_decrease_in_the_infimum() -> None:
    """The order that makes both verdicts safe: a larger f^inf gives a smaller right side."""
    f = Federated((quadratic(3), quadratic(3, 1)))
    record = run(f, 0.01 * np.eye(3), RandK(3, 1), iterations=30, seeds=3)
    bounds = [
        check_distributed_rate(record, 2, 0.3, FederatedInfimum(Infimum(0.0, whole), Infimum(0.0, parts))).bound
        for whole, parts in ((0.0, 0.0), (0.2, 0.0), (0.2, 0.1))
    ]
    assert bounds[0] > bounds[1] > bounds[2]


@pytest.mark.slow
def test_few_seeds_do_not_call_a_true_bound_violated() -> None:
    """Sums that are skewed to the left: the bound is nearly an equality, and nearly all seeds lie above the mean."""
    f = random_quadratic([1.0, 2.0, 4.0], np.random.default_rng(0))
    sketch = IndependentSampling([0.05, 0.9, 0.9])
    result = optimal_stepsize(f.smoothness(), sketch, algorithm="det-CGD2")
    for seed in range(30):
        record = run(f, result.D, sketch, algorithm="det-CGD2", iterations=400, seed=seed)
        assert check_rate(record, find_infimum(f), rate=result.rate).verdict != "violated"


def test_rounding_does_not_make_a_true_bound_violated() -> None:
    f = Quadratic(np.diag([10.0]), np.array([0.3]))
    D = np.array([[np.nextafter(0.1, 0.0)]])
    record = run(f, D, Identity(1), iterations=1, seeds=3)
    assert check_rate(record, find_infimum(f)).verdict != "violated"


def test_a_certified_stepsize_runs_whatever_its_condition() -> None:
    """D is symmetric, but D @ L @ D is so only up to the rounding of its largest terms."""
    f = random_quadratic([1e-3, 1.0, 1e6], np.random.default_rng(1))
    for sketch in (Identity(3), RandK(3, 2)):
        D = optimal_stepsize(f.smoothness(), sketch).D
        assert run(f, D, sketch, iterations=2, seeds=3).iterations == 2


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


def verdicts(record: Run, seeds: int, **options: Any) -> list[str]:
    """Split the seeds of one record into independent checks of ``seeds`` each."""
    out = []
    for first in range(0, record.seeds, seeds):
        part = {
            name: value[first : first + seeds]
            for name, value in vars(record).items()
            if isinstance(value, np.ndarray) and len(value) == record.seeds
        }
        out.append(check_rate(replace(record, **part), ZERO, **options).verdict)
    return out


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
    f, sketch = quadratic(4), BernQ(0.5, 4)
    record = run(f, optimal_stepsize(f.smoothness(), sketch).D, sketch, iterations=50, seeds=80)
    assert set(verdicts(record, 8, rate=0.9 * record.rate)) == {"holds"}
    assert set(verdicts(record, 8, rate=1.3 * record.rate)) == {"violated"}


def test_a_theorem_is_named_where_its_condition_holds() -> None:
    f, sketch = quadratic(3), RandK(3, 1)
    D = optimal_stepsize(f.smoothness(), sketch, goal="descent").D
    record = run(f, D, sketch, iterations=20, seeds=3)
    assert record.metric.condition > 1.0
    assert check_rate(record).statement == "bound of Theorem 1 (D outside its condition)"
    within = run(f, optimal_stepsize(f.smoothness(), sketch).D, sketch, iterations=20, seeds=3)
    assert check_rate(within).statement == "Theorem 1"
    clients = Federated((f, quadratic(3, 1)))
    inverse = np.linalg.inv(clients.smoothness())
    for scale, name in ((0.5, "Theorem 3"), (1.5, "bound of Theorem 3 (D outside its condition)")):
        record = run(clients, scale * 0.5 * (inverse + inverse.T), sketch, iterations=2, seeds=3)
        assert check_distributed_rate(record, 2, 0.0, BOTH_ZERO).statement == name


def test_a_value_that_the_run_reached_bounds_the_infimum() -> None:
    f = Quadratic(np.eye(2), np.ones(2))
    record = run(f, 0.5 * np.eye(2), Identity(2), iterations=5, seeds=3)
    check = check_rate(record, Infimum(0.0, 0.9))
    assert check.bound == pytest.approx(check_rate(record, Infimum(0.0, float(record.values.min()))).bound)
