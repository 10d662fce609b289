"""A mistake in a call is named as the caller wrote it, with the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepsize_opt import RandK, optimal_distributed_stepsize, optimal_stepsize
from stepsize_validation import check_rate, run
from stepsize_validation.data import federated_logistic, load_dataset, logistic_regression, split

L = np.array([[2.0, 1.0], [1.0, 3.0]])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"structure": np.eye(2)}, TypeError, r"structure must be 'full'.*got ndarray; Direction\(W\)"),
        ({"structure": "foo"}, ValueError, "unknown structure 'foo'; choose 'full'"),
        ({"warm_start": np.eye(2)}, TypeError, "warm_start must be a StepsizeResult of an earlier call"),
        ({"tolerance": 1e-3}, ValueError, "unknown native option tolerance.*tol, time_limit and max_iters"),
        ({"time_limit": -1}, ValueError, "time_limit"),
        ({"n_jobs": 0}, ValueError, "n_jobs must not be 0; use 1"),
    ],
)
def test_one_node(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        optimal_stepsize(L, RandK(2, 1), **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta_inf": -1e-9}, ValueError, "delta_inf must be .*(at least 0|nonnegative|not negative).*got -1e-09"),
        ({"structure": np.eye(2)}, TypeError, "structure must be"),
        ({"tolerance": 1e-3}, ValueError, "unknown native option tolerance"),
    ],
)
def test_clients(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    goal = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
    with pytest.raises(error, match=message):
        optimal_distributed_stepsize([L, L], RandK(2, 1), **{**goal, **arguments})


def test_a_run_with_clients_is_no_run_of_one_node() -> None:
    clients = federated_logistic(split(load_dataset("breast_cancer"), 2, np.random.default_rng(0)), 0.1)
    record = run(clients, 1e-3 * np.eye(30), RandK(30, 3), iterations=4, seeds=2)
    assert record.clients == 2
    with pytest.raises(ValueError, match="2 clients that draw sketches of their own: check_distributed_rate"):
        check_rate(record)
    shared = run(clients, 1e-3 * np.eye(30), RandK(30, 3), iterations=4, seeds=2, client_seeds="shared")
    assert check_rate(shared).seeds == 2


def test_objects_show_themselves_in_a_line() -> None:
    data = load_dataset("breast_cancer")
    record = run(LogisticRegression.from_dataset(data, 0.1), 1e-3 * np.eye(30), RandK(30, 3), iterations=4, seeds=2)
    assert repr(data) == "Dataset('breast_cancer', m = 569 rows, d = 30 features, 63% labels +1)"
    assert repr(record).startswith("Run(det-CGD1, K = 4 steps, 2 seeds, rate = 0.001, mean G_K = ")
