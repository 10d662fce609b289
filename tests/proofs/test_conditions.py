"""Enclosures of 𝒞(M) and proofs of λ_D against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.clients import random_clients
from shared.sketch_examples import EXAMPLES
from stepsize_opt import DiagonalSketch, FiniteSketch, RandK, Sketch, optimal_distributed_stepsize
from stepsize_opt.problems import Federated, Quadratic
from stepsize_opt.proofs import (
    CentredMap,
    ClientGroup,
    Conditions,
    Enclosed,
    Interval,
    Pair,
    coefficient_roundings,
    mean_above,
    rounded_down,
    rounded_up,
    sum_below,
    twice_gamma,
)
from stepsize_opt.proofs.maps import centred_above, centred_image
from stepsize_opt.proofs.multipliers import Bound, HomogeneousBound, MetricBound, TangentBound
from stepsize_solvers.programs import Matrix, Pattern
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import (
    Rational,
    centred_second_moment,
    combine,
    is_positive_semidefinite,
    product,
    rational,
)
from stepsize_validation.properties.judges import Clients, judge_distributed
from stepsize_validation.properties.strategies import seeds, sketches


def _many_outcomes(kind: str, count: int, d: int) -> Sketch:
    """Every partial sum over the outcomes is rounded; E[S] = I holds up to rounding only."""
    weights = np.full(count, 1.0 / count)
    vectors = np.random.default_rng(count).uniform(0.5, 1.5, (count, d))
    vectors /= weights @ vectors
    if kind == "support":
        return DiagonalSketch(vectors, weights)
    return FiniteSketch(vectors[:, :, None] * np.eye(d), weights)


LAWS = {name: sketch for name, sketch in EXAMPLES.items() if not name.startswith("layers")} | {
    f"{kind} of {count}": _many_outcomes(kind, count, 4) for kind in ("support", "finite") for count in (50, 1000)
}


def _random_psd(rng: np.random.Generator, d: int) -> Matrix:
    A = rng.integers(-5, 6, (d, d)).astype(float)
    return A @ A.T  # whole numbers: exact, and semidefinite


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_centred_map_is_enclosed(law: str) -> None:
    sketch, rng = LAWS[law], np.random.default_rng(0)
    for _ in range(3):
        M = _random_psd(rng, sketch.d) / 3.0
        M = np.asarray(0.5 * (M + M.T))
        exact = centred_second_moment(sketch, rational(M))
        for arithmetic in (Enclosed, Pair):
            found = centred_image(sketch.map, Enclosed.exact(M), arithmetic)
            for i, j in np.ndindex(M.shape):
                assert abs(Fraction(float(found.value[i, j])) - exact[i][j]) <= Fraction(float(found.error[i, j]))
            assert found.error.max() <= 100.0 * twice_gamma(coefficient_roundings(sketch.map) + 20) * np.abs(M).max()


@pytest.mark.parametrize("law", LAWS)
def test_the_larger_centred_map_is_larger(law: str) -> None:
    sketch, rng = LAWS[law], np.random.default_rng(1)
    for _ in range(3):
        M = _random_psd(rng, sketch.d)
        found = centred_above(sketch.map, Pair.exact(M))
        assert isinstance(found, Pair)
        lo = np.zeros_like(M) if found.lo is None else found.lo
        error = np.zeros_like(M) if found.error is None else found.error
        middle = combine((1, rational(found.hi)), (1, rational(lo)), (1, rational(np.diag(2.0 * error.sum(axis=1)))))
        assert is_positive_semidefinite(combine((1, middle), (-1, centred_second_moment(sketch, rational(M)))))


def _lambda_holds(sketch: Sketch, L: Matrix, client: Matrix, D: Matrix, c: float, algorithm: str) -> bool:
    """λmax(Lᵢ^½ V Lᵢ^½) ≤ c if and only if cV − V Lᵢ V ⪰ 0, without rounding."""
    D_, L_ = rational(D), rational(L)
    V: Rational
    if algorithm == "det-CGD1":
        V = centred_second_moment(sketch, product(product(D_, L_), D_))
    else:
        V = product(product(D_, centred_second_moment(sketch, L_)), D_)
    return is_positive_semidefinite(combine((Fraction(c), V), (-1, product(product(V, rational(client)), V))))


SINGLE = ("RandK", "BernQ", "IndependentSampling", "SystematicSampling", "FiniteSketch", "Gaussian")


@given(st.integers(2, 4).flatmap(lambda d: sketches(d, *SINGLE)), seeds, st.sampled_from(["det-CGD1", "det-CGD2"]))
@settings(max_examples=60)
def test_lambda_is_never_proved_wrongly_and_nearly_always_to_the_last_digits(
    sketch: Sketch, seed: int, algorithm: str
) -> None:
    """A bound next to λ_D on either side; a D that hides λ_D behind large entries is proved in twice the precision."""
    rng = np.random.default_rng(seed)
    d, touched = sketch.d, np.flatnonzero(~sketch.untouched)
    assume(touched.size > 0)
    client, L = (random_smoothness(rng, d, 10.0 ** rng.uniform(0.0, 8.0)) for _ in range(2))
    group = ClientGroup(CentredMap(sketch.map, touched), client[None])
    conditions = Conditions(Pair.exact(L), (group,), algorithm == "det-CGD1", Pattern.full(d), np.ones(d))
    D = random_smoothness(rng, d, 10.0 ** rng.uniform(0.0, 6.0))
    fine = conditions.at(D, Pair)
    estimate = fine.estimate.value
    for arithmetic in (Enclosed, Pair):
        at = conditions.at(D, arithmetic)
        for distance in (-1e-6, -1e-13, -1e-15, 0.0, 1e-15, 1e-13):
            c = estimate * (1.0 + distance)
            if at.proves(c):
                assert _lambda_holds(sketch, L, client, D, c, algorithm)
    assert fine.proves(estimate * (1.0 + 1e-12)) and not fine.proves(estimate * (1.0 - 1e-12))


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_hide_a_small_lambda(algorithm: str, seed: int) -> None:
    """K above 10¹² and an ill-conditioned client: λ_D must be proved to ten digits for the best K to be proved."""
    rng = np.random.default_rng(seed)
    client = random_smoothness(rng, 4, 1e7) * 10.0 ** rng.uniform(-2.0, 2.0)
    problem = Clients((client,), (RandK(4, 1),), epsilon2=1e-8, initial_gap=1.0, delta_inf=1.0, algorithm=algorithm)
    result = optimal_distributed_stepsize(**problem.arguments)
    assert result.status == "optimal" and not any("of no use" in note for note in result.reductions)
    judge_distributed(problem, result)


@given(
    kind=st.sampled_from([MetricBound, TangentBound, HomogeneousBound]),
    log_g=st.floats(-3.0, 3.0),
    T=st.sampled_from([0.0, 1e-9, 0.3, 20.0]),
    rest=st.sampled_from([1e-9, 0.5, 40.0]),
    log_c=st.floats(-20.0, 20.0),
)
def test_bounds_of_clients_solve_their_inequalities(
    kind: type[Bound], log_g: float, T: float, rest: float, log_c: float
) -> None:
    """τ² ≤ bτ + a, τ ≤ bτ + a and τ ≤ κτ₁², with τ, c and κ in the user's units; above the solution and next to it."""
    d, log_scale, log_clients = 3, 0.25, -0.5
    bound = kind(log_g, T, rest, d, Interval.exact(log_scale), Interval.exact(log_clients))
    c = math.exp(log_c - log_clients)
    kappa = c * math.exp(log_scale)
    share = math.exp(log_g) / d
    a, b = share * rest, share * kappa * T
    if kind is MetricBound:
        by_c, by_factor = math.sqrt(share * (c * T + rest)), 0.5 * (b + math.sqrt(b * b + 4.0 * a))
    elif kind is TangentBound:
        by_c, by_factor = share * (c * T + rest), a / (1.0 - b) if b < 1.0 else math.inf
    else:
        first = share * (T + rest)
        by_c, by_factor = math.sqrt(c) * first, kappa * first * first
    assume(not 0.999 < b < 1.001)
    for found, exact in ((bound.at_lambda(log_c), by_c), (bound.at_factor(log_c), by_factor)):
        expected = math.log(exact) + log_scale
        assert found == expected or expected - 1e-12 <= found <= expected + 1e-9
    assert bound.at_factor(math.inf) == bound.at_lambda(math.inf)


# ----------------------------------------------------------------
# means are rounded to the side on which proofs stay true, and not at all where they are floats


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
