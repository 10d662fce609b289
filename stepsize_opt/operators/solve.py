"""The best D under DMD ⪯ D, that is D ⪯ M⁻¹, for an M that is never formed, with a proof in exact arithmetic.

*Full D*: M⁻¹ by Woodbury's formula.  *Diagonal D*: ``stepsize_solvers.thin``.  *D = γI*: γ = 1/λmax(M), and
γ ≤ zᵀz/zᵀMz for every z.  The proofs of ``stepsize_opt.proofs`` are statements about r×r matrices, or products with M.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from stepsize_opt.operators.problems import ANSWERS, LargeProblem
from stepsize_opt.operators.stepsizes import DiagonalStepsize, InverseStepsize, StepsizeOperator
from stepsize_opt.proofs import (
    Certificate,
    LowRankCondition,
    NonnegativeCondition,
    ProvedDiagonal,
    sum_from_below,
)
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import Settings, SolverStats, Status, Vector
from stepsize_solvers.thin import solve_balanced, solve_low_rank

_MOST_STEPS = 200
_TOP: Any = 1e-10  # relative error of the largest eigenvalue, far below the tolerance
_ABOVE = 2e-7  # what D = γI may lose of γ, for a linear system that conjugate gradients still solve


@dataclass(frozen=True, eq=False)
class StructuredAnswer:
    """D with its certificate, log det H of the descent metric from below, and what was done.

    satisfied: T(D) ⪯ D is proved; remark: what keeps the answer from being the best, beyond its status.
    """

    D: StepsizeOperator
    certificate: Certificate
    descent_log_det: float
    stats: SolverStats
    status: Status
    satisfied: bool = True
    remark: str = ""

    def scaled(self, n: int) -> StructuredAnswer:
        """The answer for 4⁻ⁿL, with 4ⁿD; raises ValueError where float64 does not hold it."""
        power = 2 * n * self.certificate.d
        return replace(
            self,
            D=self.D.scaled(n),
            certificate=self.certificate.moved(power),
            descent_log_det=sum_from_below(self.descent_log_det, math.log(2.0) * power),
        )


def solve_structured(
    problem: LargeProblem, structure: str, settings: Settings, w: Vector | None = None
) -> StructuredAnswer:
    """The best D of a structure ``"full"``, ``"diagonal"`` or ``"scalar"``, or with w the best multiple of Diag(w).

    Raises ValueError for a structure without such an answer, or when nothing could be proved.
    """
    began = time.perf_counter()
    condition = problem.condition
    diagonal = isinstance(condition, LowRankCondition) and condition.beta == 0.0  # rand-1: 𝒫(L) is diagonal
    if w is None and structure == "full" and not diagonal:
        if not isinstance(condition, LowRankCondition):
            msg = f"structure='full' has no sparse answer for a sparse matrix; {ANSWERS}"
            raise ValueError(msg)
        inverse = condition.inverse()
        if inverse is None:
            raise not_proved()
        D: StepsizeOperator = InverseStepsize(inverse.p, condition.U, inverse.C)
        stats = SolverStats("closed form", time.perf_counter() - began, 0.0, 0)
        proved = Status.OPTIMAL if inverse.certificate.is_optimal(settings.tol) else Status.INACCURATE
        return StructuredAnswer(D, inverse.certificate, inverse.certificate.log_det, stats, proved)
    if w is not None or structure == "scalar":
        w = np.ones(condition.d) if w is None else w
        found, stats, status = _multiple(condition, w), SolverStats("eigsh", None, 0.0, None), Status.OPTIMAL
    else:
        found, stats, status = _diagonal(condition, settings)
    if found is None:
        raise not_proved()
    stats = SolverStats(stats.solver_name, time.perf_counter() - began, 0.0, stats.num_iters, stats.extra_stats)
    if not status.is_stopped:
        status = Status.OPTIMAL if found.certificate.is_optimal(settings.tol) else Status.INACCURATE
    return StructuredAnswer(DiagonalStepsize(found.x), found.certificate, found.descent_log_det, stats, status)


def not_proved() -> ValueError:
    """What to raise where no proof succeeded."""
    return ValueError(
        "L is too close to singular, or its entries or the second moments of the sketch lie too far apart, for a proof "
        "in float64; add a regulariser (a larger diagonal), rescale the variables, or give rare coordinates a larger "
        "probability"
    )


def _diagonal(
    condition: LowRankCondition | NonnegativeCondition, settings: Settings
) -> tuple[ProvedDiagonal | None, SolverStats, Status]:
    limits = Limits.of(settings, _MOST_STEPS)
    if isinstance(condition, NonnegativeCondition):
        M = condition.M
        status, progress = solve_balanced(lambda y: np.asarray(M @ y), M.diagonal(), limits)
        found = None if progress.best is None else condition.prove(progress.best.point.x, progress.best.point.y)
        return found, SolverStats("balancing", None, None, progress.steps, progress.statistics), status
    beta, middle = condition.beta, 0.5 * (condition.low + condition.high)
    if beta == 0.0 or not condition.U.any():
        K = np.zeros((condition.U.shape[1],) * 2)
        return condition.prove(1.0 / middle, K), SolverStats("closed form", num_iters=0), Status.OPTIMAL
    # M/β = Diag(a/β) + UUᵀ has the stepsizes βx and the same Y, and U need not be copied.
    status, path = solve_low_rank(middle / beta, condition.U, limits)
    best = None if path.best is None else path.best.point
    found = None if best is None else condition.prove(best.x / beta, best.K)
    return found, SolverStats("low rank", None, None, path.steps, path.statistics), status


def _multiple(condition: LowRankCondition | NonnegativeCondition, w: Vector) -> ProvedDiagonal | None:
    """γw for the largest γ, with the bound of an eigenvector of N = Diag(w)^½ M Diag(w)^½."""
    root, d = np.sqrt(w), len(w)
    if isinstance(condition, NonnegativeCondition):
        M = condition.M
        value, vector = top_eigenpair(lambda v: root * (M @ (root * v)), d)
        # For t above λmax(N), u = (tI − N)⁻¹1 > 0 has Nu = tu − 1 < tu, also where N falls into parts.
        shifted = _operator(lambda v: (1.0 + _ABOVE) * value * v - root * (M @ (root * v)), d)
        near = vector * vector.sum() / (_ABOVE * value)
        return condition.prove_multiple(root * cg(shifted, np.ones(d), x0=near, rtol=1e-6, maxiter=5000)[0], w)
    a, beta, U = condition.high, condition.beta, condition.U
    value, vector = top_eigenpair(lambda v: w * a * v + beta * root * (U @ (U.T @ (root * v))), d)
    return condition.prove_multiple(1.0 / value, root * vector, w)


def _operator(times: Callable[[Vector], Vector], d: int) -> Any:
    make: Any = LinearOperator
    return make((d, d), matvec=lambda v: times(v.ravel()), dtype=np.float64)


def top_eigenpair(times: Callable[[Vector], Vector], d: int) -> tuple[float, Vector]:
    """The largest eigenvalue of a matrix by its products, and its eigenvector."""
    if d < 3:  # what eigsh does not take
        values, vectors = np.linalg.eigh(np.column_stack([times(row) for row in np.eye(d)]))
    else:
        values, vectors = eigsh(_operator(times, d), k=1, which="LA", tol=_TOP, v0=np.ones(d))
    return float(values[-1]), np.asarray(vectors[:, -1])
