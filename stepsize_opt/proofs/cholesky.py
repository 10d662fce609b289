"""Cholesky as a proof: positive definiteness, log det from below and from above.

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

from stepsize_opt.proofs.arithmetic import Enclosed
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_solvers.programs import Matrix, Vector, add_to_diagonal


def cholesky_shift(A: Enclosed | Matrix) -> Vector:
    """What ``proved_cholesky`` takes off the diagonal: nφ a_jj for its own rounding, row sums for the error."""
    value = A.value if isinstance(A, Enclosed) else A
    n = value.shape[0]
    # The factor 2 covers the rounding of the subtraction and of the row sums themselves.
    shift: Vector = (2.0 * n * gamma(n + 2)) * np.abs(value.diagonal())
    if isinstance(A, Enclosed):
        shift += 2.0 * np.add.reduce(A.error, 1)
    return shift


def proved_cholesky(A: Enclosed | Matrix) -> Matrix | None:
    """A lower triangular factor G with A ⪰ G Gᵀ, or None when that is not proved.

    A is the matrix of the given floats, or every matrix in the enclosure.
    """
    # In the order of columns that LAPACK takes without a copy; the transpose has the same lower triangle.
    shifted = np.array((A.value if isinstance(A, Enclosed) else A).T, order="F")
    add_to_diagonal(shifted, -cholesky_shift(A))
    factor, info = lapack.dpotrf(shifted, 1, 1, 1)  # lower, clean, overwrite_a
    # LAPACK need not stop at NaN or infinity, but a diagonal entry of the factor takes them on.
    return factor if info == 0 and math.isfinite(sum(factor.diagonal().tolist())) else None


def log_det_from_below(A: Enclosed | Matrix) -> float | None:
    """A proved lower bound on log det of the floats or over the enclosure; None when not proved positive definite."""
    factor = proved_cholesky(A)
    return None if factor is None else log_det_from_factor(factor)


def log_det_from_factor(factor: Matrix) -> float:
    """log det GGᵀ from below."""
    logs = np.log(factor.diagonal()).tolist()
    return 2.0 * math.fsum(logs) - log_slack(logs)


def log_det_from_above(A: Matrix) -> float | None:
    """A proved upper bound on log det of the given floats, or None when A is not numerically positive definite.

    Cholesky of the matrix with its diagonal *raised* by nφ a_jj gives RᵀR = A + nφ Diag(a_jj) + ΔA ⪰ A.
    """
    n = A.shape[0]
    raised = A.copy()
    add_to_diagonal(raised, 2.0 * n * gamma(n + 2) * np.abs(A.diagonal()))
    factor, info = lapack.dpotrf(raised, lower=1)
    if info != 0:
        return None
    logs = np.log(factor.diagonal()).tolist()
    return 2.0 * math.fsum(logs) + log_slack(logs)


def log_slack(logs: list[float]) -> float:
    """Rounding of the logarithms (one ulp each) and of their exact sum."""
    return 8.0 * UNIT * (math.fsum(map(abs, logs)) + len(logs))
