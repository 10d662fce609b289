"""Certificates hold for the distribution as documented: sums are enclosed, nothing is equal by rounding alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Identity,
    IndependentSampling,
    Sketch,
    optimal_stepsize,
)
from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.duals import Multiplier
from stepsize_opt.proofs.maps import coefficient_roundings, image
from stepsize_opt.proofs.roundings import twice_gamma
from stepsize_solvers.programs.maps import hadamard, is_identity
from stepsize_solvers.programs.patterns import Pattern
from stepsize_validation.properties.exact import is_positive_definite, rational, satisfies_condition, second_moment
from stepsize_validation.properties.strategies import seeds


def _outcomes(seed: int, count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Diagonals that average to one up to rounding, with equal weights that do not add up to exactly one."""
    weights = np.full(count, 1.0 / count)
    vectors = np.random.default_rng(seed).uniform(0.5, 1.5, (count, d))
    return vectors / (weights @ vectors), weights


@pytest.fixture(params=["support", "finite"])
def rounded(request: pytest.FixtureRequest) -> Sketch:
    """A thousand outcomes, of which every partial sum is rounded."""
    vectors, weights = _outcomes(1, 1000, 2)
    if request.param == "support":
        return DiagonalSketch(vectors, weights)
    return FiniteSketch(vectors[:, :, None] * np.eye(2), weights)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([1, 2, 7, 100, 1000]))
def test_second_moments_of_a_support_are_within_their_roundings(seed: int, count: int) -> None:
    sketch = DiagonalSketch(*_outcomes(seed, count, 2))
    exact = second_moment(sketch, [[Fraction(1)] * 2] * 2)
    P, bound = sketch.second_moment_matrix, Fraction(twice_gamma(coefficient_roundings(sketch.map)))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert abs(Fraction(float(P[i, j])) - exact[i][j]) <= bound * exact[i][j]


@pytest.mark.parametrize("arithmetic", [Enclosed, Pair])
def test_image_encloses_the_sum_over_all_outcomes(rounded: Sketch, arithmetic: Any) -> None:
    """Every term pushes the sum the same way: 1/3 and 1/1000 are rounded, and so is each partial sum."""
    M = np.full((2, 2), 1.0 / 3.0)
    found = image(rounded.map, Enclosed(M, np.zeros((2, 2))), arithmetic)
    exact = second_moment(rounded, rational(M))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert abs(Fraction(float(found.value[i, j])) - exact[i][j]) <= Fraction(float(found.error[i, j]))


@pytest.mark.parametrize("bias", [-9e-10, 9e-10])
def test_a_biased_support_is_divided_by_its_exact_mean(bias: float) -> None:
    """P = E[ssᵀ] of the exact quotients has E[s] = 1 and lies within the roundings of the map."""
    vectors, weights = _outcomes(0, 7, 2)
    sketch = DiagonalSketch((1.0 + bias) * vectors, (1.0 - bias) * weights)
    w, stored = sketch.support()
    np.testing.assert_allclose(w @ stored / w.sum(), 1.0, rtol=0.0, atol=1e-15)
    total = sum(map(Fraction, w))
    m = [sum(Fraction(a) * Fraction(x) for a, x in zip(w, column, strict=True)) / total for column in stored.T]
    exact = sum(
        Fraction(a) / total * Fraction(x) * Fraction(y) / (m[0] * m[1]) for a, (x, y) in zip(w, stored, strict=True)
    )
    bound = Fraction(twice_gamma(coefficient_roundings(sketch.map)))
    assert abs(Fraction(float(sketch.second_moment_matrix[0, 1])) - exact) <= bound * exact
    assert second_moment(sketch, [[Fraction(1)] * 2] * 2)[0][1] == exact


def test_weights_off_one_by_rounding_are_not_the_identity() -> None:
    """Ten times 0.1 exceeds one: S = I by division, but the coefficients of its map are rounded."""
    sketch = DiagonalSketch(np.ones((10, 2)), np.full(10, 0.1))
    assert is_identity(Identity(2).map) and is_identity(BernQ(1.0, 2).map)
    assert is_identity(IndependentSampling([1.0, 1.0]).map)
    assert not is_identity(sketch.map)
    L = random_smoothness(2, 10.0, 0)
    result = optimal_stepsize(L, sketch)
    assert satisfies_condition(result.D, L, sketch, "det-CGD1")


def test_columns_that_are_equal_by_rounding_alone_do_not_commute() -> None:
    """s₁ and s₂ differ by one ulp in one outcome: P shows nothing of it, but S is no multiple of the identity."""
    vectors, weights = _outcomes(0, 50, 1)
    twice = np.repeat(vectors, 2, axis=1)
    full = Pattern.full(2)
    assert full.commutes_with(DiagonalSketch(twice, weights).map)
    twice[3, 1] = np.nextafter(twice[3, 1], 2.0)
    sketch = DiagonalSketch(twice, weights)
    assert not full.commutes_with(sketch.map)
    L = random_smoothness(2, 1e2, 0)
    result = optimal_stepsize(L, sketch)
    assert result.status == "optimal"
    assert satisfies_condition(result.D, L, sketch, "det-CGD1")


def test_a_map_that_rounding_has_made_indefinite_still_gives_a_convex_bound() -> None:
    """P has the eigenvalue −5e-10, and so has the image of Z = vvᵀ, v = (1, −1)."""
    P = np.array([[1.0, 1.0 + 5e-10], [1.0 + 5e-10, 1.0]])
    found = Multiplier.near(hadamard(P, 0), np.array([[1.0, -1.0], [-1.0, 1.0]]), Pair)
    assert found is not None
    R = found.R.rounded()
    assert is_positive_definite(rational(R.value - np.diag(R.error.sum(axis=1))))
