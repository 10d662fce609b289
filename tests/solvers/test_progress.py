"""Progress keeps the best pair so far and decides when a solve is over."""

from __future__ import annotations

import math
import time

import pytest

from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.programs import Settings, Status


def progress(margin: float = 0.5, patience: int = 3, **limits: float) -> Progress[str]:
    return Progress(2, Limits(**{"tol": 1e-3, "max_iters": 100, **limits}), margin, patience)


def test_the_narrowest_interval_is_kept() -> None:
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
    # The interval proved by all points together is narrower than that of any.
    assert p.history[-1] == (0.9, 1.4) and len(p.history) == 6
    assert p.statistics["gap"] == pytest.approx(0.5) and p.statistics["history"] is p.history


def test_it_is_optimal_when_a_fraction_of_the_tolerance_is_reached() -> None:
    p = progress(tol=1e-3, margin=0.5)
    assert p.examine("within the tolerance", Bounds(0.0, 1.5e-3)) is None
    assert p.examine("unknown", Bounds(0.0, math.nan)) is None
    assert p.examine("within half of it", Bounds(0.0, 0.9e-3)) is Status.OPTIMAL
    assert p.best is not None and p.best.point == "within half of it"


def test_it_gives_up_after_points_without_progress() -> None:
    p = progress(patience=3)
    assert [p.examine("", Bounds(0.0, 1.0)) for _ in range(4)] == [None, None, None, Status.INACCURATE]
    assert p.examine("better", Bounds(0.0, 0.5)) is None and p.stalled == 0
    # Without any upper bound there is nothing to stall at.
    p = progress(patience=1)
    assert [p.examine("", Bounds(0.0, math.inf)) for _ in range(5)] == [None] * 5


def test_an_optimum_at_the_limit_is_optimal() -> None:
    for p in (progress(max_iters=0, asked=True), progress(deadline=time.perf_counter() - 1.0)):
        assert p.examine("", Bounds(0.0, 1.0)) is Status.USER_LIMIT
        assert p.examine("", Bounds(0.0, 0.0)) is Status.OPTIMAL


def test_a_second_method_has_the_rest_of_the_users_steps_and_all_of_its_own() -> None:
    plain, asked = Limits.of(Settings(), 50), Limits.of(Settings(time_limit=5.0, max_iters=7), 50)
    assert asked.after(5).end(2) is Status.USER_LIMIT and asked.after(5).end(1) is None
    assert plain.after(50) == plain
