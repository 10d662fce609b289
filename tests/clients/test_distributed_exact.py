"""Distributed results against exact rational arithmetic: the true mean, all scales, coordinates without compression."""

from __future__ import annotations

import numpy as np
import pytest

from shared.clients import judged as checked
from shared.clients import random_clients
from stepsize_opt import certify
from stepsize_opt.sketches import (
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

BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
SHAPES = pytest.mark.parametrize("structure", ["full", "diagonal"])


@BOTH
@pytest.mark.parametrize("n", [41, 100])
def test_the_mean_that_is_meant_is_not_a_float(algorithm: str, n: int) -> None:
    """n equal clients with D ⪯ L⁻¹ active: a sum of n floats divided by n misses the matrix by many roundings."""
    L1 = np.array([[1.1, 0.5], [0.5, 1 / 3 + 0.1]])
    targets = {"epsilon2": 1e6, "initial_gap": 1e-6, "delta_inf": 0.0}
    for structure in ("full", "diagonal", "scalar"):
        result = checked([L1] * n, RandK(2, 1), algorithm=algorithm, structure=structure, **targets)
        assert result.status == "optimal" and "D ⪯ L⁻¹" in result.binding


@pytest.mark.parametrize("seed", range(4))
def test_lambda_is_that_of_the_true_mean(seed: int) -> None:
    clients = random_clients(3, 7, seed)
    for algorithm in ("det-CGD1", "det-CGD2"):
        assert checked(clients, RandK(3, 1), algorithm=algorithm).status == "optimal"


@BOTH
@SHAPES
def test_many_clients_with_mixed_sketches(algorithm: str, structure: str) -> None:
    """Families of constraints that never count keep their place in the relaxations."""
    clients = random_clients(4, 24, 0)
    laws = [(RandK(4, 1), RandK(4, 2), RandK(4, 3))[i % 3] for i in range(24)]
    assert checked(clients, laws, algorithm=algorithm, structure=structure).status == "optimal"


@BOTH
@SHAPES
def test_clients_without_a_loss(algorithm: str, structure: str) -> None:
    zero, (L, M) = np.zeros((3, 3)), random_clients(3, 2, 3)
    options = {"algorithm": algorithm, "structure": structure}
    assert checked([L, M, zero], [RandK(3, 1), RandK(3, 1), RandK(3, 2)], **options).status == "optimal"
    result = checked([zero, zero], [RandK(3, 1), RandK(3, 2)], mean=L, **options)
    assert result.status == "optimal" and result.lambda_D == 0.0 and result.binding == ("D ⪯ L⁻¹",)


UNTOUCHED = [
    IndependentSampling([1.0, 0.5, 0.5]),
    LayerWise([Identity(1), RandK(2, 1)]),
    BernQ([1.0, 0.5], [2, 1]),
    LayerWise([Identity(1), Gaussian(2, 1)]),
    DiagonalSketch.from_support([[1.0, 2.0, 0.0], [1.0, 0.0, 2.0]], [0.5, 0.5]),
]


@pytest.mark.slow
@BOTH
@SHAPES
@pytest.mark.parametrize("sketch", UNTOUCHED, ids=str)
def test_a_coordinate_that_is_never_compressed(algorithm: str, structure: str, sketch: Sketch) -> None:
    """λ_D does not bound its row of D, which stays near L⁻¹ while the others shrink with ε²."""
    clients = random_clients(3, 3, 5)
    for epsilon2 in (1.0, 1e-4, 1e-6, 1e-10, 1e-40, 1e-100):
        result = checked(clients, sketch, epsilon2=epsilon2, algorithm=algorithm, structure=structure)
        assert result.status == "optimal" and result.gap <= 1e-6


def test_untouched_coordinates_are_those_of_the_law_not_of_rounded_moments() -> None:
    nearly = DiagonalSketch.from_support([[1.0 - 2.0**-30, 2.0], [1.0 + 2.0**-30, 0.0]], [0.5, 0.5])
    assert nearly.second_moment_matrix[0, 0] == 1.0 and not nearly.untouched.any()
    assert IndependentSampling([1.0, 1.0 - 2.0**-53]).untouched.tolist() == [True, False]
    rotation = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    assert FiniteSketch([rotation, 2.0 * np.eye(3) - rotation], [0.5, 0.5]).untouched.tolist() == [True, False, False]
    assert LayerWise([Identity(1), Gaussian(2, 1)]).untouched.tolist() == [True, False, False]


@BOTH
@pytest.mark.parametrize("power", [-100, 100])
def test_units_of_any_size(algorithm: str, power: int) -> None:
    """L and ε², Δ⁰, Δ^inf in other units: exact powers of two are taken out, so that nothing is lost."""
    clients, sketch = random_clients(3, 3, 2), RandK(3, 1)
    unit = 10.0**power
    plain = checked(clients, sketch, algorithm=algorithm)
    result = checked(clients, sketch, epsilon2=1e-2 * unit, initial_gap=unit, delta_inf=0.1 * unit, algorithm=algorithm)
    assert result.status == "optimal" and result.K == pytest.approx(plain.K, rel=1e-6)
    other = checked([unit * L for L in clients], sketch, epsilon2=1e-2 * unit, algorithm=algorithm)
    # λ_D does not change when D is divided by the unit, so ε²τ does not either.
    assert other.status == "optimal" and other.K == pytest.approx(plain.K, rel=1e-6)


@pytest.mark.slow
@BOTH
def test_small_targets_are_solved_or_refused(algorithm: str) -> None:
    clients, sketch = random_clients(3, 2, 1), RandK(3, 1)
    result = checked(clients, sketch, epsilon2=1e-140, algorithm=algorithm)
    assert result.status == "optimal" and result.K > 10**270
    with pytest.raises(ValueError, match=r"λ_D would be about 1e-40\d, beyond what float64 holds; take epsilon2"):
        checked(clients, sketch, epsilon2=1e-200, algorithm=algorithm)
    with pytest.raises(ValueError, match=r"the rate would be about 1e\+3"):
        checked([L * 1e-308 for L in clients], sketch, epsilon2=1e300, initial_gap=1e-9, delta_inf=0.0)
    with pytest.raises(ValueError, match="diagonal of D reaches"):
        checked([np.diag([1e-309, 1.0, 1.0])], sketch, epsilon2=1e9, algorithm=algorithm)
    with pytest.raises(ValueError, match="iterations would be about"):
        checked(clients, sketch, iterations=10**400)


def test_whole_numbers_stay_exact() -> None:
    clients, sketch = random_clients(2, 2, 0), RandK(2, 1)
    for K in (2**53 + 1, 10**30 + 1):
        assert checked(clients, sketch, iterations=K).K == K


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e100])
def test_largest_scale_of_a_tiny_or_huge_stepsize(size: float) -> None:
    L = np.array([[2.0, 0.3], [0.3, 1.0]])
    for sketch in (RandK(2, 1), Gaussian(2, 1)):
        plain = certify(np.eye(2), L, sketch)
        assert certify(size * np.eye(2), L, sketch).largest_scale * size == pytest.approx(plain.largest_scale, rel=1e-9)
        # No float takes so small a D all the way to the boundary: the largest one does what it can.
        smallest = certify(1e-310 * np.eye(2), L, sketch)
        assert smallest.feasible and smallest.largest_scale == np.finfo(np.float64).max
        missing = np.log(plain.largest_scale / (1e-310 * smallest.largest_scale))
        assert smallest.gap_when_scaled == pytest.approx(plain.gap_when_scaled + missing, rel=1e-6)
