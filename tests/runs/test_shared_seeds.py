"""Clients that draw the same sketch: the run is that of one node, its guarantee too, and every client sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from shared.small_data import small_data
from shared.strategies import sketches
from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.problems.infimum import find_federated_infimum
from stepsize_opt.sketches import RandK, Sketch
from stepsize_validation.data import federated_logistic, logistic_regression, split
from stepsize_validation.runs.rates import check_rate
from stepsize_validation.runs.runner import run

NODE = logistic_regression(small_data(), 0.1)
CLIENTS = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@given(sketches(6))
@settings(max_examples=20)
def test_clients_that_share_their_draws_are_one_node(algorithm: str, sketch: Sketch) -> None:
    # Three parts of equal size: their mean is the objective of the node.
    arguments: dict[str, Any] = {"algorithm": algorithm, "iterations": 60, "seeds": 2}
    D = 0.05 * np.linalg.inv(NODE.smoothness())
    shared = run(CLIENTS, D, sketch, client_seeds="shared", **arguments)
    node = run(NODE, D, sketch, **arguments)
    for field in ("squared_norms", "descent", "metric_norms", "decrease", "final_points"):
        np.testing.assert_allclose(getattr(shared, field), getattr(node, field), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shared.sent, 3 * node.sent)  # every client sends its numbers


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_the_guarantee_of_one_node_holds(algorithm: str) -> None:
    f = federated_logistic(split(small_data(), 5, np.random.default_rng(0), "label"), 0.1)
    sketch = RandK(6, 1)
    D = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm).D
    infimum = find_federated_infimum(f).whole
    record = run(f, D, sketch, algorithm=algorithm, client_seeds="shared", iterations=400, seeds=16)
    check = check_rate(record, infimum)
    assert check.statement == "Theorem 1" and check.verdict == "holds", check
    # The same D with independent draws is outside every condition of the distributed theorem, and the run is another.
    independent = run(f, D, sketch, algorithm=algorithm, iterations=400, seeds=16)
    assert not np.array_equal(record.squared_norms, independent.squared_norms)


def test_arguments() -> None:
    D = 0.05 * np.eye(6)
    with pytest.raises(ValueError, match="client_seeds must be one of 'independent', 'shared', got 'common'"):
        run(CLIENTS, D, RandK(6, 2), client_seeds="common")
    with pytest.raises(ValueError, match="one sketch for all clients"):
        run(CLIENTS, D, [RandK(6, 2), RandK(6, 2), RandK(6, 3)], client_seeds="shared")
