"""What belongs to single goals: iterations, M, the bound for convex f step by step, memory."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    Identity,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    certify,
    compression_limit,
    optimal_stepsize,
)
from stepsize_opt.goals import iterations_needed, linear_iterations
from stepsize_opt.node import solve as node_solve
from stepsize_opt.problems import LeastSquares, LogisticRegression, Objective
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import load_dataset, random_smoothness, with_spectrum
from stepsize_validation.properties.exact import (
    combine,
    descent_metric,
    inverse,
    is_positive_semidefinite,
    log_det,
    product,
    rational,
)
from stepsize_validation.properties.strategies import Matrix

L = random_smoothness(np.random.default_rng(3), 6, 1e3)
SKETCH = RandK(6, 2)
A = np.asarray(load_dataset("breast_cancer").A)[:, :8]
B = np.asarray(load_dataset("breast_cancer").b)


def test_components_and_coordinates_alone_add_up_to_the_descent_rate() -> None:
    whole = np.zeros((9, 9))
    whole[:4, :4], whole[4:6, 4:6] = L[:4, :4], L[4:, 4:]
    whole[6:, 6:] = np.diag([1.0, 1e-30, 1e30])
    result = optimal_stepsize(whole, RandK(9, 3))
    assert len(result.blocks) == 5
    exact = log_det(descent_metric(rational(result.D), rational(whole), RandK(9, 3)))
    assert result.descent_log_det <= exact
    assert result.descent_log_det == pytest.approx(float(exact), abs=1e-8)


def test_M_connects_what_L_does_not() -> None:
    diagonal, M = np.diag([1.0, 2.0, 3.0]), 0.5 * np.eye(3)
    M[0, 1] = M[1, 0] = 0.2
    result = optimal_stepsize(diagonal, RandK(3, 1), **arguments_of("linear", M))
    assert sorted(block.indices.size for block in result.blocks) == [1, 2]
    H = descent_metric(rational(result.D), rational(diagonal), RandK(3, 1))
    exact, t = rational(M), Fraction(result.rate)
    assert is_positive_semidefinite(combine((1, product(product(exact, H), exact)), (-t, exact)))


@pytest.mark.parametrize("asked", [{"goal": "euclidean"}, {"goal": "convex", "momentum": True}])
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_units_that_lie_far_apart_leave_a_rate(seed: int, asked: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-8.0, 8.0, 4)
    graded = random_smoothness(rng, 4, 2.0) * np.outer(units, units)
    result = optimal_stepsize(0.5 * (graded + graded.T), Identity(4), **asked)
    assert result.status == "optimal" and result.rate > 0.0


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("excess", [1e-8, 9e-7, 1.0])
def test_an_M_above_L_is_refused(excess: float, momentum: bool) -> None:
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": (1.0 + excess) * L, "momentum": momentum}
    for call in (
        lambda: optimal_stepsize(L, SKETCH, **asked),
        lambda: certify(0.1 * np.linalg.inv(L), L, SKETCH, **asked),
        lambda: compression_limit(L, 2, **asked),
    ):
        with pytest.raises(ValueError, match="M exceeds L by a factor of"):
            call()
    with pytest.raises(ValueError, match="smallest diagonal entry"):
        low_rank = LowRankPlusDiagonal(np.ones((6, 1)), 1.0)
        compression_limit(low_rank, 2, goal="linear", strong_convexity=1.0 + excess, momentum=momentum)


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_an_M_that_is_L_up_to_rounding_has_a_t_of_at_most_one(seed: int, momentum: bool) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((3, 6))  # fewer than columns: the ridge is the smallest eigenvalue
    ridge = 1e-3
    regression = features.T @ features / 12.0 + ridge * np.eye(6)
    given = random_smoothness(rng, 6, 1e4)
    rounded = (np.eye(6), 1.0 + 1e-14)
    for A, M in ((given, given), (given, float(np.linalg.eigvalsh(given)[0])), (regression, ridge), rounded):
        asked: dict[str, Any] = {"goal": "linear", "strong_convexity": M, "momentum": momentum}
        result = optimal_stepsize(A, Identity(6), **asked)
        assert result.status == "optimal" and result.rate <= 1.0
        assert certify(result.D, A, Identity(6), **asked).rate <= 1.0
        assert compression_limit(A, 6, **asked).value <= 1.0


def test_the_message_names_a_guarantee_that_float64_does_not_prove() -> None:
    nearly_singular = with_spectrum(np.random.default_rng(0), np.array([1e-14, 1.0, 1.0, 1.0, 1.0]))
    nearly_singular = 0.5 * (nearly_singular + nearly_singular.T)
    asked = arguments_of("linear", 0.5 * nearly_singular)
    result = optimal_stepsize(nearly_singular, RandK(5, 1), algorithm="det-CGD2", **asked)
    assert result.rate == 0.0 and not result.certificate.feasible and result.descent_rate > 0.0
    assert result.status == "optimal_inaccurate" and "H ⪰ tM⁻¹ with t > 0 is not proved" in result.message
    assert "H ⪰ tM⁻¹ with t > 0" in repr(result)


@pytest.mark.parametrize("goal", GOALS)
def test_the_condition_holds_for_the_paper_and_a_limit_is_no_error(goal: str) -> None:
    result = optimal_stepsize(L, SKETCH, **arguments_of(goal, L))
    assert goal == "convex" or result.satisfies_condition == (goal == "paper")
    stopped = optimal_stepsize(L, SKETCH, max_iters=1, tol=1e-12, **arguments_of(goal, L))
    assert stopped.status == "user_limit" and stopped.certificate.feasible


@pytest.mark.parametrize("goal", ["descent", "euclidean"])
def test_a_stopped_solve_is_proved_in_one_precision(goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second proof in twice the precision closes gaps of rounding, which are not those of a stopped solve."""
    used = []
    proved = node_solve.Descent
    monkeypatch.setattr(node_solve, "Descent", lambda *given: used.append(given) or proved(*given))
    result = optimal_stepsize(L, SKETCH, max_iters=1, tol=1e-12, **arguments_of(goal, None))
    assert result.status == "user_limit" and result.gap > 1e-6 and len(used) == 1


def test_commuting_methods_have_the_same_convex_optimum() -> None:
    asked: dict[str, Any] = {"structure": "diagonal", **GOALS["convex"]}
    first, second = (optimal_stepsize(L, SKETCH, algorithm=name, **asked) for name in ("det-CGD1", "det-CGD2"))
    np.testing.assert_allclose(first.D, second.D, rtol=1e-12)


@pytest.mark.parametrize("d", [16, 17, 18, 19])
def test_the_path_of_convex_does_not_go_round_in_a_circle(d: int) -> None:
    smoothness = 0.5 * np.eye(d) + 0.5
    sketch = IndependentSampling(np.linspace(0.1, 1.0, d))
    assert optimal_stepsize(smoothness, sketch, **GOALS["convex"]).status == "optimal"


@pytest.mark.parametrize(
    ("structure", "goal"),
    [
        ("full", "convex"),
        ("diagonal", "euclidean"),
        ("diagonal", "linear"),
        ("scalar", "euclidean"),
        ("scalar", "linear"),
    ],
)
def test_no_default_forms_matrices_of_all_pairs_of_entries(structure: str, goal: str) -> None:
    """d = 123: a matrix with a row and a column for every entry of D would take 1.8 GB, whatever the tolerance."""
    d = 123
    rows = np.random.default_rng(0).standard_normal((2 * d, d)) * np.linspace(0.3, 3.0, d)
    smoothness = rows.T @ rows / (2 * d) + 0.01 * np.eye(d)
    asked: dict[str, Any] = {"structure": structure, "tol": 1e-2, **arguments_of(goal, 0.5 * smoothness)}
    tracemalloc.start()
    try:
        result = optimal_stepsize(smoothness, RandK(d, 30), **asked)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.status == "optimal" and result.solver_stats.solver_name == "native"
    assert peak < 8 * d**4 / 16


@given(st.lists(st.tuples(st.floats(-700.0, 700.0), st.integers(1, 9)), min_size=1, max_size=4))
def test_the_weakest_part_is_rounded_to_the_proved_side(ends: list[tuple[float, int]]) -> None:
    parts = [Certificate(True, 0.0, level * d, level * d, d) for level, d in ends]
    whole = Certificate.weakest(parts)
    least = min(Fraction(part.log_det) / part.d for part in parts) * whole.d
    assert whole.log_det <= least <= whole.upper_bound
    assert float(abs(whole.upper_bound - least)) <= 1e-14 * abs(float(least))
    assert len(parts) > 1 or whole is parts[0]


class TestIterations:
    @pytest.mark.parametrize("goal", ["paper", "descent", "euclidean"])
    def test_of_the_norm_of_the_gradient(self, goal: str) -> None:
        result = optimal_stepsize(L, SKETCH, **GOALS[goal])
        rate = result.rate if goal == "euclidean" else result.descent_rate
        K = result.iterations(1e-3, 2.0)
        assert K == math.ceil(4 / (Fraction(rate) * Fraction(1e-3)))
        assert result.communication(1e-3, 2.0) == 2.0 * K

    def test_of_f(self) -> None:
        result = optimal_stepsize(L, SKETCH, **arguments_of("linear", L))
        K, kept = result.iterations(accuracy=1e-3, initial_gap=2.0), 1 - Fraction(result.rate)
        assert kept**K * 2 <= Fraction(1e-3) < kept ** (K - 1) * 2
        assert result.communication(accuracy=1e-3, initial_gap=2.0) == 2.0 * K

    def test_large_numbers_are_exact(self) -> None:
        assert iterations_needed(1.0, 1e-300, 1e300) == math.ceil(2 * Fraction(1e300) / Fraction(1e-300))
        assert iterations_needed(0.5, 1.0, 3.0) == 12
        with pytest.raises(OverflowError, match="exceeds float64"):
            optimal_stepsize(L, SKETCH).communication(1e-300, 1e300)

    def test_the_smallest_K_of_a_linear_rate(self) -> None:
        assert linear_iterations(0.5, 2.0**-20, 1.0) == 20
        assert linear_iterations(0.5, 2.0**-20 * (1 - 2**-53), 1.0) == 21
        assert linear_iterations(1.0, 1e-9, 1.0) == 1
        assert linear_iterations(0.1, 1.0, 1.0) == 0
        assert linear_iterations(1e-12, 1e-3, 1.0) == 6907755278979

    @pytest.mark.parametrize("t", [2.0**-150, 2.0**-250, 5e-324])
    def test_K_of_a_tiny_t(self, t: float) -> None:
        """1/t > −1/log(1 − t) > 1/t − 1, so with Δ⁰/accuracy = 2 K is next to log 2/t."""
        with localcontext(Context(prec=700)):
            log2 = Fraction(Decimal(2).ln())
        below = log2 * (1 / Fraction(t) - 1)
        assert below < linear_iterations(t, 0.5, 1.0) < below + 3

    def test_no_K_without_a_rate(self) -> None:
        result = optimal_stepsize(L, SKETCH, **GOALS["descent"])
        nothing = replace(result.certificate, feasible=False, log_det=-math.inf)
        poor = replace(result, certificate=nothing, descent_log_det=-math.inf, status="optimal_inaccurate")
        with pytest.raises(ValueError, match="no rate above 0"):
            poor.iterations(1e-3, 2.0)


def squared_distance(result: StepsizeResult, v: Any) -> Fraction:
    """‖v‖² in the norm of D⁻¹, exactly."""
    inverted, exact = inverse(rational(np.array(result.D))), [Fraction(float(x)) for x in v]
    return sum((exact[i] * inverted[i][j] * exact[j] for i in range(len(v)) for j in range(len(v))), Fraction(0))


@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize(
    ("unit", "size", "accuracy"), [(1.0, 1.0, 1e-3), (1e150, 1e-165, 1e-185), (1e-150, 1e165, 1e175)]
)
def test_iterations_of_convex_are_those_of_the_exact_norm(
    structure: Any, unit: float, size: float, accuracy: float
) -> None:
    """Squares of x⁰ − x* that underflow gave K = 1, those that overflow an error."""
    result = optimal_stepsize(unit * L, SKETCH, structure=structure, **GOALS["convex"])
    v = size * np.array([1.0, 0.0, -0.5, 2.0, 0.0, 3.0])
    needed = squared_distance(result, v) / (2 * Fraction(accuracy))
    K = result.iterations(accuracy=accuracy, initial_distance=v)
    assert 1000 < needed <= K <= needed * Fraction(1 + 1e-9) + 1
    assert result.iterations(accuracy=accuracy, initial_distance=size * float(np.linalg.norm(v / size))) >= K
    assert result.communication(accuracy=accuracy, initial_distance=v) == 2.0 * K


def minimiser(objective: Objective) -> Matrix:
    """x* by steps with L⁻¹, until the gradient is zero to rounding."""
    x, inverted = np.zeros(objective.d), np.linalg.inv(objective.smoothness())
    for _ in range(5000):
        x = x - inverted @ objective.gradient(x[None])[0]
    assert np.abs(objective.gradient(x[None])).max() < 1e-9
    return np.asarray(x)


@pytest.mark.parametrize(
    "objective", [LogisticRegression(A, B, 1e-3, "ridge"), LeastSquares(A, B)], ids=["logistic", "squares"]
)
def test_the_bound_for_convex_f_holds_step_by_step_and_in_runs(objective: Objective) -> None:
    """Each step by enumeration of the sketch, then the mean of f(xᵏ) − f* over K steps of 300 runs."""
    d, sketch, rng = objective.d, RandK(objective.d, 2), np.random.default_rng(5)
    r = optimal_stepsize(objective.smoothness(), sketch, **GOALS["convex"])
    start = 3.0 * rng.standard_normal(d)
    solution = minimiser(objective)
    least = float(objective.value(solution[None])[0])
    weights, diagonals = sketch.support()
    outcomes = diagonals[:, None, :] * np.eye(d)

    def distance(X: Matrix) -> Matrix:
        return np.einsum("...i,...i->...", X - solution, np.linalg.solve(r.D, (X - solution)[..., None])[..., 0])

    X = solution + rng.standard_normal((50, d)) * rng.choice([0.1, 1.0, 10.0], (50, 1))
    after = X - np.einsum("rij,sj->rsi", outcomes, objective.gradient(X)) @ r.D
    excess = weights @ distance(after) - distance(X) + 2.0 * (objective.value(X) - least)
    # The gradient at the minimiser is zero to 1e-9, and the distances are computed to rounding.
    assert np.all(excess <= 1e-7 * (1.0 + distance(X)))

    X, sums = np.tile(start, (300, 1)), np.zeros(300)
    first = float(distance(start))
    for k in range(1, 201):
        sums += objective.value(X) - least
        if k in (1, 10, 50, 200):
            error = 4.0 * float(np.std(sums / k)) / math.sqrt(300)
            assert float(np.mean(sums / k)) <= first / (2 * k) + error
        chosen = outcomes[rng.choice(len(weights), 300, p=weights)]
        X = X - np.einsum("sij,sj->si", chosen, objective.gradient(X)) @ r.D
    K = r.iterations(accuracy=float(np.mean(sums / 200)), initial_distance=start - solution)
    assert K >= 200 * (1 - 1e-9)
