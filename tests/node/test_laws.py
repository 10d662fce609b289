"""Laws of the best stepsize for every goal: known ends, monotonicity, invariances, the order of structures."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import block_diag

from shared.goals import GOALS, arguments_of
from stepsize_opt import BernQ, BlockDiagonal, Direction, Identity, IndependentSampling, RandK, Sketch, optimal_stepsize
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.strategies import DIAGONAL, Matrix, problems, seeds, smoothness_matrices

METHODS = st.sampled_from(["det-CGD1", "det-CGD2"])
# Two certified gaps of 10⁻⁶ may lie between two rates that are equal.
APART = 2e-6
# How far DL may be from I without compression; the goals with a t do not determine D.
FROM_INVERSE = {"paper": 1e-9, "descent": 1e-6}

every_goal = pytest.mark.parametrize("goal", GOALS)


def best(goal: str, L: Matrix, sketch: Sketch, **options: Any) -> StepsizeResult:
    """The optimum of a goal, with M = L for ``linear``."""
    return optimal_stepsize(L, sketch, **arguments_of(goal, L), **options)


def structures(L: Matrix) -> list[Any]:
    """Every structure but the full one."""
    inverse, d = np.linalg.inv(L), len(L)
    directions = [np.diag(1.0 / np.diagonal(L)), 0.5 * (inverse + inverse.T)]
    return ["diagonal", "scalar", BlockDiagonal((1, d - 1) if d > 1 else (1,)), *map(Direction, directions)]


@every_goal
@settings(max_examples=15)
@given(smoothness_matrices(max_d=6, max_condition=1e4))
def test_no_compression_gives_the_inverse(goal: str, L: Matrix) -> None:
    d = len(L)
    for sketch in (Identity(d), RandK(d, d), BernQ(1.0, d)):
        result = best(goal, L, sketch)
        if goal in FROM_INVERSE:
            np.testing.assert_allclose(result.D @ L, np.eye(d), atol=FROM_INVERSE[goal])
        else:
            expected = 1.0 if goal == "linear" else 1.0 / np.linalg.eigvalsh(L)[-1]
            assert result.rate == pytest.approx(expected, rel=APART)


@every_goal
@settings(max_examples=10)
@given(smoothness_matrices(min_d=2, max_d=6, max_condition=1e4))
def test_rates_grow_with_k(goal: str, L: Matrix) -> None:
    rates = [best(goal, L, RandK(len(L), k)).rate for k in range(1, len(L) + 1)]
    assert all(a <= b * (1 + APART) for a, b in pairwise(rates))
    assert goal != "linear" or max(rates) <= 1 + 1e-12


@every_goal
@settings(max_examples=15)
@given(problems(max_d=5, kinds=DIAGONAL), seeds)
def test_units_and_signs_do_not_matter(goal: str, problem: tuple[Matrix, Sketch], seed: int) -> None:
    """D*(ΛLΛ) = Λ⁻¹D*(L)Λ⁻¹ for a diagonal sketch; with powers of two and the paper's goal bit by bit.

    In another unit of f D*(cL) = D*(L)/c; t of ``linear`` has no unit, because M has that of L.
    """
    L, sketch = problem
    rng, d = np.random.default_rng(seed), len(L)
    plain = best(goal, L, sketch)
    signs = rng.choice([-1.0, 1.0], d)
    assert best(goal, signs[:, None] * L * signs, sketch).log_det == pytest.approx(plain.log_det, abs=APART * d)
    power = int(rng.integers(-200, 201))
    unit = 1.0 if goal == "linear" else 2.0**power
    assert best(goal, 2.0**power * L, sketch).rate * unit == pytest.approx(plain.rate, rel=APART)
    if goal != "euclidean":
        scale = 4.0 ** rng.integers(-10, 11, d)
        scaled = best(goal, scale[:, None] * L * scale, sketch)
        shift = 0.0 if goal == "linear" else 2.0 * np.log(scale).sum()
        assert scaled.log_det + shift == pytest.approx(plain.log_det, abs=APART * d)
        if goal == "paper":
            np.testing.assert_array_equal(scale[:, None] * scaled.D * scale, plain.D)


@every_goal
@settings(max_examples=10)
@given(problems(max_d=4))
def test_no_structure_beats_the_full_stepsize(goal: str, problem: tuple[Matrix, Sketch]) -> None:
    L, sketch = problem
    upper = best(goal, L, sketch).certificate.upper_bound
    for structure in structures(L):
        assert best(goal, L, sketch, structure=structure).log_det <= upper


@settings(max_examples=20)
@given(problems(max_d=5), METHODS)
def test_the_descent_metric_promises_no_less_than_the_condition(problem: tuple[Matrix, Sketch], algorithm: str) -> None:
    """Of one D and of the optima, for every structure; the optima of det-CGD2 are the same."""
    L, sketch = problem
    for structure in ("full", *structures(L)):
        inside, free = (
            best(goal, L, sketch, algorithm=algorithm, structure=structure) for goal in ("paper", "descent")
        )
        assert inside.descent_log_det >= inside.log_det - 1e-12 * (1 + abs(inside.log_det))
        assert free.certificate.upper_bound >= inside.descent_log_det
        assert free.rate >= inside.rate * (1 - APART)
        if algorithm == "det-CGD2" and structure == "full":
            assert free.rate == pytest.approx(inside.rate, rel=3e-6)


@every_goal
def test_rates_are_rounded_down_from_what_is_proved(goal: str) -> None:
    """The rate is at most e^(log_det/d), the number that the certificate proves."""
    context = Context(prec=50)
    for seed in range(8):
        L = random_smoothness(np.random.default_rng(seed), 3, 10.0)
        result = optimal_stepsize(L, BernQ(0.4, 3), **arguments_of(goal, 0.1))
        proved = context.exp(context.divide(Decimal(result.log_det), Decimal(result.d)))
        assert proved * (1 - Decimal("1e-14")) <= Decimal(result.rate) <= proved


# ----------------------------------------------------------------
# when the optimum of the descent metric beats that of det-CGD2 (docs/theory.md)


def second(L: Matrix, sketch: Sketch) -> StepsizeResult:
    """The optimum of det-CGD2."""
    return optimal_stepsize(L, sketch, algorithm="det-CGD2")


@settings(max_examples=25)
@given(smoothness_matrices(min_d=2, max_d=6, max_condition=1e4))
def test_for_rand_1_the_descent_metric_is_never_worse_than_det_CGD2(L: Matrix) -> None:
    """(E[TLT])⁻¹ is diagonal and commutes with the sketch.  It is stationary only for a diagonal L."""
    d, sketch = len(L), RandK(len(L), 1)
    ratio = best("descent", L, sketch).rate / second(L, sketch).rate
    assert ratio >= 1.0 - APART
    correlations = L / np.sqrt(np.outer(np.diagonal(L), np.diagonal(L))) - np.eye(d)
    assert np.abs(correlations).max() < 0.05 or ratio > 1.0
    diagonal = np.diag(np.diagonal(L))
    assert best("descent", diagonal, sketch).rate == pytest.approx(second(diagonal, sketch).rate, rel=APART)


@pytest.mark.parametrize("d", [3, 5])
@pytest.mark.parametrize(
    ("law", "derivative"),
    [
        (lambda d, delta: IndependentSampling(np.full(d, 1.0 / (1.0 + delta))), lambda M: np.diag(np.diagonal(M))),
        (
            lambda d, delta: BernQ(np.full(3, 1.0 / (1.0 + delta)), (1, 1, d - 2)),
            lambda M: block_diag(M[:1, :1], M[1:2, 1:2], M[2:, 2:]),
        ),
    ],
    ids=["independent", "blocks"],
)
def test_weak_compression_is_decided_by_the_second_order(
    law: Callable[[int, float], Sketch], derivative: Callable[[Matrix], Matrix], d: int
) -> None:
    """*Weak compression*, 𝒫 = id + δ𝒜 with 𝒜 self-adjoint: the largest log det H, G₁, and G₂ = −log det 𝒫(L) satisfy
    G₁ − G₂ = ½δ²(‖L^{−½}𝒜(L)L^{−½}‖² − ‖L^½𝒜(L⁻¹)L^½‖²) + O(δ³).

    Proof: at δ = 0 the maximiser is L⁻¹ and the second derivative there is −2 tr(LXLX) < 0, so the maximiser is
    L⁻¹ + δX + O(δ²) by the implicit function theorem.  DLD = L⁻¹ + 2δX + δ²XLX gives
    H = L⁻¹ − δ𝒜(L⁻¹) − δ²(XLX + 2𝒜(X)) up to O(δ³) and

        log det H = −log det L − δ⟨L, 𝒜(L⁻¹)⟩ − ½δ² tr(L𝒜(L⁻¹)L𝒜(L⁻¹)) − δ²(⟨L, XLX⟩ + 2⟨𝒜(L), X⟩) + O(δ³),

    largest for X = −L⁻¹𝒜(L)L⁻¹, where the terms in X add up to δ² tr(L⁻¹𝒜(L)L⁻¹𝒜(L)).  G₂ = −log det(L + δ𝒜(L)) has the
    same terms of first order, because 𝒜 is self-adjoint, and ½δ² tr(L⁻¹𝒜(L)L⁻¹𝒜(L)) of second order.

    The difference changes its sign with L and L⁻¹: one of the two has det-CGD2 as its better method.
    """
    L = random_smoothness(np.random.default_rng(d), d, 5.0)
    inverse = np.linalg.inv(L)
    inverse = 0.5 * (inverse + inverse.T)
    found = []
    for A, B in ((L, inverse), (inverse, L)):
        first, other = np.linalg.solve(A, derivative(A)), A @ derivative(B)
        expected = 0.5 * float(np.trace(first @ first) - np.trace(other @ other))
        slopes = []
        for delta in (1e-3, 5e-4):
            free, fixed = best("descent", A, law(d, delta), tol=1e-12), second(A, law(d, delta))
            slopes.append((free.certificate.log_det - fixed.certificate.log_det) / delta**2)
        # Richardson's extrapolation takes the next order away.
        assert 2.0 * slopes[1] - slopes[0] == pytest.approx(expected, rel=0.02)
        found.append(slopes[1])
    assert found[0] * found[1] < 0.0


def test_common_positive_correlations_favour_det_CGD2() -> None:
    """rand-k with most coordinates sent: correlations against partial correlations, weighted alike here."""
    d, rho = 8, 0.6
    L = (1.0 - rho) * np.eye(d) + rho * np.ones((d, d))
    inverse = np.linalg.inv(L)
    assert best("descent", L, RandK(d, 7)).rate < 0.999 * second(L, RandK(d, 7)).rate
    assert best("descent", inverse, RandK(d, 7)).rate > 1.001 * second(inverse, RandK(d, 7)).rate
