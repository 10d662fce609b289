"""Stepsizes D = Diag(a) ± VVᵀ of det-CGD1 for L = UUᵀ + Diag with a dense U, each with its proof.

*Descent metric* H = 2D − 𝒫(DLD): ``stepsize_solvers.large`` searches among D = Diag(a) − VVᵀ; ``stepsize_opt.proofs``
proves log det H from below, and from above for every D, whatever its form.

*Directions* D = γW for a W that is a diagonal plus low rank: γ = 1/λmax of the pencil (T(W), W) by Lanczos, which
proves nothing.  ``ThinMetric`` proves that a γ just below satisfies the condition; the quotient of one vector proves
that no γ far above does.

*Gaussian sketch* with L = cI + UUᵀ: D = δI ± VVᵀ has the eigenvectors of L, r + 1 numbers.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from stepsize_opt.inputs import binary_exponent, power_of_four
from stepsize_opt.operators.stepsizes import DiagonalStepsize, InverseStepsize, LowRankStepsize
from stepsize_opt.operators.structured import ANSWERS, StructuredAnswer, not_proved
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    LowRankCondition,
    ThinMetric,
    ThinStepsize,
    bound_of_multiples,
    coefficient_roundings,
    eigenvalues_from_below,
    first_proved,
    gamma,
    losses,
    spectral_condition_bound,
    spectral_metric_bound,
    vanishing,
    weighted_gram,
)
from stepsize_opt.smoothness import LowRankPlusDiagonal, NeedsDense
from stepsize_solvers.large import MOST_METRIC_STEPS, MetricModel, Spectral, solve_metric
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Matrix,
    ScaledPlusTrace,
    Settings,
    SolverStats,
    Status,
    Vector,
)

_MOST_RETREAT = 0.5  # the certified gap tells what was lost
_TOP: Any = 1e-9  # relative error of the eigenvalue, far below the tolerance
_MIXED = (
    "the best D is larger than δI along some eigenvectors of L and smaller along others; this D = δI ± VVᵀ has one "
    "sign only, and is proved to be within the gap of the best"
)


def thin_metric(L: LowRankPlusDiagonal, law: DiagonalPlusScaled) -> ThinMetric:
    """What proofs need of L and of a law with 𝒫(M) = Diag(α∘diag M) + βM; raises NeedsDense for a sparse U."""
    if sparse.issparse(L.U):
        msg = f"a D that is not diagonal takes a dense U (U.toarray(), or rank=r of stepsize_opt.smoothness); {ANSWERS}"
        raise NeedsDense(msg)
    return ThinMetric.of(L.shift, L.U, law.alpha, law.beta, 0.0, coefficient_roundings(law))


def solve_descent(
    L: LowRankPlusDiagonal, law: DiagonalPlusScaled, limit: float, settings: Settings
) -> StructuredAnswer:
    """A D = Diag(a) − VVᵀ with a large log det H and its certificate; ``limit`` bounds log det H of every D.

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
    """The best bound of Diag(η) + 2^f ZZᵀ over whole numbers f; f = 0 is H⁻¹, which suits a tighter bound than this."""
    found = metric.bound(eta, Z)
    for factor in (math.sqrt(0.5), math.sqrt(2.0)):
        W, best = Z * factor, found
        while (other := metric.bound(eta, W)) < found:
            found, W = other, W * factor
        if found < best:
            break
    return found


def read_direction(W: Any) -> DiagonalStepsize | LowRankStepsize:
    """W as a diagonal, or as Diag(a) ± VVᵀ, in units in which it is near one: only its direction counts.

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
    """T(D) = DMD for M = 𝒫(L) of a condition: β(Diag(a/β) + UUᵀ), and for β = 0 Diag(a) alone."""
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
    """The largest γW; ``metric`` knows T.  Raises ValueError when nothing could be proved."""
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
        certificate = Certificate(True, loss, ends[0], upper, len(z))
        descent = metric.log_det(D, 2.0)
        status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
        stats = SolverStats("eigsh", time.perf_counter() - began, 0.0, None)
        lower = ends[0] if descent is None else max(ends[0], descent)
        return StructuredAnswer(LowRankStepsize(D.a, D.V, D.sign), certificate, lower, stats, status)

    answer = first_proved(losses(64.0 * UNIT * (W.V.shape[1] + metric.U.shape[1]), _MOST_RETREAT), retreated)
    if answer is None:
        raise not_proved()
    return answer


def _bound(metric: ThinMetric, W: ThinStepsize, z: Vector) -> float:
    """log det γW from above for every γ that satisfies the condition; +inf without a proof."""
    ends = W.log_det()
    return np.inf if ends is None else bound_of_multiples(len(z), metric.quotient(W, z), ends[1])


def _largest_eigenpair(metric: ThinMetric, W: LowRankStepsize) -> tuple[float, Vector]:
    """λmax of T(W)z = λWz and its vector, in plain floating point; T(W) with the coefficients from above."""
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
        values, vectors = eigsh(T, k=1, M=W, Minv=inverse, which="LA", tol=_TOP, v0=np.ones(d))
    except ArpackNoConvergence as stopped:
        values, vectors = stopped.eigenvalues, stopped.eigenvectors
        if len(values) == 0:
            raise not_proved() from stopped
    return float(values[-1]), np.asarray(vectors[:, -1])


def solve_gaussian(
    L: LowRankPlusDiagonal, law: ScaledPlusTrace, settings: Settings, *, descent: bool
) -> StructuredAnswer:
    """The best D of det-CGD1, under the condition or for the descent metric.

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
    values, below = (np.append(c + part, c)[: len(counts)] for part in (inner, eigenvalues_from_below(gram)[-n:]))
    spectral = Spectral(values, counts, law.a, law.b)
    point = spectral.metric() if descent else spectral.condition()
    doubt = gamma(coefficient_roundings(law) + 4)
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
        lower = metric_log if descent else (ends[0] if ends is not None and satisfied else None)
        if lower is None or ends is None:
            return None
        certificate = Certificate(True, loss, lower, upper, d)
        status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
        stats = SolverStats("eigenbasis", time.perf_counter() - began, 0.0, None)
        best = lower if metric_log is None else max(lower, metric_log)
        stepsize = LowRankStepsize(D.a, D.V, sign)
        return StructuredAnswer(stepsize, certificate, best, stats, status, satisfied, _MIXED if mixed else "")

    answer = first_proved((0.0,) if descent else losses(64.0 * UNIT * L.rank, _MOST_RETREAT), retreated)
    if answer is None:
        raise not_proved()
    return answer
