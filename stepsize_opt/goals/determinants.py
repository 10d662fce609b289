"""Goals of a determinant: det(D)^{1/d} under the paper's condition, and det(H)^{1/d} of the descent metric."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from stepsize_opt.goals.base import NO_UNDERFLOW, Goal, GoalWords, Proof, Units
from stepsize_opt.proofs import (
    Certificate,
    Descent,
    Evaluation,
    ProvedDiagonal,
    narrowest,
    prove_diagonal,
    repaired,
    unrepaired,
)
from stepsize_solvers.programs import Matrix, Outcome, Program

GRADIENT: tuple[str, tuple[str, str]] = "2Δ⁰/ε²", ("epsilon2", "initial_gap")
# What a closed form may lose to the rounding of the proof, relative to D: no more than its own rounding.
_EXACT_LOSS = 1e-12


def multiplier(outcome: Outcome) -> Matrix | None:
    """Return the multiplier of a solver's answer; None without one."""
    return outcome.duals[0][0] if outcome.duals else None


def _not_repaired(outcome: Outcome) -> RuntimeError:
    return RuntimeError(f"the answer of {outcome.stats.solver_name} could not be repaired to a feasible stepsize")


def _enough(outcome: Outcome, tol: float) -> float:
    """The gap below which no finer precision is tried: rounding is not what an answer lacks whose solve was stopped."""
    return math.inf if outcome.status.is_stopped else tol


class PaperGoal(Goal):
    """The largest det D with T(D) ⪯ D: the problem of the paper."""

    name: ClassVar[str] = "paper"
    words: ClassVar[GoalWords] = GoalWords("det(D)^(1/d)", "T(D) ⪯ D", *GRADIENT, "D")
    needs_condition: ClassVar[bool] = True
    is_determinant: ClassVar[bool] = True

    def program(self, condition: Program) -> Program:
        return condition

    def prove(self, condition: Program, outcome: Outcome, units: Units, tol: float) -> Proof:
        """Repair the raw point to one that satisfies the condition, and certify log det D."""
        raw, dual = np.asarray(outcome.X), multiplier(outcome)
        if outcome.thin is not None:
            thin = prove_diagonal(condition, raw.diagonal(), outcome.thin)
            if thin is not None and thin.certificate.is_optimal(tol) and _holds(units, thin):
                descent = Certificate(True, 1.0 + thin.certificate.margin, thin.descent_log_det, math.inf, len(raw))
                return Proof(np.diag(thin.x), thin.certificate, descent)
        # A thousandth of the tolerance is no loss worth a second round of verified arithmetic; a closed form is exact.
        loss = 1e-3 * tol if outcome.stats.num_iters != 0 else _EXACT_LOSS
        enough = math.inf if dual is None else _enough(outcome, tol)
        points = map(units.held, repaired(condition, raw, loss))
        found = narrowest(points, lambda at: at.certificate(dual, tol, (raw,)), enough)
        if found is None:
            raise _not_repaired(outcome)
        certificate, at = found
        return Proof(at.D, certificate, at.descent(), certificate.feasible)

    def judge(
        self, condition: Evaluation, metric: Descent | None, dual: Matrix | None, others: Sequence[Matrix]
    ) -> Certificate:
        return condition.certificate(dual, others=others)

    def under_inverse(self, structure: Any) -> Any:
        return structure

    def for_limit(self) -> Goal:
        return DescentGoal()

    @classmethod
    def guaranteed(cls, rate: float, descent_rate: float) -> float:
        """The better proved rate of D and of H: both bound a mean in a norm of determinant one."""
        return max(rate, descent_rate)


def _holds(units: Units, thin: ProvedDiagonal) -> bool:
    """Whether float64 holds a diagonal stepsize in the original units."""
    with np.errstate(over="ignore"):  # what overflows is refused by the general path
        D = units.scaling.times(thin.x)
    return bool(D.min() > NO_UNDERFLOW and D.max() < 1.0 / NO_UNDERFLOW)


class MetricGoal(Goal):
    """A goal that judges H = 2D − T(D), so that D needs no condition; a subclass states what it proves of H."""

    def program(self, condition: Program) -> Program:
        family = condition.condition
        assert family is not None and family.B is not None
        return Program.descent(family.B, family.Q, condition.pattern, self.floor(condition.d), family.B_slack)

    def floor(self, d: int) -> Matrix | None:
        """Return the M⁻¹ of H ⪰ tM⁻¹, d×d; None where log det H is maximised."""
        return None

    @abstractmethod
    def value(self, metric: Descent, dual: Matrix | None, tol: float = 0.0) -> Certificate:
        """Return the certificate of the goal for a D."""

    def descent(self, metric: Descent, value: Certificate) -> Certificate:
        """Return what is proved of log det H from below."""
        return metric.descent()

    def prove(self, condition: Program, outcome: Outcome, units: Units, tol: float) -> Proof:
        """Certify the raw point, with H ≻ 0 proved, in twice the precision where plain is not enough."""
        raw, dual = np.asarray(outcome.X), multiplier(outcome)

        def certify(at: Descent) -> Certificate:
            return self.value(at, dual, tol)

        found = narrowest(map(units.held, unrepaired(condition, raw)), certify, _enough(outcome, tol))
        if found is None:
            # The condition makes H ⪰ D ≻ 0: take the best multiple that has it.
            points = (units.held(Descent(condition, at.D)) for at in repaired(condition, raw))
            found = narrowest(points, certify, math.inf)
        if found is None:
            raise _not_repaired(outcome)
        certificate, at = found
        return Proof(at.D, certificate, self.descent(at, certificate), at.satisfies_condition)

    def judge(
        self, condition: Evaluation, metric: Descent | None, dual: Matrix | None, others: Sequence[Matrix]
    ) -> Certificate:
        if metric is None:
            return Certificate(False, -math.inf, -math.inf, math.inf, condition.d)
        return self.value(metric, dual)


class DescentGoal(MetricGoal):
    """The largest det H: never more rounds than ``paper``."""

    name: ClassVar[str] = "descent"
    words: ClassVar[GoalWords] = GoalWords("det(H)^(1/d)", "H = 2D − T(D) ≻ 0", *GRADIENT, "H")
    is_determinant: ClassVar[bool] = True
    has_limit: ClassVar[bool] = True

    def value(self, metric: Descent, dual: Matrix | None, tol: float = 0.0) -> Certificate:
        return metric.certificate(dual, tol)

    def under_inverse(self, structure: Any) -> Any:
        """D = B⁻¹ has H = B⁻¹, and no H is larger; within a pattern the best D is another."""
        return structure if structure == "full" else None

    def with_condition(self) -> Goal:
        return PaperGoal()

    def descent(self, metric: Descent, value: Certificate) -> Certificate:
        return replace(value, upper_bound=math.inf)
