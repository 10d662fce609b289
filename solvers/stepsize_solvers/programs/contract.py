"""The contract of a solver: a name, a reason when it cannot run, and ``solve(program, settings) -> Outcome``."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepsize_solvers.programs.outcome import Outcome
from stepsize_solvers.programs.program import Program
from stepsize_solvers.programs.types import Matrix, Stack


class SolverUnavailable(RuntimeError):
    """A solver that is not installed or has no licence was asked to solve.

    Examples
    --------
    See ``available_solvers``.
    """


class UnsupportedProgram(ValueError):
    """A solver was given a program that it cannot express."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """The answer of a nearby problem of the same shape: X and the multipliers of each family."""

    X: Matrix
    duals: tuple[Stack, ...]


@dataclass(frozen=True)
class Settings:
    """What every solver understands.

    tol: the relative gap aimed at, (upper bound − log det D)/d.
    verbose: print the solver's own progress.
    time_limit: seconds from ``started`` on, or None for no limit.  All solves with the same settings share them.
    max_iters: iterations of each solve, or None for the solver's default.
    warm_start: the answer of a nearby problem; a solver may ignore it.
    extra: options handed to the solver untouched, under its own names.
    log_shift: added to log det / d where progress is printed, so that it is that of the caller's coordinates.
    started: the moment from which the time counts, on the clock of ``time.perf_counter`` (one for all processes).
    """

    tol: float = 1e-6
    verbose: bool = False
    time_limit: float | None = None
    max_iters: int | None = None
    warm_start: WarmStart | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    log_shift: float = 0.0
    started: float = field(default_factory=time.perf_counter)

    @property
    def deadline(self) -> float:
        """The moment at which to stop, infinite without a time limit."""
        return math.inf if self.time_limit is None else self.started + self.time_limit

    @property
    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()


class Solver(ABC):
    """One way to solve a ``Program``."""

    name: str
    starts_warm: bool = False  # whether it continues from ``Settings.warm_start``

    @abstractmethod
    def unavailable(self) -> str | None:
        """Why the solver cannot run here, or None when it can.  Does not import the solver."""

    def unsupported(self, program: Program) -> str | None:
        """Why the solver cannot express this program, or None when it can."""
        return None

    @abstractmethod
    def solve(self, program: Program, settings: Settings) -> Outcome:
        """Solve; never raises for a numerical failure, which is a status."""
