"""What the runs of the solver benchmark say: times at equal certified gap, ratios, slopes, performance profiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

import numpy as np

from stepsize_solvers.programs import Vector
from stepsize_validation.bench.problems import ProblemSpec
from stepsize_validation.bench.records import (
    NATIVE,
    NO_LICENCE,
    NOT_INSTALLED,
    UNSUPPORTED,
    BenchRun,
    Configuration,
    default_configuration,
)
from stepsize_validation.bench.store import Results

# A slope is fitted through so many of the largest sizes: at small ones overhead hides how the work grows.
_SLOPE_SIZES = 3
Grid = dict[ProblemSpec, dict[str, BenchRun]]


def default_grid(results: Results) -> Grid:
    """For each problem the runs in default formulation by solver, and the native solver without closed forms."""
    grid: Grid = {}
    for run in results.runs:
        problem, how = run.task.problem, run.task.configuration
        if how == default_configuration(how.solver, problem):
            grid.setdefault(problem, {})[how.solver] = run
        elif how.iterate:
            grid.setdefault(problem, {})[how.label] = run
    return grid


def entrants(results: Results) -> list[str]:
    """The labels of ``default_grid`` in order of appearance."""
    return list(dict.fromkeys(label for runs in default_grid(results).values() for label in runs))


def absent(results: Results) -> dict[str, str]:
    """Solvers that could not run at all, with the status that says why."""
    out: dict[str, str] = {}
    for label in entrants(results):
        statuses = {runs[label].status for runs in default_grid(results).values() if label in runs}
        if statuses and statuses <= {NO_LICENCE, NOT_INSTALLED}:
            out[label] = sorted(statuses)[0]
    return out


def competitors(results: Results) -> list[str]:
    """The entrants that could run, without the second native entry, which competes with nobody."""
    left_out = {*absent(results), Configuration(NATIVE, iterate=True).label}
    return [label for label in entrants(results) if label not in left_out]


def common_problems(results: Results) -> list[ProblemSpec]:
    """The problems that every competitor was given and supports."""
    names = competitors(results)
    return [
        problem
        for problem, runs in default_grid(results).items()
        if all(name in runs and runs[name].status != UNSUPPORTED for name in names)
    ]


def ratios_to_native(results: Results, label: str, gap: float) -> dict[ProblemSpec, float]:
    """For each problem on which both reach the gap: seconds of the solver over seconds of the native solver."""
    out = {}
    for problem, runs in default_grid(results).items():
        if label in runs and NATIVE in runs:
            theirs, ours = runs[label].seconds_to(gap), runs[NATIVE].seconds_to(gap)
            if theirs is not None and ours is not None:
                out[problem] = theirs / ours
    return out


@dataclass(frozen=True)
class Growth:
    """seconds ≈ exp(intercept) · d^slope, fitted to the sizes given."""

    sizes: tuple[int, ...]
    slope: float
    intercept: float

    def seconds(self, d: Vector) -> Vector:
        return np.asarray(np.exp(self.intercept) * d**self.slope)


def size_curve(results: Results, label: str, gap: float) -> tuple[Vector, Vector]:
    """Sizes of the size family at which the entrant reaches the gap, and its seconds, in increasing order."""
    points = sorted(
        (problem.d, seconds)
        for problem, runs in default_grid(results).items()
        if problem.family == "size" and label in runs and (seconds := runs[label].seconds_to(gap)) is not None
    )
    array = np.array(points, dtype=float).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def growth(results: Results, label: str, gap: float) -> Growth | None:
    """A least-squares line of log seconds over log d through the three largest sizes solved; None with fewer."""
    d, seconds = (values[-_SLOPE_SIZES:] for values in size_curve(results, label, gap))
    if len(d) < _SLOPE_SIZES:
        return None
    slope, intercept = np.polyfit(np.log(d), np.log(seconds), 1)
    return Growth(tuple(int(size) for size in d), float(slope), float(intercept))


@dataclass(frozen=True, eq=False)
class Profile:
    """A performance profile (Dolan and Moré, 2002): fractions[i] of the problems within factors[i] of the fastest."""

    label: str
    factors: Vector
    fractions: Vector


def performance_profiles(results: Results, gap: float) -> list[Profile]:
    """One profile for each competitor over the common problems; a problem nobody solves counts against everybody."""
    names, problems, grid = competitors(results), common_problems(results), default_grid(results)
    if not names or not problems:
        return []
    times = np.array([[grid[p][name].seconds_to(gap) or math.inf for name in names] for p in problems])
    best = times.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        factors = np.where(np.isfinite(times), times / best, math.inf)
    finite = factors[np.isfinite(factors)]
    if finite.size == 0:
        return []
    # A step at every factor that occurs, and a little beyond the last one so that the end can be seen.
    grid_points = np.unique(np.concatenate([[1.0], finite, [2.0 * float(finite.max())]]))
    return [
        Profile(name, grid_points, np.array([np.mean(factors[:, j] <= point) for point in grid_points]))
        for j, name in enumerate(names)
    ]


@dataclass(frozen=True)
class Standing:
    """One entrant over all its problems.

    problems: how many it was given and supports; reached: how many of them to each target; ratio: geometric mean of
    its time over the native one at the main target, over ``compared`` problems, None without any; violation: median
    violation of its raw points at the rung that reached the main target; overclaimed: rungs that the solver called
    optimal at a tolerance that the certified gap exceeds, of ``claimed``; peak_mb: largest memory beyond the libraries.
    """

    label: str
    problems: int
    reached: tuple[int, ...]
    ratio: float | None
    compared: int
    violation: float | None
    overclaimed: int
    claimed: int
    peak_mb: float
    growth: Growth | None


def standings(results: Results) -> list[Standing]:
    """One row for each entrant that could run."""
    targets, main = results.settings.targets, results.settings.main_target
    gone = absent(results)
    out = []
    for label in entrants(results):
        if label in gone:
            continue
        runs = [row[label] for row in default_grid(results).values() if label in row]
        runs = [run for run in runs if run.status != UNSUPPORTED]
        ratios = ratios_to_native(results, label, main)
        main_rungs = [rung for run in runs if (rung := run.first_within(main)) is not None]
        claims = [rung for run in runs for rung in run.rungs if rung.status == "optimal"]
        out.append(
            Standing(
                label=label,
                problems=len(runs),
                reached=tuple(sum(run.seconds_to(target) is not None for run in runs) for target in targets),
                ratio=geometric_mean(ratios.values()) if ratios else None,
                compared=len(ratios),
                violation=_median([r.raw_violation for r in main_rungs if r.raw_violation is not None]),
                overclaimed=sum(rung.gap is None or rung.gap > rung.tol for rung in claims),
                claimed=len(claims),
                peak_mb=max((rung.peak_mb - run.base_mb for run in runs for rung in run.rungs), default=0.0),
                growth=growth(results, label, main),
            )
        )
    return out


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


@dataclass(frozen=True)
class Rival:
    """The fastest other solver on a problem, and its time over the native one."""

    label: str
    factor: float


Rivals = dict[ProblemSpec, Rival]


def fastest_others(results: Results, gap: float, *, compiled: bool = False) -> Rivals:
    """The fastest other solver for each problem that it and the native solver solved to the gap.

    With ``compiled`` the others are not charged for building and compiling their model, the native solver for all.
    """
    out = {}
    for problem, runs in default_grid(results).items():
        ours = runs[NATIVE].seconds_to(gap) if NATIVE in runs else None
        rungs = {label: run.first_within(gap) for label, run in runs.items() if not label.startswith(NATIVE)}
        found = {
            label: rung.solver_seconds if compiled else rung.seconds
            for label, rung in rungs.items()
            if rung is not None
        }
        if ours is not None and found:
            best = min(found, key=lambda label: found[label])
            out[problem] = Rival(best, found[best] / ours)
    return out


def formulations(results: Results) -> dict[Configuration, dict[int, BenchRun]]:
    """For solvers behind cvxpy: the runs of the size family by formulation and d."""
    out: dict[Configuration, dict[int, BenchRun]] = {}
    for run in results.runs:
        how, problem = run.task.configuration, run.task.problem
        if how.lift and problem.family == "size":
            out.setdefault(how, {})[problem.d] = run
    return out
