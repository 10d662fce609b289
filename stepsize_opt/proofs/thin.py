"""What proofs of large diagonal stepsizes share: sums of logarithms, rows a few at a time, the proved answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepsize_opt.proofs.arithmetic import Enclosed
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_slack
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_solvers.programs import Matrix, Vector

ROWS_AT_ONCE = 2**15
# The bound on the rounding of a sum grows with its terms: √d of them, √d times, is the least for d = 10⁶.
_ROWS_OF_A_SUM = 2**10
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


def weighted_gram(U: Matrix, weights: Vector | None, B: Matrix | None = None) -> Enclosed:
    """UᵀDiag(w)B for weights w ≥ 0 that are right to a few roundings (None: all one); without B UᵀDiag(w)U.

    Entries of the product of a chunk are off by at most γ√(u_ii b_jj), with the diagonals u and b of UᵀDiag(w)U and
    BᵀDiag(w)B, and the chunks are added up.
    """
    other, parts = U if B is None else B, 0
    G = np.zeros((U.shape[1], other.shape[1]))
    rows, columns = np.zeros(U.shape[1]), np.zeros(other.shape[1])
    for start in range(0, len(U), _ROWS_OF_A_SUM):
        s = slice(start, start + _ROWS_OF_A_SUM)
        root = 1.0 if weights is None else np.sqrt(weights[s])[:, None]
        left = U[s] * root
        right = left if B is None else B[s] * root
        G += left.T @ right
        if B is not None:
            rows += np.einsum("ij,ij->j", left, left)
            columns += np.einsum("ij,ij->j", right, right)
        parts += 1
    if B is None:
        rows = columns = G.diagonal()
    terms = min(len(U), _ROWS_OF_A_SUM) + parts + 12
    found = Enclosed(G, gamma(terms) * np.multiply.outer(np.sqrt(rows), np.sqrt(columns)))
    return found.symmetric() if B is None else found


def vanishing(values: Vector, gram: Enclosed) -> NDArray[np.bool_]:
    """Which of the eigenvalues of a Gram matrix are zero up to rounding: those of columns that depend on others."""
    return np.asarray(values <= 4.0 * float(gram.error.sum(axis=1).max(initial=0.0)))


def in_range(*arrays: Matrix) -> bool:
    return all(np.isfinite(A).all() and np.abs(A).max(initial=0.0) < RANGE for A in arrays)


def inverse_from_below(x: Vector) -> Vector:
    return np.asarray((1.0 - 2.0 * UNIT) / x)


def sum_below(*parts: float) -> float:
    return math.fsum(parts) - 4.0 * UNIT * math.fsum(map(abs, parts))


def bound_of_multiples(d: int, quotient: float, log_det: float = 0.0) -> float:
    """log det γW from above for γ ≤ 1/quotient, a Rayleigh quotient from below, and log det W from above.

    +inf for a quotient that is not positive.
    """
    if not quotient > 0.0:
        return math.inf
    term = -d * math.log(quotient)
    return term + log_det + 8.0 * UNIT * (d + abs(term) + abs(log_det))
