"""The single-node problem with an L that is never made dense: its answer is a StepsizeResult whose D is an operator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Direction, Structure
from stepsize_opt.large import (
    ANSWERS,
    DiagonalStepsize,
    LargeProblem,
    LowRankStepsize,
    StructuredAnswer,
    large_problem,
    metric_of_inverse,
    read_direction,
    solve_descent,
    solve_direction,
    solve_gaussian,
    solve_structured,
    thin_metric,
)
from stepsize_opt.limit import read_limit
from stepsize_opt.methods import Condition, Method, SketchedGradient
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import Interval, LowRankCondition, exp_up
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import LimitBounds, NeedsDense, Smoothness
from stepsize_solvers.programs import DiagonalPlusScaled, ScaledPlusTrace, Settings, Status, is_identity


def large_stepsize(
    L: Smoothness, sketch: Sketch, method: Method, structure: Structure, goal: Goal, settings: Settings
) -> StepsizeResult | None:
    """Return the answer for an L that is not to be made dense; None for any other.

    Raises NeedsDense for what has no answer without a dense matrix.
    """
    problem = large_problem(L, sketch.map)
    if problem is None:
        return None
    question = _Question.of(L, problem, sketch, method, structure, goal)
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
        satisfies_condition=answer.satisfied,
        message=_message(answer, problem),
        stepsize=answer.D,
        multiplier=None,
    )


def _message(answer: StructuredAnswer, problem: LargeProblem) -> str:
    status = answer.status
    if status is Status.OPTIMAL:
        return ""
    return "; ".join(filter(None, (answer.remark or f"{status.meaning}; {status.remedy}", problem.remark)))


def _limit(L: Smoothness, sketch: Sketch, goal: Goal) -> float:
    """Return d log of the limit for samples as sparse as the sketch's, from above; +∞ where it is not known."""
    if L.is_formed or not sketch.is_exactly_unbiased:
        return math.inf
    if L.estimated:
        L = L.factored().scaled(1.0)  # without the label, which the result carries
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
    """What is asked, and the forms by which it is told who answers it.

    W: the direction, where the structure is one; split: α and β of 𝒫(M) = Diag(α∘diag M) + βM, for a distribution of
    this form.
    """

    L: Smoothness
    problem: LargeProblem
    sketch: Sketch
    method: Method
    structure: Structure
    goal: Goal
    W: DiagonalStepsize | LowRankStepsize | None
    split: DiagonalPlusScaled | None
    condition: Condition

    @staticmethod
    def of(
        L: Smoothness, problem: LargeProblem, sketch: Sketch, method: Method, structure: Structure, goal: Goal
    ) -> _Question:
        """Raise ValueError for a goal or a direction that does not go with L."""
        if not isinstance(goal.M, float | None):
            msg = f"goal={goal.name!r} takes a dense L only, but for a number as strong_convexity; {ANSWERS}"
            raise NeedsDense(msg)
        W = read_direction(structure.W) if isinstance(structure, Direction) else None
        if W is not None and W.shape[0] != L.d:
            msg = f"the direction W is for d={W.shape[0]} but L is {L.d}×{L.d}"
            raise ValueError(msg)
        split = sketch.map.diagonal_plus_scaled
        diagonal = structure == "diagonal" or isinstance(W, DiagonalStepsize)
        commutes = structure == "scalar" or (split is not None and (diagonal or split.is_multiple))
        condition = method.condition(sketch.map, commutes=commutes)
        return _Question(L, problem, sketch, method, structure, goal, W, split, condition)

    @property
    def is_named(self) -> bool:
        return self.structure in ("full", "diagonal", "scalar")

    @property
    def is_plain(self) -> bool:
        """Whether T(D) = D𝒫(L)D, so that D ⪯ 𝒫(L)⁻¹ has a largest D, and H ⪯ 𝒫(L)⁻¹ for every D."""
        return is_identity(self.condition.outer)

    @property
    def is_sketched(self) -> bool:
        """Whether the update is x⁺ = x − D S ∇f(x)."""
        return isinstance(self.method, SketchedGradient)

    def solve(self, settings: Settings) -> StructuredAnswer | None:
        """Return what the solver for this form finds; None without one."""
        if self.goal.M is not None:
            # The largest t is 1/λmax(𝒫(L)), at D = γI, which satisfies the condition.
            return solve_structured(self.problem, "scalar", settings) if self.is_plain and self.is_named else None
        full, law = self.structure == "full", self.sketch.map
        descent = self.goal.name == "descent" and not (full and self.is_plain)
        if full and self.is_sketched and isinstance(law, ScaledPlusTrace):
            return solve_gaussian(self.L.factored().near_one, law, settings, descent=descent)
        if descent:
            return self._descent(settings) if full else None
        if isinstance(self.W, LowRankStepsize):
            return self._low_rank_direction(self.W, settings)
        if not self.is_plain or not (self.is_named or self.W is not None):
            return None
        return solve_structured(self.problem, str(self.structure), settings, None if self.W is None else self.W.x)

    def _descent(self, settings: Settings) -> StructuredAnswer | None:
        if self.L.is_formed or not self.is_sketched or self.split is None:
            return None
        L, limit = self.L.factored().near_one, math.inf
        if self.sketch.is_exactly_unbiased:
            limit = LimitBounds(L.d, L.log_det()).log_bound(self.sketch.expected_rank)
        return solve_descent(L, self.split, limit, settings)

    def _low_rank_direction(self, W: LowRankStepsize, settings: Settings) -> StructuredAnswer | None:
        condition = self.problem.condition
        if not isinstance(condition, LowRankCondition):
            return None
        if self.is_plain:
            return solve_direction(metric_of_inverse(condition), W, settings)
        if not self.is_sketched or self.split is None:
            return None
        return solve_direction(thin_metric(self.L.factored().near_one, self.split), W, settings)
