"""Limits of time and steps, interruptions and progress: the same behaviour for every method and every solver."""

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

from shared.native_problems import all_maps, rand_k, spectrum
from shared.reference_problems import random_smoothness
from shared.unreduced import optimal_unreduced
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
from stepsize_opt.node.pieces import processes
from stepsize_solvers.conic.backends import CvxpySolver
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.process import ProcessEnded, call_within
from stepsize_solvers.programs import Pattern, Program, Settings, Status, WarmStart
from stepsize_solvers.registry import available_solvers, get_solver

RUNNING = [entry.name for entry in available_solvers() if entry.available]
L = random_smoothness(5, 1e2, 0)
CLIENTS = [random_smoothness(5, 20.0, seed) for seed in range(14)]
TARGETS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
FEW_COLUMNS = LowRankPlusDiagonal(np.random.default_rng(0).standard_normal((40, 2)), np.linspace(0.1, 1.0, 40))
LAYERS = Direction(block_diag(L[:2, :2], L[2:, 2:]), (2, 3))
ITERATE = {"closed_forms": False}
one_node = partial(optimal_stepsize, L, RandK(5, 2))
unreduced = partial(optimal_unreduced, L, RandK(5, 2))
METHODS: dict[str, Callable[..., Any]] = {
    "full": partial(one_node, options=ITERATE),
    "large full": partial(optimal_stepsize, random_smoothness(40, 1e4, 0), RandK(40, 4), options=ITERATE),
    "blocks": partial(one_node, structure=BlockDiagonal([2, 3])),
    "diagonal": partial(one_node, structure="diagonal"),
    "factors by layers": partial(one_node, structure=LAYERS),
    "metric": partial(one_node, goal="descent"),
    "euclidean": partial(one_node, goal="euclidean"),
    "low rank": partial(optimal_stepsize, FEW_COLUMNS, RandK(40, 4), structure="diagonal"),
    "stack": partial(optimal_stepsize, block_diag(*[random_smoothness(3, 5.0, s) for s in range(60)]), RandK(180, 9)),
    "clients": partial(optimal_distributed_stepsize, CLIENTS[:3], RandK(5, 2), **TARGETS),
    "clients by cuts": partial(optimal_distributed_stepsize, CLIENTS, RandK(5, 2), **TARGETS),
}
CALLS: dict[str, Callable[..., Any]] = {
    "one node": one_node,
    "compare": lambda **settings: compare(L, RandK(5, 2), solving=settings),
    "distributed": METHODS["clients"],
    "compare distributed": lambda **settings: compare_distributed(
        CLIENTS[:3], RandK(5, 2), **TARGETS, solving=settings
    ),
}
every_method = pytest.mark.parametrize("call", METHODS.values(), ids=METHODS.keys())
LIMITS = [{"max_iters": 1}, {"max_iters": 2}, {"time_limit": 1e-9}]
every_limit = pytest.mark.parametrize("limits", LIMITS, ids=str)


# ---------------------------------------------------------------- own methods


@every_limit
@every_method
def test_a_method_ends_at_a_limit_with_a_feasible_answer(call: Callable[..., Any], limits: dict[str, Any]) -> None:
    result = call(tol=1e-12, **limits)
    assert result.status == "user_limit"
    assert result.certificate.feasible
    if result.solver_stats.extra_stats.get("history"):
        assert result.solver_stats.num_iters == limits.get("max_iters", 0)


@every_method
def test_the_methods_own_number_of_steps_is_no_limit_of_the_users(
    call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Limits.of
    monkeypatch.setattr(Limits, "of", staticmethod(lambda settings, _: of(settings, 1)))
    result = call(tol=1e-12)
    assert result.status == "optimal_inaccurate" and result.message
    assert result.certificate.feasible


@every_method
def test_an_interruption_leaves_the_best_answer(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    examine, calls = Progress.examine, []

    def interrupted(self: Progress[Any], *arguments: Any, **options: Any) -> Any:
        status = examine(self, *arguments, **options)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return status

    monkeypatch.setattr(Progress, "examine", interrupted)
    result = call(tol=1e-12)
    assert result.status == "interrupted"
    assert result.certificate.feasible


@pytest.mark.parametrize("name", [name for name in METHODS if name != "stack" and "clients" not in name])
def test_progress_is_monotone_and_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    stats = METHODS[name](verbose=True).solver_stats
    lower, upper = np.array(stats.extra_stats["history"]).T
    assert np.all(lower[1:] >= lower[:-1]) and np.all(upper[1:] <= upper[:-1]) and np.all(lower <= upper)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert "gap" in lines[0] and [line[0] for line in lines[1:] if line[0] != "proved"][-1] == str(stats.num_iters)
    assert sum(line[0].isdigit() for line in lines) == len(lower)


STARTS = {
    "small": (spectrum(10, 1e3), None),
    "general": (spectrum(20, 1e3), None),
    "blocks": (spectrum(9, 1e3), Pattern((4, 5))),
    "layers": (spectrum(9, 1e3), Pattern((4, 5), Pattern((4, 5)).blocks(spectrum(9, 10.0, 2)))),
}


@pytest.mark.parametrize("make", [Program.single, Program.descent])
@pytest.mark.parametrize("name", STARTS)
def test_a_start_near_the_answer_saves_steps_and_a_useless_one_is_ignored(name: str, make: Any) -> None:
    (B, pattern), native, plain = STARTS[name], get_solver("native"), Settings(extra=ITERATE)
    Q = rand_k(len(B), len(B) // 3)
    cold = native.solve(make(B, Q, pattern), plain)
    assert cold.X is not None and cold.stats.num_iters is not None
    near = make(1.01 * B, Q, pattern)
    warm = native.solve(near, replace(plain, warm_start=WarmStart(cold.X, cold.duals)))
    assert warm.status is Status.OPTIMAL and warm.stats.num_iters is not None
    assert warm.stats.num_iters < cold.stats.num_iters
    for useless in (np.eye(3), -np.eye(len(B))):
        other = native.solve(near, replace(plain, warm_start=WarmStart(useless, (useless[None],))))
        assert other.status is Status.OPTIMAL


def progress(**limits: Any) -> Progress[str]:
    return Progress(2, Limits(**{"tol": 1e-3, "max_iters": 100, **limits}), margin=0.5, patience=3)


def test_the_narrowest_interval_is_kept_until_there_is_no_progress() -> None:
    p = progress()
    for name, bounds, best in (
        ("no bound", Bounds(0.0, math.inf), "no bound"),
        ("larger, no bound", Bounds(0.5, math.inf), "larger, no bound"),
        ("smaller, no bound", Bounds(0.1, math.inf), "larger, no bound"),
        ("wide", Bounds(0.2, 3.0), "wide"),
        ("narrow", Bounds(0.4, 1.4), "narrow"),
        ("wider", Bounds(0.9, 2.1), "narrow"),
    ):
        assert p.examine(name, bounds) is None
        assert p.best is not None and p.best.point == best
    assert [p.examine("", Bounds(0.0, 1.0)) for _ in range(2)] == [None, Status.INACCURATE]
    assert p.examine("better", Bounds(0.0, 0.5)) is None and p.stalled == 0
    # Without any upper bound there is nothing to stall at.
    unbounded = progress()
    assert [unbounded.examine("", Bounds(0.0, math.inf)) for _ in range(5)] == [None] * 5


def test_an_optimum_at_the_limit_is_optimal() -> None:
    for p in (progress(max_iters=0, asked=True), progress(deadline=time.perf_counter() - 1.0)):
        assert p.examine("", Bounds(0.0, 1.0)) is Status.USER_LIMIT
        assert p.examine("", Bounds(0.0, 0.0)) is Status.OPTIMAL


def test_a_second_method_has_the_rest_of_the_users_steps_and_all_of_its_own() -> None:
    plain, asked = Limits.of(Settings(), 50), Limits.of(Settings(time_limit=5.0, max_iters=7), 50)
    assert asked.after(5).end(2) is Status.USER_LIMIT and asked.after(5).end(1) is None
    assert plain.after(50) == plain


# ---------------------------------------------------------------- every solver


@pytest.mark.parametrize("name", RUNNING)
@every_limit
def test_a_solver_ends_at_a_limit_with_a_feasible_answer(name: str, limits: dict[str, Any]) -> None:
    """At a limit each returns its last point, or a plain one, with its status; nothing is raised."""
    options = ITERATE if name == "native" else {}
    node = optimal_unreduced(random_smoothness(12, 1e4, 0), RandK(12, 3), solver=name, **limits, options=options)
    results = [METHODS["clients"](solver=name, structure=form, **limits) for form in ("diagonal", "full")]
    for result in (node, *results):
        assert result.status == "user_limit"
        assert result.certificate.feasible
    assert node.solver_stats.num_iters in (limits.get("max_iters", 0), None)


@pytest.mark.parametrize("name", ["cvxopt", "sdpa"])
def test_a_solver_that_does_not_watch_the_clock_hands_over_no_point(name: str) -> None:
    result = optimal_unreduced(random_smoothness(12, 1e4, 0), RandK(12, 3), solver=name, time_limit=1e-9)
    assert result.status == "user_limit" and result.certificate.feasible
    assert "no point was handed over" in result.message


@pytest.mark.parametrize("name", [name for name in RUNNING if name != "scs"])
def test_later_limits_leave_better_answers(name: str) -> None:
    """The last points are used, not thrown away.  (The gap of a first-order method need not fall.)"""
    gaps = [unreduced(solver=name, max_iters=n).gap for n in (2, 6)]
    assert gaps[1] < min(gaps[0], 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNING)
def test_a_limit_that_is_not_reached_changes_nothing(name: str) -> None:
    plain, limited = (
        one_node(solver=name, tol=1e-5),
        one_node(solver=name, tol=1e-5, time_limit=100.0, max_iters=90_000),
    )
    assert limited.status == "optimal"
    np.testing.assert_array_equal(plain.D, limited.D)


def test_the_number_of_steps_of_a_conic_solver_is_no_limit_of_the_users() -> None:
    backend = get_solver("clarabel")
    assert isinstance(backend, CvxpySolver)
    impatient = replace(backend, options=lambda _, accuracy: backend.options(Settings(max_iters=6), accuracy))
    result = unreduced(solver=impatient)
    assert result.status == "optimal_inaccurate" and result.certificate.feasible
    # An iteration limit among the solver's own options is the user's.
    assert unreduced(solver="clarabel", options={"max_iter": 6}).status == "user_limit"


# ---------------------------------------------------------------- accepted values


WRONG = [(value, ValueError) for value in (math.nan, math.inf, -1, 0, -0.5)] + [
    (value, TypeError) for value in (True, False, "5", 1j, [3])
]
BAD = [(name, *wrong) for name in ("time_limit", "max_iters") for wrong in WRONG] + [("solver", None, TypeError)]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.parametrize(("name", "value", "error"), BAD)
def test_values_that_are_no_limit_and_no_solver(
    call: Callable[..., Any], name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"{name}.*got"):
        call(**{name: value})


def test_iterations_and_jobs_are_whole_numbers() -> None:
    with pytest.raises(ValueError, match=r"max_iters.*whole number of at least 1, got 1\.5"):
        one_node(max_iters=1.5)
    assert one_node(max_iters=np.int64(50), time_limit=np.float64(50.0)).status == "optimal"
    cores = processes(-1)
    assert (processes(3), processes(-2), processes(-cores)) == (3, max(1, cores - 1), 1)
    assert METHODS["stack"](n_jobs=-5 - cores).status == "optimal"
    for wrong, error in ((1.5, ValueError), (True, TypeError)):
        with pytest.raises(error, match="n_jobs"):
            one_node(n_jobs=wrong)


# ---------------------------------------------------------------- the clock


BIG = random_smoothness(75, 1e2, 0)
THREE = [np.linalg.inv(BIG[i : i + 25, i : i + 25]) for i in (0, 25, 50)]
DIRECTIONS = Direction(block_diag(*[0.5 * (M + M.T) for M in THREE]), (25, 25, 25))
TWELVE = block_diag(*[random_smoothness(40, 1e3, seed) for seed in range(12)])
SLOW_STEPS = {
    # A step of Clarabel takes seconds here, in which it does not look at the clock.
    "inside a step": partial(optimal_stepsize, BIG, RandK(75, 20), structure=DIRECTIONS, solver="clarabel"),
    # SDPA cannot stop by itself; with a limit for each of the 12 parts the call would take as many times.
    "one clock for all parts": partial(optimal_stepsize, TWELVE, RandK(480, 100), solver="sdpa"),
}


@pytest.mark.parametrize("call", SLOW_STEPS.values(), ids=SLOW_STEPS.keys())
def test_a_call_ends_in_time(call: Callable[..., Any]) -> None:
    began = time.perf_counter()
    result = call(time_limit=1.5)
    assert time.perf_counter() - began < 8.0
    assert result.status == "user_limit"
    assert result.certificate.feasible


def test_the_clock_starts_with_the_settings() -> None:
    settings = Settings(time_limit=0.05)
    assert 0.0 < settings.seconds_left <= 0.05
    assert Settings().seconds_left == math.inf
    time.sleep(0.06)
    for name in ("native", "cvxopt", "sdpa"):
        assert get_solver(name).solve(Program.single(L, all_maps(5)["rand-k"]), settings).status is Status.USER_LIMIT


@pytest.mark.slow
def test_the_users_program_is_not_started_again(tmp_path) -> None:
    """A script without a guard for its main part, in a folder with names like ours."""
    (tmp_path / "solvers").mkdir()
    (tmp_path / "solvers" / "__init__.py").touch()
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from stepsize_opt import RandK, optimal_stepsize\n"
        "L = np.diag([1.0, 2.0, 3.0]) + 0.5\n"
        "print(optimal_stepsize(L, RandK(3, 2), solver='sdpa', tol=1e-5, time_limit=100).status)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "optimal\n"


@pytest.mark.slow
def test_a_call_in_another_process() -> None:
    assert call_within(60.0, math.hypot, 3.0, 4.0) == 5.0
    began = time.perf_counter()
    assert call_within(0.5, time.sleep, 60.0) is None
    assert time.perf_counter() - began < 5.0
    with pytest.raises(ZeroDivisionError):
        call_within(60.0, divmod, 1, 0)
    with pytest.raises(ProcessEnded, match="exit code 3"):
        call_within(60.0, os._exit, 3)
    with pytest.raises(ProcessEnded, match="signal 9"):
        call_within(60.0, signal.raise_signal, signal.SIGKILL)
