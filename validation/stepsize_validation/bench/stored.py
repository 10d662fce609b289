"""Does a stored benchmark still hold here?  A small part is run again and ratios of times are compared.

Seconds differ between machines; the time of a solver over that of the native solver on the same problem differs much
less, since both are mostly dense linear algebra in one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from stepsize_solvers import available_solvers
from stepsize_validation.bench.analysis import competitors, default_grid, ratios_to_native
from stepsize_validation.bench.problems import ProblemSpec
from stepsize_validation.bench.process import run_task
from stepsize_validation.bench.records import NATIVE, Task, default_configuration
from stepsize_validation.bench.store import Results
from stepsize_validation.bench.tables import TextTable

# Between two machines the ratio of cvxpy's interpreted compilation, of sparse factorisations and of small dense BLAS
# calls moves by up to about 3; a busy machine adds some.  A solver that changed its behaviour moves it by more.
FACTOR = 4.0
# Problems of the size family up to here take seconds for every solver.
_CHECK_UP_TO = 20
_CHECK_PROBLEMS = 2
STORED = Path(__file__).parents[3] / "docs" / "benchmark" / "results.json"


@dataclass(frozen=True)
class Comparison:
    """The ratio of a solver to the native one, stored and measured again; None where the gap was not reached.

    ``reason`` says why a solver was not compared; it is empty for one that was.
    """

    label: str
    stored: float | None = None
    now: float | None = None
    reason: str = ""

    @property
    def holds(self) -> bool:
        """Whether the ratios agree within :data:`FACTOR`; a solver that was not compared does not count against."""
        if self.reason:
            return True
        if self.stored is None or self.now is None:
            return False
        return max(self.stored / self.now, self.now / self.stored) <= FACTOR

    @property
    def verdict(self) -> str:
        if self.reason:
            return f"not compared: {self.reason}"
        if self.now is None:
            return "NO: the gap is not reached any more"
        return "yes" if self.holds else "NO"


def check(stored: Results, say: Callable[[Task, int, int], None] = lambda task, done, total: None) -> list[Comparison]:
    """Run the largest small sizes of the stored benchmark again with every solver of it.

    ``say`` gets each task before its run, its number and how many there are.  Raises ValueError when the stored results
    hold no problem to compare.
    """
    gap = stored.settings.main_target
    problems = _chosen(stored)
    if not problems:
        msg = f"the stored results hold no problem up to d={_CHECK_UP_TO} that the native solver solved to {gap:.0e}"
        raise ValueError(msg)
    reasons = {entry.name: entry.reason for entry in available_solvers()}
    absent = {name: reasons.get(name, "unknown here") for name in competitors(stored)}
    names = [name for name, reason in absent.items() if reason is None]
    tasks = [Task(problem, default_configuration(name, problem)) for problem in problems for name in names]
    again = Results(stored.settings)
    for i, task in enumerate(tasks):
        say(task, i, len(tasks))
        again = again.with_run(run_task(task, stored.settings))
    rows = [
        _compare(name, problems, stored, again, gap)
        if reason is None
        else Comparison(name, reason=reason.split(".")[0])
        for name, reason in absent.items()
    ]
    # The native solver is what the others are measured by: it is a row only if it fails.
    return [row for row in rows if row.label != NATIVE or not row.holds]


def _chosen(stored: Results) -> list[ProblemSpec]:
    solved = [
        problem
        for problem, runs in default_grid(stored).items()
        if problem.family == "size"
        and problem.d <= _CHECK_UP_TO
        and NATIVE in runs
        and runs[NATIVE].seconds_to(stored.settings.main_target) is not None
    ]
    return sorted(solved, key=lambda problem: problem.d)[-_CHECK_PROBLEMS:]


def _compare(name: str, problems: Sequence[ProblemSpec], stored: Results, again: Results, gap: float) -> Comparison:
    """Geometric means over the chosen problems on which the stored run reached the gap."""
    before = {p: r for p, r in ratios_to_native(stored, name, gap).items() if p in problems}
    after = ratios_to_native(again, name, gap)
    if not before:
        return Comparison(name, reason="the stored run did not reach the gap")
    mean = geometric_mean(before.values())
    if any(problem not in after for problem in before):
        return Comparison(name, stored=mean)
    return Comparison(name, mean, geometric_mean([after[problem] for problem in before]))


def check_table(comparisons: Sequence[Comparison], stored: Results) -> TextTable:
    """The comparison for people to read."""
    rows = tuple(
        (
            row.label,
            "–" if row.stored is None else f"{row.stored:.3g}x",
            "–" if row.now is None else f"{row.now:.3g}x",
            row.verdict,
        )
        for row in comparisons
    )
    title = f"time over native at certified gap {stored.settings.main_target:.0e}"
    note = f"a ratio holds when it is within a factor {FACTOR:g} of the stored one"
    return TextTable(title, ("solver", "stored", "here", "holds"), rows, note)
