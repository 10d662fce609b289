"""The single-node problem with an L that is never made dense: its answer is a StepsizeResult whose D is an operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Direction, Structure
from stepsize_opt.limit import LargeLimit, LimitBounds
from stepsize_opt.methods import Method, SketchedGradient
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.operators import (
    ANSWERS,
    DiagonalStepsize,
    LargeProblem,
    LowRankPlusDiagonal,
    LowRankStepsize,
    large_problem,
    metric_of_inverse,
    read_direction,
    solve_descent,
    solve_direction,
    solve_gaussian,
    solve_structured,
    thin_metric,
)
from stepsize_opt.proofs import LowRankCondition, exp_up
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import ScaledPlusTrace, Settings, Status, is_identity


def refuse_operator(L: object, dense_only: bool) -> None:
    """Raise TypeError for a LinearOperator of which nothing but products is known, or for any where L must be dense."""
    if dense_only and isinstance(L, LowRankPlusDiagonal):
        msg = "this function takes a dense L: give it L.todense(); optimal_stepsize and plan take a LowRankPlusDiagonal"
        raise TypeError(msg)
    if isinstance(L, LinearOperator) and not isinstance(L, LowRankPlusDiagonal):
        msg = (
            "L is a LinearOperator: products alone bound no eigenvalue from above, so nothing can be proved from them. "
            "Write L as LowRankPlusDiagonal(U, diagonal), which may be larger than your L, or give a scipy sparse "
            f"matrix; {ANSWERS}"
        )
        raise TypeError(msg)


def large_stepsize(
    L: Any, sketch: Sketch, method: Method, structure: Structure, goal: Goal, settings: Settings
) -> StepsizeResult | None:
    """The answer for an L that is not to be made dense; None for any other.

    Raises ValueError for what has no answer without a dense matrix.
    """
    problem = large_problem(L, sketch.map)
    if problem is None:
        return None
    if goal.is_convex or (goal.M is not None and not isinstance(goal.M, float)):
        msg = f"goal={goal.name!r} takes a dense L only, but for a number as strong_convexity; {ANSWERS}"
        raise ValueError(msg)
    split = sketch.map.diagonal_plus_scaled
    W = read_direction(structure.W) if isinstance(structure, Direction) else None
    if W is not None and W.shape != L.shape:
        msg = f"the direction W is for d={W.shape[0]} but L is {L.shape[0]}×{L.shape[0]}"
        raise ValueError(msg)
    diagonal = structure == "diagonal" or isinstance(W, DiagonalStepsize)
    commutes = structure == "scalar" or (split is not None and (diagonal or split.is_multiple))
    condition = method.condition(sketch.map, commutes=commutes)
    plain = is_identity(condition.outer)  # T(D) = D𝒫(L)D
    named = structure in ("full", "diagonal", "scalar")
    # The largest t is 1/λmax(𝒫(L)), at D = γI, which satisfies the condition.
    multiple = goal.M is not None and plain and named
    # D ⪯ 𝒫(L)⁻¹ has a largest D, and H ⪯ 𝒫(L)⁻¹ for every D.
    descent = goal.name == "descent" and not (structure == "full" and plain)
    sketched = isinstance(method, SketchedGradient) and split is not None and isinstance(L, LowRankPlusDiagonal)
    spectral = isinstance(method, SketchedGradient) and isinstance(sketch.map, ScaledPlusTrace) and structure == "full"
    thin = isinstance(W, LowRankStepsize) and isinstance(problem.condition, LowRankCondition) and (plain or sketched)
    if goal.M is not None:
        known = multiple
    elif descent:
        known = spectral or (structure == "full" and sketched)
    else:
        known = spectral or thin or (plain and (named or isinstance(W, DiagonalStepsize)))
    if not known:
        asked = f"structure={str(structure)!r} with {method.name} and goal={goal.name!r}"
        msg = f"{asked} takes a dense L only; {ANSWERS}"
        raise ValueError(msg)
    method.check([sketch], scalar=structure == "scalar", clients=False)
    if spectral:
        assert isinstance(sketch.map, ScaledPlusTrace)
        answer = solve_gaussian(problem.L, sketch.map, settings, descent=descent)
    elif descent:
        assert split is not None
        limit = math.inf
        if sketch.is_exactly_unbiased:
            limit = LimitBounds(sketch.d, problem.log_det).log_bound(sketch.expected_rank)
        answer = solve_descent(problem.L, split, limit, settings)
    elif isinstance(W, LowRankStepsize):
        assert isinstance(problem.condition, LowRankCondition) and (plain or split is not None)
        metric = metric_of_inverse(problem.condition) if split is None or plain else thin_metric(problem.L, split)
        answer = solve_direction(metric, W, settings)
    else:
        answer = solve_structured(
            problem, "scalar" if multiple else str(structure), settings, None if W is None else W.x
        )
    answer = answer.scaled(-problem.power)
    certificate = answer.certificate
    if multiple and isinstance(goal.M, float):
        certificate = certificate.shifted(sketch.d * math.log(goal.M))
    status, message = answer.status, ""
    if status is not Status.OPTIMAL:
        message = answer.remark or problem.remark or f"{status.meaning}; {status.remedy}"
        if isinstance(L, LowRankPlusDiagonal) and isinstance(L.U, np.ndarray) and L.rank >= L.d:
            message += f"; U has {L.rank} columns for {L.d} coordinates, so L.todense() is no larger: solve for that"
    return StepsizeResult(
        status=status.value,
        certificate=certificate,
        descent_log_det=answer.descent_log_det,
        solver_stats=answer.stats,
        reductions=tuple(words for words in (condition.words, problem.words) if words),
        method=method,
        sketch=sketch,
        structure=structure,
        limit=exp_up(_limit(L, problem, sketch, goal) / sketch.d),
        tol=settings.tol,
        goal=goal.name,
        satisfies_condition=answer.satisfied,
        message=message,
        stepsize=answer.D,
        multiplier=None,
    )


def _limit(L: Any, problem: LargeProblem, sketch: Sketch, goal: Goal) -> float:
    """d log of the limit for draws as sparse as the sketch's, from above; +∞ where it is not known."""
    if not sketch.is_exactly_unbiased:
        return math.inf
    rank = sketch.expected_rank
    if goal.M is not None:
        if not isinstance(L, LowRankPlusDiagonal):
            return math.inf
        M = goal.M if goal.name == "linear" else None
        return LargeLimit.read(L, min(rank, L.d), goal.name, M).upper_bound()
    return LimitBounds(L.shape[0], problem.log_det).scaled(2 * problem.power).log_bound(rank)
