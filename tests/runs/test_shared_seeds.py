"""Clients that draw the same sketch: the run is that of one node, its guarantee too, and every client sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.resumed_runs import CLIENTS, KINDS, NODE, same_bits
from shared.small_data import small_data
from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.infimum import find_federated_infimum
from stepsize_opt.problems.splits import split
from stepsize_opt.sketches import RandK
from stepsize_validation.runs.checkpoint import CheckpointError
from stepsize_validation.runs.rates import check_rate
from stepsize_validation.runs.runner import run


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_clients_that_share_their_draws_are_one_node(kind: str, algorithm: str) -> None:
    # Three parts of equal size: their mean is the objective of the node.
    arguments: dict[str, Any] = {"algorithm": algorithm, "iterations": 60, "seeds": 2}
    D = 0.05 * np.linalg.inv(NODE.smoothness())
    shared = run(CLIENTS, D, KINDS[kind], client_seeds="shared", **arguments)
    node = run(NODE, D, KINDS[kind], **arguments)
    for field in ("squared_norms", "descent", "metric_norms", "decrease", "final_points"):
        np.testing.assert_allclose(getattr(shared, field), getattr(node, field), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(shared.sent, 3 * node.sent)  # every client sends its numbers


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_the_guarantee_of_one_node_holds(algorithm: str) -> None:
    f = Federated.logistic(split(small_data(), 5, np.random.default_rng(0), "label"), 0.1)
    sketch = RandK(6, 1)
    D = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm).D
    infimum = find_federated_infimum(f).whole
    record = run(f, D, sketch, algorithm=algorithm, client_seeds="shared", iterations=400, seeds=16)
    check = check_rate(record, infimum)
    assert check.theorem == 1 and check.verdict == "holds", check
    # The same D with independent draws is outside every condition of the distributed theorem, and the run is another.
    independent = run(f, D, sketch, algorithm=algorithm, iterations=400, seeds=16)
    assert not np.array_equal(record.squared_norms, independent.squared_norms)


def test_checkpoints_tell_shared_from_independent_draws(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"iterations": 50, "seeds": 2, "checkpoint_every": 20}
    D = 0.05 * np.linalg.inv(CLIENTS.smoothness())
    path = tmp_path / "run.npz"
    whole = run(CLIENTS, D, RandK(6, 2), client_seeds="shared", checkpoint=path, **arguments)
    assert same_bits(run(CLIENTS, D, RandK(6, 2), client_seeds="shared", checkpoint=path, **arguments), whole)
    with pytest.raises(CheckpointError, match="different client_seeds"):
        run(CLIENTS, D, RandK(6, 2), checkpoint=path, **arguments)


def test_arguments() -> None:
    D = 0.05 * np.eye(6)
    with pytest.raises(ValueError, match="client_seeds must be 'independent' or 'shared', got 'common'"):
        run(CLIENTS, D, RandK(6, 2), client_seeds="common")
    with pytest.raises(ValueError, match="one sketch for all clients"):
        run(CLIENTS, D, [RandK(6, 2), RandK(6, 2), RandK(6, 3)], client_seeds="shared")
