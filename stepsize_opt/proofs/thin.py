"""What proofs of large diagonal stepsizes share: the range of their numbers and the proved answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.intervals import Interval
from stepsize_solvers.programs import Matrix, Vector

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
        """Return the answer x with the bound on log det of every feasible stepsize."""
        lower = sum_of_logs(x).low
        return ProvedDiagonal(x, Certificate(True, margin, lower, bound, len(x)), max(lower, descent_log_det))


def in_range(*arrays: Matrix, positive: tuple[Vector, ...] = ()) -> bool:
    """Return whether products of the numbers neither overflow nor, of the positive ones, underflow."""
    inside = all(np.isfinite(A).all() and np.abs(A).max(initial=0.0) < RANGE for A in (*arrays, *positive))
    return inside and all(bool(x.min() > 1.0 / RANGE) for x in positive)


def bound_of_multiples(d: int, quotient: float, log_det: float = 0.0) -> float:
    """Return log det γW from above for γ ≤ 1/quotient, a Rayleigh quotient from below, and log det W from above.

    +inf for a quotient that is not positive.
    """
    return (log_det - d * Interval.exact(quotient).log()).high if quotient > 0.0 else math.inf


def one_rounding(w: Vector) -> Enclosed:
    """Return an enclosure of w that holds x/γ for every number γ, x the floats of γw."""
    return enclosed(w) * 1.0
