"""Special cases of the distributed problem: redundant and singular clients, closed forms, the command."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from shared.clients import assert_conditions, random_clients, root
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.comparison import compare_distributed
from stepsize_opt.clients.targets import Targets, rounded_down
from stepsize_opt.inputs.structures import BlockDiagonal
from stepsize_opt.proofs import (
    CentredMap,
    ClientGroup,
    Conditions,
    Multipliers,
    Pair,
    Plain,
    dominating_factor,
    rate_bound,
)
from stepsize_opt.sketches import BITS_NOTE, BernQ, Gaussian, Identity, IndependentSampling, RandK
from stepsize_solvers.programs import Matrix, Pattern

PROBLEM = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.2}


def solve(clients: list[Matrix], sketch: object, **options: object):  # type: ignore[no-untyped-def]
    return optimal_distributed_stepsize(clients, sketch, **{**PROBLEM, **options})  # type: ignore[arg-type]


def test_equal_and_dominated_clients_are_dropped() -> None:
    base = random_clients(4, 2, 0)
    clients = [base[i % 2] for i in range(200)] + [0.5 * base[0], 0.9 * base[1]]
    L = np.mean(base, axis=0)
    result = solve(clients, RandK(4, 1), mean_smoothness=L)
    assert "198 clients equal to others" in result.reductions
    assert "2 clients dominated by others" in result.reductions
    assert result.status == "optimal" and len(result.numbers_per_client) == 202
    assert_conditions(result, clients, RandK(4, 1), L)
    # The same problem with the two that count; n multiplies every bound, so K is divided by 101.
    few = solve(base, RandK(4, 1), mean_smoothness=L)
    assert result.K == pytest.approx(few.K / 101, rel=1e-5, abs=1)


def test_clients_with_their_own_sketches() -> None:
    clients = random_clients(4, 3, 4)
    laws = [RandK(4, 1), RandK(4, 3), Identity(4)]
    for algorithm in ("det-CGD1", "det-CGD2"):
        for structure in ("full", "diagonal"):
            result = solve(clients, laws, algorithm=algorithm, structure=structure)
            assert result.status == "optimal"
            assert_conditions(result, clients, laws)
    assert result.numbers_per_client == (result.K, 3 * result.K, 4 * result.K)


def test_no_compression_needs_no_variance() -> None:
    clients = random_clients(4, 3, 4)
    result = solve(clients, Identity(4))
    assert result.status == "optimal" and result.lambda_D == 0.0
    np.testing.assert_allclose(result.D, np.linalg.inv(np.mean(clients, axis=0)), rtol=1e-9)
    diagonal = solve(clients, Identity(4), structure="diagonal")
    assert diagonal.status == "optimal" and diagonal.binding == ("D ⪯ L⁻¹",)


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((1, 3))])
def test_singular_clients(algorithm: str, structure: object) -> None:
    """Lᵢ of rank one and two whose mean is positive definite, one of them with a zero row."""
    rng = np.random.default_rng(0)
    factors = [rng.standard_normal((4, 1)), rng.standard_normal((4, 2)), np.diag([1.0, 1.0, 1.0, 0.0])]
    clients = [A @ A.T for A in factors]
    for sketch in (RandK(4, 2), BernQ(0.5, 4)):
        result = solve(clients, sketch, algorithm=algorithm, structure=structure)
        assert result.status == "optimal"
        assert_conditions(result, clients, sketch)


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar"])
def test_variance_that_vanishes(structure: str) -> None:
    """The only compressed coordinate is one that no client's loss depends on beyond rounding: λ_D is zero."""
    sketch = IndependentSampling([1.0, 1.0, 0.5])
    clients = [np.diag([1.0, 2.0, 0.0]), np.zeros((3, 3))]
    result = solve(clients, sketch, mean_smoothness=np.diag([0.5, 1.0, 0.1]), structure=structure)
    assert result.status == "optimal" and result.lambda_D < 1e-9 and result.binding == ("D ⪯ L⁻¹",)


def test_one_client_of_det_cgd2_is_a_geometric_mean() -> None:
    """D = √c (𝒞(L)⁻¹ # L₁⁻¹) when D ⪯ L⁻¹ is slack."""
    (L1,) = random_clients(5, 1, 8)
    L = 2.0 * L1 + 0.1 * np.eye(5)
    result = solve([L1], RandK(5, 1), mean_smoothness=L, algorithm="det-CGD2")
    assert result.solver_stats.solver_name == "closed form" and result.gap < 1e-9
    B = RandK(5, 1).centered_second_moment(L)
    R = root(B)
    inner = root(R @ np.linalg.inv(L1) @ R)
    mean = np.linalg.inv(R) @ inner @ np.linalg.inv(R)
    np.testing.assert_allclose(result.D / np.trace(result.D), mean / np.trace(mean), rtol=1e-8)
    assert_conditions(result, [L1], RandK(5, 1), L)


def test_no_gap_at_the_start_takes_one_iteration() -> None:
    clients = random_clients(3, 2, 1)
    result = solve(clients, RandK(3, 1), initial_gap=0.0)
    assert result.K == 1 and result.status == "optimal"
    assert_conditions(result, clients, RandK(3, 1))


def test_sketches_without_a_hadamard_form() -> None:
    clients = random_clients(4, 2, 6)
    for algorithm in ("det-CGD1", "det-CGD2"):
        for structure in ("full", "diagonal", BlockDiagonal((2, 2))):
            for epsilon2 in (1e-2, 10.0):
                result = solve(clients, Gaussian(4, 2), algorithm=algorithm, structure=structure, epsilon2=epsilon2)
                assert result.status == "optimal"


def test_exact_targets() -> None:
    targets = Targets(0.1, 1.0, 0.3, 7)
    assert targets.enough(120, 1.0) is (Fraction(120) * Fraction(0.1) >= 12)
    K = targets.least_iterations(0.37)
    assert targets.enough(K, 0.37) and not targets.enough(K - 1, 0.37)
    assert Fraction(rounded_down(Fraction(1, 3))) <= Fraction(1, 3)
    assert targets.lambda_allowed(10**12, 1.0) <= Fraction(7, 10**12)
    assert Targets(0.1, 0.0, 0.0, 1).kappa is None and Targets(0.1, 0.0, 0.0, 1).log_kappa == math.inf


@pytest.mark.parametrize("seed", range(5))
def test_the_factor_dominates_in_exact_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((3, 2 if seed % 2 else 3))
    L = A @ A.T
    L = 0.5 * (L + L.T)
    H = dominating_factor(L)
    assert H is not None
    exact = [[sum(Fraction(H[i, k]) * Fraction(H[j, k]) for k in range(3)) for j in range(3)] for i in range(3)]
    M = [[exact[i][j] - Fraction(L[i, j]) for j in range(3)] for i in range(3)]
    assert M[0][0] > 0
    assert M[0][0] * M[1][1] - M[0][1] ** 2 > 0
    determinant = (
        M[0][0] * (M[1][1] * M[2][2] - M[1][2] ** 2)
        - M[0][1] * (M[0][1] * M[2][2] - M[1][2] * M[0][2])
        + M[0][2] * (M[0][1] * M[1][2] - M[1][1] * M[0][2])
    )
    assert determinant > 0
    assert dominating_factor(np.diag([1.0, -1.0, 1.0])) is None


@pytest.mark.parametrize("linear", [True, False])
def test_any_multipliers_give_a_valid_bound(linear: bool) -> None:
    """Random U: the bound is never below the optimum, and the answer's own multipliers are not contradicted."""
    clients, sketch = random_clients(4, 3, 12), RandK(4, 1)
    L = np.mean(clients, axis=0)
    algorithm = "det-CGD1" if linear else "det-CGD2"
    known = solve(clients, sketch, algorithm=algorithm)
    group = ClientGroup(CentredMap(sketch.map, np.arange(4)), np.array(clients))
    conditions = Conditions(Pair.exact(L), (group,), linear, Pattern.full(4), np.ones(4))
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(30):
        U = rng.standard_normal((3, 4, 4)) * 10.0 ** rng.uniform(-2, 2)
        descent = rng.standard_normal((4, 4)) if rng.random() < 0.5 else None
        reference = known.D * 10.0 ** rng.uniform(-1, 1)
        bound = rate_bound(conditions, Multipliers((U,), descent), reference, linear)
        if bound is not None and math.isfinite(bound.at_factor(known.targets.log_kappa)):
            found += 1
            assert bound.at_factor(known.targets.log_kappa) >= known.certificate.log_rate
    assert found > 5


def test_a_comparison_says_what_a_bit_is() -> None:
    table = compare_distributed(random_clients(3, 2, 0), RandK(3, 1), **PROBLEM)
    assert table.best.K == min(row.K for row in table.rows)
    assert "D-det-CGD2" in repr(table) and repr(table).endswith(BITS_NOTE)
    assert "× 64 (float64)" in BITS_NOTE


def test_a_comparison_reports_its_progress() -> None:
    seen: list[tuple[int, int, str]] = []
    table = compare_distributed(
        random_clients(3, 2, 0), RandK(3, 1), on_progress=lambda *now: seen.append(now), **PROBLEM
    )
    assert [(done, total) for done, total, _ in seen] == [(i, len(table.rows)) for i in range(len(table.rows) + 1)]
    assert all(name.startswith(row.method) for row, (_, _, name) in zip(table.rows, seen[:-1], strict=True))


def test_result_reads_well() -> None:
    result = solve(random_clients(3, 2, 1), RandK(3, 1))
    text = repr(result)
    for part in ("DistributedResult", "certified gap", "λ_D ≤ n/K", "numbers sent"):
        assert part in text
    assert result.summary()["certificate"]["gap"] == result.gap
    assert result.neighbourhood <= PROBLEM["epsilon2"] / 2.0 * (1.0 + 1e-12)
    with pytest.raises(ValueError, match="read-only"):
        result.D[0, 0] = 1.0


def test_input_errors_name_the_argument() -> None:
    good, sketch = random_clients(3, 2, 0), RandK(3, 1)
    with pytest.raises(ValueError, match=r"for one client pass \[L\]"):
        solve(good[0], sketch)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"for one client pass \[L\]"):
        solve(sparse.csr_array(good[0]), sketch)  # type: ignore[arg-type]
    for nonsense in (3, None, "L.npy"):
        with pytest.raises(TypeError, match="smoothness must be the list of the clients' matrices, got"):
            solve(nonsense, sketch)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="sketch must be a Sketch such as RandK"):
            solve(good, nonsense)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one matrix"):
        solve([], sketch)
    with pytest.raises(ValueError, match="one for each of the 2 clients, got 3"):
        solve(good, [sketch] * 3)
    with pytest.raises(ValueError, match="sketch is for d=4"):
        solve(good, RandK(4, 1))
    with pytest.raises(ValueError, match=r"smoothness\[1\] is 2×2"):
        solve([good[0], np.eye(2)], sketch)
    with pytest.raises(ValueError, match=r"smoothness\[1\] must be positive semidefinite"):
        solve([good[0], np.diag([1.0, -1.0, 1.0])], sketch)
    with pytest.raises(ValueError, match="mean_smoothness is singular"):
        solve(good, sketch, mean_smoothness=np.diag([1.0, 1.0, 0.0]))
    with pytest.raises(ValueError, match="epsilon2 must be a finite positive number"):
        solve(good, sketch, epsilon2=0.0)
    with pytest.raises(ValueError, match="delta_inf must be a finite number of at least 0"):
        solve(good, sketch, delta_inf=-1.0)
    with pytest.raises(ValueError, match="algorithm must be one of"):
        solve(good, sketch, algorithm="det-CGD3")
    with pytest.raises(ValueError, match="iterations must be a whole number"):
        solve(good, sketch, iterations=0)
    with pytest.raises(ValueError, match="unknown solver"):
        solve(good, sketch, solver="nobody")
    with pytest.raises(TypeError, match="sketch must be a Sketch such as RandK"):
        solve(good, ["randk:1", "randk:1"])


def test_no_bound_on_the_variance_is_proved_by_a_number_that_is_none() -> None:
    group = ClientGroup(CentredMap(RandK(2, 1).map, np.arange(2)), np.array([np.eye(2)]))
    conditions = Conditions(Pair.exact(np.eye(2)), (group,), True, Pattern.full(2), np.ones(2))
    for arithmetic in (Plain, Pair):
        at = conditions.at(np.eye(2), arithmetic)
        assert at.proves(1.1) and at.proves(math.inf)
        for c in (0.9, math.nan, -math.inf):
            assert not at.proves(c)
