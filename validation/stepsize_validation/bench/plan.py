"""The runs of the solver benchmark: solvers × formulations × problems × sizes, and what all runs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stepsize_solvers import available_solvers
from stepsize_solvers.conic import BACKENDS, Lift, Objective
from stepsize_validation.bench.problems import Problem, data_problems, kind_problems, size_problems

NATIVE = "native"
# With an exponential cone both objectives can be posed.  COPT has one, but calls log det of these programs unbounded.
_BOTH_OBJECTIVES = ("clarabel", "mosek", "scs")


@dataclass(frozen=True)
class BenchSettings:
    """What all runs share.

    targets: the certified gaps at which solvers are compared, in falling order; the middle one is the main target.
    time_limit: processor seconds for one rung of the ladder, repeats and certificate included.  Processor time, so that
    a busy machine does not turn answers into failures; a rung that neither answers nor computes ends by wall time.
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
        object.__setattr__(self, "targets", tuple(self.targets))  # JSON has lists

    @property
    def main_target(self) -> float:
        """The gap of the tables, 10⁻⁶ by default."""
        return self.targets[len(self.targets) // 2]


@dataclass(frozen=True)
class Task:
    """One run: a problem, a solver and how the problem is put to it.

    lift and objective: for solvers behind cvxpy, as in ``stepsize_solvers.conic``; empty for the native solver.
    iterate: the native solver without its closed forms, so that its iteration is measured.
    default: whether the library chooses this formulation for the solver and the problem.
    """

    problem: Problem
    solver: str
    lift: str = ""
    objective: str = ""
    iterate: bool = False
    default: bool = True

    @property
    def label(self) -> str:
        """The solver with its formulation."""
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

    @property
    def row(self) -> dict[str, Any]:
        """The columns of the results that describe the task; problem and label are names that identify it."""
        return {**asdict(self), **asdict(self.problem), "problem": self.problem.name, "label": self.label}


def default_task(problem: Problem, solver: str) -> Task:
    """Return the formulation that the library chooses for the solver and the problem."""
    backend = next((backend for backend in BACKENDS if backend.name == solver), None)
    if backend is None:
        return Task(problem, solver)
    lift = Lift.QUADRATIC if problem.quadratic else Lift.COMPACT
    return Task(problem, solver, lift.value, backend.objective.value)


def all_tasks(problem: Problem, solver: str) -> list[Task]:
    """Return every formulation that the solver can take, the default first."""
    first = default_task(problem, solver)
    if not first.lift:
        return [first]
    lifts = [lift for lift in Lift if problem.quadratic or lift is Lift.COMPACT]
    both = solver in _BOTH_OBJECTIVES
    objectives = [objective for objective in Objective if both or objective.value == first.objective]
    found = [Task(problem, solver, lift.value, objective.value) for lift in lifts for objective in objectives]
    return [first, *(replace(task, default=False) for task in found if task != first)]


@dataclass(frozen=True)
class Plan:
    """Which runs to make.

    sizes: d of the size family for every solver; native_sizes: more of them for the native solver alone.
    all_formulations_up_to: beyond this d a solver runs in its default formulation only.
    kind_size: d of the families condition, sketch, structure and distributed.
    data: whether L of real data is included, for solvers behind cvxpy up to data_up_to.
    solvers: names, or empty for all.
    """

    settings: BenchSettings = field(default_factory=BenchSettings)
    sizes: tuple[int, ...] = (10, 20, 30, 40)
    native_sizes: tuple[int, ...] = (80, 160, 300)
    all_formulations_up_to: int = 20
    kind_size: int | None = 10
    data: bool = True
    data_up_to: int = 30
    solvers: tuple[str, ...] = ()

    @staticmethod
    def quick() -> Plan:
        """Return a plan of a couple of minutes: small sizes, default formulations, no real data."""
        settings = BenchSettings(time_limit=10.0)
        return Plan(settings, sizes=(5, 10), native_sizes=(20,), all_formulations_up_to=0, kind_size=6, data=False)

    def with_sizes(self, sizes: Sequence[int]) -> Plan:
        """Return the same plan with these sizes for every solver, and no others in the size family."""
        return replace(self, sizes=tuple(sorted(set(sizes))), native_sizes=())

    def tasks(self) -> list[Task]:
        """List all runs, small sizes first and the native solver first, so that a partial result can be read."""
        names = [entry.name for entry in available_solvers() if not self.solvers or entry.name in self.solvers]
        problems = size_problems((*self.sizes, *self.native_sizes))
        problems += kind_problems(self.kind_size) if self.kind_size else []
        problems += data_problems() if self.data else []
        tasks = [task for problem in problems for name in names for task in self._tasks(problem, name)]
        return sorted(tasks, key=lambda task: task.problem.d)

    def _tasks(self, problem: Problem, solver: str) -> list[Task]:
        first = default_task(problem, solver)
        if solver == NATIVE:
            iterating = Task(problem, NATIVE, iterate=True, default=False)
            return [first, iterating] if problem.family == "size" else [first]
        if problem.family == "size":
            if problem.d not in self.sizes:
                return []
            return all_tasks(problem, solver) if problem.d <= self.all_formulations_up_to else [first]
        return [] if problem.family == "data" and problem.d > self.data_up_to else [first]
