"""What all own methods share: the best pair so far, when a solve is over, and what an interruption leaves."""

from __future__ import annotations

import math
import time

import pytest

from stepsize_solvers.numerics import Bounds, Limits, Progress
from stepsize_solvers.programs import Settings, Status


def progress(
    tol: float = 1e-3, max_iters: int = 100, margin: float = 0.5, patience: int = 3, asked: bool = False
) -> Progress[str]:
    return Progress(2, Limits(tol, max_iters, asked), margin, patience)


def test_the_narrowest_interval_is_kept() -> None:
    p = progress()
    for name, bounds in (
        ("no bound", Bounds(0.0, math.inf)),
        ("larger, no bound", Bounds(0.5, math.inf)),
        ("smaller, no bound", Bounds(0.1, math.inf)),
        ("wide", Bounds(0.2, 3.0)),
        ("narrow", Bounds(0.4, 1.4)),
        ("wider", Bounds(0.9, 2.1)),
    ):
        assert p.examine(name, bounds) is None
        expected = {"smaller, no bound": "larger, no bound", "wider": "narrow"}.get(name, name)
        assert p.best is not None and p.best.point == expected
    # The interval proved by all points together is narrower than that of any.
    assert p.history[-1] == (0.9, 1.4) and len(p.history) == 6
    assert p.statistics["gap"] == pytest.approx(0.5) and p.statistics["history"] is p.history


def test_it_is_optimal_below_a_fraction_of_the_tolerance() -> None:
    p = progress(tol=1e-3, margin=0.5)
    assert p.examine("within the tolerance", Bounds(0.0, 1.5e-3)) is None
    assert p.examine("within half of it", Bounds(0.0, 0.9e-3)) is Status.OPTIMAL


def test_an_answer_that_is_not_confirmed_does_not_end_the_solve() -> None:
    p = progress()
    for certain in (None, Bounds(0.0, 1.0), Bounds(0.0, math.nan)):
        assert p.examine("unsure", Bounds(0.0, 1e-4), confirmed=lambda certain=certain: certain) is None
    assert p.examine("sure", Bounds(0.0, 1e-4), confirmed=lambda: Bounds(0.0, 1.9e-3)) is Status.OPTIMAL
    # The pair is kept with the bounds that were confirmed.
    assert p.best is not None and (p.best.point, p.best.bounds.upper) == ("sure", 1.9e-3)


def test_it_gives_up_after_points_without_progress() -> None:
    p = progress(patience=3)
    assert p.examine("first", Bounds(0.0, 1.0)) is None
    found = [p.examine("again", Bounds(0.0, 1.0)) for _ in range(3)]
    assert found == [None, None, Status.INACCURATE]
    assert p.examine("better", Bounds(0.0, 0.5)) is None and p.stalled == 0
    # Without any upper bound there is nothing to stall at.
    q = progress(patience=1)
    assert [q.examine("", Bounds(0.0, math.inf)) for _ in range(5)] == [None] * 5


def test_limits() -> None:
    p = progress(max_iters=2, asked=True)
    p.steps = 1
    assert p.examine("one", Bounds(0.0, 1.0)) is None
    p.steps = 2
    assert p.examine("two", Bounds(0.0, 1.0)) is Status.USER_LIMIT
    assert p.examine("optimal at the limit", Bounds(0.0, 0.0)) is Status.OPTIMAL
    late: Progress[str] = Progress(2, Limits(1e-3, 100, deadline=time.perf_counter() - 1.0), 0.5, 3)
    assert late.examine("late", Bounds(0.0, 1.0)) is Status.USER_LIMIT
    # The method's own number of steps is no limit of the user's.
    default = progress(max_iters=2)
    default.steps = 2
    assert default.examine("two", Bounds(0.0, 1.0)) is Status.INACCURATE


def test_limits_of_settings() -> None:
    plain = Limits.of(Settings(tol=1e-4), 50)
    assert (plain.tol, plain.max_iters, plain.deadline, plain.log) == (1e-4, 50, math.inf, None)
    asked = Limits.of(Settings(time_limit=5.0, max_iters=7, verbose=True), 50)
    assert asked.max_iters == 7 and asked.log is print and 0.0 < asked.deadline - time.perf_counter() <= 5.0
    # A second method has the rest of the user's steps, and all of its own.
    assert asked.after(5).end(2) is Status.USER_LIMIT and asked.after(5).end(1) is None
    assert plain.after(50) == plain


def test_an_interruption_leaves_the_best_pair() -> None:
    p = progress()

    def method() -> Status:
        p.examine("found", Bounds(0.0, 1.0))
        raise KeyboardInterrupt

    assert p.run(method) is Status.INTERRUPTED
    assert p.best is not None and p.best.point == "found"
    assert p.run(lambda: Status.OPTIMAL) is Status.OPTIMAL


def test_the_log() -> None:
    lines: list[str] = []
    p: Progress[str] = Progress(2, Limits(1e-9, 100, log=lines.append), 0.5, 3)
    for p.steps in range(3):
        p.examine("", Bounds(0.0, 1.0 / (1 + p.steps)), {"mu": f"{p.steps}"})
    assert len(lines) == 4 and lines[0].split() == ["iter", "log", "det", "/", "d", "gap", "mu"]
    assert lines[-1].split() == ["2", "0.000000000", "1.67e-01", "2"]
