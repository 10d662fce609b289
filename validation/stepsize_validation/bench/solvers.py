"""The solver benchmark: solvers × formulations × problems × sizes, compared at equal certified gap.

Every run is a process of its own with limits of time and memory (``.process``), so a crash or a hang
is a row.  A run climbs a ladder of tolerances, and the time to a certified gap g is that of the first rung whose
*certified* gap is at most g, whatever the solver's own tolerance said.  Results are written after every run; calling
again continues.

    stepsize-opt bench --output DIR
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from stepsize_solvers import available_solvers
from stepsize_validation.bench.problems import ProblemSpec, data_problems, kind_problems, size_problems
from stepsize_validation.bench.process import run_task
from stepsize_validation.bench.records import (
    MEMORY_LIMIT,
    NATIVE,
    SKIPPED,
    TIME_LIMIT,
    BenchRun,
    BenchSettings,
    Configuration,
    Task,
    all_configurations,
    default_configuration,
)
from stepsize_validation.bench.store import Results, open_results
from stepsize_validation.bench.worker import unavailable_status


@dataclass(frozen=True)
class Plan:
    """Which runs to make.

    sizes: d of the size family for every solver; native_sizes: more of them for the native solver alone.
    all_formulations_up_to: beyond this d a solver runs in its default formulation only.
    kind_size: d of the families condition, sketch, structure and distributed.
    data: whether L of real data is included, for solvers behind cvxpy up to data_up_to.
    solvers: names, or empty for all.

    Raises ValueError for a solver that the registry does not know.
    """

    settings: BenchSettings = field(default_factory=BenchSettings)
    sizes: tuple[int, ...] = (10, 20, 30, 40)
    native_sizes: tuple[int, ...] = (80, 160, 300)
    all_formulations_up_to: int = 20
    kind_size: int | None = 10
    data: bool = True
    data_up_to: int = 30
    solvers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [entry.name for entry in available_solvers()]
        unknown = [name for name in self.solvers if name not in known]
        if unknown:
            msg = f"unknown solver {', '.join(unknown)}; choose from {', '.join(known)}"
            raise ValueError(msg)
        wrong = [d for d in (*self.sizes, *self.native_sizes) if d < 2]
        if wrong:
            msg = f"sizes must be at least 2, got {', '.join(map(str, wrong))}"
            raise ValueError(msg)

    @staticmethod
    def quick() -> Plan:
        """A couple of minutes: small sizes, default formulations, no real data."""
        settings = BenchSettings(time_limit=10.0)
        return Plan(settings, sizes=(5, 10), native_sizes=(20,), all_formulations_up_to=0, kind_size=6, data=False)

    def with_sizes(self, sizes: Sequence[int]) -> Plan:
        """The same with these sizes for every solver, and no others in the size family."""
        return replace(self, sizes=tuple(sorted(set(sizes))), native_sizes=())

    def tasks(self) -> list[Task]:
        """All runs, small sizes first and the native solver first, so that a partial result can be read."""
        names = [entry.name for entry in available_solvers() if not self.solvers or entry.name in self.solvers]
        tasks = []
        for problem in self._problems():
            for name in names:
                tasks += [Task(problem, configuration) for configuration in self._configurations(problem, name)]
        return sorted(tasks, key=lambda task: task.problem.d)

    def _problems(self) -> list[ProblemSpec]:
        problems = size_problems((*self.sizes, *self.native_sizes))
        if self.kind_size is not None:
            problems += kind_problems(self.kind_size)
        return problems + (data_problems() if self.data else [])

    def _configurations(self, problem: ProblemSpec, solver: str) -> list[Configuration]:
        first = default_configuration(solver, problem)
        if solver == NATIVE:
            return [first, Configuration(NATIVE, iterate=True)] if problem.family == "size" else [first]
        if problem.family == "size":
            if problem.d not in self.sizes:
                return []
            return all_configurations(solver, problem) if problem.d <= self.all_formulations_up_to else [first]
        if problem.family == "data" and problem.d > self.data_up_to:
            return []
        return [first]


def run_benchmark(
    plan: Plan,
    folder: Path,
    *,
    resume: bool = True,
    say: Callable[[Task, int, int], None] = lambda task, done, total: None,
) -> Results:
    """Make the runs of the plan that the folder does not hold yet, and return all runs that it then holds.

    ``say`` gets each task before its run, how many of all tasks are done, and how many there are.
    The folder holds a usable ``results.json`` after every run, also when this is interrupted.  Raises ValueError when
    it holds results of another environment or other settings.
    """
    results = open_results(folder, plan.settings, resume)
    reasons = {entry.name: entry.reason for entry in available_solvers() if entry.reason is not None}
    tasks = plan.tasks()
    waiting = [task for task in tasks if results.find(task) is None]
    for i, task in enumerate(waiting):
        say(task, len(tasks) - len(waiting) + i, len(tasks))
        reason = reasons.get(task.configuration.solver)
        smaller = _stopped_at(task, results)
        if reason is not None:
            run = BenchRun(task, unavailable_status(reason), reason)
        elif smaller is not None:
            run = BenchRun(task, SKIPPED, f"{smaller.status} at d={smaller.task.problem.d}")
        else:
            run = run_task(task, plan.settings)
        results = results.with_run(run)
        results.save(folder)
    return results


def _stopped_at(task: Task, results: Results) -> BenchRun | None:
    """A run of the same configuration that hit a limit before its first answer at a smaller size of the size family."""
    if task.problem.family != "size":
        return None
    for run in results.runs:
        smaller = run.task.problem.family == "size" and run.task.problem.d < task.problem.d
        same = run.task.configuration == task.configuration
        if smaller and same and not run.rungs and run.status in (TIME_LIMIT, MEMORY_LIMIT):
            return run
    return None
