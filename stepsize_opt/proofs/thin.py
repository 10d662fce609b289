"""What proofs of large diagonal stepsizes share: sums of logarithms, rows a few at a time, the proved answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_slack
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Matrix, Vector

ROWS_AT_ONCE = 2**15
# A proof that takes a larger share of x has failed.
FAILURE = 0.01
# Stepsizes and multipliers outside of this range would need bounds on underflow.
RANGE = 2.0**400


@dataclass(frozen=True, eq=False)
class ProvedDiagonal:
    """x proved feasible, the certificate of Diag(x), and log det of H = 2D − T(D) from below."""

    x: Vector
    certificate: Certificate
    descent_log_det: float

    @staticmethod
    def of(x: Vector, margin: float, bound: float, descent_log_det: float) -> ProvedDiagonal:
        lower = sum_of_logs(x)[0]
        return ProvedDiagonal(x, Certificate(True, margin, lower, bound, len(x)), max(lower, descent_log_det))


def sum_of_logs(x: Vector) -> tuple[float, float]:
    """Σ log x_j from below and from above."""
    logs = np.log(x).tolist()
    total, slack = math.fsum(logs), log_slack(logs)
    return total - slack, total + slack


def chunks(d: int) -> Iterator[slice]:
    """Slices that cover d rows, so few at a time that a product with them needs little memory."""
    for start in range(0, d, ROWS_AT_ONCE):
        yield slice(start, min(d, start + ROWS_AT_ONCE))


def in_range(*arrays: Matrix) -> bool:
    return all(np.isfinite(A).all() and np.abs(A).max(initial=0.0) < RANGE for A in arrays)


def inverse_from_below(x: Vector) -> Vector:
    return np.asarray((1.0 - 2.0 * UNIT) / x)


def log_det_from_factor(factor: Matrix) -> float:
    """log det GGᵀ from below."""
    logs = np.log(factor.diagonal()).tolist()
    return 2.0 * math.fsum(logs) - log_slack(logs)


def sum_below(*parts: float) -> float:
    return math.fsum(parts) - 4.0 * UNIT * math.fsum(map(abs, parts))


def bound_of_multiples(d: int, quotient: float) -> float:
    """d log γ from above for γ ≤ 1/quotient, a Rayleigh quotient from below; +inf for one that is not positive."""
    if not quotient > 0.0:
        return math.inf
    term = -d * math.log(quotient)
    return term + 8.0 * UNIT * (d + abs(term))
