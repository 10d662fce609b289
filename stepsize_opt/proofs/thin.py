"""Thin matrices with many rows: their Gram matrices with a bound on rounding, eigenvalues; large diagonal stepsizes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import twice_gamma
from stepsize_solvers.programs import Matrix, Vector

ROWS_AT_ONCE = 2**15
# The bound on the rounding of a sum grows with its terms: √d of them, √d times, is the least for d = 10⁶.
_ROWS_OF_A_SUM = 2**10
# Roundings of an entry √w·u before the sum and of this bound itself.
_ROUNDINGS = 12
# A proof that takes a larger share of x has failed.
FAILURE = 0.01
# Stepsizes and multipliers outside of this range would need bounds on underflow.
RANGE = 2.0**400


def chunks(d: int) -> Iterator[slice]:
    """Yield slices that cover d rows, so few at a time that a product with them needs little memory."""
    for start in range(0, d, ROWS_AT_ONCE):
        yield slice(start, min(d, start + ROWS_AT_ONCE))


def weighted_gram(U: Matrix, weights: Vector | None) -> Enclosed:
    """Return G = UᵀDiag(w)U for weights w ≥ 0 that are right to a few roundings (None: all one).

    Entries of the sum of a chunk are off by at most γ√(g_ii g_jj) (Cauchy and Schwarz), and the chunks are added up.
    """
    G, parts = np.zeros((U.shape[1], U.shape[1])), 0
    for start in range(0, len(U), _ROWS_OF_A_SUM):
        s = slice(start, start + _ROWS_OF_A_SUM)
        scaled = U[s] if weights is None else U[s] * np.sqrt(weights[s])[:, None]
        G += scaled.T @ scaled
        parts += 1
    terms = min(len(U), _ROWS_OF_A_SUM) + parts + _ROUNDINGS
    root = np.sqrt(G.diagonal())
    return Enclosed(G, twice_gamma(terms) * np.multiply.outer(root, root)).symmetric()


def vanishing(values: Vector, gram: Enclosed) -> NDArray[np.bool_]:
    """Return which eigenvalues of a Gram matrix are zero up to rounding: those of columns that depend on others."""
    return np.asarray(values <= 4.0 * float(gram.error.sum(axis=1).max(initial=0.0)))


def eigenvalue_bounds(A: Enclosed) -> tuple[Vector, Vector]:
    """Return bounds on the eigenvalues of every symmetric positive semidefinite matrix in the enclosure, ascending.

    With A = VΛVᵀ + E and VᵀV within ε of I they differ from those of Λ by a factor within 1 ± ε (Ostrowski) and by at
    most ‖E‖ (Weyl).
    """
    values, V = np.linalg.eigh(A.value)
    exact = enclosed(V)
    apart = (exact @ np.diag(values) @ exact.T - A).norm()
    epsilon = (exact.T @ exact).plus_diagonal(-1.0).norm()
    near = enclosed(np.maximum(values, 0.0))
    low = (near * (1.0 - Interval.exact(epsilon)) - apart).low
    return np.maximum(low, 0.0), (near * (1.0 + Interval.exact(epsilon)) + apart).high


# ---------------------------------------------------------------- large diagonal stepsizes


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
