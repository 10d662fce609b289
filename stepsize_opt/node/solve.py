"""From the pieces of a reduced problem to a certified result: solve, prove what each goal asks for, put together."""

from __future__ import annotations

import heapq
import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Scaling, Structure, whole_number
from stepsize_opt.large import BlockStepsize
from stepsize_opt.methods import Method
from stepsize_opt.node.reductions import NO_UNDERFLOW, Component, Piece, Reduction
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import (
    Certificate,
    Descent,
    Enclosed,
    Evaluation,
    Pair,
    ProvedDiagonal,
    exp_up,
    exponent_above,
    prove_diagonal,
    repair,
    repair_in_basis,
)
from stepsize_opt.sketches import Sketch
from stepsize_solvers import check_solver, choose_solver, closed_form, get_solver
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.process import interrupts_held
from stepsize_solvers.programs import Matrix, Outcome, Program, Settings, Solver, SolverStats, Status, WarmStart

# Units above the first leave room for every multiplier; its entries stay below two to the second.
_SMALL_FACTOR = 2.0**-400
_LARGEST_EXPONENT = 1022
# What a closed form may lose to the rounding of the proof, relative to D: no more than its own rounding.
_EXACT_LOSS = 1e-12


def prove(component: Component, outcome: Outcome, tol: float) -> Piece:
    """Prove the answer next to the raw one, under the goal of the component."""
    if component.program.objective is None:
        return _under_condition(component, outcome, tol)
    return _under_descent(component, outcome, tol)


def _piece(
    component: Component,
    D: Matrix,
    dual: Matrix | None,
    certificate: Certificate,
    descent: Certificate,
    satisfies_condition: bool = True,
) -> Piece:
    """Move a multiplier and certificates from the scaled units of a component to the original ones, those of D."""
    Z = np.zeros_like(D) if dual is None else _multiplier(component.scaling, dual)
    power = component.power if component.bound is None else -component.bound.shift * certificate.d
    moved = certificate.moved(power), descent.moved(component.power)
    return Piece(component.indices, D, Z, *moved, satisfies_condition)


def _multiplier(scaling: Scaling, dual: Matrix) -> Matrix:
    """Return Λ⁻¹ZΛ⁻¹, or a multiple of it where float64 does not hold it, which proves the same bound."""
    if float(scaling.factors.min()) > _SMALL_FACTOR:
        return scaling.over(dual)
    beyond = exponent_above(dual) - 2 * int(scaling.exponents.min()) - _LARGEST_EXPONENT
    return scaling.over(np.ldexp(dual, -max(beyond, 0)))


def _dual(outcome: Outcome) -> Matrix | None:
    return outcome.duals[0][0] if outcome.duals else None


def _not_repaired(outcome: Outcome) -> RuntimeError:
    return RuntimeError(f"the answer of {outcome.stats.solver_name} could not be repaired to a feasible stepsize")


def _repaired(component: Component, outcome: Outcome, tol: float) -> Evaluation:
    """Repair the raw point to one that satisfies the condition."""
    single = component.single
    # A thousandth of the tolerance is no loss worth a second round of verified arithmetic; a closed form is exact.
    loss = 1e-3 * tol if outcome.stats.num_iters != 0 else _EXACT_LOSS
    # Where not even a multiple of the raw point is feasible, take the best multiple of a plain matrix: a poor answer
    # with a large gap, but a proved one.
    repaired = repair(single, np.asarray(outcome.X), loss) or repair(single, single.pattern.member)
    if repaired is None:
        raise _not_repaired(outcome)
    return repaired


def _under_condition(component: Component, outcome: Outcome, tol: float) -> Piece:
    """Repair the raw point to one that satisfies the condition, and certify log det D."""
    raw, dual = np.asarray(outcome.X), _dual(outcome)
    thin = None if outcome.thin is None else prove_diagonal(component.single, raw.diagonal(), outcome.thin)
    answer = None if thin is None or not thin.certificate.is_optimal(tol) else _thin(component, thin, dual)
    if answer is not None:
        return answer
    repaired, D = component.in_original_units(_repaired(component, outcome, tol))
    certificate = repaired.certificate(dual, tol, (raw,))
    done = outcome.status.is_stopped or dual is None or certificate.is_optimal(tol)
    finer = None if done else repair_in_basis(component.single, raw)
    if finer is not None:
        # Rounding may be all that is left of the gap: in the basis of D it counts least.
        point, held = component.in_original_units(finer)
        again = point.certificate(dual, tol, (raw,))
        if again.gap < certificate.gap:
            repaired, D, certificate = point, held, again
    return _piece(component, D, dual, certificate, repaired.descent(), certificate.feasible)


def _thin(component: Component, thin: ProvedDiagonal, dual: Matrix | None) -> Piece | None:
    """Return what is proved of a diagonal stepsize with a thin multiplier; None where float64 may not hold it."""
    with np.errstate(over="ignore"):  # what overflows is refused by the general path
        D = component.scaling.times(thin.x)
    if not (D.min() > NO_UNDERFLOW and D.max() < 1.0 / NO_UNDERFLOW):
        return None
    descent = Certificate(True, 1.0 + thin.certificate.margin, thin.descent_log_det, math.inf, len(D))
    return _piece(component, np.diag(D), dual, thin.certificate, descent)


def _under_descent(component: Component, outcome: Outcome, tol: float) -> Piece:
    """Certify log det H or t of the raw point, with H ≻ 0 proved, in twice the precision where plain is not enough."""
    program, raw, dual = component.single, np.asarray(outcome.X), _dual(outcome)
    found: list[tuple[Certificate, Descent, Matrix]] = []
    for arithmetic in (Enclosed, Pair):
        at = Descent(program, program.pattern.nearest(raw), arithmetic)
        if at.feasible:
            at, D = component.in_original_units(at)
            found.append((_judged(at, component, dual, tol), at, D))
            # Rounding is not what an answer lacks whose solve was stopped.
            if outcome.status.is_stopped or found[-1][0].is_optimal(tol):
                break
    if not found:
        # The condition makes H ⪰ D ≻ 0: take the best multiple of the raw point, or of a plain matrix, that has it.
        repaired = repair(program, raw) or repair(program, program.pattern.member)
        if repaired is None:
            raise _not_repaired(outcome)
        at, D = component.in_original_units(Descent(program, repaired.D))
        found.append((_judged(at, component, dual, tol), at, D))
    certificate, at, D = min(found, key=lambda one: one[0].gap)
    descent = replace(certificate, upper_bound=math.inf) if component.bound is None else at.descent()
    return _piece(component, D, dual, certificate, descent, at.satisfies_condition)


def _judged(at: Descent, component: Component, dual: Matrix | None, tol: float) -> Certificate:
    """Return the certificate of log det H, or of t, in scaled coordinates."""
    if component.bound is None:
        return at.certificate(dual, tol)
    return at.floor_certificate(dual, component.bound.M, tol)


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


def start_of(component: Component, warm_start: StepsizeResult | None) -> WarmStart | None:
    """Return the part of an earlier result that belongs to a component, in its scaled coordinates."""
    if warm_start is None or warm_start.dual is None:
        return None
    part = np.ix_(component.indices, component.indices)
    with np.errstate(over="ignore"):
        D, Z = component.scaling.over(warm_start.D[part]), component.scaling.times(warm_start.dual[part])
    # A start from a problem of quite another scale is worth nothing.
    return WarmStart(D, (Z[None],)) if np.isfinite(D).all() and np.isfinite(Z).all() else None


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
    chunks = _chunks([component.program.d for component, _ in tasks], workers)
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
        with blas_threads(component.program.d):
            pieces.append(_solve_component(component, start, choice))
    return pieces


def _solve_component(
    component: Component,
    start: WarmStart | None,
    choice: Choice,
) -> Piece:
    program, (chosen, settings) = component.program, choice
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
        settings = replace(settings, warm_start=start, log_shift=component.log_shift)
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


def assemble(
    reduction: Reduction,
    solved: Sequence[Piece],
    sketch: Sketch,
    method: Method,
    structure: Structure,
    goal: Goal,
    tol: float,
) -> StepsizeResult:
    """Put the pieces of a problem together: those that were solved, and coordinates that stand alone."""
    pieces = [*solved, *(single.solve() for single in reduction.singletons)]
    together = Certificate.combine if goal.M is None else Certificate.weakest
    certificate = goal.proved(together([piece.certificate for piece in pieces]))
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
        meaning = status.meaning if certificate.feasible else f"{goal.words.feasible} is not proved for D in float64"
        message = "; ".join([meaning, status.remedy, *dict.fromkeys(p.message for p in pieces if p.message)])
    places = [piece.indices for piece in pieces]
    return StepsizeResult(
        status=status.value,
        certificate=certificate,
        descent_log_det=Certificate.combine([piece.descent for piece in pieces]).log_det,
        stepsize=BlockStepsize(places, [piece.D for piece in pieces]),
        multiplier=BlockStepsize(places, [piece.dual for piece in pieces]),
        solver_stats=_combined_stats([piece.stats for piece in pieces if piece.stats is not None]),
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
