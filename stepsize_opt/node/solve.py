"""From the pieces of a reduced problem to a certified result: solve, repair, certify, put together."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Structure, whole_number
from stepsize_opt.methods import Method
from stepsize_opt.node.answers import prove
from stepsize_opt.node.pieces import Component, Reduction
from stepsize_opt.node.result import Block, StepsizeResult
from stepsize_opt.operators import BlockStepsize
from stepsize_opt.proofs import Certificate, exp_up
from stepsize_opt.sketches import Sketch
from stepsize_solvers import check_solver, choose_solver, closed_form, get_solver
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.process import interrupts_held
from stepsize_solvers.programs import Outcome, Program, Settings, Solver, SolverStats, Status, WarmStart


@dataclass(frozen=True, eq=False)
class Piece:
    """The certified answer of one component, in the original coordinates."""

    block: Block
    certificate: Certificate
    descent: Certificate  # of H = 2D − T(D): proved positive definite or not, and its log det from below
    satisfies_condition: bool
    stats: SolverStats
    status: Status
    note: str | None
    message: str = ""


def chosen_solver(solver: str | Solver, settings: Settings) -> Solver | None:
    """Return the solver that was asked for, or None for the automatic choice; raises ValueError for an unknown one."""
    check_solver(solver, settings.extra)
    return None if solver == "auto" else get_solver(solver)


# Fewer components than this for each process are not worth starting processes for.
_COMPONENTS_PER_PROCESS = 8
_PARTS_PER_PROCESS = 4
_SMALLEST = 10  # up to about this size the calls of Python are the cost

Task = tuple[Component, "WarmStart | None"]
Choice = tuple["Solver | None", Settings]  # None: the automatic choice


def start_of(component: Component, warm_start: StepsizeResult | None) -> WarmStart | None:
    """The part of an earlier result that belongs to a component, in its scaled coordinates."""
    if warm_start is None or warm_start.dual is None:
        return None
    part = np.ix_(component.indices, component.indices)
    with np.errstate(over="ignore"):
        D, Z = component.lower(warm_start.D[part]), component.lower_dual(warm_start.dual[part])
    # A start from a problem of quite another scale is worth nothing.
    return WarmStart(D, (Z[None],)) if np.isfinite(D).all() and np.isfinite(Z).all() else None


def processes(n_jobs: object) -> int:
    """The number of processes that ``n_jobs`` means, as joblib counts them; None obeys ``joblib.parallel_config``.

    Raises ValueError or TypeError for what is no such number.
    """
    number = None if n_jobs is None else whole_number("n_jobs", n_jobs, low=-sys.maxsize)
    if number == 0:
        msg = "n_jobs must not be 0; use 1 for no extra process, -1 for one for each core"
        raise ValueError(msg)
    if number == 1 or (number is None and "joblib" not in sys.modules):  # who has not loaded joblib has set nothing
        return 1
    import joblib

    count: Any = joblib.effective_n_jobs  # takes None, though its stub does not
    return int(count(number))


def _chunks(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """The places of the tasks in parts of similar cost, which grows with the cube of the sizes.

    Several parts for each process: who has finished one takes the next, and what a process that died has to do again is
    little.  The largest tasks come first.
    """
    parts = min(_PARTS_PER_PROCESS * workers, max(workers, len(sizes) // _COMPONENTS_PER_PROCESS))
    heap = [(0.0, part) for part in range(parts)]
    chunks: list[list[int]] = [[] for _ in heap]
    for place in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        cost, part = heapq.heappop(heap)
        chunks[part].append(place)
        heapq.heappush(heap, (cost + float(sizes[place] + _SMALLEST) ** 3, part))
    return [chunk for chunk in chunks if chunk]


def solve_all(tasks: Sequence[Task], choice: Choice, closed_forms: bool, workers: int) -> list[Piece]:
    """The pieces of the tasks in order, solved in at most so many processes."""
    workers = min(workers, len(tasks) // _COMPONENTS_PER_PROCESS)
    if workers < 2:
        return _solve_tasks(tasks, choice, closed_forms)
    chunks = _chunks([component.program.d for component, _ in tasks], workers)
    work = ([tasks[i] for i in chunk] for chunk in chunks)
    running = _in_processes(work, choice, closed_forms, workers)
    places = (place for chunk in chunks for place in chunk)
    found = dict(zip(places, (piece for pieces in running for piece in pieces), strict=True))
    return [found[place] for place in range(len(tasks))]


def _in_processes(
    work: Iterable[Sequence[Task]], choice: Choice, closed_forms: bool, workers: int
) -> Iterable[list[Piece]]:
    """The pieces of each part of the work, by joblib's back end at hand."""
    from joblib import Parallel, delayed

    calls = (delayed(_solve_tasks)(part, choice, closed_forms) for part in work)
    try:
        parallel = Parallel(n_jobs=workers, return_as="generator")
    except ValueError:  # the back ends of Ray and of multiprocessing return lists only
        return Parallel(n_jobs=workers)(calls)  # type: ignore[no-any-return]
    with interrupts_held():
        return parallel(calls)  # type: ignore[no-any-return]


def _solve_tasks(tasks: Sequence[Task], choice: Choice, closed_forms: bool) -> list[Piece]:
    """The pieces of tasks, one after the other."""
    pieces: list[Piece] = []
    for component, start in tasks:
        with blas_threads(component.program.d):
            pieces.append(_solve_component(component, start, choice, closed_forms))
    return pieces


def _solve_component(
    component: Component,
    start: WarmStart | None,
    choice: Choice,
    closed_forms: bool,
) -> Piece:
    program, (chosen, settings) = component.program, choice
    began = time.perf_counter()
    known = _closed_form(program) if closed_forms else None
    if known is not None:
        stats = SolverStats("closed form", solve_time=time.perf_counter() - began, setup_time=0.0, num_iters=0)
        note = known.stats.extra_stats["closed_form"]
        return _certified(component, replace(known, stats=stats), settings.tol, note)
    solver, why = (chosen, "asked for") if chosen is not None else choose_solver(program)
    reason = None if chosen is None else solver.unsupported(program)  # the automatic choice has asked
    if reason is not None:
        raise _no_stepsize(program, solver, reason)
    if start is not None or settings.verbose:
        settings = replace(settings, warm_start=start, log_shift=component.log_shift)
    outcome = _outcome(solver, program, settings, why)
    if outcome.X is None:
        reason = outcome.message or outcome.status.value
        if outcome.status is not Status.USER_LIMIT:
            raise _no_stepsize(program, solver, reason)
        # A limit of the user's is no error: the best multiple of a plain matrix is feasible, and its gap says the rest.
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
    return piece


def _no_stepsize(program: Program, solver: Solver, reason: str) -> RuntimeError:
    return RuntimeError(f"no solver returned a stepsize for a block of size {program.d}: {solver.name}: {reason}")


def _closed_form(program: Program) -> Outcome | None:
    """The closed form of a program without a floor."""
    metric = program.objective
    return closed_form(program) if metric is None or metric.floor is None else None


def _outcome(solver: Solver, program: Program, settings: Settings, why: str) -> Outcome:
    """A solver's answer, with the reason for its choice among the statistics."""
    outcome = solver.solve(program, settings)
    outcome.stats.extra_stats["why"] = why
    return outcome


def _certified(component: Component, outcome: Outcome, tol: float, note: str | None) -> Piece:
    """Certify the raw point, and let the certificate decide the status."""
    answer = prove(component, outcome, tol)
    certificate = answer.certificate
    if certificate.is_optimal(tol):
        status = Status.OPTIMAL
    elif outcome.status.is_stopped:
        status = outcome.status
    else:
        status = Status.INACCURATE
    Z = np.zeros_like(answer.D) if answer.dual is None else component.lift_dual(answer.dual)
    block = Block(component.indices, answer.D, Z)
    bound = component.bound
    certificate = certificate.moved(component.power if bound is None else -bound.shift * certificate.d)
    descent = answer.descent.moved(component.power)
    return Piece(block, certificate, descent, answer.satisfies_condition, outcome.stats, status, note)


def assemble(
    reduction: Reduction,
    pieces: Sequence[Piece],
    sketch: Sketch,
    method: Method,
    structure: Structure,
    goal: Goal,
    tol: float,
) -> StepsizeResult:
    blocks = [piece.block for piece in pieces]
    certificates = [piece.certificate for piece in pieces]
    descents = [piece.descent for piece in pieces]
    for single in reduction.singletons:
        alone = single.solve()
        reached = alone.reached
        blocks.append(Block(single.indices, alone.D, alone.Z))
        certificates.append(alone.certificate if reached is None else reached)
        descents.append(alone.certificate)  # w̄D ≤ 1 makes H = D(2 − w̄D) ≥ D, and H ≤ 1/w̄
    certificate = Certificate.combine(certificates) if goal.M is None else Certificate.weakest(certificates)
    limit = reduction.log_limit(sketch)
    if not certificate.is_optimal(tol):
        certificate = certificate.bounded(limit)
    for piece in pieces:
        if piece.note:
            reduction.note(piece.note)
    # Gaps average over the coordinates, so the whole may be within the tolerance when a part is not.
    status = Status.OPTIMAL
    if not certificate.is_optimal(tol):
        status = next((p.status for p in pieces if p.status is not Status.OPTIMAL), Status.INACCURATE)
    message = ""
    if status is not Status.OPTIMAL:
        message = "; ".join([status.meaning, status.remedy, *dict.fromkeys(p.message for p in pieces if p.message)])
    places = [block.indices for block in blocks]
    return StepsizeResult(
        status=status.value,
        certificate=certificate,
        descent_log_det=Certificate.combine(descents).log_det,
        stepsize=BlockStepsize(places, [block.D for block in blocks]),
        multiplier=BlockStepsize(places, [block.Z for block in blocks]),
        solver_stats=_combined_stats([piece.stats for piece in pieces]),
        reductions=tuple(reduction.notes),
        method=method,
        sketch=sketch,
        structure=structure,
        limit=exp_up(limit / certificate.d),
        tol=tol,
        goal=goal.name,
        satisfies_condition=all(piece.satisfies_condition for piece in pieces),
        message=message,
    )


def _combined_stats(parts: Sequence[SolverStats]) -> SolverStats:
    if not parts:
        return SolverStats("closed form", solve_time=0.0, setup_time=0.0, num_iters=0)
    return parts[0] if len(parts) == 1 else SolverStats.combined(parts, "components")
