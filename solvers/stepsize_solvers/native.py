"""The project's own solver behind the common contract: which method solves a program, and from which start.

The sizes at which the choice changes are in ``numerics.sizes``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from stepsize_solvers.closed_forms import closed_form, optimum
from stepsize_solvers.families import solve_families
from stepsize_solvers.interior.condition import Condition, ConditionPoint
from stepsize_solvers.interior.dense import Unknowns, listed
from stepsize_solvers.interior.diagonal import solve_diagonal
from stepsize_solvers.interior.driver import Drive
from stepsize_solvers.interior.floor import Factorised, Floor, FloorPoint, Former
from stepsize_solvers.interior.metric import DampedNewton, MetricPoint
from stepsize_solvers.interior.starts import cold_start, metric_start, warm_start
from stepsize_solvers.interior.whitened import Whitening
from stepsize_solvers.large.balancing import solve_balanced
from stepsize_solvers.numerics.linalg import blas_threads, sym
from stepsize_solvers.numerics.progress import Limits, Progress, failure
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    Family,
    Hadamard,
    Matrix,
    Outcome,
    Pattern,
    PositiveMap,
    Program,
    Settings,
    Solver,
    Status,
    UnsupportedProgram,
    WarmStart,
    exponent_above,
)

# Stop at this fraction of the tolerance, so that an independent check passes too; give up after so many steps without
# a narrower interval.  A healthy solve takes 5 to 25 steps, a damped Newton method up to 40 before it narrows.
_CONDITION = (0.8, 12)
_METRIC = (0.5, 40)
_FLOOR = (0.5, 20)
_MOST_STEPS = 100
_MOST_DIAGONAL_STEPS = 200
_MOST_METRIC_STEPS = 200


@dataclass(frozen=True)
class NativeOptions:
    """Options of the native solver, given by name in ``Settings.extra``.

    closed_forms: try theorems A and B first.
    single_precision_from: size of a full D from which directions under the condition are in single precision.
    """

    closed_forms: bool = True
    single_precision_from: int = Sizes.SINGLE_PRECISION

    @staticmethod
    def from_extra(extra: Mapping[str, Any]) -> NativeOptions:
        """Options with the given overrides; an unknown name is an error that lists the known ones."""
        if not extra:
            return NativeOptions()
        known = [f.name for f in fields(NativeOptions)]
        unknown = sorted(set(extra) - set(known))
        if unknown:
            limits = "tol, time_limit and max_iters are arguments of the call"
            msg = f"unknown native option {', '.join(unknown)}; known: {', '.join(known)}; {limits}"
            raise ValueError(msg)
        return NativeOptions(**dict(extra))


class NativeSolver(Solver):
    """Methods without lifts, for the one constraint 𝒬(D B D) ⪯ D, for families of inequalities, and for a metric."""

    name = "native"
    starts_warm = True

    def unavailable(self) -> str | None:
        return None

    def unsupported(self, program: Program) -> str | None:
        if program.objective is not None:
            left = program.objective.left
            if left.B is None:
                return "the native solver takes a metric with a quadratic term"
            return None
        if program.condition is None and any(family.factors is None for family in program.families):
            return "beside other inequalities the native solver takes families with factors only"
        return None

    def solve(self, program: Program, settings: Settings) -> Outcome:
        reason = self.unsupported(program)
        if reason is not None:
            raise UnsupportedProgram(reason)
        with blas_threads(max([program.d, *(family.rows for family in program.families)])):
            began, options = time.perf_counter(), NativeOptions.from_extra(settings.extra)
            if settings.warm_start is not None:
                settings = replace(settings, warm_start=_near_one(settings.warm_start))
            outcome = closed_form(program, settings.tol) or _solve(program, settings, options)
            return replace(outcome, stats=replace(outcome.stats, solve_time=time.perf_counter() - began))


def _near_one(warm: WarmStart) -> WarmStart:
    """The start divided by powers of two, so that no product overflows; its factors are chosen anew in any case."""
    X, *duals = (np.ldexp(M, -exponent_above(M)) for M in (warm.X, *warm.duals))
    return WarmStart(X, tuple(duals))


def _solve(program: Program, settings: Settings, options: NativeOptions) -> Outcome:
    pattern, condition, objective = program.pattern, program.condition, program.objective
    if objective is not None:
        if objective.floor is None:
            return _solve_metric(objective.left, pattern, settings)
        return _solve_floor(objective.left, objective.floor, pattern, settings)
    if condition is None:
        return solve_families(program, settings)
    assert condition.B is not None  # by the definition of Program.condition
    B, Q = sym(condition.B), condition.Q
    if pattern.direction is not None:
        return failure("W is not numerically positive definite")
    P = Q.hadamard_matrix if pattern.is_diagonal and not pattern.is_full else None
    if P is not None:
        return _solve_diagonal(P * B, settings)
    return _solve_condition(replace(condition, B=B), pattern, settings, options)


# ---------------------------------------------------------------- the condition


def _solve_condition(family: Family, pattern: Pattern, settings: Settings, options: NativeOptions) -> Outcome:
    """Over a full or block-diagonal D, or factors of given blocks."""
    assert family.B is not None
    found = optimum(family.B, family.Q, settings.tol) if options.closed_forms and pattern.is_full else None
    if found is not None:
        return found
    progress: Progress[ConditionPoint] = Progress(pattern.d, Limits.of(settings, _MOST_STEPS), *_CONDITION)
    unknowns = _condition_unknowns(family.Q, pattern)
    single = pattern.is_full and pattern.d >= options.single_precision_from
    problem = Condition(_entrywise(family), pattern, settings.tol, progress.work, unknowns, single)
    start = None if settings.warm_start is None else warm_start(problem, settings.warm_start)
    start = start or cold_start(problem)
    if start is None:
        return failure("no strictly feasible start: B or W is not numerically positive definite")
    drive, first = Drive(problem, progress), problem.in_single(start)
    return _pair(progress.run(lambda: drive.run(first)), progress)


def _entrywise(family: Family) -> Family:
    """The family with P∘M for the cheap map where that is faster, or where sums lose the small coefficients."""
    P = family.Q.hadamard_matrix
    if P is None or not (family.Q.d <= Sizes.PLAIN_ENTRYWISE or family.Q.is_graded):
        return family
    return replace(family, Q=Hadamard(P))


def _condition_unknowns(Q: PositiveMap, pattern: Pattern) -> Unknowns | None:
    """Those of a factorised system; None where conjugate gradients are faster, or a graded map asks for them."""
    if not pattern.is_full:
        return listed(Q, pattern, Sizes.DENSE_UNKNOWNS)
    largest = Sizes.CONDITION_DENSE_ENTRYWISE if Q.is_entrywise else Sizes.CONDITION_DENSE
    return None if Q.is_graded or pattern.d > largest else listed(Q, pattern)


def _solve_diagonal(M: Matrix, settings: Settings) -> Outcome:
    """Balancing for an M without negative entries, otherwise the central path of x."""
    limits, warm = Limits.of(settings, _MOST_DIAGONAL_STEPS), settings.warm_start
    balanced = _balanced(M, limits) if M.min() >= 0.0 else None
    if balanced is not None and balanced.status is not Status.INACCURATE:
        return balanced
    if balanced is not None:
        limits = limits.after(balanced.stats.num_iters or 0)
    known = balanced.X if balanced is not None else None if warm is None else warm.X
    return _pair(*solve_diagonal(M, limits, None if known is None else np.diagonal(known)))


def _balanced(M: Matrix, limits: Limits) -> Outcome | None:
    """The answer by balancing; None when it has no point."""
    status, progress = solve_balanced(lambda y: M @ y, M.diagonal(), limits)
    if progress.best is None:
        return None
    point = progress.best.point
    z = point.y / point.x
    return Outcome(status, np.diag(point.x), (np.multiply.outer(z, z)[None],), progress.stats(), thin=point.y)


# ---------------------------------------------------------------- the metric


def _solve_metric(family: Family, pattern: Pattern, settings: Settings) -> Outcome:
    """The largest log det of the metric."""
    family = _entrywise(family)
    D = metric_start(family, pattern, _warm_stepsize(settings, pattern))
    if D is None:
        return failure("no start with a positive definite metric was found")
    progress: Progress[MetricPoint] = Progress(pattern.d, Limits.of(settings, _MOST_METRIC_STEPS), *_METRIC)
    method = DampedNewton(family, pattern, progress)
    status = progress.run(lambda: method.run(D))
    best = progress.best
    if best is None:
        return failure("the metric of the start is not numerically positive definite")
    return Outcome(status, best.point.D, (best.point.Y[None],), progress.stats())


def _solve_floor(family: Family, floor: Matrix, pattern: Pattern, settings: Settings) -> Outcome:
    """The largest t, in one basis after the other until one of them ends the path; cold after a warm start that fails.

    Where G of a warm start is nearly singular, the path breaks down at its first step.
    """
    progress: Progress[FloorPoint] = Progress(pattern.d, Limits.of(settings, _MOST_METRIC_STEPS), *_FLOOR)
    unknowns = listed(family.Q, pattern)
    whitened = Whitening(family, pattern)
    formers: tuple[Former, ...] = (whitened,)
    if unknowns is not None:
        dense = Factorised(family, pattern, unknowns)
        first = listed(family.Q, pattern, Sizes.DENSE_UNKNOWNS) is not None
        formers = (dense, whitened) if first else (whitened, dense)
    problem = Floor(family, floor, formers, settings.tol, progress.work)
    warm, status = _warm_stepsize(settings, pattern), Status.INACCURATE
    for start in (None,) if warm is None else (warm, None):
        D = metric_start(family, pattern, start)
        found = None if D is None else problem.first(D)
        if found is not None and status is Status.INACCURATE:
            progress.stalled = 0
            status = progress.run(partial(Drive(found[0], progress).run, found[1]))
    best = progress.best
    if best is None:
        return failure("no start with a positive definite metric was found")
    return Outcome(status, best.point.D, (best.point.Z[None],), progress.stats())


def _warm_stepsize(settings: Settings, pattern: Pattern) -> Matrix | None:
    warm = settings.warm_start
    return warm.X if warm is not None and warm.X.shape == (pattern.d, pattern.d) else None


# ---------------------------------------------------------------- outcomes


def _pair(status: Status, progress: Progress[Any]) -> Outcome:
    """The best pair of D and Z, scaled as its bounds say."""
    if progress.best is None:
        return failure("no strictly feasible point was evaluated")
    best, bounds = progress.best.point, progress.best.bounds
    D, Z = bounds.scale * sym(best.D), bounds.dual_scale * sym(best.Z)
    return Outcome(status, D, (Z[None],), progress.stats())
