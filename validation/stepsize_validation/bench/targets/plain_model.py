"""The problem as one writes it in cvxpy, the baseline of the benchmarks.

    maximise log det D   subject to   [Y, DH; HᵀD, I] ⪰ 0,   D − P∘Y ⪰ 0,      L = HHᵀ,

that is DLD ⪯ Y and P∘Y ⪯ D, with cvxpy's own log_det: what its documentation leads to, without the library's scaling,
choice of the objective, or compiled models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepsize_solvers.programs import Matrix


def solve_plain_model(L: Matrix, P: Matrix, solver: str, **options: Any) -> Matrix | None:
    """The D that a solver of cvxpy returns, feasible or not; None without one.  ``options`` are the solver's own."""
    import cvxpy as cp

    d, H = len(L), np.linalg.cholesky(L)
    D, Y = cp.Variable((d, d), symmetric=True), cp.Variable((d, d), symmetric=True)
    lift = cp.bmat([[Y, D @ H], [H.T @ D, np.eye(d)]])
    model = cp.Problem(cp.Maximize(cp.log_det(D)), [lift >> 0, D - cp.multiply(P, Y) >> 0])
    try:
        model.solve(solver=solver, **options)
    except cp.SolverError:  # no answer within its limits
        return None
    return None if D.value is None else np.asarray(D.value, dtype=np.float64)
