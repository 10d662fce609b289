"""Real processes with gloo: the iterates of the numpy runner, the bytes of the plan, resumed to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

from integrations.torch.worker import (
    FEEDBACK,
    FEEDBACK_ROUNDS,
    ITERATIONS,
    METHODS,
    SEED,
    SKETCHED,
    layered_problem,
    softmax_problem,
)
from stepsize_opt import Feedback
from stepsize_validation import run, run_feedback

WORKER = Path(__file__).with_name("worker.py")
OPTIONS: dict[str, Any] = {"iterations": ITERATIONS, "seeds": 1, "seed": SEED, "client_seeds": "shared"}


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def trained(request: Any, tmp_path_factory: Any) -> tuple[int, dict[str, Any], list[dict[str, Any]]]:
    n, folder = request.param, tmp_path_factory.mktemp("processes")
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(n), str(folder)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        errors = [process.communicate(timeout=500)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(errors)
    everywhere = [dict(np.load(folder / f"out-{rank}.npz")) for rank in range(n)]
    return n, everywhere[0], everywhere


@pytest.mark.parametrize("name", METHODS)
def test_iterates_are_those_of_the_runner(trained: Any, name: str) -> None:
    n, out, _ = trained
    f = softmax_problem(n)
    record = run(f, METHODS[name](f.smoothness()), **OPTIONS)
    # Gradients and sums of four processes round differently; nothing else may.
    digits = 1.0 if name in SKETCHED else 10.0
    np.testing.assert_allclose(out[name], record.final_points[0], rtol=1e-12 * digits, atol=1e-14 * digits)
    assert np.abs(out[name]).max() > 0.01
    assert out[f"{name}, bytes"] == 8 * record.sent.sum() / n
    assert out["equal"], "the processes must hold the same bits"
    # In float32 the matrices stay those that were proved; messages and parameters are rounded.
    assert out[f"{name}, float32"].dtype == np.float32
    np.testing.assert_allclose(out[f"{name}, float32"], out[name], rtol=1e-4, atol=1e-5)
    assert 2 * out[f"{name}, float32, bytes"] == out[f"{name}, bytes"]


@pytest.mark.parametrize("name", FEEDBACK)
def test_feedback_is_that_of_the_runner(trained: Any, name: str) -> None:
    n, out, everywhere = trained
    f, options = softmax_problem(n), FEEDBACK[name]
    record = run_feedback(f, Feedback(f.smoothness(), 4, clients=n, **options), rounds=FEEDBACK_ROUNDS)
    np.testing.assert_allclose(out[name], record.final_point, rtol=1e-10, atol=1e-12)
    checks = 16 * record.checked.sum() - 8 * FEEDBACK_ROUNDS  # beyond one in every second step
    for direction, per_step in zip(("bytes", "received"), out[f"{name}, traffic"], strict=True):
        mean = np.mean([one[f"{name}, {direction}"] for one in everywhere])
        assert mean == pytest.approx(per_step * FEEDBACK_ROUNDS + checks)
    assert out[f"{name}, bound"] == pytest.approx(record.bounds[-1], rel=1e-9)


def test_groups_are_the_layers_of_the_runner(trained: Any) -> None:
    """With DDP under no_sync, whose own averages would change the result."""
    n, out, _ = trained
    f, sketch, blocks = layered_problem(n)
    record = run(f, block_diag(*blocks), sketch, **OPTIONS)
    np.testing.assert_allclose(out["layers"], record.final_points[0], rtol=1e-12, atol=1e-14)
    assert out["layers, bytes"] == 8 * record.sent.sum() / n


@pytest.mark.parametrize("name", ["layers", "network"])
def test_resumed_from_state_dicts_to_the_same_bits(trained: Any, name: str) -> None:
    _, out, _ = trained
    np.testing.assert_array_equal(out[f"{name}, resumed"], out[name])


def test_set_up_estimates_and_refusals(trained: Any) -> None:
    """A triangle of FᵀF/n, 7×7, is sent before the first step; DDP that averages and other seeds are refused."""
    _, out, everywhere = trained
    assert everywhere[1]["network, setup"] == 4 * 28
    np.testing.assert_allclose(out["estimate, own"], out["estimate, all"], rtol=1e-9, atol=1e-12)
    assert all(one["refused"] and one["averages are refused"] for one in everywhere)


def test_no_thread_outlives_the_group(trained: Any) -> None:
    """One that still holds a tensor when the interpreter ends aborts the process."""
    _, _, everywhere = trained
    assert [int(one["threads"]) for one in everywhere] == [1] * len(everywhere)


@pytest.mark.parametrize("places", ["shared", "own"])
def test_what_is_not_finite_on_one_process_changes_nothing_on_all(trained: Any, places: str) -> None:
    """The steps are counted and warned about on every process, and training goes on from consistent memories."""
    n, out, everywhere = trained
    assert all(one[f"failures, {places}, counts"].tolist() == [3, 3] for one in everywhere)
    assert out[f"failures, {places}, unlike"] < 1e-8
    f = softmax_problem(n)
    record = run_feedback(f, Feedback(f.smoothness(), 4, clients=n, places=places), rounds=24)
    assert f.value(out[f"failures, {places}"][None])[0] < record.values[-1]


@pytest.mark.parametrize("places", ["shared", "own"])
def test_the_state_of_another_process_is_not_continued(trained: Any, places: str) -> None:
    """With it the mean of what is remembered was 1.1 |s| away from s, for ever."""
    n, out, everywhere = trained
    assert all(one[f"state of the first, {places}, warned"] == 1 for one in everywhere)
    assert out[f"state of the first, {places}, unlike"] == 0.0
    f = softmax_problem(n)
    before, after = (f.value(out[f"{case}, {places}"][None])[0] for case in ("failures", "state of the first"))
    assert after <= before
