"""What is proved for n clients: bounds from any multipliers, the true mean, targets and units of every size."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from shared.clients import judged, random_clients
from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
)
from stepsize_opt.clients.fit import Multiples, best_multiple
from stepsize_opt.clients.problem import Targets
from stepsize_opt.proofs import (
    CentredMap,
    ClientGroup,
    Conditions,
    Enclosed,
    Multipliers,
    Pair,
    dominating_factor,
    metric_bound,
    tangent_bound,
)
from stepsize_solvers.programs import Matrix, Pattern
from stepsize_validation.properties.exact import combine, definiteness, product, rational

BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])


def conditions_of(clients: list[Matrix], sketch: Sketch, *, outside: bool) -> Conditions:
    d = sketch.d
    group = ClientGroup(CentredMap(sketch.map, np.arange(d)), np.array(clients))
    L = Pair.exact(np.mean(clients, axis=0))
    return Conditions(L, (group,), outside, Pattern.full(d), np.ones(d))


@BOTH
def test_any_multipliers_give_a_valid_bound(algorithm: str) -> None:
    """Random multipliers: no bound is below the optimum."""
    clients, sketch = random_clients(4, 3, 12), RandK(4, 1)
    known = judged(clients, sketch, epsilon2=1.0, algorithm=algorithm)
    linear = algorithm == "det-CGD1"
    conditions = conditions_of(clients, sketch, outside=linear)
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(40):
        U = rng.standard_normal((3, 4, 4)) * 10.0 ** rng.uniform(-2, 1)
        inverse = np.triu(rng.standard_normal((4, 4))) * 10.0 ** rng.uniform(-1, 1) if rng.random() < 0.7 else None
        reference = known.D * 10.0 ** rng.uniform(-1, 0.3)
        multipliers = Multipliers((U,), inverse)
        bound = metric_bound(conditions, multipliers) if linear else tangent_bound(conditions, multipliers, reference)
        if bound is None:
            continue
        for value in (bound.at_factor(known.targets.log_kappa), bound.at_lambda(math.log(known.lambda_D))):
            found += math.isfinite(value)
            assert value >= known.certificate.log_rate - 1e-9
    assert found > 20


@pytest.mark.parametrize("rank", [2, 3])
def test_the_factor_dominates_in_exact_arithmetic(rank: int) -> None:
    A = np.random.default_rng(rank).standard_normal((3, rank))
    L = A @ A.T
    L = 0.5 * (L + L.T)
    H = dominating_factor(L)
    assert H is not None
    assert definiteness(combine((1, product(rational(H), rational(H.T))), (-1, rational(L)))).det > 0
    assert dominating_factor(np.diag([1.0, -1.0, 1.0])) is None


def test_no_bound_on_the_variance_is_proved_by_a_number_that_is_none() -> None:
    conditions = conditions_of([np.eye(2)], RandK(2, 1), outside=True)
    for arithmetic in (Enclosed, Pair):
        at = conditions.at(np.eye(2), arithmetic)
        assert at.proves(1.1) and at.proves(math.inf)
        for c in (0.9, math.nan, -math.inf):
            assert not at.proves(c)


def test_targets_are_decided_by_rational_numbers() -> None:
    targets = Targets(0.1, 1.0, 0.3, 7)
    assert targets.enough(120, 1.0) is (Fraction(120) * Fraction(0.1) >= 12)
    K = targets.least_iterations(0.37)
    assert targets.enough(K, 0.37) and not targets.enough(K - 1, 0.37)
    assert Fraction(targets.lambda_allowed(3 * 10**12, 1.0)) <= Fraction(7, 3 * 10**12)
    assert Targets(0.1, 0.0, 0.0, 1).kappa is None and Targets(0.1, 0.0, 0.0, 1).log_kappa == math.inf
    for i in range(1, 20):
        lam, rate = Fraction(i / 7.0), Fraction(i / 3.0)
        exact = 2 * lam * Fraction(0.3) / (rate * 7)
        assert exact <= Fraction(targets.neighbourhood(float(lam), float(rate)))


@pytest.mark.parametrize("error", [0.0, 1e-9, 1e-7])
def test_the_rate_before_K_is_rounded_satisfies_its_condition(error: float) -> None:
    """λ_D ≤ κτ for the real K = 12Δ⁰/(τε²) is proved, also where the estimate of λ_D that sets the scale is too low.

    D = sI, L = I and RandK(2, 1): λ_D = s² and τ = s, so that the largest s is κ.
    """
    conditions, targets = conditions_of([np.eye(2)], RandK(2, 1), outside=True), Targets(1e-3, 1.0, 0.3, 1)
    direction = Multiples.of(conditions, np.eye(2))
    assert direction is not None and direction.log_lambda == pytest.approx(0.0, abs=1e-14)
    best = best_multiple(conditions, targets, replace(direction, log_lambda=direction.log_lambda - error), None)
    assert best is not None and targets.kappa is not None
    assert -1e-6 <= best.free_log_rate - math.log(targets.kappa) <= 0.0


@BOTH
@pytest.mark.parametrize("n", [41, 100])
def test_the_mean_that_is_meant_is_not_a_float(algorithm: str, n: int) -> None:
    """n equal clients with D ⪯ L⁻¹ active: a sum of n floats divided by n misses the matrix by many roundings."""
    L1 = np.array([[1.1, 0.5], [0.5, 1 / 3 + 0.1]])
    targets = {"epsilon2": 1e6, "initial_gap": 1e-6, "delta_inf": 0.0}
    for structure in ("full", "diagonal", "scalar"):
        result = judged([L1] * n, RandK(2, 1), algorithm=algorithm, structure=structure, **targets)
        assert result.status == "optimal" and "D ⪯ L⁻¹" in result.binding


UNTOUCHED = [
    IndependentSampling([1.0, 0.5, 0.5]),
    LayerWise([Identity(1), RandK(2, 1)]),
    BernQ([1.0, 0.5], [2, 1]),
    LayerWise([Identity(1), Gaussian(2, 1)]),
    DiagonalSketch([[1.0, 2.0, 0.0], [1.0, 0.0, 2.0]], [0.5, 0.5]),
]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("sketch", UNTOUCHED, ids=str)
def test_a_coordinate_that_is_never_compressed(algorithm: str, structure: str, sketch: Sketch) -> None:
    """λ_D does not bound its row of D, which stays near L⁻¹ while the others shrink with ε²."""
    options = {"algorithm": algorithm, "structure": structure}
    for epsilon2 in (1.0, 1e-4, 1e-6, 1e-10, 1e-40, 1e-100):
        assert judged(random_clients(3, 3, 5), sketch, epsilon2=epsilon2, **options).status == "optimal"


def test_untouched_coordinates_are_those_of_the_law_not_of_rounded_moments() -> None:
    nearly = DiagonalSketch([[1.0 - 2.0**-30, 2.0], [1.0 + 2.0**-30, 0.0]], [0.5, 0.5])
    assert nearly.second_moment_matrix[0, 0] == 1.0 and not nearly.untouched.any()
    assert IndependentSampling([1.0, 1.0 - 2.0**-53]).untouched.tolist() == [True, False]
    rotation = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    assert FiniteSketch([rotation, 2.0 * np.eye(3) - rotation], [0.5, 0.5]).untouched.tolist() == [True, False, False]
    assert LayerWise([Identity(1), Gaussian(2, 1)]).untouched.tolist() == [True, False, False]


@BOTH
@pytest.mark.parametrize("ratio", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("epsilon2", [1.0, 1e-4, 1e-8])
def test_orders_of_magnitude_do_not_cost_accuracy(algorithm: str, ratio: float, epsilon2: float) -> None:
    goal = {"epsilon2": epsilon2, "initial_gap": 1e-3, "delta_inf": 1e-3 * ratio}
    assert judged(random_clients(5, 3, 7), RandK(5, 1), algorithm=algorithm, **goal).status == "optimal"


@BOTH
@pytest.mark.parametrize("power", [-100, 100])
def test_units_of_any_size(algorithm: str, power: int) -> None:
    """L and ε², Δ⁰, Δ^inf in other units: exact powers of two are taken out, so that nothing is lost."""
    clients, sketch = random_clients(3, 3, 2), RandK(3, 1)
    unit = 10.0**power
    plain = judged(clients, sketch, algorithm=algorithm)
    result = judged(clients, sketch, epsilon2=1e-2 * unit, initial_gap=unit, delta_inf=0.1 * unit, algorithm=algorithm)
    assert result.status == "optimal" and result.K == pytest.approx(plain.K, rel=1e-6)
    other = judged([unit * L for L in clients], sketch, epsilon2=1e-2 * unit, algorithm=algorithm)
    # λ_D does not change when D is divided by the unit, so ε²τ does not either.
    assert other.status == "optimal" and other.K == pytest.approx(plain.K, rel=1e-6)


def test_the_units_of_coordinates_do_not_matter() -> None:
    """Coordinates in other units give the same stepsize in those units, up to the scale that the targets set."""
    clients, sketch = random_clients(4, 3, 2), RandK(4, 2)
    units = np.array([2.0**-20, 1.0, 2.0**10, 2.0**5])
    plain, scaled = judged(clients, sketch), judged([units[:, None] * M * units for M in clients], sketch)
    factor = math.exp(2.0 * float(np.mean(np.log(units))))
    # For the same λ_D, τ is divided by the factor; λ_D ≤ κτ then divides the scale of D by it once more.
    assert scaled.status == plain.status == "optimal"
    shapes = [D / math.exp(np.linalg.slogdet(D)[1] / 4) for D in (units[:, None] * scaled.D * units, plain.D)]
    np.testing.assert_allclose(*shapes, rtol=1e-4, atol=1e-7)
    assert scaled.K == pytest.approx(plain.K * factor**2, rel=1e-5, abs=1.5)  # K is whole


@BOTH
def test_small_targets_are_solved_or_refused(algorithm: str) -> None:
    clients, sketch = random_clients(3, 2, 1), RandK(3, 1)
    result = judged(clients, sketch, epsilon2=1e-140, algorithm=algorithm)
    assert result.status == "optimal" and result.K > 10**270
    tiny: dict[str, Any] = {"epsilon2": 1e300, "initial_gap": 1e-9, "delta_inf": 0.0}
    for matrices, options, message in (
        (clients, {"epsilon2": 1e-200}, r"λ_D would be about 1e-40\d, beyond what float64 holds; take epsilon2"),
        ([L * 1e-308 for L in clients], tiny, r"the rate would be about 1e\+3"),
        ([np.diag([1e-309, 1.0, 1.0])], {"epsilon2": 1e9}, "diagonal of D reaches"),
        (clients, {"iterations": 10**400}, "iterations would be about"),
    ):
        with pytest.raises(ValueError, match=message):
            judged(matrices, sketch, algorithm=algorithm, **options)
    for K in (2**53 + 1, 10**30 + 1):  # whole numbers stay exact
        assert judged(clients, sketch, algorithm=algorithm, iterations=K).K == K
