"""The public functions of the single-node problem: solve it, certify a given D, compare the choices."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from solvers.base import Settings, Solver
from solvers.maps import Matrix
from solvers.outcome import Outcome, SolverStats, Status
from solvers.program import BlockPattern, Pattern
from solvers.registry import choose_solver, get_solver
from stepsize_opt.certificate import Certificate, Evaluation, certify_point, repair
from stepsize_opt.checks import positive_number
from stepsize_opt.reductions import Component, Reduction, closed_form, reduce_problem, separate
from stepsize_opt.result import Block, StepsizeResult
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import Symmetric, read_matrix
from stepsize_opt.structures import Structure, pattern_of

ALGORITHMS = ("det-CGD1", "det-CGD2")
SolverPath = Sequence["str | tuple[str, Mapping[str, Any]]"]


def optimal_stepsize(
    L: Any,
    sketch: Sketch,
    *,
    algorithm: str = "det-CGD1",
    structure: Structure = "full",
    solver: str = "auto",
    solver_path: SolverPath | None = None,
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    reduce: bool = True,
    **options: Any,
) -> StepsizeResult:
    """The globally optimal matrix stepsize of det-CGD1 or det-CGD2, with a proof.

    Solves, for det-CGD1 (x⁺ = x − D S ∇f(x)),

        maximise log det D   subject to   E[S D L D S] ⪯ D,  D ≻ 0            (paper, condition (3) and Proposition 1)

    and for det-CGD2 (x⁺ = x − T D ∇f(x)) the same under E[D T L T D] ⪯ D (condition (4)), whose full-matrix solution
    is D = (E[TLT])⁻¹.  The best D minimises the iterations that Theorem 1 guarantees, 2Δ⁰/(det(D)^{1/d} ε²).

    Parameters
    ----------
    L : smoothness matrix, d×d symmetric positive definite: array, nested list, pandas frame or scipy sparse matrix.
    sketch : the law of S (or T), for example ``RandK(d, k)``.
    algorithm : ``"det-CGD1"`` or ``"det-CGD2"``.
    structure : ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``.
    solver : ``"auto"`` or a name from :func:`available_solvers`; never switched silently.
    solver_path : as in cvxpy, an ordered list of names or (name, options) pairs; the first that reaches ``tol`` wins.
    tol : the certified gap asked for.
    verbose : print the progress of the solver.
    time_limit, max_iters : limits for each solve; the best certified answer so far is returned.
    reduce : use the exact reductions (connected components, commuting sketches, closed forms) before any solver.
    options : handed to the solver under its own names; cvxpy solvers also take ``lift`` and ``objective``.

    Returns
    -------
    StepsizeResult with a feasible ``D``, its ``certificate``, ``rate``, ``status`` and ``solver_stats``.

    Raises
    ------
    ValueError, TypeError : for input that is not as described; the message names the argument and the remedy.
    SolverUnavailable : for a solver that is not installed or has no licence.
    RuntimeError : when no solver returned a positive definite matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> result = optimal_stepsize(np.diag([1.0, 4.0]), RandK(2, 1))
    >>> result.status, [round(x, 6) for x in np.diag(result.D).tolist()]
    ('optimal', [0.5, 0.125])
    """
    positive_number("tol", tol)
    _check_algorithm(algorithm)
    smoothness = _read_problem(L, sketch)
    pattern = pattern_of(structure, sketch.d)
    settings = Settings(tol=tol, verbose=verbose, time_limit=time_limit, max_iters=max_iters, extra=options)
    attempts = _attempts(solver, solver_path, settings)
    reduction = reduce_problem(smoothness, sketch.map, pattern, algorithm, split=reduce)
    pieces = [_solve_component(component, attempts, reduce) for component in reduction.components]
    return _assemble(reduction, pieces, sketch, algorithm, structure, tol)


@dataclass(frozen=True, eq=False)
class _Piece:
    """The certified answer of one component, in the original coordinates."""

    block: Block
    certificate: Certificate
    stats: SolverStats
    status: Status
    note: str | None
    message: str


def _check_algorithm(algorithm: str) -> None:
    if algorithm not in ALGORITHMS:
        msg = f"algorithm must be one of {', '.join(map(repr, ALGORITHMS))}, got {algorithm!r}"
        raise ValueError(msg)


def _read_problem(L: Any, sketch: Sketch) -> Symmetric:
    if not isinstance(sketch, Sketch):
        msg = f"sketch must be a Sketch such as RandK(d, k), got {type(sketch).__name__}; parse_sketch reads text"
        raise TypeError(msg)
    smoothness = read_matrix("L", L)
    if smoothness.shape[0] != sketch.d:
        msg = f"sketch is for d={sketch.d} but L is {smoothness.shape[0]}×{smoothness.shape[0]}"
        raise ValueError(msg)
    return smoothness


def _attempts(solver: str, path: SolverPath | None, settings: Settings) -> list[tuple[Solver | None, Settings]]:
    """Solvers to try in order, each with its settings; None stands for the automatic choice."""
    if path is None:
        return [(None if solver == "auto" else get_solver(solver), settings)]
    if solver != "auto":
        msg = "give either solver or solver_path, not both"
        raise ValueError(msg)
    if not path:
        msg = "solver_path must name at least one solver"
        raise ValueError(msg)
    attempts: list[tuple[Solver | None, Settings]] = []
    for entry in path:
        name, extra = (entry, {}) if isinstance(entry, str) else entry
        chosen = None if name == "auto" else get_solver(name)
        attempts.append((chosen, replace(settings, extra={**settings.extra, **extra})))
    return attempts


def _solve_component(
    component: Component, attempts: Sequence[tuple[Solver | None, Settings]], closed_forms: bool
) -> _Piece:
    program = component.program
    start = time.perf_counter()
    known = closed_form(program) if closed_forms else None
    if known is not None:
        D, Z, note = known
        stats = SolverStats("closed form", solve_time=time.perf_counter() - start, setup_time=0.0, num_iters=0)
        return _certified(component, Outcome(Status.OPTIMAL, D, (Z,), stats), attempts[0][1].tol, note)
    best: _Piece | None = None
    failures: list[str] = []
    for chosen, settings in attempts:
        solver, why = (chosen, "asked for") if chosen is not None else choose_solver(program)
        reason = solver.unsupported(program)
        if reason is not None:
            failures.append(f"{solver.name}: {reason}")
            continue
        outcome = solver.solve(program, settings)
        if outcome.D is None:
            failures.append(f"{solver.name}: {outcome.message or outcome.status.value}")
            continue
        outcome = replace(outcome, stats=replace(outcome.stats, extra_stats={**outcome.stats.extra_stats, "why": why}))
        piece = _certified(component, outcome, settings.tol, None)
        if best is None or piece.certificate.gap < best.certificate.gap:
            best = piece
        if piece.status is Status.OPTIMAL:
            break
        failures.append(f"{solver.name}: certified gap {piece.certificate.gap:.1e}")
    if best is None:
        msg = f"no solver returned a stepsize for a block of size {program.d}: {'; '.join(failures)}"
        raise RuntimeError(msg)
    if failures:
        tried = {**best.stats.extra_stats, "tried_before": failures}
        best = replace(best, stats=replace(best.stats, extra_stats=tried))
    return best


def _certified(component: Component, outcome: Outcome, tol: float, note: str | None) -> _Piece:
    """Repair the raw point, certify it, and let the certificate decide the status."""
    program = component.program
    raw = np.asarray(outcome.D)
    repaired = repair(program, raw)
    if repaired is None:
        # Not even a multiple of the raw point is feasible: take the best multiple of a plain matrix, a poor answer but
        # a proved one, and let the gap say so.
        repaired = repair(program, _plain(program.pattern))
    if repaired is None:
        msg = f"the answer of {outcome.stats.solver_name} could not be repaired to a feasible stepsize"
        raise RuntimeError(msg)
    others = (raw,) if np.all(np.isfinite(raw)) else ()
    certificate = certify_point(repaired, outcome.duals, others, tol)
    if certificate.is_optimal(tol):
        status = Status.OPTIMAL
    elif outcome.status in (Status.USER_LIMIT, Status.INTERRUPTED):
        status = outcome.status
    else:
        status = Status.INACCURATE
    block = Block(
        component.indices,
        component.lift_stepsize(repaired.D),
        component.lift_dual(outcome.duals[0]) if outcome.duals else np.zeros_like(raw),
    )
    certificate = certificate.rescaled(component.scale)
    return _Piece(block, certificate, outcome.stats, status, note, outcome.message)


def _plain(pattern: Pattern) -> Matrix:
    return np.eye(pattern.d) if isinstance(pattern, BlockPattern) else pattern.W


def _assemble(
    reduction: Reduction,
    pieces: Sequence[_Piece],
    sketch: Sketch,
    algorithm: str,
    structure: Structure,
    tol: float,
) -> StepsizeResult:
    blocks = [piece.block for piece in pieces]
    certificates = [piece.certificate for piece in pieces]
    for single in reduction.singletons:
        D, Z, certificate = single.solve()
        blocks.append(Block(single.indices, D, Z))
        certificates.append(certificate)
    certificate = Certificate.combine(certificates)
    for piece in pieces:
        if piece.note:
            reduction.note(piece.note)
    # Gaps average over the coordinates, so the whole may be within the tolerance when a part is not.
    status = Status.OPTIMAL
    if not certificate.is_optimal(tol):
        status = next((p.status for p in pieces if p.status is not Status.OPTIMAL), Status.INACCURATE)
    message = ""
    if status is not Status.OPTIMAL:
        message = f"{status.meaning}; {status.remedy}"
    return StepsizeResult(
        status=status.value,
        certificate=certificate,
        blocks=tuple(blocks),
        solver_stats=_combined_stats([piece.stats for piece in pieces]),
        reductions=tuple(reduction.notes),
        algorithm=algorithm,
        sketch=str(sketch),
        structure=str(structure),
        expected_nonzeros=sketch.expected_nonzeros,
        tol=tol,
        message=message,
    )


def _combined_stats(parts: Sequence[SolverStats]) -> SolverStats:
    if not parts:
        return SolverStats("closed form", solve_time=0.0, setup_time=0.0, num_iters=0)
    if len(parts) == 1:
        return parts[0]
    return SolverStats(
        solver_name=" + ".join(dict.fromkeys(part.solver_name for part in parts)),
        solve_time=math.fsum(part.solve_time or 0.0 for part in parts),
        setup_time=math.fsum(part.setup_time or 0.0 for part in parts),
        num_iters=sum(part.num_iters or 0 for part in parts),
        extra_stats={"components": [part.extra_stats for part in parts]},
    )


@dataclass(frozen=True)
class StepsizeCheck:
    """What :func:`certify` found out about a given D.

    certificate: of D as given; its gap is infinite when D is infeasible.
    largest_scale: the largest t for which tD is feasible (rounded down until proved).
    gap_when_scaled: the certified gap of that tD, so how many iterations D's direction costs.
    """

    certificate: Certificate
    largest_scale: float
    gap_when_scaled: float

    @property
    def feasible(self) -> bool:
        return self.certificate.feasible

    @property
    def margin(self) -> float:
        return self.certificate.margin

    @property
    def gap(self) -> float:
        return self.certificate.gap

    def __repr__(self) -> str:
        c = self.certificate
        return (
            f"StepsizeCheck(feasible={c.feasible}, margin={c.margin:.3e}, gap={c.gap:.3e}, "
            f"largest_scale={self.largest_scale:.9g}, gap_when_scaled={self.gap_when_scaled:.3e})"
        )


def certify(
    D: Any, L: Any, sketch: Sketch, *, algorithm: str = "det-CGD1", dual: Any = None, **options: Any
) -> StepsizeCheck:
    """Check a stepsize matrix of your own: is it feasible, by what margin, and how far from optimal?

    Parameters
    ----------
    D : the stepsize matrix, d×d symmetric.
    L, sketch, algorithm : the problem, as in :func:`optimal_stepsize`.
    dual : a multiplier Z ⪰ 0 of the condition (for example ``result.dual``), d×d.  Any matrix gives a valid bound, a
        good one a tight bound.  None solves the problem to get one; ``options`` then go to :func:`optimal_stepsize`.

    Returns
    -------
    StepsizeCheck.  ``feasible`` is True only when it is proved in exact arithmetic for the floats given.
    """
    _check_algorithm(algorithm)
    smoothness = _read_problem(L, sketch)
    stepsize = _dense(read_matrix("D", D))
    if len(stepsize) != sketch.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {sketch.d}×{sketch.d}"
        raise ValueError(msg)
    Z: Matrix | None = None
    if dual is not None:
        Z = _dense(read_matrix("dual", dual))
        if len(Z) != sketch.d:
            msg = f"dual is {len(Z)}×{len(Z)} but L is {sketch.d}×{sketch.d}"
            raise ValueError(msg)
    found: list[Certificate] = []
    scale = math.inf
    for piece in separate(_dense(smoothness), sketch.map, algorithm, stepsize):
        part = np.ix_(piece.indices, piece.indices)
        D_part = piece.lower(stepsize[part])
        duals = () if Z is None else (piece.lower_dual(Z[part]),)
        repaired = repair(piece.program, D_part)
        others = () if repaired is None else (repaired.D,)
        found.append(certify_point(Evaluation(piece.program, D_part), duals, others).rescaled(piece.scale))
        scale = min(scale, 0.0 if repaired is None else float(np.trace(repaired.D) / np.trace(D_part)))
    certificate = Certificate.combine(found)
    if Z is None:
        solved = optimal_stepsize(smoothness, sketch, algorithm=algorithm, **options).certificate.upper_bound
        certificate = replace(certificate, upper_bound=min(solved, certificate.upper_bound))
    if scale == 0.0:
        return StepsizeCheck(certificate, 0.0, math.inf)
    # log det(tD) = log det D + d log t
    scaled = replace(certificate, feasible=True, log_det=certificate.log_det + sketch.d * math.log(scale))
    return StepsizeCheck(certificate, scale, scaled.gap)


def _dense(M: Symmetric) -> Matrix:
    return M if isinstance(M, np.ndarray) else np.asarray(M.toarray())
