"""The records of the solver benchmark: configurations, settings, the rungs of a run, and where they were measured."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from stepsize_opt import __version__
from stepsize_solvers.conic import BACKENDS, Lift, Objective
from stepsize_validation.bench.problems import ProblemSpec

# How a run ended.  Anything but DONE is a row of the tables with that word in it.
DONE = "done"
TIME_LIMIT = "time limit"
MEMORY_LIMIT = "memory limit"
CRASHED = "crashed"
NO_LICENCE = "no licence"
NOT_INSTALLED = "not installed"
UNSUPPORTED = "unsupported"
SKIPPED = "skipped"
STATUSES = (DONE, TIME_LIMIT, MEMORY_LIMIT, CRASHED, NO_LICENCE, NOT_INSTALLED, UNSUPPORTED, SKIPPED)

NATIVE = "native"
# With an exponential cone both objectives can be posed.  COPT has one, but calls log det of these programs unbounded.
_BOTH_OBJECTIVES = ("clarabel", "mosek", "scs")
_PACKAGES = ("numpy", "scipy", "cvxpy", "clarabel", "scs", "mosek", "cvxopt", "sdpa-python", "coptpy")


@dataclass(frozen=True)
class Configuration:
    """A solver and how the problem is put to it.

    lift and objective: for solvers behind cvxpy, as in ``stepsize_solvers.conic``; empty for the native solver.
    iterate: the native solver without its closed forms, so that its iteration is measured.
    """

    solver: str
    lift: str = ""
    objective: str = ""
    iterate: bool = False

    @property
    def label(self) -> str:
        if self.iterate:
            return f"{self.solver} (iterates)"
        if not self.lift:
            return self.solver
        return f"{self.solver} ({self.lift}, {self.objective.replace('_', ' ')})"

    @property
    def extra(self) -> dict[str, Any]:
        """What goes into ``Settings.extra``."""
        if self.lift:
            return {"lift": self.lift, "objective": self.objective}
        return {"closed_forms": False} if self.iterate else {}


def default_configuration(solver: str, problem: ProblemSpec) -> Configuration:
    """The formulation that the library chooses for the solver and the problem."""
    backend = next((backend for backend in BACKENDS if backend.name == solver), None)
    if backend is None:
        return Configuration(solver)
    lift = Lift.QUADRATIC if problem.quadratic else Lift.COMPACT
    return Configuration(solver, lift.value, backend.objective.value)


def all_configurations(solver: str, problem: ProblemSpec) -> list[Configuration]:
    """Every formulation that the solver can take, the default first."""
    first = default_configuration(solver, problem)
    if not first.lift:
        return [first]
    lifts = [lift for lift in Lift if problem.quadratic or lift is Lift.COMPACT]
    both = solver in _BOTH_OBJECTIVES
    objectives = [objective for objective in Objective if both or objective.value == first.objective]
    found = [Configuration(solver, lift.value, objective.value) for lift in lifts for objective in objectives]
    return [first, *(configuration for configuration in found if configuration != first)]


@dataclass(frozen=True)
class BenchSettings:
    """What all runs share.

    targets: the certified gaps at which solvers are compared, in falling order.
    time_limit: processor seconds for one rung of the ladder, repeats and certificate included.  Processor time, so that
    a busy machine does not turn answers into failures; a rung that neither answers nor computes ends by the clock.
    memory_mb: what a run may allocate beyond what the loaded libraries take (address space).
    threads: threads of BLAS and of the solvers that read OMP_NUM_THREADS.
    repeats: a rung is measured so many times while one measurement takes less than repeat_below seconds; the median
    counts.
    """

    targets: tuple[float, ...] = (1e-3, 1e-6, 1e-8)
    time_limit: float = 20.0
    memory_mb: int = 4096
    threads: int = 1
    repeats: int = 3
    repeat_below: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        if not self.targets or list(self.targets) != sorted(set(self.targets), reverse=True) or self.targets[-1] <= 0.0:
            msg = f"targets must be positive and falling, got {self.targets}"
            raise ValueError(msg)
        for name in ("time_limit", "memory_mb", "threads", "repeats"):
            if getattr(self, name) <= 0:
                msg = f"{name} must be positive, got {getattr(self, name)}"
                raise ValueError(msg)

    @property
    def main_target(self) -> float:
        """The gap of the headline tables: the middle one, 10⁻⁶ by default."""
        return self.targets[len(self.targets) // 2]


@dataclass(frozen=True)
class Task:
    """One run: a problem, a configuration and the settings."""

    problem: ProblemSpec
    configuration: Configuration

    def to_dict(self) -> dict[str, Any]:
        return {"problem": self.problem.to_dict(), "configuration": asdict(self.configuration)}

    @staticmethod
    def from_dict(value: dict[str, Any]) -> Task:
        return Task(ProblemSpec(**value["problem"]), Configuration(**value["configuration"]))


@dataclass(frozen=True)
class Rung:
    """One solve with ``Settings.tol = tol``, and what was proved of its answer.

    status, message: the solver's own opinion.
    seconds: processor time of the solve, all threads together; wall: elapsed time, of which setup built the model,
    compile is cvxpy's translation and solve the rest.  Imports are in none of them, nor is the certificate; only the
    problems of clients are measured as whole calls, certificate included.
    raw_violation: how far outside the solver's point is, as a fraction of D; None when it is not positive definite, and
    for clients.
    rate: det(D)^{1/d} of the repaired point; gap: its certified gap; both None when nothing was certified.
    certify: elapsed seconds of repair and certificate; peak_mb: resident memory so far, libraries included.
    """

    tol: float
    status: str
    seconds: float
    wall: float
    setup: float
    compile: float
    solve: float
    iterations: int | None
    raw_violation: float | None
    rate: float | None
    gap: float | None
    certify: float
    peak_mb: float
    repeats: int
    closed_form: bool
    message: str = ""

    @property
    def solver_seconds(self) -> float:
        """Processor seconds without building and compiling the model, shared out like the elapsed time."""
        return self.seconds * self.solve / self.wall


@dataclass(frozen=True)
class BenchRun:
    """A run with its ladder of rungs; ``elapsed`` is all the time that its process took, ``base_mb`` its libraries."""

    task: Task
    status: str
    message: str = ""
    rungs: tuple[Rung, ...] = ()
    elapsed: float = 0.0
    base_mb: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            msg = f"unknown status {self.status!r}; expected one of {', '.join(STATUSES)}"
            raise ValueError(msg)

    def first_within(self, gap: float) -> Rung | None:
        """The first rung whose certified gap is at most ``gap``."""
        return next((rung for rung in self.rungs if rung.gap is not None and rung.gap <= gap), None)

    def seconds_to(self, gap: float) -> float | None:
        """Processor seconds of the first rung within ``gap``; None when there is none."""
        rung = self.first_within(gap)
        return None if rung is None else rung.seconds

    @property
    def best_gap(self) -> float | None:
        """The smallest certified gap of all rungs."""
        return min((rung.gap for rung in self.rungs if rung.gap is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("task", "rungs")}
        return {**self.task.to_dict(), **own, "rungs": [asdict(rung) for rung in self.rungs]}

    @staticmethod
    def from_dict(value: dict[str, Any]) -> BenchRun:
        own = {f.name: value[f.name] for f in fields(BenchRun) if f.name not in ("task", "rungs")}
        return BenchRun(task=Task.from_dict(value), rungs=tuple(Rung(**rung) for rung in value["rungs"]), **own)


def environment() -> dict[str, str]:
    """Versions and the kind of machine; runs of different environments are not mixed."""
    out = {"python": platform.python_version(), "machine": platform.machine(), "processor": _processor()}
    out |= {"cores": str(os.cpu_count()), "stepsize-opt": __version__}
    for package in _PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "not installed"
    return out


def _processor() -> str:
    """The model name that Linux gives, otherwise what Python knows."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
