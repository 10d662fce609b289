"""Independent formulations of condition (3), for small sizes: what the product's own forms are compared with."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from stepsize_opt import Sketch

Matrix = NDArray[np.float64]


def khatri_rao_optimum(L: Matrix, sketch: Sketch) -> float:
    """max log det D through one Schur complement of size d + d·R: P∘(DLD) = Σ_r Diag(p_r) D L D Diag(p_r).

    For a diagonal sketch, P = Σ_r p_r p_rᵀ over the eigenvectors of P; a finite law gives Σ_r w_r S_r D L D S_r.
    """
    d = len(L)
    H = np.linalg.cholesky(L)
    if sketch.is_diagonal:
        values, vectors = np.linalg.eigh(sketch.second_moment_matrix)
        factors = [np.diag(np.sqrt(v) * vectors[:, i]) for i, v in enumerate(values) if v > 1e-12 * values[-1]]
    else:
        weights, matrices = sketch.support()
        factors = [np.sqrt(w) * S for w, S in zip(weights, matrices, strict=True) if w > 0]
    D = cp.Variable((d, d), symmetric=True)
    wide = cp.hstack([S @ D @ H for S in factors])
    schur = cp.bmat([[D, wide], [wide.T, np.eye(d * len(factors))]])
    problem = cp.Problem(cp.Maximize(cp.log_det(D)), [schur >> 0])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9)
    return float(problem.value)
