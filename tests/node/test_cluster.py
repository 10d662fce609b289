"""Many components on several processes: joblib's conventions, and a cluster that loses a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from joblib import parallel_config
from scipy import sparse

from stepsize_opt import RandK, optimal_stepsize
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.node.pieces import processes
from stepsize_opt.results import StepsizeResult

pytestmark = pytest.mark.slow


def blocks(number: int) -> Any:
    rng = np.random.default_rng(0)
    roots = [rng.standard_normal((n, n)) for n in rng.integers(4, 20, number)]
    return sparse.block_diag([A @ A.T + np.eye(len(A)) for A in roots], format="csr")


def assert_as_alone(result: StepsizeResult, L: Any, sketch: RandK) -> None:
    """The answer of one process, block by block."""
    alone = optimal_stepsize(L, sketch, n_jobs=1)
    assert result.status == alone.status == "optimal"
    for ours, theirs in zip(result.blocks, alone.blocks, strict=True):
        np.testing.assert_array_equal(ours.indices, theirs.indices)
        np.testing.assert_allclose(ours.D, theirs.D, rtol=1e-9)


def test_a_cluster_that_loses_a_worker_gives_the_answer_of_one_process() -> None:
    L = blocks(80)
    sketch = RandK(L.shape[0], L.shape[0] // 4)
    killed = []
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = client.run(os.getpid)

        def kill_one_that_works() -> None:
            while not killed:
                busy = [worker for worker, tasks in client.processing().items() if tasks]
                if busy:
                    os.kill(pids[busy[0]], signal.SIGKILL)
                    killed.append(busy[0])
                time.sleep(0.01)

        killer = threading.Thread(target=kill_one_that_works, daemon=True)
        killer.start()
        with parallel_config(backend="dask"):
            result = optimal_stepsize(L, sketch)
        killer.join(timeout=30.0)
    assert killed
    assert_as_alone(result, L, sketch)


@pytest.mark.parametrize("backend", ["multiprocessing", "threading"])
def test_a_back_end_that_returns_a_list_or_shares_memory(backend: str) -> None:
    L = blocks(40)
    sketch = RandK(L.shape[0], L.shape[0] // 4)
    with parallel_config(backend=backend, n_jobs=2):
        result = optimal_stepsize(L, sketch)
    assert_as_alone(result, L, sketch)


def test_the_stepsize_of_many_blocks_is_a_sparse_matrix() -> None:
    L = sparse.block_diag([blocks(6), sparse.eye(3)], format="csr")
    d = L.shape[0]
    for structure in ("full", "diagonal"):
        result = optimal_stepsize(L, RandK(d, d // 4), structure=structure)
        D = result.tosparse()
        np.testing.assert_array_equal(D.toarray(), result.D)
        assert D.nnz == np.count_nonzero(result.D) < d * d
    many = BlockStepsize([np.arange(10**7)], [np.ones(10**7)])
    large = replace(result, certificate=replace(result.certificate, d=10**7), stepsize=many)
    with pytest.raises(
        ValueError, match=r"dense 10000000×10000000 matrix would take .*; blocks holds it .*tosparse\(\)"
    ):
        _ = large.D


def test_none_obeys_the_configuration() -> None:
    assert processes(None) == 1
    with parallel_config(backend="loky", n_jobs=2):
        assert processes(None) == 2
        assert processes(1) == 1
