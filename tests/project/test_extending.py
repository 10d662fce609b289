"""What docs/developing.md promises: a sketch with a map of its own and a method, defined outside the packages, work."""

from __future__ import annotations

import importlib.util
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from shared.exact import log_det, rational, satisfies_condition
from shared.small_data import small_data
from stepsize_opt import Gaussian, RandK, certify, get_method, optimal_stepsize, parse_sketch
from stepsize_opt.problems import find_infimum
from stepsize_validation import check_rate, distributed_lambda, run
from stepsize_validation.data import federated_logistic, logistic_regression, random_smoothness, split

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look their annotations up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def own_method() -> ModuleType:
    return _load("own_method")


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_method_from_outside_is_solved_and_certified(own_method: ModuleType, k: int) -> None:
    L, sketch = random_smoothness(np.random.default_rng(k), 5, 1e4), RandK(5, k)
    result = optimal_stepsize(L, sketch, algorithm="OWN-subspace")
    assert (result.status, result.algorithm) == ("optimal", "own-subspace")
    assert "condition T(D) ⪯ D is D ⪯ (k/d) L⁻¹" in result.reductions
    np.testing.assert_allclose(result.D, k / 5 * np.linalg.inv(L), rtol=1e-8)
    method = own_method.OwnSubspace()
    assert satisfies_condition(result.D, L, sketch, method)
    assert not satisfies_condition(1.001 * result.D, L, sketch, method)
    assert Decimal(result.log_det) <= log_det(rational(result.D)) <= Decimal(result.certificate.upper_bound)
    assert certify(result.D, L, sketch, algorithm=method, dual=result.dual).gap <= 1e-9
    diagonal = optimal_stepsize(L, sketch, algorithm=method, structure="diagonal")
    assert diagonal.status == "optimal" and satisfies_condition(diagonal.D, L, sketch, method)
    assert diagonal.rate < result.rate


def test_formulas_of_a_method_from_outside(own_method: ModuleType) -> None:
    rng = np.random.default_rng(0)
    L, D, sketch, method = *(random_smoothness(rng, 4, 10.0) for _ in range(2)), RandK(4, 2), own_method.OwnSubspace()
    weights, diagonals = sketch.support()
    factors = method.factors(D, lambda: L)
    G = (factors.left * diagonals[:, None, :]) @ factors.right
    np.testing.assert_allclose(np.tensordot(weights, G, axes=1), D, rtol=1e-10)
    T = np.tensordot(weights, G.transpose(0, 2, 1) @ L @ G, axes=1)
    np.testing.assert_allclose(method.second_moment(D, L, sketch), T, rtol=1e-10)
    np.testing.assert_allclose(method.variance(D, L, sketch), T - D @ L @ D, rtol=1e-10)


def test_a_method_from_outside_runs_on_a_node_and_on_clients(own_method: ModuleType) -> None:
    node = logistic_regression(small_data(), 0.1)
    clients = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)
    for objective, k in ((node, 1), (node, 2), (clients, 2)):
        sketch = RandK(objective.d, k)
        D = optimal_stepsize(objective.smoothness(), sketch, algorithm="own-subspace").D
        record = run(objective, D, sketch, algorithm="own-subspace", iterations=200, start=np.ones(objective.d))
        assert record.algorithm == "own-subspace"
        assert record.values[:, -1].mean() < record.start_value
        if objective is node:
            assert check_rate(record, find_infimum(node)).verdict == "holds"
    law = RandK(node.d, 2)
    variance = distributed_lambda(D, clients.smoothness(), clients.client_smoothness(), law, get_method("own-subspace"))
    assert variance > 0.0
    with pytest.raises(ValueError, match=r"own-subspace needs the same second moment .* got gaussian:2"):
        optimal_stepsize(np.eye(4), Gaussian(4, 2), algorithm="own-subspace")


@pytest.fixture(scope="module")
def own_sketch() -> ModuleType:
    return _load("own_sketch")


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("d", [1, 4, 5])
def test_a_sketch_from_outside_is_solved_and_certified(own_sketch: ModuleType, algorithm: str, d: int) -> None:
    L, sketch = random_smoothness(np.random.default_rng(d), d, 1e3), own_sketch.MirrorHalves(d)
    assert parse_sketch(sketch.text, d) == sketch
    result = optimal_stepsize(L, sketch, algorithm=algorithm)
    assert result.status == "optimal"
    assert satisfies_condition(result.D, L, sketch, algorithm)
    assert not satisfies_condition(1.01 * result.D, L, sketch, algorithm)
    assert Decimal(result.log_det) <= log_det(rational(result.D)) <= Decimal(result.certificate.upper_bound)
    assert certify(result.D, L, sketch, algorithm=algorithm, dual=result.dual).gap <= 1e-6
    other = optimal_stepsize(L, sketch, algorithm=algorithm, solver="clarabel", reduce=False, tol=1e-5)
    assert other.log_det == pytest.approx(result.log_det, abs=2e-5 * d)


def test_components_of_a_map_from_outside(own_sketch: ModuleType) -> None:
    """Coordinates that neither L nor the map connects are solved apart: (0, 3) and (1, 2)."""
    L = np.array([[2.0, 0, 0, 1], [0, 3.0, 1, 0], [0, 1, 5.0, 0], [1, 0, 0, 7.0]])
    result = optimal_stepsize(L, own_sketch.MirrorHalves(4))
    assert "L splits into 2 connected components" in result.reductions
    assert result.status == "optimal" and satisfies_condition(result.D, L, own_sketch.MirrorHalves(4), "det-CGD1")


def test_a_sketch_from_outside_is_what_it_says_and_runs(own_sketch: ModuleType) -> None:
    node = logistic_regression(small_data(), 0.1)
    sketch = own_sketch.MirrorHalves(node.d)
    weights, outcomes = sketch.support()
    M = random_smoothness(np.random.default_rng(1), node.d, 10.0)
    np.testing.assert_allclose(sketch.second_moment(M), np.tensordot(weights, outcomes @ M @ outcomes, axes=1))
    x = np.arange(float(node.d))
    applied = sketch.apply(x, np.random.default_rng(2))
    np.testing.assert_array_equal(applied, sketch.sample(np.random.default_rng(2)) @ x)
    D = optimal_stepsize(node.smoothness(), sketch).D
    record = run(node, D, sketch, iterations=200)
    assert check_rate(record, find_infimum(node)).verdict == "holds"
