"""Distributed conditions (12) and (12′): every answer is checked by an evaluation that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import assert_conditions, random_clients, root, variance
from shared.lagrangian import lifted_optimum
from shared.strategies import seeds, sketches
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.comparison import dcgd_stepsize
from stepsize_opt.clients.targets import Targets
from stepsize_opt.inputs.structures import BlockDiagonal, Direction
from stepsize_opt.sketches import BernQ, IndependentSampling, RandK, Sketch
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Matrix
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Program
from stepsize_solvers.registry import available_solvers


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize(
    "structure", ["full", "diagonal", "scalar", BlockDiagonal((2, 2)), Direction(np.eye(4), (1, 3))]
)
@pytest.mark.parametrize("sketch", [RandK(4, 1), BernQ(0.5, 4), IndependentSampling([0.2, 0.5, 0.7, 1.0])])
def test_every_structure_is_optimal_and_feasible(algorithm: str, structure: object, sketch: Sketch) -> None:
    clients = random_clients(4, 3, 1)
    for epsilon2 in (1e-2, 3.0):  # D ⪯ L⁻¹ slack, then active for most
        result = optimal_distributed_stepsize(
            clients,
            sketch,
            epsilon2=epsilon2,
            initial_gap=1.0,
            delta_inf=0.4,
            algorithm=algorithm,
            structure=structure,  # type: ignore[arg-type]
        )
        assert result.status == "optimal" and result.gap <= 1e-6
        assert_conditions(result, clients, sketch)
        assert result.certificate.smallest_K <= result.K <= result.certificate.smallest_K + 1
        assert result.communication == pytest.approx(3 * result.K * sketch.expected_nonzeros)


@pytest.mark.parametrize("structure", ["scalar", "diagonal", "full"])
def test_scalar_problems_have_the_closed_form_of_dcgd(structure: str) -> None:
    """Lᵢ = ℓᵢI and D = γI: the remark after Corollary 1."""
    d, scalars = 5, np.array([0.7, 2.0, 1.3])
    for k, epsilon2, initial_gap, delta_inf in ((1, 1e-3, 1.03, 0.1), (2, 0.5, 0.01, 3.07), (4, 4.0, 1.1, 0.0)):
        sketch = RandK(d, k)
        result = optimal_distributed_stepsize(
            [s * np.eye(d) for s in scalars],
            sketch,
            epsilon2=epsilon2,
            initial_gap=initial_gap,
            delta_inf=delta_inf,
            structure=structure,
        )
        expected = dcgd_stepsize(
            float(np.mean(scalars)),
            float(scalars.max()),
            d / k - 1.0,
            clients=3,
            epsilon2=epsilon2,
            initial_gap=initial_gap,
            delta_inf=delta_inf,
        )
        accuracy = 1e-9 if structure == "scalar" else 1e-6
        assert result.rate == pytest.approx(expected.gamma, rel=accuracy)
        # 12Δ⁰/(γε²) may be a whole number exactly; then the proof, which gives way by rounding errors, takes one more.
        assert 0 <= result.K - expected.K <= 1 + accuracy * expected.K


@pytest.mark.parametrize(("omega", "delta_inf"), [(0.0, 0.1), (3.0, 0.0), (3.0, 0.1)])
def test_scalars_satisfy_their_conditions_without_rounding(omega: float, delta_inf: float) -> None:
    """γ is rounded down and the neighbourhood up: nearest floats miss their conditions for some of these numbers."""
    numbers = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": delta_inf}
    for i in range(1, 20):
        L, L_max = i / 7.0, i / 3.0
        found = dcgd_stepsize(L, L_max, omega, clients=3, **numbers)
        gamma, noise = Fraction(found.gamma), Fraction(L) * Fraction(L_max) * Fraction(omega)
        assert gamma * Fraction(L) <= 1
        assert gamma**2 * noise * found.K <= 3
        assert 4 * gamma * noise * Fraction(delta_inf) <= 3 * Fraction(0.1)
        exact = 2 * Fraction(L) * Fraction(delta_inf) / (Fraction(L_max) * 3)
        assert exact <= Fraction(Targets(**numbers, clients=3).neighbourhood(L, L_max))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(["det-CGD1", "det-CGD2"]), seeds)
def test_proposition_3_the_conditions_are_convex(data: st.DataObject, algorithm: str, seed: int) -> None:
    """Midpoints of feasible D are feasible for all three conditions, K fixed."""
    rng = np.random.default_rng(seed)
    d, n, K = int(rng.integers(2, 5)), 2, 7
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    clients = random_clients(d, n, seed)
    L = np.mean(clients, axis=0)
    factor = 0.8  # nε²/(4Δ^inf)
    points = []
    for _ in range(2):
        A = rng.standard_normal((d, d))
        D = A @ A.T + 0.01 * np.eye(d)
        lam = variance(D, L, clients, [sketch] * n, algorithm)
        tau = math.exp(np.linalg.slogdet(D)[1] / d)
        scales = [1.0 / np.linalg.eigvalsh(root(L) @ D @ root(L))[-1]]
        if lam > 1e-12:
            scales += [math.sqrt(n / K / lam), factor * tau / lam]
        points.append(min(scales) * D)
    needed = min(math.exp(np.linalg.slogdet(D)[1] / d) for D in points)  # 12Δ⁰/(Kε²)
    middle = 0.5 * (points[0] + points[1])
    lam = variance(middle, L, clients, [sketch] * n, algorithm)
    tau = math.exp(np.linalg.slogdet(middle)[1] / d)
    assert np.linalg.eigvalsh(root(L) @ middle @ root(L))[-1] <= 1.0 + 1e-9
    assert lam <= min(n / K, factor * tau) * (1.0 + 1e-9) + 1e-12
    assert tau >= needed * (1.0 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_K_is_the_crossing_of_a_scan(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    clients = random_clients(d, n, seed, reg=0.3)
    sketch = RandK(d, int(rng.integers(1, d)))
    problem = {
        "epsilon2": float(10.0 ** rng.uniform(-0.5, 0.8)),
        "initial_gap": float(rng.uniform(0.5, 2.0)),
        "delta_inf": float(rng.choice([0.0, 0.3, 3.0])),
        "algorithm": str(rng.choice(["det-CGD1", "det-CGD2"])),
    }
    free = optimal_distributed_stepsize(clients, sketch, **problem)  # type: ignore[arg-type]
    low, high = 0, free.K
    while high - low > 1:  # feasible K have no gaps, so bisection is a scan
        middle = (low + high) // 2
        works = optimal_distributed_stepsize(clients, sketch, iterations=middle, **problem).status != "infeasible"  # type: ignore[arg-type]
        low, high = (low, middle) if works else (middle, high)
    assert high <= free.K <= math.ceil(high * (1.0 + free.gap)) + (0 if free.K == free.certificate.smallest_K else 1)
    assert free.certificate.smallest_K <= high
    assert_conditions(free, clients, sketch)


def test_an_infeasible_K_gets_the_smallest_one_that_works() -> None:
    clients, sketch = random_clients(4, 3, 5), RandK(4, 1)
    problem = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.1}
    free = optimal_distributed_stepsize(clients, sketch, **problem)  # type: ignore[arg-type]
    short = optimal_distributed_stepsize(clients, sketch, iterations=free.K // 2, **problem)  # type: ignore[arg-type]
    assert short.status == "infeasible" and short.K == free.K and str(free.K) in short.message
    assert_conditions(short, clients, sketch)
    long = optimal_distributed_stepsize(clients, sketch, iterations=3 * free.K, **problem)  # type: ignore[arg-type]
    assert long.status == "optimal" and long.K == 3 * free.K
    assert_conditions(long, clients, sketch)
    assert long.rate < free.rate  # more iterations allow less variance


@pytest.mark.parametrize("ratio", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("epsilon2", [1.0, 1e-4, 1e-8])
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_scales_do_not_cost_accuracy(ratio: float, epsilon2: float, algorithm: str) -> None:
    """Six and more orders of magnitude between the numbers: every inequality still holds to rounding."""
    clients, sketch = random_clients(5, 3, 7), RandK(5, 1)
    result = optimal_distributed_stepsize(
        clients, sketch, epsilon2=epsilon2, initial_gap=1e-3, delta_inf=1e-3 * ratio, algorithm=algorithm
    )
    assert result.status == "optimal" and result.gap <= 1e-6
    assert_conditions(result, clients, sketch)


def test_the_units_of_the_problem_do_not_matter() -> None:
    """Coordinates in other units give the same stepsize in those units, up to the scale that the targets set."""
    clients, sketch = random_clients(4, 3, 2), RandK(4, 2)
    units = np.array([2.0**-20, 1.0, 2.0**10, 2.0**5])
    problem = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.1}
    plain = optimal_distributed_stepsize(clients, sketch, **problem)  # type: ignore[arg-type]
    scaled = optimal_distributed_stepsize(
        [units[:, None] * M * units for M in clients],
        sketch,
        structure="full",
        **problem,  # type: ignore[arg-type]
    )
    factor = math.exp(2.0 * float(np.mean(np.log(units))))
    # For the same λ_D, τ is divided by the factor; λ_D ≤ κτ then divides the scale of D by it once more.
    assert scaled.status == plain.status == "optimal"
    np.testing.assert_allclose(_shape(units[:, None] * scaled.D * units), _shape(plain.D), rtol=1e-4, atol=1e-7)
    assert scaled.K == pytest.approx(plain.K * factor**2, rel=1e-5, abs=1.5)  # K is whole
    assert_conditions(scaled, [units[:, None] * M * units for M in clients], sketch)


def _shape(D: Matrix) -> Matrix:
    return D / math.exp(np.linalg.slogdet(D)[1] / len(D))


def lifted(clients: Sequence[Matrix], sketch: Sketch, c: float) -> float:
    """log det(D)/d by the compact lift in D itself, c near one so that Clarabel is exact enough."""
    d = sketch.d
    L = np.mean(clients, axis=0)
    variance = Family(sketch.map.centered(), L, np.linalg.cholesky(np.array(clients)), c=c)
    descent = Family(DiagonalPlusScaled.identity(d), None, np.linalg.cholesky(L)[None], c=1.0)
    return lifted_optimum(Program((variance, descent), Pattern.full(d))) / d


@pytest.mark.parametrize(("sketch", "K", "active"), [(RandK(5, 1), 3, False), (RandK(5, 3), 1, True)])
def test_linear_form_lift_and_native_agree(sketch: Sketch, K: int, active: bool) -> None:
    clients = random_clients(5, 3, 11)
    problem = {"epsilon2": 1.0, "initial_gap": 1e-9, "delta_inf": 0.0, "iterations": K}
    native = optimal_distributed_stepsize(clients, sketch, **problem)  # type: ignore[arg-type]
    linear = optimal_distributed_stepsize(clients, sketch, solver="clarabel", **problem)  # type: ignore[arg-type]
    assert ("D ⪯ L⁻¹" in native.binding) is active
    assert native.certificate.log_rate <= linear.certificate.upper_bound
    assert linear.certificate.log_rate <= native.certificate.upper_bound
    value = lifted(clients, sketch, 3 / K)
    # The lift's raw answer is right to Clarabel's accuracy.
    assert native.certificate.log_rate - 1e-6 <= value <= native.certificate.upper_bound + 1e-6


@pytest.mark.parametrize(
    "name", [entry.name for entry in available_solvers() if entry.available and entry.name != "native"]
)
@pytest.mark.parametrize(
    ("algorithm", "structure"), [("det-CGD1", "full"), ("det-CGD2", "full"), ("det-CGD1", "diagonal")]
)
def test_every_solver_agrees_within_its_certified_gap(name: str, algorithm: str, structure: str) -> None:
    clients, sketch = random_clients(4, 2, 3), RandK(4, 1)
    problem = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": 0.1, "algorithm": algorithm, "structure": structure}
    native = optimal_distributed_stepsize(clients, sketch, **problem)  # type: ignore[arg-type]
    other = optimal_distributed_stepsize(clients, sketch, solver=name, **problem)  # type: ignore[arg-type]
    assert_conditions(other, clients, sketch)
    if name != "copt":  # right D, but multipliers of some cones come back wrong: a weak bound, never a wrong one
        assert other.gap < 1e-2
    assert other.certificate.log_rate <= native.certificate.upper_bound
    assert native.certificate.log_rate <= other.certificate.upper_bound
