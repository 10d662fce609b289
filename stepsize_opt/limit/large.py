"""The limit of an L = UUᵀ + Diag(diagonal) that is never formed, from the proofs of its stepsizes.

*det.*  D next to (k/d)L⁻¹ by Woodbury's formula, with D ⪯ (k/d)L⁻¹ proved: so tr(LD) ≤ k and, as k ≤ d, D ⪯ L⁻¹.
*euclidean.*  D = tI with t next to min(k/tr L, 1/λmax(L)); λmax lies between a quotient zᵀLz/zᵀz and a γ⁻¹ for which
γI ⪯ L⁻¹ is proved.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import sparse

from stepsize_opt.limit.bounds import LimitBounds
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


def share_of_inverse(
    L: LowRankPlusDiagonal, k: float, share: float | None = None
) -> tuple[InverseStepsize, Certificate]:
    """D next to (k/d)L⁻¹ with D ⪯ (k/d)L⁻¹ proved, or share·L⁻¹; its log det from below, and the limit from above.

    Raises ValueError for a sparse U, and where float64 does not suffice for the proof.
    """
    if sparse.issparse(L.U):
        msg = "det of an L with a sparse U has no answer without a dense matrix: use U.toarray(), or rank=r"
        raise ValueError(msg)
    q = L.d / k if share is None else 1.0 / share
    scaled = q * L.own  # two roundings
    condition = LowRankCondition(scaled * (1.0 - gamma(4)), scaled * (1.0 + gamma(4)), q, L.U, gamma(2))
    log_det = LowRankCondition(L.own, L.own, 1.0, L.U, 0.0).log_det_from_below()
    found = condition.inverse()
    if found is None or log_det is None:
        msg = "L is too close to singular, or its numbers lie too far apart, for a proof in float64; add a regulariser"
        raise ValueError(msg)
    bound = LimitBounds(L.d, log_det).log_bound(k)
    # The bound of found is one of this share of L⁻¹, and not of the limit.
    return InverseStepsize(found.p, L.U, found.C), replace(found.certificate, upper_bound=bound)


def multiple_of_identity(L: LowRankPlusDiagonal, k: float) -> tuple[DiagonalStepsize, Certificate]:
    """tI with tI ⪯ L⁻¹ and t tr L ≤ k proved; d log t from below, and the limit from above."""
    problem = large_problem(L, DiagonalPlusScaled.identity(L.d))
    assert problem is not None  # a LowRankPlusDiagonal always has one, or raises
    answer = solve_structured(problem, "scalar", Settings())
    trace, rounding = math.fsum(L.diagonal().tolist()), gamma(L.longest_row + 4)
    t = min(float(answer.D.diagonal()[0]), k / (trace * (1.0 + rounding)) * (1.0 - 4.0 * UNIT))
    top = exp_down(-answer.certificate.upper_bound / L.d)
    bound = LimitBounds(L.d, -math.inf, trace * (1.0 - rounding), top).log_bound(k)
    lower = L.d * math.log(t)
    return DiagonalStepsize(np.full(L.d, t)), Certificate(
        True, 0.0, lower - 4.0 * UNIT * (L.d + abs(lower)), bound, L.d
    )


def large_limit(L: LowRankPlusDiagonal, k: float, criterion: str) -> tuple[StepsizeOperator, Vector, Certificate]:
    """D, its probabilities (empty where the eigenvalues of L are not known) and its certificate.

    Raises ValueError for ``linear``.
    """
    if criterion == "det":
        inverse, certificate = share_of_inverse(L, k)
        return inverse, equal_probabilities(L.d, k), certificate
    if criterion != "euclidean":
        msg = f"criterion={criterion!r} takes a dense L, L.todense(); a LowRankPlusDiagonal has 'det' and 'euclidean'"
        raise ValueError(msg)
    multiple, certificate = multiple_of_identity(L, k)
    own = float(L.own[0])
    if sparse.issparse(L.U) or not np.all(L.own == own):
        return multiple, np.empty(0), certificate
    # λI + UUᵀ has the eigenvalues of λI + UᵀU, and λ for all other directions.
    low_rank = np.maximum(np.linalg.eigvalsh(L.U.T @ L.U)[-L.d :], 0.0)
    values = own + np.concatenate([np.zeros(L.d - len(low_rank)), low_rank])
    return multiple, np.minimum(values * multiple.x[0], 1.0), certificate
