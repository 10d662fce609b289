"""Families of inequalities: common directions split off, cutting surfaces where there are many, and the iteration."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stepsize_solvers.families.agreement import agreement
from stepsize_solvers.families.cuts import Relaxed, solve_by_cuts, worth_cutting
from stepsize_solvers.families.iteration import MOST_STEPS, iterate
from stepsize_solvers.families.point import Model
from stepsize_solvers.families.starts import directions, largest_scale, start_point, with_duals
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import Matrix, Outcome, Program, Settings, SolverStats, Stack, Status

# The start lies at this fraction of the way to the boundary; closer starts take short first steps.
_START_FRACTION = 0.5


def solve_families(program: Program, settings: Settings) -> Outcome:
    """Solve a program whose families all have factors; never raises for a numerical failure, which is a status.

    The objective is log det X, or log det of a metric aX − XBX.
    """
    began = time.perf_counter()
    split = agreement(program)
    found = _solve(program if split is None else split.program, settings)
    stats = replace(found.stats, solve_time=time.perf_counter() - began)
    if split is None or found.X is None:
        return replace(found, stats=stats)
    return replace(found, X=split.point(found.X), duals=(split.duals(found.duals[0]),), stats=stats)


def _solve(program: Program, settings: Settings) -> Outcome:
    model = Model.of(program)
    if worth_cutting(program):
        cut = _solve_by_cuts(program, model, settings)
        if cut is not None:
            return cut
    start = start_point(model, _START_FRACTION, directions(model))
    if start is None:
        message = "no strictly feasible start was found"
        return Outcome(Status.SOLVER_ERROR, None, (), _stats(0, {}), message)
    status, progress = iterate(model, start, Limits.of(settings, MOST_STEPS))
    best = progress.best
    if best is None:
        return Outcome(status, None, (), _stats(0, {}), "stopped before the first point was evaluated")
    found = best.point
    return Outcome(status, found.X, _duals(program, found.X, found.duals), _stats(progress.steps, progress.statistics))


def _duals(program: Program, X: Matrix, duals: tuple[Stack, ...]) -> tuple[Stack, ...]:
    """The multipliers of the families, and after them Y = G(X)⁻¹ of a metric, whose F₀ comes first in the model."""
    if program.objective is None:
        return duals
    left = program.objective.left
    assert left.B is not None  # see Model.of
    return (*duals[1:], np.asarray(np.linalg.inv(left.a * X - X @ left.B @ X), dtype=np.float64)[None])


def _stats(steps: int, extra: Mapping[str, object]) -> SolverStats:
    return SolverStats("native", setup_time=0.0, num_iters=steps, extra_stats=dict(extra))


def _solve_by_cuts(program: Program, model: Model, settings: Settings) -> Outcome | None:
    """The outcome of the method of cuts; None when it has no start or gets stuck."""
    for direction in directions(model):
        if not 0.0 < largest_scale(model, direction) < math.inf:
            continue
        status, found = solve_by_cuts(model, settings, direction, _relaxation)
        if not found.duals or status is Status.INACCURATE:
            continue  # the rounds got stuck: the whole program is dearer but does not depend on them
        extra = {
            "cg_iterations": found.cg_iterations,
            "gap": (found.upper - found.lower) / program.d,
            "rounds": found.rounds,
        }
        return Outcome(status, found.X, _duals(program, found.X, found.duals), _stats(found.iterations, extra))
    return None


def _relaxation(
    model: Model, settings: Settings, X: Matrix, duals: tuple[Stack, ...] | None, fraction: float
) -> Relaxed:
    """The answer of a relaxation, started at a fraction of the way from 0 to the boundary along X."""
    start = start_point(model, fraction, [X])
    if start is not None and duals is not None:
        start = with_duals(model, start, duals) or start
    if start is None:
        return Relaxed(Status.SOLVER_ERROR, None, 0, 0)
    status, progress = iterate(model, start, Limits.of(settings, MOST_STEPS))
    point = None if progress.best is None else progress.best.point
    return Relaxed(status, point, progress.steps, progress.work.cg_iterations)
