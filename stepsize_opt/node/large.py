"""The single-node problem with an L that is never made dense: its answer is a StepsizeResult whose D is an operator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Direction, Structure, binary_exponent, power_of_four, scaled_exactly
from stepsize_opt.large import ANSWERS, LargeProblem, StructuredAnswer, large_problem, solve_structured
from stepsize_opt.limit import read_limit
from stepsize_opt.methods import Condition, Method
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import Interval, exp_up
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import LowRankPlusDiagonal, NeedsDense
from stepsize_solvers.programs import Settings, Status, Vector, is_identity


def large_stepsize(
    L: LowRankPlusDiagonal, sketch: Sketch, method: Method, structure: Structure, goal: Goal, settings: Settings
) -> StepsizeResult:
    """Return the answer for an L that is not to be made dense.

    Raises NeedsDense for what has no answer without a dense matrix.
    """
    problem = large_problem(L, sketch.map)
    question = _Question.of(problem, sketch, method, structure, goal)
    method.check([sketch], scalar=structure == "scalar", clients=False)
    answer = question.solve(settings)
    if answer is None:
        asked = f"structure={str(structure)!r} with {method.name} and goal={goal.name!r}"
        msg = f"{asked} takes a dense L only; {ANSWERS}"
        raise NeedsDense(msg)
    answer = answer.scaled(-problem.power)
    certificate = answer.certificate
    if isinstance(goal.M, float):
        certificate = certificate.shifted(sketch.d * Interval.exact(goal.M).log())
    return StepsizeResult(
        status=answer.status.value,
        certificate=certificate,
        descent_log_det=answer.descent_log_det,
        solver_stats=answer.stats,
        reductions=tuple(words for words in (question.condition.words, problem.words) if words),
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


def _message(answer: StructuredAnswer, problem: LargeProblem) -> str:
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


@dataclass(frozen=True, eq=False)
class _Question:
    """What is asked; w: the direction Diag(w), where the structure is one."""

    problem: LargeProblem
    structure: Structure
    goal: Goal
    w: Vector | None
    condition: Condition

    @staticmethod
    def of(problem: LargeProblem, sketch: Sketch, method: Method, structure: Structure, goal: Goal) -> _Question:
        """Raise ValueError or TypeError for a goal or a direction that does not go with L."""
        if not isinstance(goal.M, float | None):
            msg = f"goal={goal.name!r} takes a dense L only, but for a number as strong_convexity; {ANSWERS}"
            raise NeedsDense(msg)
        w = _direction(structure.W) if isinstance(structure, Direction) else None
        if w is not None and len(w) != sketch.d:
            msg = f"the direction W is for d={len(w)} but L is {sketch.d}×{sketch.d}"
            raise ValueError(msg)
        split = sketch.map.diagonal_plus_scaled
        diagonal = structure == "diagonal" or w is not None
        commutes = structure == "scalar" or (split is not None and (diagonal or split.is_multiple))
        condition = method.condition(sketch.map, commutes=commutes)
        return _Question(problem, structure, goal, w, condition)

    @property
    def is_named(self) -> bool:
        return self.structure in ("full", "diagonal", "scalar")

    def solve(self, settings: Settings) -> StructuredAnswer | None:
        """Return what the solver for this form finds; None without one."""
        # T(D) = D𝒫(L)D: then D ⪯ 𝒫(L)⁻¹ has a largest D, and H ⪯ 𝒫(L)⁻¹ for every D.
        if not is_identity(self.condition.outer):
            return None
        if self.goal.M is not None:
            # The largest t is 1/λmax(𝒫(L)), at D = γI, which satisfies the condition.
            return solve_structured(self.problem, "scalar", settings) if self.is_named else None
        if self.goal.name == "descent" and self.structure != "full":
            return None
        if not (self.is_named or self.w is not None):
            return None
        return solve_structured(self.problem, str(self.structure), settings, self.w)


def _direction(W: Any) -> Vector:
    """Return w of W = Diag(w), in units in which it is near one: only its direction counts.

    Raises TypeError for any other W, ValueError for one whose numbers lie too far apart.
    """
    if not (isinstance(W, np.ndarray) and W.ndim == 1):
        msg = (
            f"the W of Direction(W) is a {type(W).__name__}, but a LowRankPlusDiagonal L takes a vector w for Diag(w); "
            "L.todense() takes every W"
        )
        raise TypeError(msg)
    power = power_of_four("the direction W", binary_exponent(W.max()), binary_exponent(W.min()))
    return scaled_exactly("W", W, -2 * power)
