"""Laws of the best stepsize for every goal: known ends, monotonicity, invariances, the order of structures."""

from __future__ import annotations

from decimal import Context, Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.goals import GOALS, arguments_of
from stepsize_opt import BernQ, BlockDiagonal, Direction, Identity, RandK, Sketch, optimal_stepsize
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
