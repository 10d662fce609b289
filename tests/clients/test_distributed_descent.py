"""The guarantee ``descent`` for n clients: the step of its proof, its optimum, its bounds, exactly."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import judged, random_clients, root
from shared.one_step import distributed_one_step
from shared.strategies import seeds, sketches
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.inputs.structures import BlockDiagonal, Direction
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import Quadratic
from stepsize_opt.proofs import CentredMap, ClientGroup, Conditions, Multipliers, Pair, rate_bound
from stepsize_opt.sketches import BernQ, Gaussian, Identity, IndependentSampling, LayerWise, RandK, Sketch
from stepsize_solvers.programs import Pattern
from stepsize_solvers.registry import available_solvers
from stepsize_validation.runs.rates import distributed_lambda

BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
TARGETS: dict[str, Any] = {"initial_gap": 1.0, "delta_inf": 0.4}
checked = partial(judged, guarantee="descent")


@BOTH
@pytest.mark.parametrize("lengthened", [1.0, 1.9])
def test_the_step_of_the_proof_by_enumeration(algorithm: str, lengthened: float) -> None:
    """E f(x⁺) ≤ f − ½‖∇f‖²_{2D−DLD} + (λ_D/n)(f − (1/n)Σfᵢ^inf), also for D beyond L⁻¹."""
    rng = np.random.default_rng(2)
    matrices = random_clients(3, 3, 4)
    f = Federated(tuple(Quadratic(L, rng.standard_normal(3)) for L in matrices))
    L, sketch = f.smoothness(), RandK(3, 1)
    D = lengthened * np.linalg.inv(L)
    lam = distributed_lambda(D, L, matrices, sketch, algorithm)
    X = rng.standard_normal((20, 3))
    H = 2.0 * D - D @ L @ D
    assert distributed_one_step(f, D, sketch, X, 0.0, lam, algorithm, H).holds
    # The clients' part aside, the step is an equality on quadratics: no larger metric would do.
    assert np.any(distributed_one_step(f, D, sketch, X, 0.0, 0.0, algorithm, H).excess > 0.0)


@BOTH
@pytest.mark.parametrize(
    "structure", ["full", "diagonal", "scalar", BlockDiagonal((2, 2)), Direction(np.eye(4), (1, 3))]
)
@pytest.mark.parametrize("sketch", [RandK(4, 1), BernQ(0.5, 4), IndependentSampling([0.2, 0.5, 0.7, 1.0])])
def test_every_structure_is_optimal_and_exact(algorithm: str, structure: Any, sketch: Sketch) -> None:
    for epsilon2 in (1e-2, 3.0):
        options = {"algorithm": algorithm, "structure": structure, "delta_inf": 0.4}
        result = checked(random_clients(4, 3, 1), sketch, epsilon2=epsilon2, **options)
        assert result.status == "optimal" and result.gap <= 1e-6
        assert result.certificate.smallest_K <= result.K <= result.certificate.smallest_K + 1
        assert result.iterations == result.K and result.guarantee_used.startswith("descent")


@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar"])
def test_small_steps_need_the_homogeneous_program_alone(algorithm: str, structure: Any) -> None:
    """2D exceeds H by more than the tolerance; the multipliers of the homogeneous program prove the rest."""
    options = {"epsilon2": 1e-3, "algorithm": algorithm, "structure": structure, "delta_inf": 0.5}
    result = checked(random_clients(4, 3, 0), RandK(4, 1), **options)
    D, L = result.D, np.mean(random_clients(4, 3, 0), axis=0)
    loss = (np.linalg.slogdet(2.0 * D)[1] - np.linalg.slogdet(2.0 * D - D @ L @ D)[1]) / 4
    assert loss > 1e-5
    assert result.status == "optimal"
    assert len(result.solver_stats.extra_stats["runs"]) == 1
    assert "the steps are small: the scale separates from the direction" in result.reductions


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(["det-CGD1", "det-CGD2"]), st.sampled_from(["full", "diagonal", "scalar"]), seeds)
def test_between_one_and_four_times_fewer(data: st.DataObject, algorithm: str, structure: Any, seed: int) -> None:
    """H ⪰ D under D ⪯ L⁻¹, and half of a D of the metric satisfies (12) with a quarter of its rate or more."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 5))
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    problem: dict[str, Any] = {
        "epsilon2": float(10.0 ** rng.uniform(-3.0, 1.5)),
        "initial_gap": float(rng.uniform(0.5, 2.0)),
        "delta_inf": float(rng.choice([0.0, 0.3, 3.0])),
        "algorithm": algorithm,
        "structure": structure,
    }
    clients = random_clients(d, 3, seed, reg=0.3)
    paper = optimal_distributed_stepsize(clients, sketch, **problem)
    metric = optimal_distributed_stepsize(clients, sketch, guarantee="descent", **problem)
    assert metric.K <= paper.iterations + 1 <= paper.K + 1
    assert paper.K <= 4.0 * metric.K * (1.0 + 1e-5) + 1
    H = 2.0 * paper.D - paper.D @ np.mean(clients, axis=0) @ paper.D
    assert paper.descent_rate == pytest.approx(math.exp(np.linalg.slogdet(H)[1] / d), rel=1e-9)
    assert paper.descent_rate >= paper.rate


@BOTH
def test_nothing_is_gained_where_the_inverse_decides(algorithm: str) -> None:
    """With D = L⁻¹ feasible both guarantees have it: 2D − DLD ⪯ L⁻¹ for every D."""
    clients = random_clients(4, 3, 1)
    problem: dict[str, Any] = {**TARGETS, "epsilon2": 1e-3, "algorithm": algorithm}
    paper = optimal_distributed_stepsize(clients, Identity(4), **problem)
    metric = optimal_distributed_stepsize(clients, Identity(4), guarantee="descent", **problem)
    assert paper.binding == ("D ⪯ L⁻¹",) and metric.binding == ()
    assert metric.K == pytest.approx(paper.K, abs=1)
    np.testing.assert_allclose(metric.D, np.linalg.inv(np.mean(clients, axis=0)), rtol=1e-9)


@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("name", [s.name for s in available_solvers() if s.available and s.name != "native"])
def test_every_solver_finds_the_same(name: str, algorithm: str, structure: Any) -> None:
    clients, sketch = random_clients(4, 3, 2), RandK(4, 1)
    problem: dict[str, Any] = {**TARGETS, "epsilon2": 0.3, "algorithm": algorithm, "structure": structure}
    own = optimal_distributed_stepsize(clients, sketch, guarantee="descent", **problem)
    other = optimal_distributed_stepsize(clients, sketch, guarantee="descent", solver=name, tol=1e-3, **problem)
    assert own.status == "optimal" and other.gap <= (0.05 if name == "scs" else 1e-3)
    # Each is within its gap of the best.
    assert other.certificate.log_rate <= own.certificate.upper_bound
    assert own.certificate.log_rate <= other.certificate.upper_bound


@BOTH
@pytest.mark.parametrize("K", [1, 40, 400, 10**9])
def test_a_given_number_of_iterations(algorithm: str, K: int) -> None:
    clients, sketch = random_clients(4, 3, 3), RandK(4, 2)
    smallest = checked(clients, sketch, epsilon2=0.1, algorithm=algorithm).K
    result = checked(clients, sketch, epsilon2=0.1, algorithm=algorithm, iterations=K)
    assert result.status == ("optimal" if smallest <= K else "infeasible")
    assert result.K == max(K, smallest)


UNTOUCHED = [IndependentSampling([1.0, 0.5, 0.5]), LayerWise([Identity(1), Gaussian(2, 1)]), BernQ([1.0, 0.5], [2, 1])]


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("sketch", UNTOUCHED, ids=str)
def test_a_coordinate_that_is_never_compressed(algorithm: str, structure: Any, sketch: Sketch) -> None:
    for epsilon2 in (1.0, 1e-4, 1e-10, 1e-40):
        result = checked(random_clients(3, 3, 5), sketch, epsilon2=epsilon2, algorithm=algorithm, structure=structure)
        assert result.status == "optimal"


@BOTH
def test_any_multipliers_give_a_valid_bound(algorithm: str) -> None:
    clients, sketch = random_clients(4, 3, 12), RandK(4, 1)
    known = checked(clients, sketch, epsilon2=1.0, algorithm=algorithm)
    group = ClientGroup(CentredMap(sketch.map, np.arange(4)), np.array(clients))
    L = Pair.exact(np.mean(clients, axis=0))
    conditions = Conditions(L, (group,), algorithm == "det-CGD1", Pattern.full(4), np.ones(4), metric=True)
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(40):
        U = rng.standard_normal((3, 4, 4)) * 10.0 ** rng.uniform(-2, 1)
        inverse = np.triu(rng.standard_normal((4, 4))) * 10.0 ** rng.uniform(-1, 1) if rng.random() < 0.7 else None
        reference = known.D * 10.0 ** rng.uniform(-1, 0.3)
        bound = rate_bound(conditions, Multipliers((U,), inverse), reference, linear=False)
        if bound is None:
            continue
        for value in (bound.at_factor(known.targets.log_kappa), bound.at_lambda(math.log(known.lambda_D))):
            found += math.isfinite(value)
            assert value >= known.certificate.log_rate - 1e-9
    assert found > 20
    # A U₀ that is not triangular proves nothing: its determinant is not at hand.
    full = Multipliers((np.ones((3, 4, 4)),), rng.standard_normal((4, 4)))
    assert rate_bound(conditions, full, known.D, linear=False) is None


def test_it_is_saved_and_shown(tmp_path: Path) -> None:
    result = optimal_distributed_stepsize(
        random_clients(3, 2, 0), RandK(3, 1), epsilon2=0.1, guarantee="descent", **TARGETS
    )
    again = DistributedResult.load(result.save(tmp_path / "result"))
    assert again.guarantee == "descent" and again.descent_rate == result.descent_rate == result.rate
    assert "rate det(H)^(1/d)" in str(result)
    assert result.summary()["guarantee_used"] == "descent, det(H)^(1/d)"
    paper = optimal_distributed_stepsize(random_clients(3, 2, 0), RandK(3, 1), epsilon2=0.1, **TARGETS)
    assert f"{paper.iterations} by the guarantee descent" in str(paper)
    assert result.K < paper.iterations < paper.K
    L = np.mean(random_clients(3, 2, 0), axis=0)
    assert np.linalg.eigvalsh(root(L) @ result.D @ root(L))[-1] < 2.0
    with pytest.raises(ValueError, match="guarantee must be one of 'condition', 'descent', got 'rate'"):
        optimal_distributed_stepsize(random_clients(3, 2, 0), RandK(3, 1), epsilon2=1.0, guarantee="rate", **TARGETS)
