"""The example app in simulation and in deployment on loopback, and clients that fail, with Flower's own processes."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
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
from stepsize_opt import CompressedStep, Feedback, RandK
from stepsize_opt.flower import FeedbackStrategy, SharedSeedStrategy, compress_mod
from stepsize_opt.results import SubspaceMethod
from stepsize_opt.sketches.draws import generators
from stepsize_validation import run, run_feedback

ROOT = Path(__file__).parents[3]
APP = ROOT / "examples" / "flower"
FLOATS = 6  # per round and client
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


@contextmanager
def two_supernodes(folder: Path, port: int) -> Iterator[None]:
    """Two SuperNodes, of the clients 0 and 1."""
    node = ("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1")
    first, second = (
        (*node, "--port", str(free_port()), "--node-config", f"partition-id={i} num-partitions=2") for i in range(2)
    )
    with started(folder, "first", *first), started(folder, "second", *second):
        yield


def run_app(folder: Path, port: int, *options: str, **config: Any) -> dict[str, Any]:
    """``flwr run`` of the example; what its server saved."""
    printed = flwr_run(folder, port, *options, **config)
    out = folder / "out.npz"
    assert out.is_file(), printed
    return dict(np.load(out))


def flwr_run(folder: Path, port: int, *options: str, app: Path = APP, **config: Any) -> str:
    """What ``flwr run`` printed."""
    (folder / "config.toml").write_text(
        f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    out = folder / "out.npz"
    out.unlink(missing_ok=True)
    settings = [f"{name}={json.dumps(value)}" for name, value in {"out": str(out), **config}.items()]
    done = subprocess.run(
        [str(BIN / "flwr"), "run", str(app), "loopback", *options, "--run-config", " ".join(settings), "--stream"],
        env={**ENVIRONMENT, "FLWR_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APP))


def write_plan(folder: Path, method: str, clients: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan, written as the example's README says."""
    plan = str(folder / f"{method}.npz")
    options = ("--method", method, "--floats", str(FLOATS), "--clients", str(clients))
    monkeypatch.setattr("sys.argv", ["plan", plan, *options])
    importlib.import_module("logistic_app.plan").main()
    return plan


def check(out: dict[str, Any], clients: int, plan: str, rounds: int, method: str) -> None:
    """The final x of the numpy runner; after the first round, k floats up and no x down."""
    f = importlib.import_module("logistic_app.task").problem(clients)
    if method == "feedback":
        expected = run_feedback(f, Feedback(f.smoothness(), FLOATS, clients=clients), rounds=rounds).final_point
    else:
        result = SubspaceMethod.load(plan)
        expected = run(f, result, seeds=1, seed=0, client_seeds="shared", iterations=rounds).final_points[0]
    # The gradients are the same numbers; only the order of the sums differs.
    np.testing.assert_allclose(out["x"], expected, rtol=1e-12, atol=1e-14)
    assert np.abs(out["x"]).max() > 0.01
    assert len(out["loss"]) == rounds and np.all(out["clients"] == clients)
    # Flower adds its own bytes to each message, of which feedback has two in a round that is checked.
    messages = clients * (2 if method == "feedback" else 1)
    union = clients * FLOATS if method == "feedback" else FLOATS
    assert np.all(out["bytes-up"] < messages * (8 * FLOATS + 500))
    assert np.all(out["bytes-down"][1:] < messages * (8 * union + 500))
    assert np.all(out["bytes-down"][1:] < out["bytes-down"][0] - 8 * f.d * clients)


def test_plans_of_all_methods(tmp_path: Path, app: None, monkeypatch: pytest.MonkeyPatch) -> None:
    task = importlib.import_module("logistic_app.task")
    kinds = {"sketch": CompressedStep, "subspace": SubspaceMethod, "momentum": SubspaceMethod, "feedback": Feedback}
    for name, kind in kinds.items():
        method = task.method(name, write_plan(tmp_path, name, 4, monkeypatch))
        assert isinstance(method, kind) and method.d == 500


def test_simulation(tmp_path: Path, app: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run after the other; the client that fails below runs det-CGD1."""
    with superlink(tmp_path, "--simulation") as port:
        for method in ("subspace", "momentum", "feedback"):
            plan = write_plan(tmp_path, method, 4, monkeypatch)
            config = {"plan": plan, "method": method, "clients": 4, "rounds": 5}
            out = run_app(tmp_path, port, "--federation-config", "num-supernodes=4", **config)
            check(out, 4, plan, 5, method)


def test_deployment_on_loopback(tmp_path: Path, app: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds only: every message starts a process of its own.  In the second one the clients have x themselves."""
    with superlink(tmp_path) as port, two_supernodes(tmp_path, port):
        for method in ("momentum", "feedback"):
            plan = write_plan(tmp_path, method, 2, monkeypatch)
            out = run_app(tmp_path, port, plan=plan, method=method, clients=2, rounds=2)
            check(out, 2, plan, 2, method)


def test_a_hostile_client_in_deployment(tmp_path: Path, app: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are those of the other client, or the run ends with the reason."""
    copy = tmp_path / "hostile"
    shutil.copytree(APP, copy)
    shutil.copy(Path(__file__).with_name("hostile.py"), copy / "logistic_app")
    settings = copy / "pyproject.toml"
    settings.write_text(settings.read_text().replace("logistic_app.client:app", "logistic_app.hostile:app"))
    plan = write_plan(tmp_path, "subspace", 2, monkeypatch)
    config = {"app": copy, "plan": plan, "method": "subspace", "clients": 2, "rounds": 2}
    with superlink(tmp_path) as port, two_supernodes(tmp_path, port):
        printed = flwr_run(tmp_path, port, missing="reweight", **config)
        assert (tmp_path / "out.npz").is_file(), printed
        out = dict(np.load(tmp_path / "out.npz"))
        stopped = flwr_run(tmp_path, port, missing="raise", **config)
    other = importlib.import_module("logistic_app.task").problem(2).clients[0]
    expected = run(other, SubspaceMethod.load(plan), seeds=1, seed=0, iterations=2).final_points[0]
    np.testing.assert_allclose(out["x"], expected, rtol=1e-12, atol=1e-14)
    assert out["clients"].tolist() == [1, 1]
    [(node, reason)] = re.findall(r"round 1: 1 of 2 clients sent what is needed \((\d+): (.*)\)", stopped)
    assert reason.startswith(f"0 finite ones of {FLOATS} numbers") and not (tmp_path / "out.npz").is_file()
    assert f"{node}: {reason}" in printed
    assert f"{node}: {FLOATS + 1} finite ones of {FLOATS + 1} numbers instead of {FLOATS}" in printed


@pytest.mark.parametrize("kind", ["shared", "feedback"])
def test_a_client_that_fails_or_is_hostile_is_never_silent(kind: str, tmp_path: Path) -> None:
    """It raises, or the mean is over those who replied, as the strategy was told."""
    out = tmp_path / "out.json"
    script = Path(__file__).with_name("failing_client.py")
    done = python(str(script), kind, str(out))
    assert out.is_file(), done.stderr
    found = json.loads(out.read_text())
    assert found["clients"] == [3, 2, 2, 2, 2, 3]
    assert "round 2: 2 of 3 clients sent what is needed" in found["error"] and found["rounds"] == [1]
    assert len(found["reasons"]) == 1 and "out of memory" in found["reasons"][0]
    for reason in (
        "in their order; got [('y', (3,))]",
        "as bytes, got",
        "the largest float is 1e+09, above ",
    ):
        assert reason in done.stdout + done.stderr, reason
    if kind == "feedback":
        assert np.all(np.abs(found["x"]) <= 2.0) and np.abs(found["x"]).max() > 0.5
        return
    step, rng, x = CompressedStep.of(0.5 * np.eye(3), RandK(3, 2)), generators(1, 1)[0], np.zeros(3)
    for clients in found["clients"]:
        draw, places = step.draw(rng), (0, 1, 2) if clients == 3 else (0, 2)
        x = x - step.decode(np.mean([step.encode(x - place, draw) for place in places], axis=0), draw)
    np.testing.assert_allclose(found["x"], x, rtol=1e-14)


STEP, FEEDBACK = CompressedStep(RandK(3, 1)), Feedback(None, 1)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: SharedSeedStrategy(STEP, 2, missing="skip"), ValueError, "missing .* 'skip'"),  # type: ignore[arg-type]
        (lambda: SharedSeedStrategy(STEP, 2, fraction_train=0.0), ValueError, "fraction_train .* 0.0"),
        (lambda: SharedSeedStrategy(STEP, 2, fraction_train=1.5), ValueError, "fraction_train .* 1.5"),
        (lambda: SharedSeedStrategy(STEP, 2, fraction_train=float("nan")), ValueError, "fraction_train .* nan"),
        (lambda: SharedSeedStrategy(STEP, 0), ValueError, "min_available_nodes"),
        (lambda: SharedSeedStrategy(FEEDBACK, 2), TypeError, "FeedbackStrategy"),
        (lambda: SharedSeedStrategy(RandK(3, 1), 2), TypeError, "compressor"),
        (lambda: FeedbackStrategy(FEEDBACK, forget_after=0), ValueError, "forget_after"),
        (lambda: FeedbackStrategy(Feedback(None, 1, places="shared")), ValueError, "places='shared'"),
        (lambda: FeedbackStrategy(STEP), TypeError, "SharedSeedStrategy"),
        (lambda: compress_mod(STEP), TypeError, "function of the context"),  # type: ignore[arg-type]
    ],
)
def test_a_strategy_refuses_what_it_does_not_know(call: Any, error: type[Exception], message: str) -> None:
    assert FeedbackStrategy(Feedback(None, 1, clients=3)).min_available_nodes == 3
    with pytest.raises(error, match=message):
        call()
