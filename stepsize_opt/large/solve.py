"""Stepsizes D of an L that is not made dense, each with its proof.

*The condition* DMD ⪯ D, that is D ⪯ M⁻¹, with M = 𝒫(L).  A distribution with 𝒫(M) = Diag(α∘diag M) + βM makes of L =
UUᵀ + Diag(a), or of a sparse L without negative entries, an M of the same form.  *Full D*: M⁻¹ by Woodbury's formula.
*Diagonal D*: ``stepsize_solvers.large``.  *D = γI*: γ = 1/λmax(M), and γ ≤ zᵀz/zᵀMz for every z.  The proofs of
``stepsize_opt.proofs`` are statements about r×r matrices, or products with M.

*det-CGD1* for L = UUᵀ + Diag with a dense U has D = Diag(a) ± VVᵀ.

Descent metric H = 2D − 𝒫(DLD): ``stepsize_solvers.large`` searches among D = Diag(a) − VVᵀ; ``stepsize_opt.proofs``
proves log det H from below, and from above for every D, whatever its form.

Directions D = γW for a W that is a diagonal plus low rank: γ = 1/λmax of the pencil (T(W), W) by Lanczos, which proves
nothing.  ``ThinMetric`` proves that a γ just below satisfies the condition; the quotient of one vector proves that no γ
far above does.

Gaussian sketch with L = cI + UUᵀ: D = δI ± VVᵀ has the eigenvectors of L, r + 1 numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, cg, eigsh

from stepsize_opt.inputs import LARGE, SMOOTHNESS_REMEDY, binary_exponent, power_of_four, scaled_exactly
from stepsize_opt.large.stepsizes import DiagonalStepsize, InverseStepsize, LowRankStepsize, StepsizeOperator
from stepsize_opt.proofs import (
    LOG_2,
    UNIT,
    Certificate,
    LowRankCondition,
    NonnegativeCondition,
    ProvedDiagonal,
    ThinMetric,
    ThinStepsize,
    bound_of_multiples,
    coefficient_roundings,
    eigenvalue_bounds,
    first_proved,
    losses,
    spectral_condition_bound,
    spectral_metric_bound,
    twice_gamma,
    vanishing,
    weighted_gram,
)
from stepsize_opt.smoothness import LowRankPlusDiagonal, NeedsDense, Smoothness
from stepsize_solvers.large import (
    MOST_METRIC_STEPS,
    MOST_SPECTRAL_STEPS,
    MetricModel,
    SpectralModel,
    solve_balanced,
    solve_low_rank,
    solve_metric,
    solve_spectral,
)
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Settings,
    SolverStats,
    Status,
    Vector,
)

_MOST_STEPS = 200
_TOP: Any = 1e-10  # relative error of the largest eigenvalue, far below the tolerance
_ABOVE = 2e-7  # what D = γI may lose of γ, for a linear system that conjugate gradients still solve
ANSWERS = (
    "answers without a dense matrix: for LowRankPlusDiagonal structure='diagonal', 'scalar' and Direction(w), w a "
    "vector, with det-CGD1 and det-CGD2; for a dense U also Direction(W), W a diagonal plus low rank, the full D of "
    "det-CGD2, and of det-CGD1 with goal='descent'; for a sparse U or L without negative entries 'diagonal', "
    "'scalar' and Direction(w); where 'diagonal' has one, goal='euclidean' or 'linear' (a number) as well; "
    "with the sketches RandK, IndependentSampling, BernQ and Identity.  Gaussian: 'scalar'; all of det-CGD2; for a "
    "dense U and a diagonal that is one number the full D of det-CGD1"
)


@dataclass(frozen=True, eq=False)
class LargeProblem:
    """DMD ⪯ D with M = 𝒫(L) in one of the two forms, for 4⁻ⁿL with n = ``power``, in which numbers are near one.

    words: how it came; remark: what is not proved and why, or what to do about it.
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


def large_problem(L: Smoothness, law: PositiveMap) -> LargeProblem | None:
    """Return the problem of an L that is not to be made dense; None for an L that is.

    Raises NeedsDense for a LowRankPlusDiagonal with a distribution or a sign that has no such form, ValueError for an L
    whose numbers lie too far apart.
    """
    return _sparse_problem(L.formed().matrix, law) if L.is_formed else _factored_problem(L.factored(), law)


def _factored_problem(given: LowRankPlusDiagonal, law: PositiveMap) -> LargeProblem:
    L, n, split = given.near_one, given.power, law.diagonal_plus_scaled
    if isinstance(law, ScaledPlusTrace):
        return _factored(L, n, law.a * L.shift + law.b * L.trace(), law.a, coefficient_roundings(law))
    if split is None or split.alpha.min() < 0.0 or split.beta < 0.0:
        msg = f"this sketch takes a dense L only (L.todense() gives it); {ANSWERS}"
        raise NeedsDense(msg)
    own = split.alpha * L.diagonal() + split.beta * L.shift
    return _factored(L, n, own, split.beta, coefficient_roundings(split))


def _sparse_problem(S: Any, law: PositiveMap) -> LargeProblem | None:
    """Return the problem of a large sparse L without negative entries that does not fall into parts, or None."""
    split = law.diagonal_plus_scaled
    if not sparse.issparse(S) or S.shape[0] <= LARGE or split is None or split.beta < 0.0:
        return None
    if S.data.min(initial=0.0) < 0.0 or _largest_component(S) <= LARGE:
        return None
    S, n = _near_one(S)
    # Entries of 𝒫(L) are products and one sum of nonnegative numbers.
    M = sparse.csr_array(split.beta * S + sparse.diags_array(split.alpha * S.diagonal()))
    condition = NonnegativeCondition(M, twice_gamma(coefficient_roundings(split) + 3), positive=False)
    words = "L is sparse without negative entries: no dense matrix is formed"
    remark = (
        f"D is feasible by proof, and the best if L ⪰ 0, which is not proved for a sparse L of size {S.shape[0]}; "
        "LowRankPlusDiagonal(X.T, diagonal) with the X of L = XᵀX + Diag(diagonal) needs no such proof"
    )
    return LargeProblem(n, condition, words, remark)


def _near_one(S: Any) -> tuple[Any, int]:
    """Return S′ and n with S = 4ⁿS′ for a sparse S without negative entries, and entries of S′ near one."""
    diagonal = S.diagonal()
    if not diagonal.min() > 0.0:
        msg = f"L is singular or indefinite: a diagonal entry is {diagonal.min():g}; {SMOOTHNESS_REMEDY}"
        raise ValueError(msg)
    n = power_of_four("L", binary_exponent(S.data.max()), binary_exponent(diagonal.min()))
    if n == 0:
        return S, 0
    return sparse.csr_array((scaled_exactly("L", S.data, -2 * n), S.indices, S.indptr), shape=S.shape), n


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


def _largest_component(L: Any) -> int:
    labels = connected_components(L, directed=False)[1]
    return int(np.bincount(labels).max())


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


_MOST_RETREAT = 0.5  # the certified gap tells what was lost
_TOP_OF_PENCIL: Any = 1e-9  # the same of a pencil
_MIXED = (
    "the best D is larger than δI along some eigenvectors of L and smaller along others; this D = δI ± VVᵀ has one "
    "sign only, and is proved to be within the gap of the best"
)


def thin_metric(L: LowRankPlusDiagonal, law: DiagonalPlusScaled) -> ThinMetric:
    """Return what proofs need of L and of a law with 𝒫(M) = Diag(α∘diag M) + βM; raises NeedsDense for a sparse U."""
    if sparse.issparse(L.U):
        msg = f"a D that is not diagonal takes a dense U (U.toarray(), or rank=r of stepsize_opt.smoothness); {ANSWERS}"
        raise NeedsDense(msg)
    return ThinMetric.of(L.shift, L.U, law.alpha, law.beta, 0.0, coefficient_roundings(law))


def solve_descent(
    L: LowRankPlusDiagonal, law: DiagonalPlusScaled, limit: float, settings: Settings
) -> StructuredAnswer:
    """Find D = Diag(a) − VVᵀ with a large log det H and its certificate; ``limit`` bounds log det H of every D.

    Raises ValueError for a sparse U, or when nothing could be proved.
    """
    began = time.perf_counter()
    metric = thin_metric(L, law)
    status, progress = solve_metric(
        MetricModel(L.shift, L.U, law.alpha, law.beta), Limits.of(settings, MOST_METRIC_STEPS)
    )
    if progress.best is None:
        raise not_proved()
    point = progress.best.point
    D = ThinStepsize(point.a, point.V, -1.0)
    lower, ends = metric.log_det(D, 2.0), D.log_det()
    if lower is None or ends is None:
        raise not_proved()
    upper = min(limit, _best_bound(metric, 1.0 / point.delta, point.Z))
    certificate = Certificate(True, 0.0, lower, upper, L.d)
    stats = SolverStats("quasi-Newton", time.perf_counter() - began, 0.0, progress.steps, progress.statistics)
    if not status.is_stopped:
        status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
    satisfied = metric.log_det(D, 1.0) is not None
    remark = (
        f"D is a diagonal plus rank {D.V.shape[1]}; no D at all, dense ones included, has a rate that is larger by "
        f"more than a factor of {math.exp(min(certificate.gap, 700.0)):.3f}, by proof; give L.todense() for the best D"
    )
    return StructuredAnswer(LowRankStepsize(D.a, D.V, D.sign), certificate, lower, stats, status, satisfied, remark)


def _best_bound(metric: ThinMetric, eta: Vector, Z: Matrix) -> float:
    """Return the best bound of Diag(η) + 2^f ZZᵀ over whole numbers f; f = 0 is H⁻¹, which suits a tighter bound."""
    found = metric.bound(eta, Z)
    for factor in (math.sqrt(0.5), math.sqrt(2.0)):
        W, best = Z * factor, found
        while (other := metric.bound(eta, W)) < found:
            found, W = other, W * factor
        if found < best:
            break
    return found


def read_direction(W: Any) -> DiagonalStepsize | LowRankStepsize:
    """Read W as a diagonal, or as Diag(a) ± VVᵀ, in units in which it is near one: only its direction counts.

    Raises TypeError for an operator that is neither, ValueError for one whose numbers lie too far apart.
    """
    found = _as_stepsize(W)
    own = found.x if isinstance(found, DiagonalStepsize) else found.a
    return found.scaled(-power_of_four("the direction W", binary_exponent(own.max()), binary_exponent(own.min())))


def _as_stepsize(W: Any) -> DiagonalStepsize | LowRankStepsize:
    if isinstance(W, DiagonalStepsize | LowRankStepsize):
        return W
    if isinstance(W, InverseStepsize):
        # P − PU(CCᵀ)⁻¹UᵀP, up to the rounding of V
        return LowRankStepsize(W.p, W.p[:, None] * solve_triangular(W.C, W.U.T, lower=True).T, -1.0)
    if isinstance(W, LowRankPlusDiagonal) and not sparse.issparse(W.U):
        return LowRankStepsize(W.shift, W.U, 1.0)
    if isinstance(W, np.ndarray) and W.ndim == 1:
        return DiagonalStepsize(W)
    msg = (
        f"the W of Direction(W) is a {type(W).__name__}, of which nothing can be proved without a dense matrix: use a "
        "vector w for Diag(w), a LowRankPlusDiagonal with a dense U, or the D of another result for such an L"
    )
    raise TypeError(msg)


def metric_of_inverse(condition: LowRankCondition) -> ThinMetric:
    """Return T(D) = DMD for M = 𝒫(L) of a condition: β(Diag(a/β) + UUᵀ), and for β = 0 Diag(a) alone."""
    a, beta, U = condition.high, condition.beta, condition.U
    if beta == 0.0:
        beta, U = 1.0, np.zeros((condition.d, 1))
    # a lies between condition.low and condition.high: β from below is lowered by as much.
    doubt = 2.0 * condition.doubt + 2.0 * float(((a - condition.low) / a).max()) + 8.0 * UNIT
    none = np.zeros(condition.d)
    return ThinMetric(
        a / beta * (1.0 + 4.0 * UNIT), U, (none, beta * (1.0 - doubt), 0.0), (none, beta * (1.0 + doubt), 0.0)
    )


def solve_direction(metric: ThinMetric, W: LowRankStepsize, settings: Settings) -> StructuredAnswer:
    """Find the largest γW; ``metric`` knows T.  Raises ValueError when nothing could be proved."""
    began = time.perf_counter()
    value, z = _largest_eigenpair(metric, W)
    thin = ThinStepsize(W.a, W.V, W.sign)
    above = _bound(metric, thin, z)
    if not value > 0.0:
        raise not_proved()

    def retreated(loss: float) -> StructuredAnswer | None:
        factor = (1.0 - loss) / value
        D = ThinStepsize(factor * W.a, np.sqrt(factor) * W.V, W.sign)
        ends = D.log_det()
        if ends is None or metric.log_det(D, 1.0) is None:
            return None
        # D is γW up to the rounding of its entries, so the bound is one for both.
        upper = max(above, _bound(metric, D, z))
        certificate = Certificate(True, loss, ends.low, upper, len(z))
        descent = metric.log_det(D, 2.0)
        status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
        stats = SolverStats("eigsh", time.perf_counter() - began, 0.0, None)
        lower = ends.low if descent is None else max(ends.low, descent)
        return StructuredAnswer(LowRankStepsize(D.a, D.V, D.sign), certificate, lower, stats, status)

    answer = first_proved(losses(64.0 * UNIT * (W.V.shape[1] + metric.U.shape[1]), _MOST_RETREAT), retreated)
    if answer is None:
        raise not_proved()
    return answer


def _bound(metric: ThinMetric, W: ThinStepsize, z: Vector) -> float:
    """Return log det γW from above for every γ that satisfies the condition; +inf without a proof."""
    ends = W.log_det()
    return np.inf if ends is None else bound_of_multiples(len(z), metric.quotient(W, z), ends.high)


def _largest_eigenpair(metric: ThinMetric, W: LowRankStepsize) -> tuple[float, Vector]:
    """Return λmax of T(W)z = λWz and its vector, in plain floating point; T(W) with the coefficients from above."""
    alpha, beta, _ = metric.high
    own = LowRankPlusDiagonal(metric.U, metric.s)
    diagonal = alpha * W.energies(own)
    small = np.eye(W.V.shape[1]) + W.sign * (W.V.T @ (W.V / W.a[:, None]))
    factor = cho_factor(0.5 * (small + small.T))

    def solve(x: Any) -> Any:
        y = x.ravel() / W.a
        return y - W.sign * (W.V @ cho_solve(factor, W.V.T @ y)) / W.a

    def times(x: Any) -> Any:
        v = x.ravel()
        return diagonal * v + beta * (W @ (own @ (W @ v)))

    make: Any = LinearOperator
    T, inverse = (make(W.shape, matvec=f, dtype=np.float64) for f in (times, solve))
    d = len(W.a)
    if d < 3:  # what eigsh does not take
        values, vectors = np.linalg.eig(np.column_stack([solve(times(row)) for row in np.eye(d)]))
        best = int(np.argmax(values.real))
        return float(values[best].real), np.asarray(vectors[:, best].real)
    try:
        values, vectors = eigsh(T, k=1, M=W, Minv=inverse, which="LA", tol=_TOP_OF_PENCIL, v0=np.ones(d))
    except ArpackNoConvergence as stopped:
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
        if len(values) == 0:
            raise not_proved() from stopped
    return float(values[-1]), np.asarray(vectors[:, -1])


def solve_gaussian(
    L: LowRankPlusDiagonal, law: ScaledPlusTrace, settings: Settings, *, descent: bool
) -> StructuredAnswer:
    """Find the best D of det-CGD1, under the condition or for the descent metric.

    Raises ValueError for an L without the form, or when nothing could be proved.
    """
    began = time.perf_counter()
    c = float(L.shift[0])
    L.require_eigenvectors("the full D of det-CGD1 with the Gaussian sketch")
    gram, d = weighted_gram(L.U, None), L.d
    inner, vectors = np.linalg.eigh(gram.value)
    # Eigenvalues of UUᵀ; the others are zero, those of columns of U that depend on others up to rounding.
    n = min(d, max(1, int(np.count_nonzero(~vanishing(inner, gram)))))
    inner, vectors = np.maximum(inner[-n:], 0.0), vectors[:, -n:]
    counts = np.append(np.ones(n), float(d - n))[: n + (d > n)]
    values, below = (np.append(c + part, c)[: len(counts)] for part in (inner, eigenvalue_bounds(gram)[0][-n:]))
    model = SpectralModel(values, counts, law.a, law.b, descent)
    status, progress = solve_spectral(model, Limits.of(settings, MOST_SPECTRAL_STEPS))
    if progress.best is None:
        raise not_proved()
    point = progress.best.point
    doubt = twice_gamma(coefficient_roundings(law) + 4)
    coefficients = law.a * (1.0 - doubt), law.b * (1.0 - doubt)
    below = below * (1.0 - 2.0 * UNIT)
    if descent:
        upper = spectral_metric_bound(below, counts, *coefficients, point.multiplier)
    else:
        upper = spectral_condition_bound(below, counts, *coefficients, point.delta, point.multiplier)
    metric = ThinMetric.of(L.shift, L.U, np.zeros(d), law.a, law.b, coefficient_roundings(law))
    delta = point.delta[-1] if d > n else float(point.delta.max())
    # Along eigenvectors of UUᵀ δ is smaller, or for small k larger, than elsewhere; of a mixture one part is kept.
    apart = point.delta[:n] - delta
    sign = 1.0 if apart.max() > -apart.min() else -1.0
    mixed = bool((sign * apart).min() < -1e-9 * delta)
    share = np.maximum(sign * apart, 0.0) / np.where(inner > 0.0, inner, np.inf)
    V = L.U @ (vectors * np.sqrt(share))

    def retreated(loss: float) -> StructuredAnswer | None:
        D = ThinStepsize(np.full(d, delta * (1.0 - loss)), V * math.sqrt(1.0 - loss), sign)
        ends, satisfied = D.log_det(), metric.log_det(D, 1.0) is not None
        metric_log = metric.log_det(D, 2.0) if descent or satisfied else None
        lower = metric_log if descent else (ends.low if ends is not None and satisfied else None)
        if lower is None or ends is None:
            return None
        certificate = Certificate(True, loss, lower, upper, d)
        stats = SolverStats("eigenbasis", time.perf_counter() - began, 0.0, progress.steps, progress.statistics)
        proved = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
        best = lower if metric_log is None else max(lower, metric_log)
        stepsize = LowRankStepsize(D.a, D.V, sign)
        end = status if status.is_stopped else proved
        return StructuredAnswer(stepsize, certificate, best, stats, end, satisfied, _MIXED if mixed else "")

    answer = first_proved((0.0,) if descent else losses(64.0 * UNIT * L.rank, _MOST_RETREAT), retreated)
    if answer is None:
        raise not_proved()
    return answer
