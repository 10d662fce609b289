"""The contract of a solver: a name, a reason when it cannot run, and ``solve(program, settings) -> Outcome``.

An outcome is a status with its meaning and remedy, statistics, a raw point and its multipliers.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from stepsize_solvers.programs.maps import Matrix, Stack, Vector
from stepsize_solvers.programs.program import Program
from stepsize_solvers.programs.shown import Tabled, plain_rows


class Status(Enum):
    """The end of a solve, in cvxpy's words.

    A solver reports its own opinion; only the certificate decides what a result may say.
    """

    OPTIMAL = "optimal"
    INACCURATE = "optimal_inaccurate"
    USER_LIMIT = "user_limit"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    SOLVER_ERROR = "solver_error"

    @property
    def is_stopped(self) -> bool:
        """Whether the user ended the solve, by a limit or by Ctrl-C."""
        return self in (Status.USER_LIMIT, Status.INTERRUPTED)

    @property
    def meaning(self) -> str:
        return _MEANING[self][0]

    @property
    def remedy(self) -> str:
        return _MEANING[self][1]


_MEANING: dict[Status, tuple[str, str]] = {
    Status.OPTIMAL: ("a feasible D with a certified gap within the tolerance", "nothing to do"),
    Status.INACCURATE: (
        "a feasible D whose certified gap is above the tolerance",
        "try another solver, a larger tol, or remove near-dependent columns that make L ill-conditioned",
    ),
    Status.USER_LIMIT: (
        "an iteration or time limit ended the solve; D is feasible, its gap is certified",
        "raise the limit, or use the answer if its gap is good enough",
    ),
    Status.INTERRUPTED: (
        "the user interrupted the solve; D is feasible, its gap is certified",
        "run again to continue from the start, or use the answer if its gap is good enough",
    ),
    Status.INFEASIBLE: (
        "no D satisfies the constraints",
        "check the conditions; condition (3) alone never is infeasible",
    ),
    Status.UNBOUNDED: ("log det D is unbounded above", "check that L is positive definite"),
    Status.SOLVER_ERROR: ("the solver failed and returned no point", "try another solver"),
}


@dataclass(frozen=True)
class SolverStats(Tabled):
    """Statistics under cvxpy's field names."""

    solver_name: str
    solve_time: float | None = None
    setup_time: float | None = None
    num_iters: int | None = None
    extra_stats: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def combined(parts: Sequence[SolverStats], label: str) -> SolverStats:
        """The statistics of several solves together, with the extra ones of each under ``label``."""
        return SolverStats(
            solver_name=" + ".join(dict.fromkeys(part.solver_name for part in parts)) or "no solver",
            solve_time=math.fsum(part.solve_time or 0.0 for part in parts),
            setup_time=math.fsum(part.setup_time or 0.0 for part in parts),
            num_iters=sum(part.num_iters or 0 for part in parts),
            extra_stats={label: [part.extra_stats for part in parts]},
        )

    def _shown(self) -> list[tuple[str, str]]:
        return plain_rows({**vars(self), **self.extra_stats})


@dataclass(frozen=True, eq=False)
class Outcome:
    """A solver's raw answer: X, and for each family the multipliers Z_j ⪰ 0 of its inequalities, shape (n, r, r).

    A program with a metric G has one stack, of shape (1, d, d): Y ⪰ 0, near G(X)⁻¹ for log det G and the multiplier of
    G(X) ⪰ t·E for t.

    Both may be inexact; the certificate repairs X and stays valid whatever the multipliers are.
    thin: for DBD ⪯ D with a diagonal D, a vector y > 0 with the multiplier Z = (y/x)(y/x)ᵀ.
    """

    status: Status
    X: Matrix | None
    duals: tuple[Stack, ...]
    stats: SolverStats
    message: str = ""
    thin: Vector | None = None


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
