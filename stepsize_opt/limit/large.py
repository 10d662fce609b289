"""The limit of an L = UUᵀ + Diag(diagonal) that is never formed, from the proofs of its stepsizes.

*descent.*  D next to (k/d)L⁻¹ by Woodbury's formula, with D ⪯ (k/d)L⁻¹ proved: so tr(LD) ≤ k and, as k ≤ d, D ⪯ L⁻¹.
*euclidean.*  D = tI with t next to min(k/tr L, 1/λmax(L)); λmax lies between a quotient zᵀLz/zᵀz and a γ⁻¹ for which
γI ⪯ L⁻¹ is proved.  *linear* with M = μI is the same D, tI = (tμ)M⁻¹.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.goals import EXCESS, METRIC_GOALS, Goal
from stepsize_opt.limit.bounds import LimitBounds
from stepsize_opt.limit.budgets import read_budget, unproved
from stepsize_opt.limit.spectrum import equal_probabilities
from stepsize_opt.operators import (
    DiagonalStepsize,
    InverseStepsize,
    LowRankPlusDiagonal,
    StepsizeOperator,
    large_problem,
    solve_structured,
)
from stepsize_opt.proofs import UNIT, Certificate, LowRankCondition, exp_down, gamma
from stepsize_solvers.programs import DiagonalPlusScaled, Settings, Vector

_NO_PROOF = "L is too close to singular for a proof in float64; add a regulariser (a larger diagonal)"


@dataclass(frozen=True, eq=False)
class LargeLimit:
    """A budget k and a goal for an L that is never formed, in units in which it is near one.

    power: n, where 4ⁿL is the matrix that was given; mu: M = μI of ``linear`` in the units given, 1 for the others.
    """

    L: LowRankPlusDiagonal
    power: int
    k: float
    goal: str
    mu: float

    @staticmethod
    def read(L: LowRankPlusDiagonal, k: object, goal: object, strong_convexity: Any) -> LargeLimit:
        """Raises ValueError or TypeError for what is not as described, or has no answer without a dense matrix."""
        asked = Goal.read(goal, strong_convexity, L.d, METRIC_GOALS)
        mu = asked.M
        if not isinstance(mu, float | int | None):
            msg = "strong_convexity must be a number μ when L is a LowRankPlusDiagonal; a matrix M needs L.todense()"
            raise ValueError(msg)
        if asked.name == "linear" and mu is not None and mu > (1.0 + EXCESS) * float(L.own.min()):
            msg = (
                "strong_convexity must satisfy μI ⪯ L, because ∇²f lies between both; a LowRankPlusDiagonal proves it "
                f"for μ up to its smallest diagonal entry, {L.own.min():g}, got {mu:g}: L.todense() takes more"
            )
            raise ValueError(msg)
        return LargeLimit(*L.near_one(), read_budget(k, L.d), asked.name, 1.0 if mu is None else float(mu))

    def answer(self) -> tuple[StepsizeOperator, Vector, Certificate]:
        """D, its probabilities (empty where the eigenvalues of L are not known) and its certificate."""
        L = self.L
        if self.goal == "descent":
            inverse, certificate = self.as_given(*self.share_of_inverse())
            return inverse, equal_probabilities(L.d, self.k), certificate
        multiple, bounds = self.multiple_of_identity()
        given, certificate = self.as_given(multiple, bounds)
        if sparse.issparse(L.U) or not L.is_shifted:
            return given, np.empty(0), certificate
        # λI + UUᵀ has the eigenvalues of λI + UᵀU, and λ for all other directions.
        low_rank = np.maximum(np.linalg.eigvalsh(L.U.T @ L.U)[-L.d :], 0.0)
        values = L.own[0] + np.concatenate([np.zeros(L.d - len(low_rank)), low_rank])
        return given, np.minimum(values * multiple.x[0], 1.0), certificate

    def as_given(self, D: StepsizeOperator, certificate: Certificate) -> tuple[StepsizeOperator, Certificate]:
        """D and its certificate, for the goal, in the units of the L that was given.

        Raises ValueError where float64 does not hold D.
        """
        moved = certificate.moved(-2 * self.power * self.L.d)
        return D.scaled(-self.power), moved.shifted(self.L.d * math.log(self.mu))

    def upper_bound(self) -> float:
        """d log of the limit from above, for ``euclidean`` and ``linear``, in the units of the L that was given."""
        return self.as_given(*self.multiple_of_identity())[1].upper_bound

    def share_of_inverse(self, share: float | None = None) -> tuple[InverseStepsize, Certificate]:
        """D next to share·L⁻¹, k/d by default, and below it by proof; its log det from below, the limit from above.

        Raises ValueError for a sparse U, and where float64 does not suffice for the proof.
        """
        L = self.L
        L.require_dense_factor("goal='descent'")
        q = L.d / self.k if share is None else 1.0 / share
        scaled = q * L.own  # two roundings
        condition = LowRankCondition(scaled * (1.0 - gamma(4)), scaled * (1.0 + gamma(4)), q, L.U, gamma(2))
        log_det = LowRankCondition(L.own, L.own, 1.0, L.U, 0.0).log_det_from_below()
        found = condition.inverse()
        if found is None or log_det is None:
            raise unproved(self.k, _NO_PROOF)
        bound = LimitBounds(L.d, log_det).log_bound(self.k)
        # The bound of found is one of this share of L⁻¹, and not of the limit.
        return InverseStepsize(found.p, L.U, found.C), replace(found.certificate, upper_bound=bound)

    def multiple_of_identity(self, t: float | None = None) -> tuple[DiagonalStepsize, Certificate]:
        """tI with tI ⪯ L⁻¹ and t tr L ≤ k proved, or with a smaller t; d log t from below, the limit from above.

        Raises ValueError where float64 does not suffice for the proof.
        """
        L, d = self.L, self.L.d
        problem = large_problem(L, DiagonalPlusScaled.identity(d))
        assert problem is not None  # a LowRankPlusDiagonal always has one, or raises
        scalar = solve_structured(problem, "scalar", Settings())
        trace, rounding = math.fsum(L.diagonal().tolist()), gamma(L.longest_row + 4)
        most = min(float(scalar.D.diagonal()[0]), self.k / (trace * (1.0 + rounding)) * (1.0 - 4.0 * UNIT))
        value = most if t is None else min(t, most)
        if not value > 0.0:
            raise unproved(self.k, _NO_PROOF)
        top = exp_down(-scalar.certificate.upper_bound / d)
        lower = d * math.log(value)
        upper = LimitBounds(d, -math.inf, trace * (1.0 - rounding), top).log_bound(self.k)
        certificate = Certificate(True, 0.0, lower - 4.0 * UNIT * (d + abs(lower)), upper, d)
        return DiagonalStepsize(np.full(d, value)), certificate
