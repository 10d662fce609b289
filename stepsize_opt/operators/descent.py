"""D = Diag(a) − VVᵀ of det-CGD1 under the descent metric H = 2D − 𝒫(DLD), for L = UUᵀ + Diag with a dense U.

``stepsize_solvers.thin`` searches among D = Diag(a) − VVᵀ; ``stepsize_opt.proofs`` proves log det H from below, and
from above for every D, whatever its form.
"""

from __future__ import annotations

import math
import time

from scipy import sparse

from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.operators.problems import ANSWERS
from stepsize_opt.operators.solve import StructuredAnswer, not_proved
from stepsize_opt.operators.stepsizes import LowRankStepsize
from stepsize_opt.proofs import Certificate, ThinMetric, ThinStepsize, coefficient_roundings
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, Settings, SolverStats, Status, Vector
from stepsize_solvers.thin import MOST_METRIC_STEPS, MetricModel, solve_metric


def thin_metric(L: LowRankPlusDiagonal, law: DiagonalPlusScaled) -> ThinMetric:
    """What proofs need of L and of a law with 𝒫(M) = Diag(α∘diag M) + βM; raises ValueError for a sparse U."""
    if sparse.issparse(L.U):
        msg = f"a D that is not diagonal takes a dense U (U.toarray(), or rank=r of stepsize_opt.smoothness); {ANSWERS}"
        raise ValueError(msg)
    return ThinMetric.of(L.own, L.U, law.alpha, law.beta, 0.0, coefficient_roundings(law))


def solve_descent(
    L: LowRankPlusDiagonal, law: DiagonalPlusScaled, limit: float, settings: Settings
) -> StructuredAnswer:
    """A D = Diag(a) − VVᵀ with a large log det H and its certificate; ``limit`` bounds log det H of every D.

    Raises ValueError for a sparse U, or when nothing could be proved.
    """
    began = time.perf_counter()
    metric = thin_metric(L, law)
    status, progress = solve_metric(
        MetricModel(L.own, L.U, law.alpha, law.beta), Limits.of(settings, MOST_METRIC_STEPS)
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
