"""The pieces of a reduced problem, solved one after the other or in processes, and proved."""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepsize_opt.inputs.checks import whole_number
from stepsize_opt.inputs.matrices import LARGEST_SPREAD, Scaling
from stepsize_opt.node.question import Question
from stepsize_opt.node.reductions import Component, Piece
from stepsize_opt.node.result import StepsizeResult
from stepsize_solvers import check_solver, choose_solver, closed_form, get_solver
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.process import interrupts_held
from stepsize_solvers.programs import (
    Matrix,
    Outcome,
    Program,
    Settings,
    Solver,
    SolverStats,
    Status,
    WarmStart,
    exponent_above,
)

# Units above the first leave room for every multiplier; its entries stay below two to the second.
_SMALL_FACTOR = 2.0**-400
_LARGEST_EXPONENT = 1022


def prove(component: Component, outcome: Outcome, tol: float) -> Piece:
    """Prove the answer next to the raw one, under the goal of the component, and move it to the original units."""
    units, goal = component.units, component.goal
    proof = goal.prove(component.condition, outcome, units, tol)
    Z = outcome.duals[0][0] if outcome.duals else None
    return Piece(
        indices=units.indices,
        D=units.scaling.times(proof.D),
        dual=np.zeros_like(proof.D) if Z is None else _multiplier(units.scaling, Z),
        certificate=proof.certificate.moved(goal.power(units)),
        descent=proof.descent.moved(units.power),
        satisfies_condition=proof.satisfies_condition,
    )


def _multiplier(scaling: Scaling, dual: Matrix) -> Matrix:
    """Return Λ⁻¹ZΛ⁻¹, or a multiple of it where float64 does not hold it, which proves the same bound."""
    if float(scaling.factors.min()) > _SMALL_FACTOR:
        return scaling.over(dual)
    beyond = exponent_above(dual) - 2 * int(scaling.exponents.min()) - _LARGEST_EXPONENT
    return scaling.over(np.ldexp(dual, -max(beyond, 0)))


def chosen_solver(solver: str | Solver, settings: Settings) -> Solver | None:
    """Return the solver that was asked for, or None for the automatic choice; raises ValueError for an unknown one."""
    check_solver(solver, settings)
    return None if solver == "auto" else get_solver(solver)


# Fewer components than this for each process are not worth starting processes for.
_COMPONENTS_PER_PROCESS = 8
_PARTS_PER_PROCESS = 4
_SMALLEST = 10  # up to about this size the calls of Python are the cost

Task = tuple[Component, "WarmStart | None"]
Choice = tuple["Solver | None", Settings]  # None: the automatic choice


def check_start(warm_start: object, question: Question) -> None:
    """Raise TypeError or ValueError for a ``warm_start`` that is no result for a problem of this size and kind."""
    if warm_start is None:
        return
    if not isinstance(warm_start, StepsizeResult):
        msg = f"warm_start must be a StepsizeResult of an earlier call or None, got {type(warm_start).__name__}"
        raise TypeError(msg)
    if warm_start.d != question.d:
        msg = f"warm_start is for d={warm_start.d} but L is {question.d}×{question.d}"
        raise ValueError(msg)
    if warm_start.multiplier is None and question.L.is_formed:
        msg = "warm_start is of a LowRankPlusDiagonal, whose D is an operator, but L is a matrix: leave it out"
        raise ValueError(msg)


def start_of(component: Component, warm_start: StepsizeResult | None) -> WarmStart | None:
    """Return the part of an earlier result that belongs to a component, in its scaled coordinates."""
    if warm_start is None or warm_start.dual is None:
        return None
    indices, scaling = component.units.indices, component.units.scaling
    part = np.ix_(indices, indices)
    with np.errstate(over="ignore"):
        D, Z = scaling.over(warm_start.D[part]), scaling.times(warm_start.dual[part])
    diagonal = D.diagonal()
    # A start from a problem of quite another scale is worth nothing.
    near = diagonal.min() > 2.0**-LARGEST_SPREAD * diagonal.max()
    return WarmStart(D, (Z[None],)) if near and np.isfinite(D).all() and np.isfinite(Z).all() else None


def processes(n_jobs: object) -> int:
    """Return how many processes ``n_jobs`` means, as joblib counts them; None obeys ``joblib.parallel_config``.

    Raises ValueError or TypeError for what is no such number.
    """
    number = None if n_jobs is None else whole_number("n_jobs", n_jobs, low=-sys.maxsize)
    if number == 0:
        msg = "n_jobs must not be 0; use 1 for no extra process, -1 for one for each core"
        raise ValueError(msg)
    # Unless joblib is imported, no parallel_config is active.
    if number == 1 or (number is None and "joblib" not in sys.modules):
        return 1
    import joblib

    count: Any = joblib.effective_n_jobs  # takes None, though its stub does not
    return int(count(number))


def _chunks(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Divide the places of the tasks into parts of similar cost, which grows with the cube of the sizes.

    Several parts for each process: a process that has finished one takes the next, and little is lost when one dies.
    The largest tasks come first.
    """
    parts = min(_PARTS_PER_PROCESS * workers, max(workers, len(sizes) // _COMPONENTS_PER_PROCESS))
    heap = [(0.0, part) for part in range(parts)]
    chunks: list[list[int]] = [[] for _ in heap]
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        cost, part = heapq.heappop(heap)
        chunks[part].append(place)
        heapq.heappush(heap, (cost + float(sizes[place] + _SMALLEST) ** 3, part))
    return [chunk for chunk in chunks if chunk]


def solve_all(tasks: Sequence[Task], choice: Choice, workers: int) -> list[Piece]:
    """Solve the tasks in at most so many processes; return their pieces in order."""
    workers = min(workers, len(tasks) // _COMPONENTS_PER_PROCESS)
    if workers < 2:
        return _solve_tasks(tasks, choice)
    chunks = _chunks([component.condition.d for component, _ in tasks], workers)
    work = ([tasks[i] for i in chunk] for chunk in chunks)
    running = _in_processes(work, choice, workers)
    places = (place for chunk in chunks for place in chunk)
    found = dict(zip(places, (piece for pieces in running for piece in pieces), strict=True))
    return [found[place] for place in range(len(tasks))]


def _in_processes(work: Iterable[Sequence[Task]], choice: Choice, workers: int) -> Iterable[list[Piece]]:
    """Solve each part of the work by joblib's back end at hand."""
    from joblib import Parallel, delayed

    calls = (delayed(_solve_tasks)(part, choice) for part in work)
    try:
        parallel = Parallel(n_jobs=workers, return_as="generator")
    except ValueError:  # the back ends of Ray and of multiprocessing return lists only
        return Parallel(n_jobs=workers)(calls)  # type: ignore[no-any-return]
    with interrupts_held():
        return parallel(calls)  # type: ignore[no-any-return]


def _solve_tasks(tasks: Sequence[Task], choice: Choice) -> list[Piece]:
    """Solve tasks, one after the other."""
    pieces: list[Piece] = []
    for component, start in tasks:
        with blas_threads(component.condition.d):
            pieces.append(_solve_component(component, start, choice))
    return pieces


def _solve_component(component: Component, start: WarmStart | None, choice: Choice) -> Piece:
    program, (chosen, settings) = component.goal.program(component.condition), choice
    began = time.perf_counter()
    known = _closed_form(program)
    if known is not None:
        stats = SolverStats("closed form", solve_time=time.perf_counter() - began, setup_time=0.0, num_iters=0)
        note = known.stats.extra_stats["closed_form"]
        return _certified(component, replace(known, stats=stats), settings.tol, note)
    solver, why = (chosen, "asked for") if chosen is not None else choose_solver(program)
    reason = None if chosen is None else solver.unsupported(program)  # the automatic choice has asked
    if reason is not None:
        raise _no_stepsize(program, solver, reason)
    if start is not None or settings.verbose:
        # What log det D / d, or log t, exceeds that of the scaled program by.
        shift = component.goal.power(component.units) * math.log(2.0) / program.d
        settings = replace(settings, warm_start=start, log_shift=shift)
    outcome = _outcome(solver, program, settings, why)
    if outcome.X is None:
        reason = outcome.message or outcome.status.value
        if outcome.status is not Status.USER_LIMIT:
            raise _no_stepsize(program, solver, reason)
        # A limit of the user's is no error: the best multiple of a plain matrix is feasible, and its gap is reported.
        plain = replace(outcome, X=program.pattern.member)
        return replace(_certified(component, plain, settings.tol, None), message=f"{solver.name}: {reason}")
    piece = _certified(component, outcome, settings.tol, outcome.stats.extra_stats.get("closed_form"))
    if solver.starts_warm and outcome.status is Status.OPTIMAL and piece.status is Status.INACCURATE:
        # Its own bound is not rounded outwards; where rounding made the difference, a few more steps make it up.
        finer = replace(settings, tol=0.2 * settings.tol, warm_start=WarmStart(outcome.X, outcome.duals))
        outcome = _outcome(solver, program, finer, why)
        if outcome.X is not None:
            again = _certified(component, outcome, settings.tol, None)
            piece = min(piece, again, key=lambda p: p.certificate.gap)
    if solver.starts_warm and start is not None and piece.status is Status.INACCURATE:
        # From a start of quite another shape the path may break down.
        cold = _solve_component(component, None, choice)
        piece = min(piece, cold, key=lambda p: p.certificate.gap)
    return piece


def _no_stepsize(program: Program, solver: Solver, reason: str) -> RuntimeError:
    return RuntimeError(f"no solver returned a stepsize for a block of size {program.d}: {solver.name}: {reason}")


def _closed_form(program: Program) -> Outcome | None:
    """Return the closed form of a program without a floor."""
    metric = program.objective
    return closed_form(program) if metric is None or metric.floor is None else None


def _outcome(solver: Solver, program: Program, settings: Settings, why: str) -> Outcome:
    """Run a solver, with the reason for its choice among the statistics."""
    outcome = solver.solve(program, settings)
    outcome.stats.extra_stats["why"] = why
    return outcome


def _certified(component: Component, outcome: Outcome, tol: float, note: str | None) -> Piece:
    """Certify the raw point, and let the certificate decide the status."""
    piece = prove(component, outcome, tol)
    if piece.certificate.is_optimal(tol):
        status = Status.OPTIMAL
    elif outcome.status.is_stopped:
        status = outcome.status
    else:
        status = Status.INACCURATE
    return replace(piece, stats=outcome.stats, status=status, note=note)
