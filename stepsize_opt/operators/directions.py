"""D = γW for a W that is a diagonal plus low rank: the largest γ with γT(W) ⪯ W, proved from both sides.

γ = 1/λmax of the pencil (T(W), W) by Lanczos, which proves nothing.  That a γ just below satisfies the condition is
proved by ``ThinMetric``; that no γ far above does, by the quotient of one vector.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from stepsize_opt.inputs import binary_exponent, power_of_four
from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.operators.solve import StructuredAnswer, not_proved
from stepsize_opt.operators.stepsizes import DiagonalStepsize, InverseStepsize, LowRankStepsize
from stepsize_opt.proofs import UNIT, Certificate, LowRankCondition, ThinMetric, ThinStepsize, bound_of_multiples
from stepsize_solvers.programs import Settings, SolverStats, Status, Vector

_MOST_RETREAT = 0.5  # the certified gap tells what was lost
_TOP: Any = 1e-9  # relative error of the eigenvalue, far below the tolerance


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
        return LowRankStepsize(W.own, W.U, 1.0)
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
    retreat = 64.0 * UNIT * (W.V.shape[1] + metric.U.shape[1])
    while value > 0.0 and retreat <= _MOST_RETREAT:
        factor = (1.0 - retreat) / value
        D = ThinStepsize(factor * W.a, np.sqrt(factor) * W.V, W.sign)
        ends = D.log_det()
        if ends is not None and metric.log_det(D, 1.0) is not None:
            # D is γW up to the rounding of its entries, so the bound is one for both.
            upper = max(above, _bound(metric, D, z))
            certificate = Certificate(True, retreat, ends[0], upper, len(z))
            descent = metric.log_det(D, 2.0)
            status = Status.OPTIMAL if certificate.is_optimal(settings.tol) else Status.INACCURATE
            stats = SolverStats("eigsh", time.perf_counter() - began, 0.0, None)
            lower = ends[0] if descent is None else max(ends[0], descent)
            return StructuredAnswer(LowRankStepsize(D.a, D.V, D.sign), certificate, lower, stats, status)
        retreat *= 4.0
    raise not_proved()


def _bound(metric: ThinMetric, W: ThinStepsize, z: Vector) -> float:
    """log det γW from above for every γ that satisfies the condition; +inf without a proof."""
    ends = W.log_det()
    return np.inf if ends is None else bound_of_multiples(len(z), metric.quotient(W, z), ends[1])


def _largest_eigenpair(metric: ThinMetric, W: LowRankStepsize) -> tuple[float, Vector]:
    """λmax of T(W)z = λWz and its vector, in plain floating point; T(W) with the coefficients from above."""
    alpha, beta, _ = metric.high
    own = LowRankPlusDiagonal(metric.U, metric.s)
    energies = W.energies(own)
    assert energies is not None  # U is dense
    diagonal = alpha * energies
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
