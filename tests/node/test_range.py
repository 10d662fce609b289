"""Problems at the ends of the range of float64: an answer that exact arithmetic confirms, or a clear error."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from stepsize_opt.node.complexity import iterations_needed

from shared.exact import log_det, rational, satisfies_condition
from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    certify,
    optimal_stepsize,
)
from stepsize_opt.inputs.structures import Structure
from stepsize_opt.node.result import Block, StepsizeResult
from stepsize_opt.proofs.certificate import Certificate

L = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 0.7]])
STRUCTURES: dict[str, Structure] = {
    "full": "full",
    "diagonal": "diagonal",
    "scalar": "scalar",
    "blocks": BlockDiagonal((2, 1)),
    "direction": Direction(1e100 * L),
}
REFUSALS = "outside the range of float64|proofs in float64 take|beyond float64"


def assert_proved(result: StepsizeResult, M: np.ndarray, sketch: Sketch, algorithm: str) -> None:
    assert result.certificate.feasible
    assert satisfies_condition(result.D, M, sketch, algorithm)
    exact = log_det(rational(result.D))
    assert Decimal(result.log_det) <= exact <= Decimal(result.certificate.upper_bound)


@pytest.mark.parametrize("scale", [1e-300, 1e-180, 1e180, 1e300])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("sketch", [RandK(3, 2), Gaussian(3, 1)], ids=str)
def test_scaled_problems_are_solved(scale: float, structure: str, sketch: Sketch) -> None:
    for algorithm in ("det-CGD1", "det-CGD2"):
        result = optimal_stepsize(scale * L, sketch, structure=STRUCTURES[structure], algorithm=algorithm)
        assert result.status == "optimal"
        assert_proved(result, scale * L, sketch, algorithm)


@pytest.mark.parametrize(
    ("M", "sketch"),
    [
        (1e300 * L, IndependentSampling([1e-20, 0.5, 0.5])),
        (1e-310 * L, RandK(3, 1)),
        (np.diag([1e308, 1.0]), RandK(2, 1)),
        (np.diag([5e-310, 1.0]), RandK(2, 1)),
    ],
)
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_stepsizes_that_float64_does_not_hold_are_refused(M: np.ndarray, sketch: Sketch, algorithm: str) -> None:
    with pytest.raises(ValueError, match="coordinate 0 lies outside the range of float64"):
        optimal_stepsize(M, sketch, algorithm=algorithm)


@pytest.mark.parametrize("p", [1e-8, 1e-12, 1e-16, 1e-20])
@pytest.mark.parametrize(
    "structure", ["full", "diagonal", "scalar", BlockDiagonal((1, 3)), BlockDiagonal((2, 2))], ids=str
)
def test_a_coordinate_that_is_hardly_ever_sent(p: float, structure: Structure) -> None:
    M, sketch = random_smoothness(4, 1e3, 0), IndependentSampling([0.02, 0.07, p, 0.09])
    result = optimal_stepsize(M, sketch, structure=structure)
    assert result.status == "optimal"
    assert_proved(result, M, sketch, "det-CGD1")


def test_all_coordinates_are_hardly_ever_sent() -> None:
    """Only the ratio of the probabilities makes a problem hard."""
    M = random_smoothness(2, 10.0, 0)
    for structure in ("full", "diagonal", "scalar"):
        sketch = BernQ([1.4e-47, 8.5e-36], [1, 1])
        result = optimal_stepsize(M, sketch, structure=structure)
        assert result.status == "optimal"
        assert_proved(result, M, sketch, "det-CGD1")


def test_probabilities_beyond_every_proof_are_refused() -> None:
    with pytest.raises(ValueError, match=r"p\[0\] is 4.94066e-324, and 1/4.94066e-324 is beyond float64"):
        IndependentSampling([5e-324, 0.5, 0.5])
    with pytest.raises(ValueError, match=r"second moments up to 1e\+200, .*larger probability"):
        optimal_stepsize(L, IndependentSampling([1e-200, 0.5, 0.5]))
    # Condition (4) has a closed form that needs no such proof.
    sketch = IndependentSampling([1e-200, 0.5, 0.5])
    result = optimal_stepsize(L, sketch, algorithm="det-CGD2")
    assert result.status == "optimal"
    assert_proved(result, L, sketch, "det-CGD2")


def test_coupled_coordinates_far_apart_are_refused() -> None:
    with pytest.raises(ValueError, match=r"couples coordinates whose diagonal entries of L differ by 2\^664"):
        optimal_stepsize(np.diag([1e100, 1e-100]), Gaussian(2, 1))


def _sketch(rng: np.random.Generator, d: int) -> Sketch:
    def rare() -> float:
        return float(10.0 ** -rng.uniform(0.0, rng.choice([1.0, 15.0, 30.0])))

    weights = np.full(40, 1.0 / 40.0)
    vectors = rng.uniform(0.1, 1.0, (40, d)) * (rng.random((40, d)) < 0.8)
    vectors[0] += 0.1
    vectors /= weights @ vectors
    coins = BernQ(rng.uniform(0.05, 1.0, d), [1] * d)
    return [
        lambda: Identity(d),
        lambda: RandK(d, int(rng.integers(1, d + 1))),
        lambda: Gaussian(d, int(rng.integers(1, d + 1))),
        lambda: IndependentSampling([rare() for _ in range(d)]),
        lambda: BernQ(rare(), d),
        lambda: DiagonalSketch.from_support(vectors, weights),
        lambda: DiagonalSketch.from_moments(coins.second_moment_matrix, lambda g, n: coins.sample_diagonal(g, n)),
        lambda: FiniteSketch(vectors[:, :, None] * np.eye(d), weights),
        lambda: LayerWise([Identity(1), Gaussian(d - 1, 1)]) if d > 1 else Identity(1),
    ][int(rng.integers(9))]()


def _structure(rng: np.random.Generator, d: int) -> Structure:
    W = random_smoothness(d, 10.0, int(rng.integers(100))) * 10.0 ** rng.uniform(-150, 150)
    blocks = BlockDiagonal((1, d - 1)) if d > 1 else "full"
    return ["full", "diagonal", "scalar", blocks, Direction(W)][int(rng.integers(5))]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.filterwarnings("error")
def test_random_problems_of_every_scale(seed: int) -> None:
    """Forty problems each: entries of L over the whole range, laws of every kind, tiny probabilities."""
    rng = np.random.default_rng(seed)
    optimal = 0
    for _ in range(40):
        d = int(rng.integers(1, 5))
        units = np.ldexp(1.0, rng.integers(-490, 490, d if rng.random() < 0.5 else 1))
        M = random_smoothness(d, 10.0 ** rng.uniform(0.0, 4.0), int(rng.integers(1000)))
        M = np.broadcast_to(units, d)[:, None] * M * units
        sketch, structure = _sketch(rng, d), _structure(rng, d)
        algorithm = str(rng.choice(["det-CGD1", "det-CGD2"]))
        try:
            result = optimal_stepsize(M, sketch, structure=structure, algorithm=algorithm)
        except ValueError as error:
            assert re.search(REFUSALS, str(error))
            continue
        optimal += result.status == "optimal"
        assert_proved(result, M, sketch, algorithm)
        again = certify(result.D, M, sketch, structure=structure, algorithm=algorithm, dual=result.dual)
        assert again.feasible
        assert again.certificate.upper_bound >= result.log_det
    assert optimal >= 25  # the others are refused, or say that their gap is too large


@pytest.mark.parametrize("factor", [1e-300, 1e-150, 0.5, 1.0, 2.0, 1e150, 1e300])
def test_certify_judges_stepsizes_of_any_scale(factor: float) -> None:
    sketch = RandK(3, 2)
    best = optimal_stepsize(L, sketch)
    D = factor * best.D
    check = certify(D, L, sketch, dual=best.dual)
    assert check.feasible == (factor <= 1.0) == satisfies_condition(D, L, sketch, "det-CGD1")
    assert check.largest_scale == pytest.approx(1.0 / factor, rel=1e-8)
    assert check.gap_when_scaled <= 1e-6
    if check.feasible:
        assert check.margin == pytest.approx(1.0 - factor, abs=1e-8)
        assert check.gap == pytest.approx(-math.log(factor), abs=1e-6)
        assert Decimal(check.certificate.log_det) <= log_det(rational(D))


@pytest.mark.parametrize("factor", [1e-320, 1e-200, 1.0, 1e300])
def test_multipliers_of_any_scale_prove_the_same_bound(factor: float) -> None:
    sketch = RandK(3, 2)
    best = optimal_stepsize(L, sketch)
    bounds = [certify(best.D, L, sketch, dual=t * np.eye(3)).certificate.upper_bound for t in (1.0, factor)]
    assert bounds[1] == pytest.approx(bounds[0], abs=1e-12)


def test_a_warm_start_of_quite_another_scale_is_no_harm() -> None:
    far = optimal_stepsize(1e-300 * L, RandK(3, 2))
    result = optimal_stepsize(1e300 * L, RandK(3, 2), warm_start=far)
    assert result.status == "optimal"
    assert_proved(result, 1e300 * L, RandK(3, 2), "det-CGD1")


def test_entries_that_become_subnormal_are_proved_again() -> None:
    """D is about 1e-305, its entries between coordinates 1e-315 and less: what is returned is what was proved."""
    M = 1e305 * (np.eye(4) + 1e-10 * (np.eye(4, k=1) + np.eye(4, k=-1)))
    result = optimal_stepsize(M, RandK(4, 2))
    assert 0.0 < np.abs(result.D).min() < 1e-307 or (result.D == 0.0).any()
    assert result.status == "optimal"
    assert_proved(result, M, RandK(4, 2), "det-CGD1")


def test_the_largest_t_of_coordinates_far_apart_that_a_sketch_couples() -> None:
    """Squares overflow on the way of the solver: no warning, and what is proved stays proved."""
    M = np.array([[1.7e-49, 5.8e-38, -1.4e-50], [5.8e-38, 4.6e-26, -4.5e-38], [-1.4e-50, -4.5e-38, 1.7e-49]])
    B = np.array([[2.0, 1.0, 0.0], [-1.0, -1.0, -2.0], [-2.0, -2.0, -2.0]])
    S = B @ B.T / 23.0
    sketch = FiniteSketch(np.array([S, 2.0 * np.eye(3) - S]), [0.5, 0.5])
    result = optimal_stepsize(M, sketch, criterion="euclidean")
    assert result.satisfies_condition and satisfies_condition(result.D, M, sketch, "det-CGD1")


class TestIterations:
    def test_large_numbers_are_exact(self) -> None:
        assert iterations_needed(1.0, 1e-300, 1e300) == math.ceil(2 * Fraction(1e300) / Fraction(1e-300))
        assert iterations_needed(1e-300, 1e-300, 1e300) > 10**900
        assert iterations_needed(0.5, 1.0, 3.0) == 12

    def test_results(self) -> None:
        result = optimal_stepsize(L, RandK(3, 2))
        assert result.iterations(1e-300, 1e300) > 10**600
        with pytest.raises(OverflowError, match="in about 1e600 iterations"):
            result.communication(1e-300, 1e300)


class TestLastGate:
    @pytest.mark.parametrize(("low", "high"), [(1.0, 0.5), (math.nan, 1.0), (1.0, math.nan), (-math.inf, 1.0)])
    def test_bounds_that_are_no_interval(self, low: float, high: float) -> None:
        with pytest.raises(ArithmeticError, match="contradict each other"):
            Certificate(True, 0.0, low, high, 2)

    @pytest.mark.parametrize("entry", [math.inf, math.nan, 0.0, 1e-310])
    def test_stepsizes_that_are_no_numbers(self, entry: float) -> None:
        good = optimal_stepsize(np.eye(2), RandK(2, 1))
        bad = Block(np.arange(2), np.array([1.0, entry]), np.ones(2))
        values = {name: getattr(good, name) for name in good.__dataclass_fields__}
        with pytest.raises(ArithmeticError, match="not finite or has a diagonal entry below"):
            StepsizeResult(**{**values, "blocks": (bad,)})

    def test_status_without_its_proof(self) -> None:
        good = optimal_stepsize(np.eye(2), RandK(2, 1))
        values = {name: getattr(good, name) for name in good.__dataclass_fields__}
        with pytest.raises(ArithmeticError, match="status optimal with a certified gap"):
            StepsizeResult(**{**values, "certificate": Certificate(True, 0.0, 0.0, 1.0, 2)})
