"""Stepsizes D of an L that is never formed, each with its proof.

*The condition* DMD ⪯ D, that is D ⪯ M⁻¹, with M = 𝒫(L).  A distribution with 𝒫(M) = Diag(α∘diag M) + βM, and the
Gaussian one, make of L = UUᵀ + Diag(a) an M of the same form.  *Full D*: M⁻¹ by Woodbury's formula.
*Diagonal D*: ``stepsize_solvers.large``.  *D = γI*: γ = 1/λmax(M), and γ ≤ zᵀz/zᵀMz for every z.  The proofs of
``stepsize_opt.proofs`` are statements about r×r matrices, or products with M.

The full D of det-CGD1 has no such form: the best D for the sketch of one's own choice is ``optimal_method``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from stepsize_opt.large.stepsizes import DiagonalStepsize, InverseStepsize, StepsizeOperator
from stepsize_opt.proofs import (
    LOG_2,
    Certificate,
    LowRankCondition,
    NonnegativeCondition,
    ProvedDiagonal,
    coefficient_roundings,
    twice_gamma,
)
from stepsize_opt.smoothness import LowRankPlusDiagonal, NeedsDense
from stepsize_solvers.large import solve_balanced, solve_low_rank
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import PositiveMap, ScaledPlusTrace, Settings, SolverStats, Status, Vector

_MOST_STEPS = 200
_TOP: Any = 1e-10  # relative error of the largest eigenvalue, far below the tolerance
_ABOVE = 2e-7  # what D = γI may lose of γ, for a linear system that conjugate gradients still solve
ANSWERS = (
    "answers without a dense matrix: for LowRankPlusDiagonal structure='diagonal', 'scalar' and Direction(w), w a "
    "vector, with det-CGD1 and det-CGD2, and for a dense U the full D of det-CGD2; where 'diagonal' has one, "
    "goal='euclidean' or 'linear' (a number) as well; with the sketches RandK, IndependentSampling, BernQ and "
    "Identity, and Gaussian for 'scalar' and all of det-CGD2; if you may choose what is sent, optimal_method(L, k) "
    "needs fewer rounds"
)


@dataclass(frozen=True, eq=False)
class LargeProblem:
    """DMD ⪯ D with M = 𝒫(L) in one of the two forms, for 4⁻ⁿL with n = ``power``, in which numbers are near one.

    words: what was read of L; remark: what to do where the answer is not optimal.
    """

    power: int
    condition: LowRankCondition | NonnegativeCondition
    words: str
    remark: str = ""


@dataclass(frozen=True, eq=False)
class _GramProducts:
    """M = Diag(a) + βUUᵀ with a sparse U without negative entries, by its products with vectors."""

    a: Vector
    beta: float
    U: Any

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.a), len(self.a)

    @property
    def terms(self) -> int:
        """The most numbers that are added up for an entry of a product."""
        return int(np.diff(self.U.indptr).max(initial=0) + np.bincount(self.U.indices).max(initial=0)) + 2

    def diagonal(self) -> Vector:
        return np.asarray(self.a + self.beta * self.U.multiply(self.U).sum(axis=1))

    def __matmul__(self, v: Vector) -> Vector:
        return np.asarray(self.a * v + self.beta * (self.U @ (self.U.T @ v)))


def large_problem(L: LowRankPlusDiagonal, law: PositiveMap) -> LargeProblem:
    """Return the problem of an L that is not to be made dense.

    Raises NeedsDense for a distribution or a sign that has no such form, ValueError for an L whose numbers lie too far
    apart.
    """
    near, n, split = L.near_one, L.power, law.diagonal_plus_scaled
    if isinstance(law, ScaledPlusTrace):
        return _factored(near, n, law.a * near.shift + law.b * near.trace(), law.a, coefficient_roundings(law))
    if split is None or split.alpha.min() < 0.0 or split.beta < 0.0:
        msg = f"this sketch takes a dense L only (L.todense() gives it); {ANSWERS}"
        raise NeedsDense(msg)
    own = split.alpha * near.diagonal() + split.beta * near.shift
    return _factored(near, n, own, split.beta, coefficient_roundings(split))


def _factored(L: LowRankPlusDiagonal, n: int, a: Vector, beta: float, roundings: int) -> LargeProblem:
    """Return the problem of 𝒫(L) = Diag(a) + βUUᵀ; the coefficients of both products in a went through roundings."""
    rounding = roundings + 4
    if sparse.issparse(L.U):
        if L.U.data.min(initial=0.0) < 0.0:
            msg = f"a sparse U must not have negative entries, U.toarray() may have them; {ANSWERS}"
            raise NeedsDense(msg)
        products = _GramProducts(a, beta, L.U)
        words = f"L = UUᵀ + Diag with a sparse U of {L.U.nnz} entries, none negative: UUᵀ is not formed"
        return LargeProblem(n, NonnegativeCondition(products, twice_gamma(L.longest_row + rounding)), words)
    V, apart = L.short_factor
    error = twice_gamma(L.rank + rounding) * a + beta * apart * (1.0 + twice_gamma(4))
    condition = LowRankCondition(a - error, a + error, beta, V, twice_gamma(rounding))
    words = f"L is diagonal plus rank {L.rank}: nothing of size d×d is formed"
    remark = ""
    if L.rank >= L.d:
        remark = f"U has {L.rank} columns for {L.d} coordinates, so L.todense() is no larger: solve for that"
    return LargeProblem(n, condition, words, remark)


@dataclass(frozen=True, eq=False)
class StructuredAnswer:
    """D with its certificate, log det H of the descent metric from below, and what was done."""

    D: StepsizeOperator
    certificate: Certificate
    descent_log_det: float
    stats: SolverStats
    status: Status

    def scaled(self, n: int) -> StructuredAnswer:
        """Return the answer for 4⁻ⁿL, with 4ⁿD; raises ValueError where float64 does not hold it."""
        power = 2 * n * self.certificate.d
        return replace(
            self,
            D=self.D.scaled(n),
            certificate=self.certificate.moved(power),
            descent_log_det=(self.descent_log_det + power * LOG_2).low,
        )


def solve_structured(
    problem: LargeProblem, structure: str, settings: Settings, w: Vector | None = None
) -> StructuredAnswer:
    """Find the best D that is ``"full"``, ``"diagonal"`` or ``"scalar"``, or with w the best multiple of Diag(w).

    Raises ValueError for a structure without such an answer, or when nothing could be proved.
    """
    began = time.perf_counter()
    condition = problem.condition
    diagonal = isinstance(condition, LowRankCondition) and condition.beta == 0.0  # rand-1: 𝒫(L) is diagonal
    if w is None and structure == "full" and not diagonal:
        if not isinstance(condition, LowRankCondition):
            msg = f"structure='full' has no sparse answer for a sparse matrix; {ANSWERS}"
            raise NeedsDense(msg)
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
    """Return the error to raise where no proof succeeded."""
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
    """Find γw for the largest γ, with the bound of an eigenvector of N = Diag(w)^½ M Diag(w)^½."""
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
    """Return the largest eigenvalue of a matrix by its products, and its eigenvector."""
    if d < 3:  # what eigsh does not take
        values, vectors = np.linalg.eigh(np.column_stack([times(row) for row in np.eye(d)]))
    else:
        values, vectors = eigsh(_operator(times, d), k=1, which="LA", tol=_TOP, v0=np.ones(d))
    return float(values[-1]), np.asarray(vectors[:, -1])
