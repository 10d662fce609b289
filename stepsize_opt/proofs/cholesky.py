"""Cholesky as a proof: positive definiteness, log det from below and from above, a factor that dominates.

If floating-point Cholesky of a matrix A runs to the end, its factor R has ``RᵀR = A + ΔA`` with
``|ΔA_ij| ≤ φ √(a_ii a_jj)``, ``φ = γ_{n+1}/(1 − γ_{n+1})``, ``γ_m = mu/(1 − mu)``, ``u = 2⁻⁵³`` (Rump 2006; Demmel
1989).  Hence ΔA ⪯ nφ Diag(a_jj): lower the diagonal by that much first, and success proves A ⪰ RᵀR ≻ 0 and
``log det A ≥ 2 Σ log R_jj``.

*Perturbations.*  A symmetric E with ``|E| ≤ H`` entrywise satisfies ``E ⪯ Diag(H1)`` (diagonal dominance).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, sum_of_logs
from stepsize_opt.proofs.roundings import twice_gamma
from stepsize_solvers.programs import Matrix, Vector, add_to_diagonal

# Beside entries near one, a number of this size is far below rounding and its square is still far from underflow.
_TINY = 2.0**-400


def cholesky_shift(A: Enclosed | Matrix) -> Vector:
    """Return what ``proved_cholesky`` takes off the diagonal: nφ a_jj for its own rounding, row sums for the error."""
    value, slack = (A.value, A.slack) if isinstance(A, Enclosed) else (A, None)
    # The factor 2 covers the rounding of the subtraction and of the row sums themselves.
    shift = _rounding_of_factor(value.diagonal(), len(value))
    if slack is not None:
        shift += 2.0 * np.add.reduce(np.maximum(slack, slack.T), 1)  # LAPACK reads one triangle alone
    return shift


def _rounding_of_factor(diagonal: Vector, n: int) -> Vector:
    """Return 2nφ a_jj."""
    return np.asarray((2.0 * n * twice_gamma(n + 2)) * np.abs(diagonal))


def proved_cholesky(A: Enclosed | Matrix) -> Matrix | None:
    """Return a lower triangular factor G with A ⪰ G Gᵀ, or None when that is not proved.

    A is the matrix of the given floats, or every matrix in the enclosure.
    """
    # In the order of columns that LAPACK takes without a copy; the transpose has the same lower triangle.
    shifted = np.array((A.value if isinstance(A, Enclosed) else A).T, order="F")
    add_to_diagonal(shifted, -cholesky_shift(A))
    factor, info = lapack.dpotrf(shifted, 1, 1, 1)  # lower, clean, overwrite_a
    # LAPACK need not stop at NaN or infinity, but a diagonal entry of the factor takes them on.
    return factor if info == 0 and math.isfinite(sum(factor.diagonal().tolist())) else None


def is_proved_definite(A: Enclosed | Matrix) -> bool:
    """Return whether A ≻ 0 is proved for the given floats, or over the enclosure."""
    return proved_cholesky(A) is not None


def log_det_from_below(A: Enclosed | Matrix) -> float | None:
    """Return a lower bound on log det of the floats or over the enclosure; None when not proved positive definite."""
    factor = proved_cholesky(A)
    return None if factor is None else (2.0 * sum_of_logs(factor.diagonal())).low


def log_det_from_above(A: Enclosed | Matrix) -> float | None:
    """Return an upper bound on log det of the floats or over the enclosure; None when A is not numerically definite.

    Cholesky of the matrix with its diagonal *raised* as much as ``cholesky_shift`` gives RᵀR ⪰ A.
    """
    raised = (A.value if isinstance(A, Enclosed) else A).copy()
    add_to_diagonal(raised, cholesky_shift(A))
    factor, info = lapack.dpotrf(raised, lower=1)
    return None if info != 0 else (2.0 * sum_of_logs(factor.diagonal())).high


def dominating_factor(L: Matrix) -> Matrix | None:
    """Return H with H Hᵀ ⪰ L, proved, for a positive semidefinite L; None when L is not semidefinite to rounding."""
    diagonal = np.diagonal(L)
    zero = diagonal <= 0.0
    if np.any(diagonal < 0.0) or np.any(L[zero]):
        return None
    out = np.zeros_like(L)
    keep = np.flatnonzero(~zero)
    if keep.size == 0:
        return out
    raised = L[np.ix_(keep, keep)].copy()
    # An entry so small that the scaling lost some of its bits is far below the second term, which no λ_D notices.
    add_to_diagonal(raised, _rounding_of_factor(diagonal[keep], len(L)) + _TINY * float(diagonal.max()))
    factor, info = lapack.dpotrf(raised, lower=1, clean=1)
    if info != 0:
        return None
    out[np.ix_(keep, keep)] = factor
    return out
