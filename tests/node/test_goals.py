"""What belongs to single goals: iterations, M, memory."""

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
    Gaussian,
    Identity,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS, LinearGoal, PaperGoal
from stepsize_opt.proofs import Descent
from stepsize_opt.proofs.certificate import Certificate
from stepsize_validation.data import load_dataset, random_smoothness, with_spectrum
from stepsize_validation.properties.exact import (
    combine,
    descent_metric,
    is_positive_semidefinite,
    log_det,
    product,
    rational,
)

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


CONVEX: dict[str, Any] = {"goal": "convex", "momentum": True}


@pytest.mark.parametrize(
    ("asked", "sketch", "power", "condition"),
    [
        ({"goal": "euclidean"}, Identity(4), 8.0, 2.0),
        (CONVEX, Identity(4), 8.0, 2.0),
        (CONVEX, Gaussian(4, 1), 12.0, 1e6),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 4])
def test_units_that_lie_far_apart_leave_a_rate(
    seed: int, asked: dict[str, Any], sketch: Sketch, power: float, condition: float
) -> None:
    """A curvature beyond the largest float is infinite; warnings are errors here."""
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-power, power, 4)
    graded = random_smoothness(rng, 4, condition) * np.outer(units, units)
    result = optimal_stepsize(0.5 * (graded + graded.T), sketch, **asked)
    assert result.rate > 0.0 and (power > 8.0 or result.status == "optimal")


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("excess", [1e-8, 9e-7, 1.0])
def test_an_M_above_L_is_refused(excess: float, momentum: bool) -> None:
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": (1.0 + excess) * L, "momentum": momentum}
    for call in (
        lambda: optimal_stepsize(L, SKETCH, **asked),
        lambda: certify(0.1 * np.linalg.inv(L), L, SKETCH, **asked),
        lambda: compression_limit(L, 2, **asked),
    ):
        with pytest.raises(ValueError, match="M exceeds L"):
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


@pytest.mark.parametrize("goal", ["descent", "euclidean"])
def test_a_stopped_solve_is_proved_in_one_precision(goal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second proof in twice the precision closes gaps of rounding, which are not those of a stopped solve."""
    used = []
    proved = Descent
    monkeypatch.setattr("stepsize_opt.proofs.repairs.Descent", lambda *given: used.append(given) or proved(*given))
    result = optimal_stepsize(L, SKETCH, max_iters=1, tol=1e-12, **arguments_of(goal, None))
    assert result.status == "user_limit" and result.gap > 1e-6 and len(used) == 1


@pytest.mark.parametrize("structure", ["diagonal", "scalar"])
@pytest.mark.parametrize("goal", ["euclidean", "linear"])
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


@given(st.lists(st.tuples(st.floats(-700.0, 700.0, allow_subnormal=False), st.integers(1, 9)), min_size=1, max_size=4))
def test_the_weakest_part_is_rounded_to_the_proved_side(ends: list[tuple[float, int]]) -> None:
    parts = [Certificate(True, 0.0, level * d, level * d, d) for level, d in ends]
    whole = Certificate.weakest(parts)
    least = min(Fraction(part.log_det) / part.d for part in parts) * whole.d
    assert whole.log_det <= least <= whole.upper_bound
    assert float(abs(whole.upper_bound - least)) <= 1e-14 * abs(float(least)) + 1e-320
    assert len(parts) > 1 or whole is parts[0]


def bound(answer: Any, K: int) -> Fraction:
    """The bound of the goal after K rounds, for f(x⁰) − f* = 2, or ‖x⁰ − x*‖ = 2."""
    rate = Fraction(answer.descent_rate if answer.goal in ("paper", "descent") else answer.rate)
    if answer.goal == "convex":
        return Fraction(8) / (rate**2 * K * (K + 3)) if K else Fraction(10**9)
    if answer.goal == "linear":
        return (4 if answer.momentum else 2) * (1 - rate) ** K
    return Fraction(4) / (rate * K) if K else Fraction(10**9)


class TestIterations:
    @pytest.mark.parametrize(
        ("solve", "goal", "momentum"),
        [
            *((optimal_stepsize, goal, False) for goal in GOALS),
            (optimal_method, "linear", False),
            *((solve, goal, True) for solve in (optimal_stepsize, optimal_method) for goal in MOMENTUM_GOALS),
        ],
    )
    def test_K_is_the_smallest_that_the_rate_proves(self, solve: Any, goal: str, momentum: bool) -> None:
        budget: Any = SKETCH if solve is optimal_stepsize else 2
        answer = solve(L, budget, **arguments_of(goal, 0.5 * L), momentum=momentum)
        accuracy = "accuracy" if goal in ("linear", "convex") else "epsilon2"
        start = "initial_distance" if goal == "convex" else "initial_gap"
        asked = {accuracy: 1e-3, start: 2.0}
        K = answer.iterations(**asked)
        assert bound(answer, K) <= Fraction(1e-3) < bound(answer, K - 1)
        if solve is optimal_stepsize:
            assert answer.communication(**asked) == 2.0 * K
        if goal == "convex":
            assert answer.iterations(accuracy=1e-3, initial_distance=2.0 * np.eye(6)[0]) == K
            assert answer.iterations(accuracy=1e6, initial_distance=1e-3) == 1

    def test_large_numbers_are_exact(self) -> None:
        assert PaperGoal.rounds(1.0, 1e-300, 1e300) == math.ceil(2 * Fraction(1e300) / Fraction(1e-300))
        assert PaperGoal.rounds(0.5, 1.0, 3.0) == 12
        with pytest.raises(OverflowError, match="exceeds float64"):
            optimal_stepsize(L, SKETCH).communication(1e-300, 1e300)

    def test_the_smallest_K_of_a_linear_rate(self) -> None:
        assert LinearGoal.rounds(0.5, 2.0**-20, 1.0) in (20, 21)  # a tie
        assert LinearGoal.rounds(0.5, 2.0**-20 * (1 - 2**-53), 1.0) == 21
        assert LinearGoal.rounds(1.0, 1e-9, 1.0) == 1
        assert LinearGoal.rounds(0.1, 1.0, 1.0) == 0
        assert LinearGoal.rounds(1e-12, 1e-3, 1.0) == 6907755278979

    @pytest.mark.parametrize("t", [2.0**-150, 2.0**-250, 5e-324])
    def test_K_of_a_tiny_t(self, t: float) -> None:
        """1/t > −1/log(1 − t) > 1/t − 1, so with Δ⁰/accuracy = 2 K is next to log 2/t."""
        with localcontext(Context(prec=700)):
            log2 = Fraction(Decimal(2).ln())
        below = log2 * (1 / Fraction(t) - 1)
        assert below < LinearGoal.rounds(t, 0.5, 1.0) < below * (1 + Fraction(1e-14)) + 3

    def test_no_K_without_a_rate(self) -> None:
        result = optimal_stepsize(L, SKETCH, **GOALS["descent"])
        nothing = replace(result.certificate, feasible=False, log_det=-math.inf)
        poor = replace(result, certificate=nothing, descent_log_det=-math.inf, status="optimal_inaccurate")
        with pytest.raises(ValueError, match="rate above 0"):
            poor.iterations(1e-3, 2.0)
