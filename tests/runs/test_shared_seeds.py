"""Clients that draw the same sketch: the run is that of one node, its guarantee too, and every client sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from shared.small_data import small_data
from stepsize_opt import RandK, Sketch, optimal_method, optimal_stepsize
from stepsize_opt.problems import find_federated_infimum
from stepsize_validation import check_rate, run
from stepsize_validation.data import federated_logistic, logistic_regression, split
from stepsize_validation.properties.strategies import sketches

NODE = logistic_regression(small_data(), 0.1)
# Three parts of equal size: their mean is the objective of the node.
CLIENTS = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)


def assert_one_node(D: Any, sketch: Sketch | None = None, algorithm: str | None = None) -> None:
    arguments: dict[str, Any] = {"sketch": sketch, "algorithm": algorithm, "iterations": 60, "seeds": 2}
    shared = run(CLIENTS, D, client_seeds="shared", **arguments)
    node = run(NODE, D, **arguments)
    for field in ("squared_norms", "descent", "metric_norms", "decrease", "final_points"):
        np.testing.assert_allclose(getattr(shared, field), getattr(node, field), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shared.sent, 3 * node.sent)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@given(sketches(6))
@settings(max_examples=20)
def test_clients_that_share_their_draws_are_one_node(algorithm: str, sketch: Sketch) -> None:
    assert_one_node(0.05 * np.linalg.inv(NODE.smoothness()), sketch, algorithm)


def test_clients_that_share_their_draws_are_one_node_of_the_subspace_method() -> None:
    method = optimal_method(NODE.smoothness(), 2)
    assert_one_node(method)


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_the_guarantee_of_one_node_holds(algorithm: str) -> None:
    f = federated_logistic(split(small_data(), 5, np.random.default_rng(0), "label"), 0.1)
    sketch = RandK(6, 1)
    D = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm).D
    record = run(f, D, sketch, algorithm=algorithm, client_seeds="shared", iterations=400, seeds=16)
    check = check_rate(record, find_federated_infimum(f).whole)
    assert check.statement == "Theorem 1" and check.verdict == "holds", check
