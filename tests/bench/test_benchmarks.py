"""The harness of the speed benchmarks: a miss ends with exit code 1; they compare the same problems."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from benchmarks import flower, native
from benchmarks.harness import GAP, Measured, main, shortest
from stepsize_opt import RandK
from stepsize_opt.problems import Federated, Quadratic
from stepsize_opt.proofs import repair
from stepsize_solvers.programs import Program
from stepsize_validation.data import Dataset, federated_logistic


@pytest.mark.parametrize(("value", "code"), [(10.0, 0), (10.1, 1), (math.inf, 1), (math.nan, 1)])
def test_a_miss_ends_with_exit_code_1(value: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def study(quick: bool) -> Iterator[Measured]:
        """Measure a toy."""
        yield Measured("cost", f"quick is {quick}", value, at_most=10.0)
        yield Measured("cost", "harmless", 1.0, at_most=10.0)
        yield Measured("speed", "near", 3.0, at_least=3.0)
        yield Measured("shown", "without a target", 1e9)

    assert main([study], ["--quick"]) == code
    table = capsys.readouterr().out.partition("worst case")[2]
    assert "quick is True" in table and "harmless" not in table
    assert ("MISSED" in table) == bool(code)


def test_the_shortest_call_counts_and_runs_take_turns() -> None:
    order: list[str] = []
    now = iter(np.cumsum([0, 5, 0, 1, 0, 2, 0, 4]).tolist())
    calls = [lambda: order.append("first"), lambda: order.append("second")]
    first, second = shortest(calls, 2, clock=lambda: next(now))
    assert order == ["first", "second"] * 2
    assert (first.seconds, second.seconds) == (2, 1)


def test_the_plain_model_and_the_native_solver_solve_the_same_problem() -> None:
    B, sketch = native.synthetic(5, 10.0), RandK(5, 1)
    program = Program.single(B, sketch.map)
    assert native.certified_gap(program, native.solve(program)) <= GAP
    theirs = native.solve_plain_model(B, sketch.second_moment_matrix, "CLARABEL")
    assert theirs is not None
    values = [repair(program, D).log_det for D in (theirs, native.solve(program).X)]
    assert values[0] == pytest.approx(values[1], abs=5e-5)


@pytest.mark.slow
def test_a_study_in_small() -> None:
    """It measures something; how fast it is, ``make bench-native`` judges."""
    measured = list(native.closed_form(True))
    assert measured and all(0.0 < one.value < math.inf for one in measured)


# ----------------------------------------------------------------
# the baselines of the table on the Flower page: without compression or local steps they are gradient descent


@pytest.fixture
def f() -> Federated:
    rng = np.random.default_rng(0)
    parts = (Dataset("random", rng.standard_normal((30, 6)), rng.choice([-1.0, 1.0], 30)) for _ in range(3))
    return federated_logistic(tuple(parts), 0.01, "ridge")


@pytest.mark.parametrize("method", [flower.dasha, flower.marina])
def test_without_compression_it_is_gradient_descent_and_with_it_it_converges(
    method: Any, f: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "K", 6)
    gammas, X = np.array([0.1, 1.0]), np.zeros((2, 6))
    for found, up, down in islice(method(f.client_gradients, 6, gammas, np.random.default_rng(0)), 9):
        X = X - gammas[:, None] * f.gradient(X)
        np.testing.assert_allclose(found, X, rtol=1e-12)
        assert np.all(np.asarray(up) == 24) and down == 24
    monkeypatch.setattr(flower, "K", 2)
    rounds = method(f.client_gradients, 6, np.full(1, 0.5), np.random.default_rng(0))
    norms = [np.linalg.norm(f.gradient(X)) for X, _, _ in islice(rounds, 2000)]
    assert norms[-1] < 1e-3 * norms[0]


@pytest.mark.parametrize("steps", [1, 5])
def test_fedavg_makes_local_steps_of_every_client(steps: int, f: Federated) -> None:
    gammas, X = np.array([0.1, 1.0]), np.zeros((2, 6))
    for found, up, down in islice(flower.fedavg(f, gammas, steps), 4):
        ends = np.tile(X, (f.n, 1, 1))
        for end, one in zip(ends, f.clients, strict=True):
            for _ in range(steps):
                end -= gammas[:, None] * one.gradient(end)
        gradient_step = X - gammas[:, None] * f.gradient(X)
        X = ends.mean(axis=0)
        assert (steps == 1) == np.allclose(X, gradient_step, rtol=1e-12)
        np.testing.assert_allclose(found, X, rtol=1e-12)
        assert up == down == 24


def test_dead_clients_hold_the_others_back_until_they_are_forgotten() -> None:
    rng = np.random.default_rng(2)
    f = Federated(tuple(Quadratic(np.eye(30), rng.standard_normal(30)) for _ in range(10)))
    gaps = {gap["method"]: gap["gap"] for gap in flower.forgotten(f, 60)}
    assert gaps["forgotten after 20 rounds"] < 0.2 * gaps["never forgotten"]
