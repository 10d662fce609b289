"""The Gaussian sketch with L = cI + UUᵀ, U dense and thin: D = δI ± VVᵀ has the eigenvectors of L, r + 1 numbers."""

from __future__ import annotations

import math
import time

import numpy as np

from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.operators.solve import StructuredAnswer, not_proved
from stepsize_opt.operators.stepsizes import LowRankStepsize
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    ThinMetric,
    ThinStepsize,
    coefficient_roundings,
    eigenvalues_from_below,
    gamma,
    spectral_condition_bound,
    spectral_metric_bound,
    vanishing,
    weighted_gram,
)
from stepsize_solvers.programs import ScaledPlusTrace, Settings, SolverStats, Status
from stepsize_solvers.thin import Spectral

_MIXED = (
    "the best D is larger than δI along some eigenvectors of L and smaller along others; this D = δI ± VVᵀ has one "
    "sign only, and is proved to be within the gap of the best"
)
_MOST_RETREAT = 0.5  # the certified gap tells what was lost


def solve_gaussian(
    L: LowRankPlusDiagonal, law: ScaledPlusTrace, settings: Settings, *, descent: bool
) -> StructuredAnswer:
    """The best D of det-CGD1, under the condition or for the descent metric.

    Raises ValueError for an L without the form, or when nothing could be proved.
    """
    began = time.perf_counter()
    c = float(L.own[0])
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
    metric = ThinMetric.of(L.own, L.U, np.zeros(d), law.a, law.b, coefficient_roundings(law))
    delta = point.delta[-1] if d > n else float(point.delta.max())
    # Along eigenvectors of UUᵀ δ is smaller, or for small k larger, than elsewhere; of a mixture one part is kept.
    apart = point.delta[:n] - delta
    sign = 1.0 if apart.max() > -apart.min() else -1.0
    mixed = bool((sign * apart).min() < -1e-9 * delta)
    share = np.maximum(sign * apart, 0.0) / np.where(inner > 0.0, inner, np.inf)
    V = L.U @ (vectors * np.sqrt(share))
    retreat = 0.0 if descent else 64.0 * UNIT * L.rank
    while retreat <= _MOST_RETREAT:
        D = ThinStepsize(np.full(d, delta * (1.0 - retreat)), V * math.sqrt(1.0 - retreat), sign)
        ends, satisfied = D.log_det(), metric.log_det(D, 1.0) is not None
        metric_log = metric.log_det(D, 2.0) if descent or satisfied else None
        lower = metric_log if descent else (ends[0] if ends is not None and satisfied else None)
        if lower is not None and ends is not None:
            certificate = Certificate(True, 0.0 if descent else retreat, lower, upper, d)
            status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
            stats = SolverStats("eigenbasis", time.perf_counter() - began, 0.0, None)
            best = lower if metric_log is None else max(lower, metric_log)
            stepsize = LowRankStepsize(D.a, D.V, sign)
            return StructuredAnswer(stepsize, certificate, best, stats, status, satisfied, _MIXED if mixed else "")
        if descent:
            break
        retreat *= 4.0
    raise not_proved()
