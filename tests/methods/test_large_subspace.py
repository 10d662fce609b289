"""The subspace method of a LowRankPlusDiagonal: law and rate of the dense one, directions that are applied."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import LowRankPlusDiagonal, compression_limit, optimal_method
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.results import SubspaceMethod
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    inverse,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
    transpose,
)


def large(d: int, r: int, spread: float = 1.0) -> LowRankPlusDiagonal:
    """Columns and diagonal of sizes from 10^−spread to 1."""
    rng = np.random.default_rng(d)
    U = rng.standard_normal((d, r)) * 10.0 ** rng.uniform(-spread, 0.0, r)
    return LowRankPlusDiagonal(U, 10.0 ** rng.uniform(-spread, 0.0, d))


def diagonal(x: np.ndarray) -> Rational:
    return rational(np.diag(x))


def exact_directions(method: SubspaceMethod) -> Rational:
    """A = c Diag(t)(I + BZBᵀ), B = [Diag(t)U  E], for the floats."""
    A, d = method.directions, method.d
    t = diagonal(A.t)
    B = [[*row, *first] for row, first in zip(product(t, rational(A.U)), rational(np.eye(d)[:, : A.e]), strict=True)]
    inner = combine((1, rational(np.eye(d))), (1, product(B, product(rational(A.Z), transpose(B)))))
    return product(rational(A.c * np.eye(d)), product(t, inner))


def exact_stepsize(method: SubspaceMethod) -> Rational:
    """D = P − PU(CCᵀ)⁻¹UᵀP for the floats, or Diag(x)."""
    if method.goal != "descent":
        return diagonal(method.D.diagonal())
    P, C = diagonal(method.D.p), rational(method.D.C)
    PU = product(P, rational(method.D.U))
    middle = inverse(product(C, transpose(C)))
    return combine((1, P), (-1, product(PU, product(middle, transpose(PU)))))


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 3), st.floats(0.0, 4.0), st.floats(0.2, 1.0), st.sampled_from(METRIC_GOALS))
def test_what_is_proved_holds_in_exact_arithmetic(d: int, r: int, spread: float, share: float, goal: str) -> None:
    L = large(d, r, spread)
    if goal != "descent":
        L = LowRankPlusDiagonal(L.U, float(L.shift[0]))
    mu = 0.5 * float(L.shift[0]) if goal == "linear" else None
    method = optimal_method(L, share * d, goal=goal, strong_convexity=mu)
    exact = combine((1, product(rational(L.U), transpose(rational(L.U)))), (1, diagonal(L.shift)))
    A, D, identity = exact_directions(method), exact_stepsize(method), rational(np.eye(d))
    gram = product(transpose(A), product(exact, A))
    assert is_positive_semidefinite(combine((1, identity), (-1, gram)))
    assert is_positive_semidefinite(combine((-1, rational((1.0 - method.defect) * np.eye(d))), (1, gram)))
    mean = product(A, product(diagonal(method.sketch.p), transpose(A)))
    assert is_positive_semidefinite(combine((1, mean), (-1, D)))
    floor = Fraction(mu or 1.0)
    assert Decimal(method.certificate.log_det) <= log_det(D) + d * log(floor)
    if goal == "descent":
        limit = -log_det(exact) + d * log(Fraction(share * d) / d)
        assert limit <= Decimal(method.certificate.upper_bound)
    else:
        dense = compression_limit(L.todense(), share * d, goal=goal, strong_convexity=mu)
        assert method.certificate.upper_bound >= dense.certificate.log_det - 1e-12  # that of a rounded L
    assert method.efficiency > 1.0 - 1e-7


@pytest.mark.parametrize("goal", METRIC_GOALS)
@pytest.mark.parametrize(("d", "r", "k"), [(1, 1, 1), (7, 1, 2), (12, 5, 3.5), (9, 9, 9), (4, 6, 2), (20, 2, 19)])
def test_the_round_and_the_rate_are_those_of_the_dense_method(d: int, r: int, k: float, goal: str) -> None:
    L = LowRankPlusDiagonal(large(d, r).U, 0.3)
    mu = 0.2 if goal == "linear" else None
    method = optimal_method(L, k, goal=goal, strong_convexity=mu)
    everything = np.arange(d)
    A = method.decode(np.eye(d), everything).T
    np.testing.assert_allclose(A.T @ L.todense() @ A, np.eye(d), atol=1e-10)
    np.testing.assert_allclose(method.encode(np.eye(d), everything), A, atol=1e-12)
    np.testing.assert_allclose(method.directions @ np.eye(d), A, atol=1e-12)
    np.testing.assert_allclose(method.directions.T @ np.eye(d), A.T, atol=1e-12)
    dense = optimal_method(L.todense(), k, goal=goal, strong_convexity=mu)
    assert method.rate == pytest.approx(dense.rate, rel=1e-8)
    np.testing.assert_allclose(np.sort(method.probabilities), np.sort(dense.probabilities), atol=1e-8)
    if goal != "descent":
        mean = (A * method.probabilities) @ A.T
        assert np.linalg.eigvalsh(mean)[0] * (mu or 1.0) == pytest.approx(method.rate, rel=1e-8)
    draw = method.draw(np.random.default_rng(0))
    g = np.linspace(-1.0, 1.0, 2 * d).reshape(2, d)
    np.testing.assert_allclose(method.encode(g, draw), g @ A[:, draw], atol=1e-11)
    np.testing.assert_allclose(method.decode(g[:, draw], draw), g[:, draw] @ A[:, draw].T, atol=1e-11)


def test_a_round_lowers_a_quadratic_by_what_the_metric_says() -> None:
    L = large(2000, 8)
    method, rng = optimal_method(L, 500), np.random.default_rng(1)
    x = method.decode(np.ones(2000), np.arange(2000))
    draw = method.draw(rng)
    moved = x - method.decode(method.encode(L @ x, draw), draw)
    # f = ½‖y‖² for x = Ay: a round deletes the coordinates of y that were drawn.
    assert moved @ (L @ moved) == pytest.approx(0.75 * (x @ (L @ x)))


def test_it_is_proved_for_condition_numbers_far_from_one() -> None:
    rng = np.random.default_rng(0)
    L = LowRankPlusDiagonal(rng.standard_normal((20_000, 16)), np.full(20_000, 1e-3))  # condition 2·10⁷
    method = optimal_method(L, 200)
    assert method.defect < 1e-5
    assert 1.0 - 1e-5 < method.efficiency <= 1.0


@pytest.mark.parametrize("goal", METRIC_GOALS)
def test_a_factor_of_zeros_leaves_a_multiple_of_the_identity(goal: str) -> None:
    mu = 0.25 if goal == "linear" else None
    method = optimal_method(LowRankPlusDiagonal(np.zeros((3, 2)), 0.5), 1.5, goal=goal, strong_convexity=mu)
    assert method.rate == pytest.approx(mu or 1.0, rel=1e-12)
    np.testing.assert_allclose(method.probabilities, 0.5)


@pytest.mark.parametrize("shape", [(100, 4), (4, 6), (1, 2)])
@pytest.mark.parametrize("own", [1e-2, 1e-4])
def test_columns_that_depend_on_others_cost_no_digits(shape: tuple[int, int], own: float) -> None:
    """The part of Z that 𝒢 does not see was ½, beside 1/γ elsewhere: its rounding was multiplied by γ."""
    U = np.random.default_rng(0).standard_normal(shape)
    if shape[0] > shape[1]:
        U[:, -1] = U[:, 0]
    assert optimal_method(LowRankPlusDiagonal(U, own), 1).efficiency >= 1.0 - 1e-5
