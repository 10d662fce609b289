"""What the project's own methods do alike: keep the best pair, report where they are, decide whether to go on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from stepsize_solvers.programs import Outcome, Settings, SolverStats, Status

Point = TypeVar("Point")


class Bounds(NamedTuple):
    """The interval of log det that a point proves up to rounding, for ``scale`` · X and the dual ``dual_scale`` · Z."""

    lower: float
    upper: float
    scale: float = 1.0
    dual_scale: float = 1.0

    @property
    def width(self) -> float:
        return self.upper - self.lower


@dataclass(frozen=True)
class Limits:
    """When to stop, and where progress lines go.

    tol: the gap asked for, for each of the d dimensions; max_iters: steps; asked: whether the user chose that number;
    deadline: the moment to stop, on the clock of ``time.perf_counter``; log: None for silence; log_shift: added to
    log det / d there.
    """

    tol: float
    max_iters: int
    asked: bool = False
    deadline: float = math.inf
    log: Callable[[str], None] | None = None
    log_shift: float = 0.0

    @staticmethod
    def of(settings: Settings, default_steps: int) -> Limits:
        """The limits of a user's settings."""
        asked = settings.max_iters is not None
        steps = default_steps if settings.max_iters is None else settings.max_iters
        log = print if settings.verbose else None
        return Limits(settings.tol, steps, asked, settings.deadline, log, settings.log_shift)

    def after(self, steps: int) -> Limits:
        """Return the limits of a second method after so many steps of a first: the user's number is for both."""
        return replace(self, max_iters=self.max_iters - steps) if self.asked else self

    def end(self, steps: int) -> Status | None:
        """Return the status of a solve that has to end after so many steps, or None when it may go on.

        A method that has made all of its own number of steps did not converge; the user has set no limit.
        """
        if time.perf_counter() > self.deadline:
            return Status.USER_LIMIT
        if steps < self.max_iters:
            return None
        return Status.USER_LIMIT if self.asked else Status.INACCURATE


class OutOfTime(Exception):
    """The deadline passed inside a linear solve."""


@dataclass
class Work:
    """The iterations of conjugate gradients so far, and the moment at which they have to stop."""

    deadline: float = math.inf
    cg_iterations: int = 0

    def count_iteration(self) -> None:
        """Count one more; raises OutOfTime at the deadline."""
        self.cg_iterations += 1
        if time.perf_counter() > self.deadline:
            raise OutOfTime


def native_stats(steps: int = 0, closed_form: str = "", **extra: Any) -> SolverStats:
    """The statistics of the project's own methods."""
    extra = {"steps": steps, "closed_form": closed_form, **extra}
    return SolverStats("native", setup_time=0.0, num_iters=steps, extra_stats=extra)


def failure(message: str) -> Outcome:
    """The outcome of a solve that has no point."""
    return Outcome(Status.SOLVER_ERROR, None, (), native_stats(), message)


@dataclass(frozen=True, eq=False)
class Best(Generic[Point]):
    """The pair with the narrowest interval so far."""

    point: Point
    bounds: Bounds


@dataclass
class Progress(Generic[Point]):
    """One solve of size d as it goes; the best pair survives an interruption.

    margin: stop at this fraction of the tolerance, so that an independent check passes too.
    patience: give up after so many points without a narrower interval.
    history: the interval proved by all points so far, after each of them.
    """

    d: int
    limits: Limits
    margin: float
    patience: int
    best: Best[Point] | None = None
    steps: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)
    lower: float = -math.inf
    upper: float = math.inf
    stalled: int = 0

    @cached_property
    def work(self) -> Work:
        return Work(self.limits.deadline)

    def examine(self, point: Point, bounds: Bounds, details: Mapping[str, str] | None = None) -> Status | None:
        """Record a point; the status when the solve is over, None when it goes on."""
        self._record(point, bounds)
        if self.limits.log is not None:
            self._report(bounds, details or {})
        if bounds.width <= self.margin * self.limits.tol * self.d:
            self.best = Best(point, bounds)
            return Status.OPTIMAL
        ended = self.limits.end(self.steps)
        return Status.INACCURATE if ended is None and self.stalled >= self.patience else ended

    def _record(self, point: Point, bounds: Bounds) -> None:
        self.lower = max(self.lower, bounds.lower)
        self.upper = min(self.upper, bounds.upper)
        self.history.append((self.lower, self.upper))
        best = self.best
        unbounded = best is None or not math.isfinite(best.bounds.upper)
        if best is None or bounds.width < best.bounds.width or (unbounded and bounds.lower > best.bounds.lower):
            self.best = Best(point, bounds)
        self.stalled = 0 if unbounded or self.best is not best else self.stalled + 1

    def _report(self, bounds: Bounds, details: Mapping[str, str]) -> None:
        log = self.limits.log
        assert log is not None
        if len(self.history) == 1:
            log(f"{'iter':>4} {'log det / d':>16} {'gap':>9} " + " ".join(f"{name:>9}" for name in details))
        values = " ".join(f"{value:>9}" for value in details.values())
        log_det = bounds.lower / self.d + self.limits.log_shift
        log(f"{self.steps:4d} {log_det:16.9f} {bounds.width / self.d:9.2e} {values}")

    def follow(
        self,
        point: Point | None,
        bounds: Callable[[Point], Bounds],
        details: Callable[[Point], Mapping[str, str]],
        next_point: Callable[[Point], Point | None],
    ) -> Status:
        """Step from point to point until the solve is over; INACCURATE where there is no next point."""
        while point is not None:
            status = self.examine(point, bounds(point), None if self.limits.log is None else details(point))
            if status is not None:
                return status
            point = next_point(point)
            self.steps += point is not None
        return Status.INACCURATE

    def run(self, method: Callable[[], Status]) -> Status:
        """The status of a method that records its points here; Ctrl-C and the deadline keep the best pair so far."""
        try:
            return method()
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        except OutOfTime:
            return Status.USER_LIMIT

    @property
    def statistics(self) -> dict[str, Any]:
        """The work done."""
        gap = math.inf if self.best is None else self.best.bounds.width / self.d
        return {"cg_iterations": self.work.cg_iterations, "history": self.history, "gap": gap}

    def stats(self, **extra: Any) -> SolverStats:
        """The statistics of a solve by one of the project's own methods."""
        return native_stats(self.steps, **self.statistics, **extra)
