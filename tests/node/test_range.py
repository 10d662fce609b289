"""Problems at the ends of the range of float64: an answer that exact arithmetic confirms, or a clear error."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from shared.goals import arguments_of
from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    Gaussian,
    Identity,
    IndependentSampling,
    RandK,
    Sketch,
    certify,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.inputs.structures import Structure
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.results import StepsizeResult
from stepsize_validation.properties.exact import log_det, rational, satisfies_condition

L = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 0.7]])
STRUCTURES: dict[str, Structure] = {
    "full": "full",
    "diagonal": "diagonal",
    "scalar": "scalar",
    "blocks": BlockDiagonal((2, 1)),
    "direction": Direction(1e5 * L),
}
every_structure = pytest.mark.parametrize("structure", STRUCTURES)
both_methods = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])


def assert_optimal(result: StepsizeResult, M: np.ndarray, sketch: Sketch, algorithm: str = "det-CGD1") -> None:
    """The status, and both ends of the certificate in rational arithmetic."""
    assert result.status == "optimal"
    assert result.certificate.feasible
    assert satisfies_condition(result.D, M, sketch, algorithm)
    exact = log_det(rational(result.D))
    assert Decimal(result.log_det) <= exact <= Decimal(result.certificate.upper_bound)


@both_methods
@every_structure
@pytest.mark.parametrize("scale", [1e-300, 1e300])
@pytest.mark.parametrize("sketch", [RandK(3, 2), Gaussian(3, 1)], ids=str)
def test_scaled_problems_are_solved(scale: float, structure: str, sketch: Sketch, algorithm: str) -> None:
    result = optimal_stepsize(scale * L, sketch, structure=STRUCTURES[structure], algorithm=algorithm)
    assert_optimal(result, scale * L, sketch, algorithm)


@both_methods
@pytest.mark.parametrize(
    ("M", "sketch"),
    [
        (1e300 * L, IndependentSampling([1e-20, 0.5, 0.5])),
        (1e-310 * L, RandK(3, 1)),
        (np.diag([1e308, 1.0]), RandK(2, 1)),
        (np.diag([5e-310, 1.0]), RandK(2, 1)),
    ],
)
def test_stepsizes_that_float64_does_not_hold_are_refused(M: np.ndarray, sketch: Sketch, algorithm: str) -> None:
    with pytest.raises(ValueError, match="coordinate 0"):
        optimal_stepsize(M, sketch, algorithm=algorithm)


def test_the_units_of_a_direction_do_not_count() -> None:
    same = [optimal_stepsize(L, RandK(3, 2), structure=Direction(np.ldexp(L, n))) for n in (-900, 0, 900)]
    for result, n in zip(same, (-900, 0, 900), strict=True):
        assert_optimal(result, L, RandK(3, 2))
        np.testing.assert_array_equal(result.D, same[1].D)
        assert result.gammas == (np.ldexp(same[1].gammas[0], -n),)


@pytest.mark.parametrize(("scale", "units"), [(1e200, 1e200), (1e-200, 1e-200), (1e-10, 1e-300), (1.0, 1e308)])
def test_a_multiple_that_float64_does_not_hold_is_refused(scale: float, units: float) -> None:
    """A D = γW that float64 holds, with a γ that it does not, for one node and for clients."""
    structure: Any = Direction(units * np.eye(3))
    with pytest.raises(ValueError, match=r"γ of D = γW .* give W in other units"):
        optimal_stepsize(scale * L, RandK(3, 2), structure=structure)
    targets: Any = {"epsilon2": scale, "initial_gap": 1.0, "delta_inf": 1.0}
    with pytest.raises(ValueError, match=r"γ of D = γW .* give W in other units"):
        optimal_distributed_stepsize([scale * L, scale * L], RandK(3, 2), structure=structure, **targets)


def test_a_diagonal_stepsize_that_overflows_is_refused_without_a_warning() -> None:
    M = np.array([[4.12746308e-135, 1.38322617e-222], [1.38322617e-222, 2.78134232e-309]])
    with pytest.raises(ValueError, match="coordinate 1"):
        optimal_stepsize(M, Identity(2), structure="diagonal")


@every_structure
@pytest.mark.parametrize("p", [1e-8, 1e-20])
def test_a_coordinate_that_is_hardly_ever_sent(p: float, structure: str) -> None:
    M, sketch = random_smoothness(3, 1e3, 0), IndependentSampling([0.02, p, 0.09])
    assert_optimal(optimal_stepsize(M, sketch, structure=STRUCTURES[structure]), M, sketch)


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar"])
def test_all_coordinates_are_hardly_ever_sent(structure: Structure) -> None:
    """Only the ratio of the probabilities makes a problem hard."""
    M, sketch = random_smoothness(2, 10.0, 0), BernQ([1.4e-47, 8.5e-36], [1, 1])
    assert_optimal(optimal_stepsize(M, sketch, structure=structure), M, sketch)


def test_probabilities_beyond_every_proof_are_refused() -> None:
    with pytest.raises(ValueError, match=r"p\[0\]"):
        IndependentSampling([5e-324, 0.5, 0.5])
    sketch = IndependentSampling([1e-200, 0.5, 0.5])
    with pytest.raises(ValueError, match="probability"):
        optimal_stepsize(L, sketch)
    # Condition (4) has a closed form that needs no such proof.
    assert_optimal(optimal_stepsize(L, sketch, algorithm="det-CGD2"), L, sketch, "det-CGD2")


def test_coupled_coordinates_far_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\bL\b.*2\^664"):
        optimal_stepsize(np.diag([1e100, 1e-100]), Gaussian(2, 1))


def test_a_warm_start_of_quite_another_scale_is_no_harm() -> None:
    far = optimal_stepsize(1e-300 * L, RandK(3, 2))
    assert_optimal(optimal_stepsize(1e300 * L, RandK(3, 2), warm_start=far), 1e300 * L, RandK(3, 2))


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
@pytest.mark.parametrize("asked", [{}, {"goal": "descent"}, {"goal": "euclidean"}, {"structure": "diagonal"}], ids=str)
def test_the_scale_of_a_warm_start_does_not_count(asked: Any, scale: float) -> None:
    M, sketch = random_smoothness(4, 100.0, 0), RandK(4, 2)
    cold, far = optimal_stepsize(M, sketch, **asked), optimal_stepsize(scale * M, sketch, **asked)
    result = optimal_stepsize(M, sketch, warm_start=far, **asked)
    assert result.status == "optimal" and result.rate == pytest.approx(cold.rate, rel=3e-6)


@pytest.mark.parametrize("seed", range(10))
def test_a_floor_far_from_the_units_of_the_coordinates_is_refused_or_reached(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = 10.0 ** rng.uniform(-100.0, 100.0, 4)
    L, sketch = random_smoothness(4, 100.0, seed) * np.multiply.outer(units, units), RandK(4, 2)
    try:
        assert optimal_stepsize(L, sketch, goal="euclidean").status == "optimal"
    except ValueError as error:
        assert "rescale" in str(error)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_limit_of_momentum_at_the_ends_of_the_range(scale: float) -> None:
    M, sketch = random_smoothness(4, 100.0, 0), RandK(4, 2)
    for goal, root in (("linear", 1.0), ("convex", math.sqrt(scale))):
        one, other = (
            optimal_stepsize(s * M, sketch, momentum=True, **arguments_of(goal, 1e-3 * s)) for s in (1.0, scale)
        )
        assert other.rate * root == pytest.approx(one.rate, rel=3e-6)
        assert other.limit * root == pytest.approx(one.limit)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("spread", [1e2, 1e5, 1e30, 1e80])
def test_a_warm_start_of_quite_another_shape_is_no_harm(spread: float, structure: str) -> None:
    """From some of them the path breaks down."""
    M, units = random_smoothness(3, 100.0, 0), np.array([1.0 / spread, 1.0, spread])
    far = optimal_stepsize(M * np.multiply.outer(units, units), BernQ([0.3, 0.4, 0.5], [1, 1, 1]))
    result = optimal_stepsize(M, RandK(3, 1), structure=STRUCTURES[structure], warm_start=far)
    assert_optimal(result, M, RandK(3, 1))


def test_entries_that_become_subnormal_are_proved_again() -> None:
    """D is about 1e-305, its entries between coordinates 1e-315 and less: what is returned is what was proved."""
    M = 1e305 * (np.eye(4) + 1e-10 * (np.eye(4, k=1) + np.eye(4, k=-1)))
    result = optimal_stepsize(M, RandK(4, 2))
    assert 0.0 < np.abs(result.D).min() < 1e-307 or (result.D == 0.0).any()
    assert_optimal(result, M, RandK(4, 2))


class TestLastGate:
    """No record is built of numbers that prove nothing."""

    good = optimal_stepsize(np.eye(2), RandK(2, 1))

    @pytest.mark.parametrize(("low", "high"), [(1.0, 0.5), (math.nan, 1.0), (1.0, math.nan), (-math.inf, 1.0)])
    def test_bounds_that_are_no_interval(self, low: float, high: float) -> None:
        with pytest.raises(ArithmeticError, match="contradict each other"):
            Certificate(True, 0.0, low, high, 2)

    @pytest.mark.parametrize("entry", [math.inf, math.nan, 0.0, 1e-310])
    def test_stepsizes_that_are_no_numbers(self, entry: float) -> None:
        with pytest.raises(ArithmeticError, match="not finite"):
            replace(self.good, stepsize=BlockStepsize([np.arange(2)], [np.array([1.0, entry])]))

    def test_status_without_its_proof(self) -> None:
        with pytest.raises(ArithmeticError, match="status optimal"):
            replace(self.good, certificate=Certificate(True, 0.0, 0.0, 1.0, 2))


def test_a_multiplier_beyond_the_largest_float_is_a_multiple_that_proves_the_same() -> None:
    d = 20
    large = 5e306 * (np.eye(d) + 0.01)
    large[0, 0] *= 2.0  # the multiplier belongs to this coordinate alone, and is 20/D there
    sketch, structure = IndependentSampling(np.full(d, 0.5)), Direction(np.eye(d))
    result = optimal_stepsize(large, sketch, structure=structure)
    assert result.status == "optimal"
    assert float(result.D[0, 0]) < d / np.finfo(float).max
    assert np.isfinite(result.dual).all()
    assert certify(result, large).certificate.gap < 1e-9
