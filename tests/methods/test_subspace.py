"""The subspace method: exact draws, exact means, proved directions, messages and files."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.goals import arguments_of
from shared.large import diagonal, exact_smoothness, exact_stepsize
from stepsize_opt import CompressedStep, LowRankPlusDiagonal, SystematicSampling, compression_limit, optimal_method
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.results import SubspaceMethod
from stepsize_opt.sketches.diagonal import rounded_to_budget
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
    transpose,
)
from stepsize_validation.properties.strategies import Matrix, probabilities, smoothness_matrices

CASES = [("descent", "eigenvectors"), ("descent", "root"), ("euclidean", "eigenvectors"), ("linear", "eigenvectors")]
every_case = pytest.mark.parametrize(("goal", "basis"), CASES)


def _asked(goal: str, L: Matrix) -> dict[str, Any]:
    return arguments_of(goal, 0.5 * L + 0.1 * np.linalg.eigvalsh(L)[0] * np.eye(len(L)))


def _outcomes(method: SubspaceMethod) -> list[tuple[Fraction, list[list[Fraction]]]]:
    """Every J with its probability, as the rational matrix G = A_J A_Jᵀ."""
    weights, diagonals = method.sketch.support()
    A = rational(method.directions)
    out = []
    for w, s in zip(weights, diagonals, strict=True):
        part = [[x if taken else Fraction(0) for x, taken in zip(row, s > 0.0, strict=True)] for row in A]
        out.append((Fraction(float(w)), product(part, transpose(part))))
    return out


@every_case
@given(L=smoothness_matrices(max_d=5, max_condition=1e4), share=st.floats(0.02, 1.0))
@settings(max_examples=12, deadline=None)
def test_mean_and_second_moment_by_enumeration(goal: str, basis: str, L: Matrix, share: float) -> None:
    """GᵀLG ⪯ G for every draw and D ⪯ E[G], in rational arithmetic for the floats returned; D is E[G] to rounding."""
    method = optimal_method(L, share * len(L), **_asked(goal, L), basis=basis)
    outcomes, exact = _outcomes(method), rational(L)
    assert sum(w for w, _ in outcomes) == 1
    for _, G in outcomes:
        assert is_positive_semidefinite(combine((1, G), (-1, product(product(G, exact), G))))
    mean = combine(*outcomes)
    assert is_positive_semidefinite(combine((1, mean), (-1, rational(method.D))))
    moment = combine(*[(w, product(product(G, exact), G)) for w, G in outcomes])
    for matrix in (mean, moment):
        floats = np.array([[float(x) for x in row] for row in matrix])
        np.testing.assert_allclose(floats, method.D, rtol=0, atol=1e-9 * np.abs(method.D).max())
    assert 0.0 <= 1.0 - method.efficiency <= 1e-7
    assert method.rate <= compression_limit(L, method.k, **_asked(goal, L)).upper


@given(p=st.lists(probabilities, min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_systematic_sampling_is_exact(p: list[float]) -> None:
    """Inclusion probabilities and sizes, in rational arithmetic; P is that of the law."""
    sketch = SystematicSampling(p)
    weights, outcomes = sketch.support()
    taken = outcomes > 0.0
    exact = [Fraction(float(w)) for w in weights]
    for j in range(sketch.d):
        assert sum(w for w, row in zip(exact, taken, strict=True) if row[j]) == Fraction(float(sketch.p[j]))
    total = sum(Fraction(float(x)) for x in sketch.p)
    assert set(taken.sum(axis=1).tolist()) <= {math.floor(total), math.ceil(total)}
    P = (outcomes * weights[:, None]).T @ outcomes
    np.testing.assert_allclose(sketch.second_moment_matrix, P, rtol=1e-13)
    assert np.all(sketch.p >= np.array(p)) and np.all(sketch.p <= np.array(p) + 2.0**-53)


@given(
    h=st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=60).map(np.array),
    k=st.floats(0.01, 1.0) | st.integers(1, 60).map(float),
)
def test_probabilities_add_up_to_the_budget(h: Matrix, k: float) -> None:
    k = min(k, float(len(h)))
    wanted = np.minimum(h * (k / h.sum()), 1.0)
    p = rounded_to_budget(wanted, k)
    assert 0 <= Fraction(k) - sum(Fraction(float(x)) for x in p) < Fraction(1, 2**50)
    if k == int(k):
        assert sum(Fraction(float(x)) for x in p) == k  # so that every draw has exactly k directions
    assert p.min() > 0.0 and p.max() <= 1.0
    if wanted.sum() >= k * (1.0 - 1e-12):
        np.testing.assert_allclose(p, wanted, rtol=0, atol=1e-12)


def test_equal_probabilities_of_every_size_and_budget() -> None:
    """Rounded up they exceed the budget by a few multiples, which no factor below 1 takes off: one in nine hung."""
    for d in range(1, 120):
        for k in range(1, d + 1):
            p = rounded_to_budget(np.full(d, k / d), float(k))
            assert sum((p * 2.0**53).astype(np.int64).tolist()) == k * 2**53 and p.max() <= 1.0
            assert np.abs(p - k / d).max() <= d * 2.0**-50


@pytest.mark.parametrize("basis", ["eigenvectors", "root"])
@pytest.mark.parametrize("power", [4, 6, 20])
def test_every_basis_reaches_the_limit_whatever_the_units(basis: str, power: int) -> None:
    rng = np.random.default_rng(power)
    scale = 10.0 ** rng.uniform(-power, power, 5)
    L = scale[:, None] * random_smoothness(rng, 5, 1e3) * scale
    assert optimal_method((L + L.T) / 2.0, 2.5, basis=basis).efficiency >= 1.0 - 1e-9


@every_case
@pytest.mark.parametrize("k", [0.4, 1, 2.5, 5])
def test_floats_per_round(goal: str, basis: str, k: float) -> None:
    L = random_smoothness(np.random.default_rng(4), 5, 100.0)
    method = optimal_method(L, k, **_asked(goal, L), basis=basis)
    rng = np.random.default_rng(0)
    draws = [method.draw(rng) for _ in range(200)]
    assert {draw.size for draw in draws} == ({int(k)} if k == int(k) else {math.floor(k), math.ceil(k)})
    if k == 5:  # no compression: the step L⁻¹∇f
        g = np.arange(5.0)
        np.testing.assert_allclose(method.decode(method.encode(g, draws[0]), draws[0]), np.linalg.solve(L, g))


def test_messages() -> None:
    """Rows of a batch, sums of clients' messages, and the same step by CompressedStep."""
    L, rng = random_smoothness(np.random.default_rng(5), 6, 30.0), np.random.default_rng(0)
    method = optimal_method(L, 2.5)
    gradients = rng.standard_normal((3, 6))
    draw = method.draw(np.random.default_rng(7))
    numbers = method.encode(gradients, draw)
    assert numbers.shape == (3, draw.size)
    A = method.directions[:, draw]
    np.testing.assert_allclose(method.decode(numbers, draw), gradients @ A @ A.T)
    step = method.decode(numbers.mean(axis=0), draw)
    np.testing.assert_allclose(step, A @ (A.T @ gradients.mean(axis=0)))
    other = CompressedStep(method.sketch, method.factors)
    same = other.draw(np.random.default_rng(7))
    np.testing.assert_allclose(other.decode(other.encode(gradients.mean(axis=0), same), same), step, rtol=1e-12)


# ----------------------------------------------------------------
# the subspace method of a LowRankPlusDiagonal: law and rate of the dense one, directions that are applied


def large(d: int, r: int, spread: float = 1.0) -> LowRankPlusDiagonal:
    """Columns and diagonal of sizes from 10^−spread to 1."""
    rng = np.random.default_rng(d)
    U = rng.standard_normal((d, r)) * 10.0 ** rng.uniform(-spread, 0.0, r)
    return LowRankPlusDiagonal(U, 10.0 ** rng.uniform(-spread, 0.0, d))


def exact_directions(method: SubspaceMethod) -> Rational:
    """A = c Diag(t)(I + BZBᵀ), B = [Diag(t)U  E], for the floats."""
    A, d = method.directions, method.d
    t = diagonal(A.t)
    B = [[*row, *first] for row, first in zip(product(t, rational(A.U)), rational(np.eye(d)[:, : A.e]), strict=True)]
    inner = combine((1, rational(np.eye(d))), (1, product(B, product(rational(A.Z), transpose(B)))))
    return product(rational(A.c * np.eye(d)), product(t, inner))


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 3), st.floats(0.0, 4.0), st.floats(0.2, 1.0), st.sampled_from(METRIC_GOALS))
def test_what_is_proved_holds_in_exact_arithmetic(d: int, r: int, spread: float, share: float, goal: str) -> None:
    L = large(d, r, spread)
    if goal != "descent":
        L = LowRankPlusDiagonal(L.U, float(L.shift[0]))
    mu = 0.5 * float(L.shift[0]) if goal == "linear" else None
    method = optimal_method(L, share * d, goal=goal, strong_convexity=mu)
    exact = exact_smoothness(L)
    A, D, identity = exact_directions(method), exact_stepsize(method.D), rational(np.eye(d))
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
