"""Limits of time and iterations: what is accepted, and that they mean the same to every solver."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BlockDiagonal,
    Direction,
    LowRankPlusDiagonal,
    RandK,
    compare,
    compare_distributed,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.node.solve import processes
from stepsize_solvers.conic.backends import CvxpySolver
from stepsize_solvers.numerics.progress import Limits
from stepsize_solvers.process.other import ProcessEnded, call_within
from stepsize_solvers.programs.contract import Settings
from stepsize_solvers.programs.maps import DiagonalPlusScaled
from stepsize_solvers.programs.outcome import Status
from stepsize_solvers.programs.program import Program
from stepsize_solvers.registry import available_solvers, get_solver
from stepsize_validation.cli.root import main

RUNNING = [entry.name for entry in available_solvers() if entry.available]
L = random_smoothness(5, 1e2, 0)
CLIENTS = [random_smoothness(5, 20.0, seed) for seed in range(3)]
TARGETS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
FEW_COLUMNS = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((40, 2)), np.linspace(0.1, 1.0, 40))
UNLIMITED: dict[str, Callable[..., Any]] = {
    "full": partial(optimal_stepsize, L, RandK(5, 2), closed_forms=False),
    "large full": partial(optimal_stepsize, random_smoothness(40, 1e4, 0), RandK(40, 4), closed_forms=False),
    "blocks": partial(optimal_stepsize, L, RandK(5, 2), structure=BlockDiagonal([2, 3])),
    "diagonal": partial(optimal_stepsize, L, RandK(5, 2), structure="diagonal"),
    "metric": partial(optimal_stepsize, L, RandK(5, 2), goal="descent"),
    "euclidean": partial(optimal_stepsize, L, RandK(5, 2), goal="euclidean"),
    "low rank": partial(optimal_stepsize, FEW_COLUMNS, RandK(40, 4), structure="diagonal"),
    "low-rank metric": partial(optimal_stepsize, FEW_COLUMNS, RandK(40, 4), goal="descent"),
    "stack": partial(optimal_stepsize, block_diag(*[random_smoothness(3, 5.0, s) for s in range(20)]), RandK(60, 8)),
    "clients": partial(optimal_distributed_stepsize, CLIENTS, RandK(5, 2), **TARGETS),
}
CALLS = {
    "one node": lambda **limits: optimal_stepsize(L, RandK(5, 2), **limits),
    "compare": lambda **limits: compare(L, RandK(5, 2), **limits),
    "distributed": lambda **limits: optimal_distributed_stepsize(CLIENTS, RandK(5, 2), **TARGETS, **limits),
    "compare distributed": lambda **limits: compare_distributed(CLIENTS, RandK(5, 2), **TARGETS, **limits),
}


class TestAcceptedValues:
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    @pytest.mark.parametrize("name", ["time_limit", "max_iters"])
    @pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, -0.5])
    def test_numbers_that_are_no_limit(self, call, name: str, value: float) -> None:
        with pytest.raises(ValueError, match=f"{name}.*None for no limit.*got"):
            call(**{name: value})

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    @pytest.mark.parametrize("name", ["time_limit", "max_iters"])
    @pytest.mark.parametrize("value", [True, False, "5", 1j, [3]])
    def test_no_numbers(self, call, name: str, value: object) -> None:
        with pytest.raises(TypeError, match=f"{name}.*got"):
            call(**{name: value})

    def test_iterations_are_whole(self) -> None:
        with pytest.raises(ValueError, match=r"max_iters.*whole number of at least 1, got 1\.5"):
            optimal_stepsize(L, RandK(5, 2), max_iters=1.5)
        assert optimal_stepsize(L, RandK(5, 2), max_iters=np.int64(50), time_limit=np.float64(50.0)).status == "optimal"

    @pytest.mark.parametrize("value", ["nan", "-1", "0", "inf"])
    def test_command_line(self, value: str, tmp_path, capsys) -> None:
        np.save(tmp_path / "L.npy", L)
        for command in ("solve", "compare"):
            assert main([command, str(tmp_path / "L.npy"), "--sketch", "randk:2", f"--time-limit={value}"]) == 2
            assert "--time-limit" in capsys.readouterr().err

    def test_jobs_as_in_joblib(self) -> None:
        cores = processes(-1)
        assert processes(3) == 3
        assert processes(-2) == max(1, cores - 1)
        assert processes(-5 - cores) == processes(-cores) == 1
        L_blocks = block_diag(*[random_smoothness(2, 5.0, seed) for seed in range(20)])
        assert optimal_stepsize(L_blocks, RandK(40, 8), n_jobs=-5 - cores).status == "optimal"
        with pytest.raises(ValueError, match="n_jobs"):
            optimal_stepsize(L, RandK(5, 2), n_jobs=1.5)
        with pytest.raises(TypeError, match="n_jobs"):
            optimal_stepsize(L, RandK(5, 2), n_jobs=True)

    def test_a_solver_has_a_name_and_a_start_is_a_result(self) -> None:
        for call in CALLS.values():
            with pytest.raises(TypeError, match=r"solver must be 'auto' or one of native, .*got None"):
                call(solver=None)
        for wrong in ("x", np.eye(5)):
            with pytest.raises(TypeError, match="warm_start must be a StepsizeResult"):
                optimal_stepsize(L, RandK(5, 2), warm_start=wrong)


class TestEverySolver:
    """At a limit each returns its last point, or a plain one, with its status; nothing is raised."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", RUNNING)
    @pytest.mark.parametrize("steps", [1, 3])
    def test_iterations_of_one_node(self, name: str, steps: int) -> None:
        options = {"closed_forms": False} if name == "native" else {}
        result = optimal_stepsize(
            random_smoothness(12, 1e4, 0), RandK(12, 3), solver=name, max_iters=steps, reduce=False, **options
        )
        assert result.status == "user_limit"
        assert result.certificate.feasible
        assert result.solver_stats.num_iters in (steps, None)

    @pytest.mark.parametrize("name", [name for name in RUNNING if name != "scs"])
    def test_later_limits_leave_better_answers(self, name: str) -> None:
        """The last points are used, not thrown away.  (The gap of a first-order method need not fall.)"""
        gaps = [optimal_stepsize(L, RandK(5, 2), solver=name, max_iters=n, reduce=False).gap for n in (2, 6)]
        assert gaps[1] < min(gaps[0], 1.0)

    @pytest.mark.parametrize("name", RUNNING)
    @pytest.mark.parametrize("structure", ["diagonal", "full"])
    def test_iterations_of_clients(self, name: str, structure: str) -> None:
        result = optimal_distributed_stepsize(
            CLIENTS, RandK(5, 2), **TARGETS, solver=name, structure=structure, max_iters=1
        )
        assert result.status == "user_limit"
        assert result.certificate.feasible

    @pytest.mark.parametrize("name", RUNNING)
    def test_no_time_at_all(self, name: str) -> None:
        result = optimal_stepsize(random_smoothness(12, 1e4, 0), RandK(12, 3), solver=name, time_limit=1e-9)
        assert result.status == "user_limit"
        assert result.certificate.feasible
        clients = optimal_distributed_stepsize(CLIENTS, RandK(5, 2), **TARGETS, solver=name, time_limit=1e-9)
        assert clients.status == "user_limit"
        assert clients.certificate.feasible
        if name in ("cvxopt", "sdpa"):
            assert "no point was handed over" in result.message
            assert "no point was handed over" in clients.message

    @pytest.mark.slow
    @pytest.mark.parametrize("name", RUNNING)
    def test_a_limit_that_is_not_reached_changes_nothing(self, name: str) -> None:
        plain = optimal_stepsize(L, RandK(5, 2), solver=name, tol=1e-5)
        limited = optimal_stepsize(L, RandK(5, 2), solver=name, tol=1e-5, time_limit=100.0, max_iters=90_000)
        assert limited.status == "optimal"
        np.testing.assert_array_equal(plain.D, limited.D)

    @pytest.mark.parametrize("call", UNLIMITED.values(), ids=UNLIMITED.keys())
    def test_the_methods_own_number_of_steps_is_no_limit_of_the_users(
        self, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        of = Limits.of
        monkeypatch.setattr(Limits, "of", staticmethod(lambda settings, _: of(settings, 1)))
        result = call(tol=1e-12)
        assert result.status == "optimal_inaccurate"
        assert result.certificate.feasible
        assert call(tol=1e-12, max_iters=1).status == "user_limit"

    def test_nor_is_that_of_a_conic_solver(self) -> None:
        backend = get_solver("clarabel")
        assert isinstance(backend, CvxpySolver)
        impatient = replace(backend, options=lambda _, accuracy: backend.options(Settings(max_iters=6), accuracy))
        result = optimal_stepsize(L, RandK(5, 2), solver=impatient, reduce=False)
        assert result.status == "optimal_inaccurate"
        assert result.certificate.feasible
        # An iteration limit among the solver's own options is the user's.
        own = optimal_stepsize(L, RandK(5, 2), solver="clarabel", reduce=False, max_iter=6)
        assert own.status == "user_limit"

    def test_a_failure_is_not_taken_for_a_limit(self) -> None:
        with pytest.raises(RuntimeError, match=r"no solver returned a stepsize.*cvxopt"):
            optimal_stepsize(L, RandK(5, 2), solver="cvxopt", objective="log_det", max_iters=100, time_limit=100.0)


class TestTime:
    def test_a_solver_is_ended_inside_one_of_its_steps(self) -> None:
        """A step of Clarabel takes seconds here, in which it does not look at the clock."""
        big = random_smoothness(75, 1e2, 0)
        blocks = [np.linalg.inv(big[i : i + 25, i : i + 25]) for i in (0, 25, 50)]
        W = block_diag(*[0.5 * (M + M.T) for M in blocks])
        began = time.perf_counter()
        result = optimal_stepsize(
            big, RandK(75, 20), structure=Direction(W, (25, 25, 25)), solver="clarabel", time_limit=2.0
        )
        assert time.perf_counter() - began < 8.0
        assert result.status == "user_limit"
        assert result.certificate.feasible

    def test_all_parts_of_a_problem_share_one_clock(self) -> None:
        """SDPA cannot stop by itself; with a limit for each of the 12 parts the call would take as many times."""
        parts = block_diag(*[random_smoothness(40, 1e3, seed) for seed in range(12)])
        began = time.perf_counter()
        result = optimal_stepsize(parts, RandK(480, 100), solver="sdpa", time_limit=1.0)
        assert time.perf_counter() - began < 8.0
        assert result.status == "user_limit"
        assert result.certificate.feasible
        assert "sdpa: no point was handed over" in result.message

    def test_the_clock_starts_with_the_settings(self) -> None:
        settings = Settings(time_limit=0.05)
        assert 0.0 < settings.seconds_left <= 0.05
        assert Settings().seconds_left == math.inf
        time.sleep(0.06)
        program = Program.single(L, DiagonalPlusScaled(np.full(5, 1.5), 0.25))
        for name in ("native", "cvxopt", "sdpa"):
            assert get_solver(name).solve(program, settings).status is Status.USER_LIMIT

    @pytest.mark.slow
    def test_the_users_program_is_not_started_again(self, tmp_path) -> None:
        """A script without a guard for its main part, in a folder with names like ours."""
        (tmp_path / "solvers").mkdir()
        (tmp_path / "solvers" / "__init__.py").touch()
        script = tmp_path / "elsewhere" / "script.py"
        script.parent.mkdir()
        script.write_text(
            "import numpy as np\n"
            "from stepsize_opt import RandK, optimal_stepsize\n"
            "L = np.diag([1.0, 2.0, 3.0]) + 0.5\n"
            "print(optimal_stepsize(L, RandK(3, 2), solver='sdpa', tol=1e-5, time_limit=100).status)\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout == "optimal\n"


class TestOtherProcess:
    @pytest.mark.slow
    def test_value_and_exception(self) -> None:
        assert call_within(60.0, math.hypot, 3.0, 4.0) == 5.0
        with pytest.raises(ZeroDivisionError):
            call_within(60.0, divmod, 1, 0)

    def test_it_is_ended_in_time(self) -> None:
        began = time.perf_counter()
        assert call_within(0.5, time.sleep, 60.0) is None
        assert time.perf_counter() - began < 5.0

    @pytest.mark.slow
    def test_a_crash(self) -> None:
        with pytest.raises(ProcessEnded, match="exit code 3"):
            call_within(60.0, os._exit, 3)
        with pytest.raises(ProcessEnded, match="signal 9"):
            call_within(60.0, signal.raise_signal, signal.SIGKILL)
