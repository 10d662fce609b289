"""The limit of an L = UUᵀ + Diag(diagonal) that is never formed, from the proofs of its stepsizes.

*descent.*  D next to (k/d)L⁻¹ by Woodbury's formula, with D ⪯ (k/d)L⁻¹ proved: so tr(LD) ≤ k and, as k ≤ d, D ⪯ L⁻¹.
*euclidean.*  D = tI with t next to min(k/tr L, 1/λmax(L)); λmax lies between a quotient zᵀLz/zᵀz and a γ⁻¹ for which
γI ⪯ L⁻¹ is proved.  *linear* with M = μI is the same D, tI = (tμ)M⁻¹.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy import sparse

from stepsize_opt.goals import EXCESS, Goal
from stepsize_opt.limit.problem import LimitProblem, Subspace, equal_probabilities, floor_probabilities
from stepsize_opt.operators import (
    DiagonalStepsize,
    InverseStepsize,
    StepsizeOperator,
    StructuredAnswer,
    large_problem,
    solve_structured,
)
from stepsize_opt.proofs import UNIT, Certificate, Enclosed, Interval, LowRankCondition, exp_down, twice_gamma
from stepsize_opt.sketches import SystematicSampling, rounded_to_budget
from stepsize_opt.smoothness import LimitBounds, LowRankPlusDiagonal, NeedsDense
from stepsize_solvers.programs import DiagonalPlusScaled, Settings, Vector

_NO_PROOF = "L is too close to singular for a proof in float64; add a regulariser (a larger diagonal)"


@dataclass(frozen=True, eq=False)
class ThinLimit(LimitProblem):
    """The limit of an L that is never formed, found in the units of ``L.near_one``."""

    L: LowRankPlusDiagonal

    @classmethod
    def of(cls, L: LowRankPlusDiagonal, k: float, goal: Goal) -> ThinLimit:
        """Raise ValueError for an M that is no number, or not below L."""
        mu = goal.M
        if not isinstance(mu, float | None):
            msg = "strong_convexity must be a number μ when L is a LowRankPlusDiagonal; a matrix M needs L.todense()"
            raise NeedsDense(msg)
        if goal.name == "linear" and mu is not None and mu > (1.0 + EXCESS) * float(L.shift.min()):
            msg = (
                "strong_convexity must satisfy μI ⪯ L, because ∇²f lies between both; a LowRankPlusDiagonal proves it "
                f"for μ up to its smallest diagonal entry, {L.shift.min():g}, got {mu:g}: L.todense() takes more"
            )
            raise ValueError(msg)
        return cls(L, k, goal)

    @property
    def _is_determinant(self) -> bool:
        return self.goal.name == "descent"

    @property
    def upper_bound(self) -> float:
        if self._is_determinant:
            bounds = LimitBounds(self.L.d, self.L.near_one.log_det)
            return bounds.scaled(2 * self.L.power).log_bound(self.k)
        return self._as_given(*self._multiple_of_identity())[1].upper_bound

    def best(self) -> tuple[StepsizeOperator, Vector, Certificate]:
        L = self.L.near_one
        if self._is_determinant:
            inverse, certificate = self._as_given(*self._share_of_inverse(L.d / self.k))
            return inverse, equal_probabilities(L.d, self.k), certificate
        multiple, bounds = self._multiple_of_identity()
        given, certificate = self._as_given(multiple, bounds)
        if sparse.issparse(L.U) or not L.has_constant_shift:
            return given, np.empty(0), certificate
        # λI + UUᵀ has the eigenvalues of λI + UᵀU, and λ for all other directions.
        low_rank = np.maximum(np.linalg.eigvalsh(L.U.T @ L.U)[-L.d :], 0.0)
        values = L.shift[0] + np.concatenate([np.zeros(L.d - len(low_rank)), low_rank])
        return given, np.minimum(values * multiple.x[0], 1.0), certificate

    def subspace(self, basis: str) -> Subspace:
        L, what = self.L.near_one, f"the subspace method for goal={self.goal.name!r}"
        if self._is_determinant:
            if basis != "root":
                msg = f"basis must be 'root' for goal='descent' and a LowRankPlusDiagonal, got {basis!r}"
                raise NeedsDense(msg)
            L.require_dense_factor(what)
            found = L.directions(basis)
            sketch = SystematicSampling(rounded_to_budget(equal_probabilities(L.d, self.k), self.k))
            # AᵀLA ⪰ least·I is AAᵀ ⪰ least·L⁻¹, so that E[G] ⪰ min h·least·L⁻¹.
            share = float(sketch.p.min()) * found.least * (1.0 - 2.0 * UNIT)
            D, certificate = self._as_given(*self._share_of_inverse(1.0 / share))
        else:
            L.require_eigenvectors(what)
            found = L.directions(basis)
            values = np.ones(L.d)
            values[: len(found.basis.values)] += found.basis.values
            sketch = SystematicSampling(rounded_to_budget(floor_probabilities(values, self.k), self.k))
            t = float(self._multiple_of_identity()[0].x[0]) * float(L.shift[0])
            D, certificate = self._as_given(*self._multiple_of_identity(found.mean_from_below(sketch.p, t)))
        return Subspace(found.A.scaled(-self.L.power), sketch, D, certificate, found.defect)

    def _as_given(self, D: StepsizeOperator, certificate: Certificate) -> tuple[StepsizeOperator, Certificate]:
        """Return D and its certificate, for the goal, in the units of the L that was given.

        Raises ValueError where float64 does not hold D.
        """
        d, n = self.L.d, self.L.power
        moved = certificate.moved(-2 * n * d)
        mu = self.goal.M if isinstance(self.goal.M, float) else 1.0
        return D.scaled(-n), moved.shifted(d * Interval.exact(mu).log())

    def _share_of_inverse(self, q: float) -> tuple[InverseStepsize, Certificate]:
        """D next to (qL)⁻¹ and below it by proof; its log det from below, the limit from above.

        Raises NeedsDense for a sparse U, Unproved where float64 does not suffice for the proof.
        """
        L = self.L.near_one
        L.require_dense_factor("goal='descent'")
        scaled = q * L.shift  # two roundings
        around = Enclosed(scaled, twice_gamma(2) * scaled)
        condition = LowRankCondition(around.low, around.high, q, L.U, twice_gamma(2))
        found = condition.inverse()
        if found is None or not L.log_det > -math.inf:
            raise self.unproved(_NO_PROOF)
        bound = LimitBounds(L.d, L.log_det).log_bound(self.k)
        # The bound of found is one of this share of L⁻¹, and not of the limit.
        return InverseStepsize(found.p, L.U, found.C), replace(found.certificate, upper_bound=bound)

    @cached_property
    def _scalar(self) -> StructuredAnswer:
        """The best γI ⪯ L⁻¹."""
        problem = large_problem(self.L.near_one, DiagonalPlusScaled.identity(self.L.d))
        assert problem is not None  # a LowRankPlusDiagonal always has one, or raises
        return solve_structured(problem, "scalar", Settings())

    def _multiple_of_identity(self, t: float | None = None) -> tuple[DiagonalStepsize, Certificate]:
        """tI with tI ⪯ L⁻¹ and t tr L ≤ k proved, or with a smaller t; d log t from below, the limit from above.

        Raises Unproved where float64 does not suffice for the proof.
        """
        L, d, scalar = self.L.near_one, self.L.d, self._scalar
        trace, rounding = L.trace(), twice_gamma(L.longest_row + 4)
        most = min(float(scalar.D.diagonal()[0]), self.k / (trace * (1.0 + rounding)) * (1.0 - 4.0 * UNIT))
        value = most if t is None else min(t, most)
        if not value > 0.0:
            raise self.unproved(_NO_PROOF)
        top = exp_down(-scalar.certificate.upper_bound / d)
        lower = d * math.log(value)
        upper = LimitBounds(d, -math.inf, trace * (1.0 - rounding), top).log_bound(self.k)
        certificate = Certificate(True, 0.0, lower - 4.0 * UNIT * (d + abs(lower)), upper, d)
        return DiagonalStepsize(np.full(d, value)), certificate
