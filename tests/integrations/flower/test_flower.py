"""The example app in simulation and in deployment on loopback, and clients that fail, with Flower's own processes."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from integrations.processes import BIN, ENVIRONMENT, SECONDS, python
from stepsize_opt import CompressedStep, RandK
from stepsize_opt.flower import SharedSeedStrategy, compress_mod
from stepsize_opt.flower.wire import pack, unpack
from stepsize_opt.results import StepsizeResult, SubspaceMethod
from stepsize_opt.sketches import generators
from stepsize_validation import run

ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "flower"
START = 60.0  # seconds to wait for a server to listen


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(folder: Path, name: str, *command: str) -> Iterator[None]:
    """A program of Flower with its log in a file; it and what it started end with the block."""
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            env={**ENVIRONMENT, "FLWR_HOME": str(folder)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def superlink(folder: Path, *options: str) -> Iterator[int]:
    """A SuperLink that listens on loopback; its port."""
    port = free_port()
    # Without the option, every run would install the app's dependencies anew.
    fixed = ("--insecure", "--disable-runtime-dependency-installation", "--host", "127.0.0.1")
    with started(folder, "superlink", "flower-superlink", *fixed, "--port", str(port), *options):
        deadline = time.monotonic() + START
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        else:
            pytest.fail((folder / "superlink.log").read_text())
        yield port


def run_app(folder: Path, port: int, *options: str, **config: Any) -> dict[str, Any]:
    """``flwr run`` of the example; what its server saved."""
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    out = folder / "out.npz"
    settings = [f"{name}={json.dumps(value)}" for name, value in {"out": str(out), **config}.items()]
    done = subprocess.run(
        [str(BIN / "flwr"), "run", str(APP), "loopback", *options, "--run-config", " ".join(settings), "--stream"],
        env={**ENVIRONMENT, "FLWR_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert out.is_file(), done.stdout + done.stderr
    return dict(np.load(out))


def write_plan(folder: Path, *arguments: str) -> str:
    """The plan, written as the example's README says."""
    plan = folder / "plan.npz"
    python("-m", "logistic_app.plan", str(plan), *arguments, folder=APP).check_returncode()
    return str(plan)


def app_problem(clients: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The objective of the example app."""
    monkeypatch.syspath_prepend(str(APP))
    return importlib.import_module("logistic_app.task").problem(clients)


def check(out: dict[str, Any], f: Any, plan: str, rounds: int, method: str = "sketch") -> None:
    """The final x of the numpy runner, k numbers from each client in each round."""
    options: dict[str, Any] = {"seeds": 1, "seed": 0, "client_seeds": "shared", "iterations": rounds}
    if method == "subspace":
        best = SubspaceMethod.load(plan)
        record = run(f, best, **options)
    else:
        result = StepsizeResult.load(plan)
        record = run(f, result, **options)
    # The gradients are the same numbers; only the order of the sums differs.
    np.testing.assert_allclose(out["x"], record.final_points[0], rtol=1e-12, atol=1e-14)
    assert np.abs(out["x"]).max() > 0.01
    np.testing.assert_array_equal(out["clients"] * out["numbers"], record.sent[0])
    # Flower adds names and the header of the array to 8 bytes for each number.
    each = out["bytes-up"] / out["clients"]
    assert np.all((8 * out["numbers"] < each) & (each < 8 * out["numbers"] + 200))


@pytest.mark.parametrize("method", ["sketch", "subspace"], ids=["det-CGD1", "subspace"])
def test_simulation(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    law = ("--subspace", "8") if method == "subspace" else ("--sketch", "randk:8")
    plan = write_plan(tmp_path, "--clients", "4", *law)
    with superlink(tmp_path, "--simulation") as port:
        config = {"plan": plan, "method": method, "clients": 4, "rounds": 8}
        out = run_app(tmp_path, port, "--federation-config", "num-supernodes=4", **config)
    check(out, app_problem(4, monkeypatch), plan, 8, method)


def test_deployment_on_loopback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds only: every message starts a process of its own."""
    plan = write_plan(tmp_path, "--clients", "2", "--sketch", "randk:8")
    with superlink(tmp_path) as port:
        node = ("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1")
        first, second = (
            (*node, "--port", str(free_port()), "--node-config", f"partition-id={i} num-partitions=2") for i in range(2)
        )
        with started(tmp_path, "first", *first), started(tmp_path, "second", *second):
            out = run_app(tmp_path, port, plan=plan, clients=2, rounds=2)
    check(out, app_problem(2, monkeypatch), plan, rounds=2)


def test_a_client_that_fails_is_never_silent(tmp_path: Path) -> None:
    """It raises, or the mean is over those who replied, as the strategy was told."""
    out = tmp_path / "out.json"
    script = Path(__file__).with_name("failing_client.py")
    done = python(str(script), str(out))
    assert out.is_file(), done.stderr
    found = json.loads(out.read_text())
    assert found["clients"] == [3, 2, 2, 2, 2, 3]
    assert "round 2: 2 of 3 clients sent their numbers" in found["error"]
    for reason in (
        "numbers that are not finite",
        "in their order; got [('y', (3,))]",
        "must hold floating-point numbers",
    ):
        assert reason in done.stdout + done.stderr
    step, rng, x = CompressedStep.of(0.5 * np.eye(3), RandK(3, 2)), generators(1, 1)[0], np.zeros(3)
    for places in ((0, 1, 2), (0, 2), (0, 2), (0, 2), (0, 2), (0, 1, 2)):
        draw = step.draw(rng)
        x = x - step.decode(np.mean([step.encode(x - place, draw) for place in places], axis=0), draw)
    np.testing.assert_allclose(found["x"], x, rtol=1e-14)


def test_a_generator_travels_in_37_bytes() -> None:
    rng = np.random.default_rng(5)
    rng.integers(10, size=3, dtype=np.int32)  # leaves half a number over
    other = unpack(pack(rng))
    assert len(pack(rng)) == 37
    np.testing.assert_array_equal(rng.integers(10, size=7), other.integers(10, size=7))
    np.testing.assert_array_equal(rng.random(9), other.random(9))
    with pytest.raises(ValueError, match="37 bytes, got 3"):
        unpack(b"abc")


def test_a_strategy_refuses_what_it_does_not_know() -> None:
    step = CompressedStep(RandK(3, 1))
    with pytest.raises(ValueError, match="missing must be 'raise' or 'reweight', got 'skip'"):
        SharedSeedStrategy(step, 2, missing="skip")
    with pytest.raises(ValueError, match="clients must be a whole number of at least 1"):
        SharedSeedStrategy(step, 0)
    with pytest.raises(TypeError, match=r"the compressor must be a method such as CompressedStep\.of"):
        SharedSeedStrategy(RandK(3, 1), 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a function of the context"):
        compress_mod(step)  # type: ignore[arg-type]
