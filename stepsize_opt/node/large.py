"""The single-node problem with an L that is never made dense: its answer is a StepsizeResult whose D is an operator."""

from __future__ import annotations

import math

from stepsize_opt.goals import Goal
from stepsize_opt.inputs.structures import Direction
from stepsize_opt.large.solve import LargeQuestion, large_problem, needs_dense, read_direction, solve_large
from stepsize_opt.limit import read_limit
from stepsize_opt.node.assemble import result_of
from stepsize_opt.node.question import Question
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.smoothness import NeedsDense
from stepsize_solvers.programs import Settings, is_identity


def large_stepsize(question: Question, settings: Settings) -> StepsizeResult:
    """Return the answer for an L that is not to be made dense.

    T(D) = D𝒫(L)D has D ⪯ 𝒫(L)⁻¹ for its condition, and H ⪯ 𝒫(L)⁻¹ for every D; the goal tells which D of that set is
    best.  Raises NeedsDense for what has no answer without a dense matrix.
    """
    sketch, structure, goal, method = question.sketch, question.structure, question.goal, question.method
    method.check([sketch])
    if not isinstance(goal.M, float | None):
        msg = "strong_convexity that is a matrix"
        raise needs_dense(msg)
    problem = large_problem(question.L.factored(), sketch.map)
    w = read_direction(structure.W, sketch.d) if isinstance(structure, Direction) else None
    split = sketch.map.diagonal_plus_scaled
    commutes = split is not None and (structure == "diagonal" or w is not None or split.is_multiple)
    condition = method.condition(sketch.map, commutes=commutes or structure == "scalar")
    best = goal.under_inverse(structure)
    if best is None or not is_identity(condition.outer):
        msg = f"structure={str(structure)!r} with {method.name}, {sketch} and goal={goal.name!r}"
        raise needs_dense(msg)
    answer = solve_large(LargeQuestion(problem, str(best) if w is None else "direction", w), settings)
    answer = answer.scaled(-problem.power)
    return result_of(
        question,
        settings,
        certificate=goal.combine([goal.of_inverse(answer.certificate)]),
        log_limit=_log_limit(question, goal),
        status=answer.status,
        remarks=[problem.remark],
        descent_log_det=answer.descent_log_det,
        stepsize=answer.D,
        multiplier=None,
        solver_stats=answer.stats,
        reductions=tuple(words for words in (condition.words, problem.words) if words),
        satisfies_condition=True,
    )


def _log_limit(question: Question, goal: Goal) -> float:
    """Return d log of the limit for samples as sparse as the sketch's, from above; +∞ where it is not known."""
    sketch, L = question.sketch, question.L.factored()
    if not sketch.is_exactly_unbiased:
        return math.inf
    if L.estimated:
        L = L.scaled(1.0)  # without the label, which the result carries
    problem = read_limit(L, min(sketch.expected_rank, float(L.d)), goal.for_limit())
    try:
        return problem.upper_bound
    except NeedsDense:  # the eigenvalues of L are not known
        return math.inf
