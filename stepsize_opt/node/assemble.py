"""One result from the pieces of a reduced problem, or from the answer for an L that is never formed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stepsize_opt.inputs.structures import Direction, Structure
from stepsize_opt.large.stepsizes import BlockStepsize, StepsizeOperator
from stepsize_opt.node.question import Question
from stepsize_opt.node.reductions import Piece, Reduction
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import Certificate, exp_up
from stepsize_solvers.programs import Settings, SolverStats, Status


def assemble(question: Question, reduction: Reduction, solved: Sequence[Piece], settings: Settings) -> StepsizeResult:
    """Put the pieces of a problem together: those that a solver answered, and coordinates that stand alone."""
    pieces = [*solved, *reduction.solved]
    for piece in pieces:
        reduction.note(piece.note)
    places = [piece.indices for piece in pieces]
    return result_of(
        question,
        settings,
        # Gaps average over the coordinates, so the whole may be within the tolerance when a part is not.
        certificate=question.goal.combine([piece.certificate for piece in pieces]),
        log_limit=question.log_limit(reduction.groups),
        status=next((piece.status for piece in pieces if piece.status is not Status.OPTIMAL), Status.INACCURATE),
        remarks=[piece.message for piece in pieces],
        descent_log_det=Certificate.combine([piece.descent for piece in pieces]).log_det,
        stepsize=BlockStepsize(places, [piece.D for piece in pieces]),
        multiplier=BlockStepsize(places, [piece.dual for piece in pieces]),
        solver_stats=_combined_stats([piece.stats for piece in pieces if piece.stats is not None]),
        reductions=tuple(reduction.notes),
        satisfies_condition=all(piece.satisfies_condition for piece in pieces),
    )


def result_of(
    question: Question,
    settings: Settings,
    *,
    certificate: Certificate,
    log_limit: float,
    status: Status,
    remarks: Iterable[str],
    stepsize: StepsizeOperator,
    **answer: Any,
) -> StepsizeResult:
    """Return the result: ``optimal`` if the certificate is, otherwise with a status, its remedy and remarks."""
    goal, message = question.goal, ""
    if not certificate.is_optimal(settings.tol):
        certificate = certificate.bounded(log_limit)
    if certificate.is_optimal(settings.tol):
        status = Status.OPTIMAL
    else:
        status = Status.INACCURATE if status is Status.OPTIMAL else status
        unproved = f"{goal.words.feasible} is not proved for D in float64"
        meaning = status.meaning if certificate.feasible else unproved
        message = "; ".join([meaning, status.remedy, *dict.fromkeys(filter(None, remarks))])
    result = StepsizeResult(
        status=status.value,
        certificate=certificate,
        stepsize=stepsize,
        method=question.method,
        sketch=question.sketch,
        structure=question.structure,
        gammas=_factors(stepsize, question.structure),
        limit=exp_up(log_limit / certificate.d),
        tol=settings.tol,
        goal_class=type(goal),
        inverse_curvature=goal.inverse_curvature,
        message=message,
        estimated=question.L.estimated,
        **answer,
    )
    if settings.verbose:
        print(f"proved {result.log_det / result.d:14.9f} {result.gap:9.2e}")
    return result


def _factors(D: StepsizeOperator, structure: Structure) -> tuple[float, ...]:
    """Return γᵢ of D = Diag(γ₁W₁, …, γ_mW_m); nothing for another structure."""
    if not isinstance(structure, Direction):
        return ()
    W = structure.W if isinstance(structure.W, np.ndarray) and structure.W.ndim == 1 else structure.W.diagonal()
    first = np.cumsum((0, *(structure.sizes or ()))[:-1])
    return tuple((D.diagonal()[first] / W[first]).tolist())


def _combined_stats(parts: Sequence[SolverStats]) -> SolverStats:
    if not parts:
        return SolverStats("closed form", solve_time=0.0, setup_time=0.0, num_iters=0)
    return parts[0] if len(parts) == 1 else SolverStats.combined(parts, "components")
