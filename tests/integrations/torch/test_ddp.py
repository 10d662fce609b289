"""Real processes with gloo: the iterates of the numpy runner, k numbers sent, resumed to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator
from torch import nn

from shared.trained import ITERATIONS, LAYERED, SEED, SOFTMAX, layered_problem, softmax_problem
from stepsize_opt import Identity, LayerWise, RandK, certify, optimal_method, optimal_stepsize
from stepsize_opt.torch import SketchState, certified_cast
from stepsize_validation import run
from stepsize_validation.data import random_smoothness

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.fixture(scope="module", params=[2, 4], ids=["2 processes", "4 processes"])
def trained(request: Any, tmp_path_factory: Any) -> tuple[int, dict[str, Any]]:
    n, folder = request.param, tmp_path_factory.mktemp("ddp")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
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
        errors = [process.communicate(timeout=240)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(errors)
    return n, dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("name", SOFTMAX)
def test_iterates_are_those_of_the_runner(trained: Any, name: str) -> None:
    n, out = trained
    f, (sketch, algorithm) = softmax_problem(n), SOFTMAX[name]
    D = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm).D
    options = {"algorithm": algorithm, "iterations": ITERATIONS, "seeds": 1, "seed": SEED, "client_seeds": "shared"}
    record = run(f, D, sketch, **options)
    # Gradients and sums of four processes round differently; nothing else may.
    np.testing.assert_allclose(out[name], record.final_points[0], rtol=1e-12, atol=1e-14)
    assert np.abs(out[name]).max() > 0.01
    assert out[f"{name}, bytes"] == 8 * record.sent.sum() / n
    assert out["equal"], "the processes must hold the same bits"


def test_the_subspace_method_is_that_of_the_runner(trained: Any) -> None:
    n, out = trained
    f = softmax_problem(n)
    best = optimal_method(f.smoothness(), 4)
    options: dict[str, Any] = {"iterations": ITERATIONS, "seeds": 1, "seed": SEED, "client_seeds": "shared"}
    record = run(f, best.D, best.sketch, algorithm=best, **options)
    np.testing.assert_allclose(out["subspace"], record.final_points[0], rtol=1e-11, atol=1e-13)
    assert out["subspace, bytes"] == 8 * record.sent.sum() / n == 8 * 4 * ITERATIONS


@pytest.mark.parametrize("name", [name for name, (_, algorithm) in SOFTMAX.items() if algorithm == "det-CGD1"])
def test_float32_follows_with_half_the_bytes(trained: Any, name: str) -> None:
    _, out = trained
    assert out[f"{name}, float32"].dtype == np.float32
    # D is scaled by a few units of 6e-8 for its proof, and 60 steps round in float32.
    np.testing.assert_allclose(out[f"{name}, float32"], out[name], rtol=1e-4, atol=1e-5)
    assert 2 * out[f"{name}, float32 bytes"] == out[f"{name}, bytes"]


def test_several_parameters_are_the_layers_of_the_runner(trained: Any) -> None:
    """Whatever the buckets, which DDP rebuilds after the first step."""
    n, out = trained
    f, sketch = layered_problem(n), LayerWise(list(LAYERED.values()))
    D = optimal_stepsize(f.smoothness(), sketch).D
    record = run(f, D, sketch, iterations=ITERATIONS, seeds=1, seed=SEED, client_seeds="shared")
    np.testing.assert_allclose(out["layers"], record.final_points[0], rtol=1e-12, atol=1e-14)
    assert out["layers, bytes"] == 8 * record.sent.sum() / n


def test_resumed_from_state_dicts_to_the_same_bits(trained: Any) -> None:
    _, out = trained
    np.testing.assert_array_equal(out["layers, resumed"], out["layers"])


def test_a_cast_stepsize_is_proved_again() -> None:
    """Rounding alone leaves the condition in about half of all cases; what is returned never does."""
    broken = 0
    for seed in range(8):
        L, sketch = random_smoothness(np.random.default_rng(seed), 5, 1e3), RandK(5, 2)
        D = optimal_stepsize(L, sketch).D
        broken += not certify(D.astype(np.float32), L, sketch).feasible
        cast = certified_cast(D, L, sketch)
        assert cast.dtype == torch.float32
        assert certify(cast.numpy().astype(float), L, sketch).feasible
        np.testing.assert_allclose(cast.numpy(), D, rtol=1e-5, atol=1e-6 * D.max())
    assert broken > 0
    with pytest.raises(ValueError, match=r"no multiple of D rounded to torch\.bfloat16"):
        L = random_smoothness(np.random.default_rng(0), 5, 1e8)
        certified_cast(optimal_stepsize(L, RandK(5, 2)).D, L, RandK(5, 2), torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"rounded to torch\.float64 could be proved; check that D is positive definite$"
    ):
        certified_cast(np.diag([1.0, -1.0]), np.eye(2), RandK(2, 1), torch.float64)


def test_a_cast_is_proved_for_its_goal() -> None:
    L, sketch = random_smoothness(np.random.default_rng(1), 6, 1e3), RandK(6, 3)
    result = optimal_stepsize(L, sketch, goal="descent")
    cast = certified_cast(result.D, L, sketch, goal="descent").double().numpy()
    check = certify(cast, L, sketch)
    assert not check.feasible and check.descent.feasible
    assert check.descent_rate == pytest.approx(result.rate, rel=1e-5)
    under_the_condition = certify(certified_cast(result.D, L, sketch).double().numpy(), L, sketch)
    assert under_the_condition.feasible and under_the_condition.descent_rate < 0.9 * result.rate
    with pytest.raises(ValueError, match=r"beyond the range of torch\.float16"):
        certified_cast(1e6 * np.eye(2), 1e-7 * np.eye(2), Identity(2), torch.float16)
    with pytest.raises(TypeError, match="D"):
        certified_cast(aslinearoperator(np.eye(2)), np.eye(2), Identity(2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile loads parts of torch that warn
def test_names_are_those_inside_the_wrappers() -> None:
    """A part that is called module is no wrapper; one that torch.compile makes is."""
    inner = nn.Module()
    inner.module, inner.weight = nn.Linear(2, 1, bias=False), nn.Parameter(torch.zeros(3))
    compressors = {"weight": RandK(3, 1), "module.weight": RandK(2, 1)}
    for model in (inner, torch.compile(inner)):
        SketchState(model, compressors)
    with pytest.raises(TypeError, match="seed must be a whole number"):
        SketchState(inner, compressors, seed=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="it lacks bytes_sent, generator"):
        SketchState(inner, compressors).load_state_dict({"rounds": 1, "numbers_sent": 2})


def test_a_state_names_what_does_not_fit() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"missing \['bias'\], unknown \['weights'\]"):
        SketchState(model, {"weight": RandK(6, 2), "weights": RandK(6, 2)})
    with pytest.raises(ValueError, match="weight is for d=5, but the parameter has 6 entries"):
        SketchState(model, {"weight": RandK(5, 2), "bias": Identity(2)})
    with pytest.raises(TypeError, match="bias needs a Sketch"):
        SketchState(model, {"weight": RandK(6, 2), "bias": "randk:1"})  # type: ignore[dict-item]
    state = SketchState(model, {"weight": RandK(6, 2), "bias": Identity(2)})
    state.take(model.weight)
    with pytest.raises(RuntimeError, match=r"not complete: \['bias'\]"):
        state.state_dict()
    with pytest.raises(RuntimeError, match="weight got a second gradient"):
        state.take(model.weight)
