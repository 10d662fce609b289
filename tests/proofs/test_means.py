"""Means are rounded to the side on which proofs stay true, and not at all where they are floats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import random_clients
from stepsize_opt.problems import Federated, Quadratic
from stepsize_opt.proofs import mean_above, rounded_down, rounded_up, sum_below
from stepsize_validation.properties.exact import Rational, combine, is_positive_semidefinite, rational
from stepsize_validation.properties.strategies import Matrix, seeds


def _exact_mean(matrices: list[Matrix]) -> Rational:
    return combine(*[(Fraction(1, len(matrices)), rational(M)) for M in matrices])


def _is_above(A: Matrix, B: Rational) -> bool:
    return is_positive_semidefinite(combine((1, rational(A)), (-1, B)))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), seeds, st.sampled_from([-1020, -900, -30, 0, 30, 900]))
def test_the_mean_is_rounded_up(n: int, d: int, seed: int, power: int) -> None:
    matrices = [np.ldexp(L, power) for L in random_clients(d, n, seed)]
    above = mean_above(matrices)
    assert _is_above(above, _exact_mean(matrices))
    np.testing.assert_allclose(above, np.mean(matrices, axis=0), rtol=1e-12, atol=np.ldexp(1e-14, max(power, -1000)))


def test_units_far_apart_lose_bits_and_the_mean_is_still_above() -> None:
    clients = [np.diag([1e300, 3e-20]), np.diag([3e299, 1e-20]), np.diag([1e299, 1e-20])]
    assert _is_above(mean_above(clients), _exact_mean(clients))


@pytest.mark.parametrize("last", [2.0, 4.0, 8.0])
def test_errors_of_one_sign_add_up_along_a_row(last: float) -> None:
    """(1 + 1 + last)/3 is rounded alike in every entry, so the largest eigenvalue of the error is its row sum."""
    clients = [np.full((12, 12), x) for x in (1.0, 1.0, last)]
    assert _is_above(mean_above(clients), _exact_mean(clients))


def test_a_mean_of_floats_is_not_moved() -> None:
    clients = [np.array([[1.0, 0.25], [0.25, 3.0]]), np.array([[3.0, 0.5], [0.5, 4.0]])]
    np.testing.assert_array_equal(mean_above(clients), [[2.0, 0.375], [0.375, 3.5]])
    assert mean_above(clients[:1]) is clients[0]


@pytest.mark.parametrize("n", [2, 3, 7])
def test_the_objective_of_clients_lies_between_its_bounds(n: int) -> None:
    """Of nearly singular clients the rounded mean lies neither above nor below the exact one."""
    base = np.array([[1.0, 1.0 - 1e-7], [1.0 - 1e-7, 1.0]])
    clients = [x * base for x in (0.76, 0.8, 1.31, 0.57, 1.13, 0.91, 1.47)[:n]]
    f, exact = Federated(tuple(Quadratic(M, np.zeros(2)) for M in clients)), _exact_mean(clients)
    assert _is_above(f.smoothness(), exact)
    negative = combine((-1, exact))
    assert _is_above(-f.strong_convexity(), negative)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=6))
def test_sums_are_rounded_down(values: list[float]) -> None:
    exact = sum(map(Fraction, values)) / len(values)
    below = sum_below(values, len(values))
    assert below <= exact < math.nextafter(below, math.inf)


def test_an_unknown_bound_leaves_none() -> None:
    assert sum_below([0.0, -math.inf], 2) == -math.inf


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(2, 3), Fraction(-1, 3), Fraction(1, 4), Fraction(10) ** 400])
def test_fractions_are_rounded_to_either_side(x: Fraction) -> None:
    low, high = rounded_down(x), rounded_up(x)
    assert low <= x <= high
    assert low == high or math.nextafter(low, math.inf) == high
