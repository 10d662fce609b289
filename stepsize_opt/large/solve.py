"""Stepsizes D of an L that is never formed, each with its proof.

*The condition* DMD ⪯ D, that is D ⪯ M⁻¹, with M = 𝒫(L).  A distribution with 𝒫(M) = Diag(α∘diag M) + βM, and the
Gaussian one, make of L = UUᵀ + Diag(a) an M of the same form.  *Full D*: M⁻¹ by Woodbury's formula.
*Diagonal D*: ``stepsize_solvers.large``.  *D = γI*: γ = 1/λmax(M), and γ ≤ zᵀz/zᵀMz for every z.  The proofs of
``stepsize_opt.proofs`` are statements about r×r matrices, or products with M.

The full D of det-CGD1 has no such form; ``optimal_method`` needs fewer rounds where the sketch may be chosen.

``SOLVERS`` are asked in turn: the first that accepts a question answers it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, cg, eigsh

from stepsize_opt.inputs.matrices import binary_exponent, power_of_four, scaled_exactly
from stepsize_opt.large.stepsizes import DiagonalStepsize, InverseStepsize
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
from stepsize_solvers.large.balancing import solve_balanced
from stepsize_solvers.large.low_rank import solve_low_rank
from stepsize_solvers.numerics.progress import Limits
from stepsize_solvers.programs import Matrix, PositiveMap, ScaledPlusTrace, Settings, SolverStats, Status, Vector

_MOST_STEPS = 200
_TOP: Any = 1e-10  # relative error of the largest eigenvalue, far below the tolerance
_ABOVE = 2e-7  # what D = γI may lose of γ, for a linear system that conjugate gradients still solve


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
        msg = "this sketch"
        raise needs_dense(msg)
    own = split.alpha * near.diagonal() + split.beta * near.shift
    return _factored(near, n, own, split.beta, coefficient_roundings(split))


def _factored(L: LowRankPlusDiagonal, n: int, a: Vector, beta: float, roundings: int) -> LargeProblem:
    """Return the problem of 𝒫(L) = Diag(a) + βUUᵀ; the coefficients of both products in a went through roundings."""
    rounding = roundings + 4
    if sparse.issparse(L.U):
        if L.U.data.min(initial=0.0) < 0.0:
            msg = "a sparse U must not have negative entries; give LowRankPlusDiagonal(U.toarray(), diagonal)"
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
class LargeQuestion:
    """The D of a structure under T(D) = D𝒫(L)D: then D ⪯ M⁻¹ has a largest D, and H ⪯ M⁻¹ for every D.

    structure: its name, ``"direction"`` for multiples of Diag(w); the goal tells which structure it is.
    """

    problem: LargeProblem
    structure: str
    w: Vector | None = None


@dataclass(frozen=True, eq=False)
class LargeAnswer:
    """D with its certificate, log det H of the descent metric from below, and what was done."""

    D: DiagonalStepsize | InverseStepsize
    certificate: Certificate
    descent_log_det: float
    stats: SolverStats
    status: Status = Status.OPTIMAL

    @staticmethod
    def of(proved: ProvedDiagonal | None, stats: SolverStats, status: Status = Status.OPTIMAL) -> LargeAnswer:
        """Return Diag(x) of a proved x; raises ValueError without one."""
        if proved is None:
            raise not_proved()
        return LargeAnswer(DiagonalStepsize(proved.x), proved.certificate, proved.descent_log_det, stats, status)

    def scaled(self, n: int) -> LargeAnswer:
        """Return the answer for 4⁻ⁿL, with 4ⁿD; raises ValueError where float64 does not hold it."""
        power = 2 * n * self.certificate.d
        return replace(
            self,
            D=self.D.scaled(n),
            certificate=self.certificate.moved(power),
            descent_log_det=(self.descent_log_det + power * LOG_2).low,
        )


def not_proved() -> ValueError:
    """Return the error to raise where no proof succeeded."""
    return ValueError(
        "L is too close to singular, or its entries or the second moments of the sketch lie too far apart, for a proof "
        "in float64; add a regulariser (a larger diagonal), rescale the variables, or give rare coordinates a larger "
        "probability"
    )


def read_direction(W: Matrix, d: int) -> Vector:
    """Return w of W = Diag(w), in units in which it is near one: only its direction counts.

    Raises TypeError for any other W, ValueError for one of another size or whose numbers lie too far apart.
    """
    if W.ndim != 1:
        msg = "W is a matrix, but a LowRankPlusDiagonal L takes Direction(w), w a vector; L.todense() takes every W"
        raise TypeError(msg)
    if len(W) != d:
        msg = f"the direction W is for d={len(W)} but L is {d}×{d}"
        raise ValueError(msg)
    power = power_of_four("the direction W", binary_exponent(W.max()), binary_exponent(W.min()))
    return scaled_exactly("W", W, -2 * power)


# ---------------------------------------------------------------- the solvers


class LargeSolver(Protocol):
    """One form of D.  takes: what it answers, in the words of a refusal and of docs/scale.md."""

    takes: str

    def accepts(self, question: LargeQuestion) -> bool:
        """Return whether this solver answers the question."""
        ...

    def solve(self, question: LargeQuestion, settings: Settings) -> LargeAnswer:
        """Return the best D; raises ValueError when nothing could be proved."""
        ...


class Inverse:
    """The full D = M⁻¹ by Woodbury's formula."""

    takes = "the full D of det-CGD2 for a dense U, with goal='paper' or 'descent'"

    def accepts(self, question: LargeQuestion) -> bool:
        condition = question.problem.condition
        return question.structure == "full" and isinstance(condition, LowRankCondition) and condition.beta > 0.0

    def solve(self, question: LargeQuestion, settings: Settings) -> LargeAnswer:
        condition: Any = question.problem.condition
        inverse = condition.inverse()
        if inverse is None:
            raise not_proved()
        D, found = InverseStepsize(inverse.p, condition.U, inverse.C), inverse.certificate
        return LargeAnswer(D, found, found.log_det, SolverStats("closed form", num_iters=0))


class Diagonal:
    """D = Diag(x), which is the full D where 𝒫(L) is diagonal, as for rand-1."""

    takes = "structure='diagonal' with goal='paper'"

    def accepts(self, question: LargeQuestion) -> bool:
        condition = question.problem.condition
        alone = isinstance(condition, LowRankCondition) and condition.beta == 0.0
        return question.structure == "diagonal" or (question.structure == "full" and alone)

    def solve(self, question: LargeQuestion, settings: Settings) -> LargeAnswer:
        condition, limits = question.problem.condition, Limits.of(settings, _MOST_STEPS)
        path: Any
        if isinstance(condition, NonnegativeCondition):
            M = condition.M
            status, path = solve_balanced(lambda y: np.asarray(M @ y), M.diagonal(), limits)
            proved = None if path.best is None else condition.prove(path.best.point.x, path.best.point.y)
            stats = SolverStats("balancing", num_iters=path.steps, extra_stats=path.statistics)
            return LargeAnswer.of(proved, stats, status)
        beta, middle = condition.beta, 0.5 * (condition.low + condition.high)
        if beta == 0.0 or not condition.U.any():
            K = np.zeros((condition.U.shape[1],) * 2)
            return LargeAnswer.of(condition.prove(1.0 / middle, K), SolverStats("closed form", num_iters=0))
        # M/β = Diag(a/β) + UUᵀ has the stepsizes βx and the same Y, and U need not be copied.
        status, path = solve_low_rank(middle / beta, condition.U, limits)
        proved = None if path.best is None else condition.prove(path.best.point.x / beta, path.best.point.K)
        stats = SolverStats("low rank", num_iters=path.steps, extra_stats=path.statistics)
        return LargeAnswer.of(proved, stats, status)


class Multiple:
    """γDiag(w) for the largest γ, with the bound of an eigenvector of N = Diag(w)^½ M Diag(w)^½; γI for a largest t.

    The largest t with H ⪰ tI is 1/λmax(M), at D = γI, which satisfies the condition.
    """

    takes = (
        "structure='scalar' and Direction(w), w a vector, with goal='paper'; every named structure with "
        "goal='euclidean' or 'linear' and a number"
    )

    def accepts(self, question: LargeQuestion) -> bool:
        return question.structure in ("scalar", "direction")

    def solve(self, question: LargeQuestion, settings: Settings) -> LargeAnswer:
        condition = question.problem.condition
        w = np.ones(condition.d) if question.w is None else question.w
        if isinstance(condition, NonnegativeCondition):
            return LargeAnswer.of(_multiple_by_products(condition, w), SolverStats("eigsh"))
        return LargeAnswer.of(_multiple_of_low_rank(condition, w), SolverStats("eigsh"))


SOLVERS: tuple[LargeSolver, ...] = (Inverse(), Diagonal(), Multiple())


def solve_large(question: LargeQuestion, settings: Settings) -> LargeAnswer:
    """Return the answer of the first solver that accepts the question.

    Raises NeedsDense when none does, ValueError when nothing could be proved.
    """
    began = time.perf_counter()
    solver = next((solver for solver in SOLVERS if solver.accepts(question)), None)
    if solver is None:
        msg = f"structure={question.structure!r} with this goal and U"
        raise needs_dense(msg)
    answer = solver.solve(question, settings)
    status = answer.status
    if not status.is_stopped:
        status = Status.OPTIMAL if answer.certificate.is_optimal(settings.tol) else Status.INACCURATE
    stats = replace(answer.stats, solve_time=time.perf_counter() - began, setup_time=0.0)
    return replace(answer, status=status, stats=stats)


def needs_dense(what: str) -> NeedsDense:
    """Return the error for a question that no solver takes, which lists what they take."""
    takes = "; ".join(solver.takes for solver in SOLVERS)
    return NeedsDense(
        f"{what} needs a dense L, which L.todense() gives; without it there are: {takes}.  The sketches are RandK, "
        "IndependentSampling, BernQ and Identity, and Gaussian with det-CGD2 or structure='scalar'.  "
        "If you may choose what is sent, optimal_method(L, k) needs fewer rounds than any of them"
    )


def _multiple_by_products(condition: NonnegativeCondition, w: Vector) -> ProvedDiagonal | None:
    M, root, d = condition.M, np.sqrt(w), len(w)
    value, vector = _top_eigenpair(lambda v: root * (M @ (root * v)), d)
    # For t above λmax(N), u = (tI − N)⁻¹1 > 0 has Nu = tu − 1 < tu, also where N falls into parts.
    shifted = _operator(lambda v: (1.0 + _ABOVE) * value * v - root * (M @ (root * v)), d)
    near = vector * vector.sum() / (_ABOVE * value)
    return condition.prove_multiple(root * cg(shifted, np.ones(d), x0=near, rtol=1e-6, maxiter=5000)[0], w)


def _multiple_of_low_rank(condition: LowRankCondition, w: Vector) -> ProvedDiagonal | None:
    a, beta, U, root = condition.high, condition.beta, condition.U, np.sqrt(w)
    value, vector = _top_eigenpair(lambda v: w * a * v + beta * root * (U @ (U.T @ (root * v))), len(w))
    return condition.prove_multiple(1.0 / value, root * vector, w)


def _operator(times: Callable[[Vector], Vector], d: int) -> Any:
    make: Any = LinearOperator
    return make((d, d), matvec=lambda v: times(v.ravel()), dtype=np.float64)


def _top_eigenpair(times: Callable[[Vector], Vector], d: int) -> tuple[float, Vector]:
    """Return the largest eigenvalue of a matrix by its products, and its eigenvector."""
    if d < 3:  # what eigsh does not take
        values, vectors = np.linalg.eigh(np.column_stack([times(row) for row in np.eye(d)]))
    else:
        values, vectors = eigsh(_operator(times, d), k=1, which="LA", tol=_TOP, v0=np.ones(d))
    return float(values[-1]), np.asarray(vectors[:, -1])
