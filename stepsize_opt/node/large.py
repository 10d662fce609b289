"""The single-node problem with an L that is never made dense: its answer is a StepsizeResult whose D is an operator."""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Direction, Structure
from stepsize_opt.large import (
    LargeAnswer,
    LargeProblem,
    LargeQuestion,
    large_problem,
    needs_dense,
    read_direction,
    solve_large,
)
from stepsize_opt.limit import read_limit
from stepsize_opt.methods import Method
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import Interval, exp_up
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import LowRankPlusDiagonal, NeedsDense
from stepsize_solvers.programs import Settings, Status, is_identity


def large_stepsize(
    L: LowRankPlusDiagonal, sketch: Sketch, method: Method, structure: Structure, goal: Goal, settings: Settings
) -> StepsizeResult:
    """Return the answer for an L that is not to be made dense.

    Raises NeedsDense for what has no answer without a dense matrix.
    """
    method.check([sketch])
    if not isinstance(goal.M, float | None):
        msg = "strong_convexity that is a matrix"
        raise needs_dense(msg)
    problem = large_problem(L, sketch.map)
    w = read_direction(structure.W, sketch.d) if isinstance(structure, Direction) else None
    split = sketch.map.diagonal_plus_scaled
    commutes = split is not None and (structure == "diagonal" or w is not None or split.is_multiple)
    condition = method.condition(sketch.map, commutes=commutes or structure == "scalar")
    if not is_identity(condition.outer):
        msg = f"structure={str(structure)!r} with {method.name} and {sketch}"
        raise needs_dense(msg)
    name = str(structure) if w is None else "direction"
    question = LargeQuestion(problem, name, goal.name if goal.M is None else "t", w)
    answer = solve_large(question, settings)
    answer = answer.scaled(-problem.power)
    certificate = answer.certificate
    if isinstance(goal.M, float):
        certificate = certificate.shifted(sketch.d * Interval.exact(goal.M).log())
    return StepsizeResult(
        status=answer.status.value,
        certificate=certificate,
        descent_log_det=answer.descent_log_det,
        solver_stats=answer.stats,
        reductions=tuple(words for words in (condition.words, problem.words) if words),
        method=method,
        sketch=sketch,
        structure=structure,
        limit=exp_up(_limit(L, sketch, goal) / sketch.d),
        tol=settings.tol,
        goal=goal.name,
        satisfies_condition=True,
        message=_message(answer, problem),
        stepsize=answer.D,
        multiplier=None,
    )


def _message(answer: LargeAnswer, problem: LargeProblem) -> str:
    status = answer.status
    if status is Status.OPTIMAL:
        return ""
    return "; ".join(filter(None, (f"{status.meaning}; {status.remedy}", problem.remark)))


def _limit(L: LowRankPlusDiagonal, sketch: Sketch, goal: Goal) -> float:
    """Return d log of the limit for samples as sparse as the sketch's, from above; +∞ where it is not known."""
    if not sketch.is_exactly_unbiased:
        return math.inf
    if L.estimated:
        L = L.scaled(1.0)  # without the label, which the result carries
    M = goal.curvature(np.arange(L.d)) if goal.name == "linear" else None
    name = "descent" if goal.M is None else goal.name
    rank = min(sketch.expected_rank, float(L.d))
    if not goal.momentum:
        return read_limit(L, rank, name, M).upper_bound
    problem = read_limit(L, rank, name, M, momentum=True)
    try:
        return 2.0 * problem.upper_bound  # of t², which the program maximises
    except NeedsDense:  # the eigenvalues of L are not known
        return math.inf
