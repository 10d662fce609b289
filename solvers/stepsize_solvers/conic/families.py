"""Max-det programs through cvxpy: the reference that the native solver is compared with.

A linear family is (c + eτ) I − Hᵀ𝒬(X)H ⪰ 0 as it stands.  A quadratic one with 𝒬 = identity and B = EEᵀ is the Schur
complement [ (c + eτ) I, HᵀXE ; EᵀXH, I ] ⪰ 0; any other needs one more matrix Y ⪰ XBX.
τ = (det X)^{1/root} e^{−offset/root} is bounded above by a power of the geometric mean of the pivots of X
(:mod:`stepsize_solvers.conic.model`).
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from stepsize_solvers.conic.backends import FINEST_ACCURACY, CvxpySolver
from stepsize_solvers.conic.model import COMPILING, Objective, map_expression, square_root_factor, stepsize_variable
from stepsize_solvers.families import Family, MaxDetOutcome, MaxDetProgram
from stepsize_solvers.programs import Constraint, LogDetProgram, Settings, SolverStats


def solve_with_cvxpy(backend: CvxpySolver, program: MaxDetProgram, settings: Settings) -> MaxDetOutcome:
    """Solve with one of cvxpy's solvers; raises SolverUnavailable when it cannot run, else reports a status."""
    backend.check_available()
    return backend.in_time(_solve, MaxDetOutcome, program, program.d + program.total_size, settings)


def _solve(backend: CvxpySolver, program: MaxDetProgram, settings: Settings) -> MaxDetOutcome:
    """Solve here and now."""
    extra = dict(settings.extra)
    objective = Objective(extra.pop("objective", backend.objective.value))
    begin = time.perf_counter()
    with COMPILING:
        problem, X, lmis = _build(program, objective)
    setup = time.perf_counter() - begin
    begin = time.perf_counter()
    attempt = backend.attempt(problem, settings, max(1e-2 * settings.tol, FINEST_ACCURACY), extra)
    wall = time.perf_counter() - begin
    stats = SolverStats(backend.name, wall, setup, attempt.steps, {"objective": objective.value})
    if attempt.message or X.value is None:
        return MaxDetOutcome(attempt.status, None, (), stats, attempt.message)
    return MaxDetOutcome(attempt.status, np.asarray(X.value, dtype=float), _duals(program, lmis), stats)


def _build(program: MaxDetProgram, objective: Objective) -> tuple[Any, Any, list[list[Any]]]:
    import cvxpy as cp

    # Only the pattern of this program matters to the variable; the constraint is a placeholder that is never used.
    shape = LogDetProgram((Constraint(),), program.pattern)
    X, pivots, constraints = stepsize_variable(shape)
    root_det = cp.geo_mean(pivots)
    tau = None
    if any(family.e for family in program.families):
        # τ = s·g^{d/root} with g the geometric mean of the pivots; d/root is 1 or ½ here.
        power = cp.power(root_det, program.d / program.root) if program.root > program.d else root_det
        tau = cp.Variable(nonneg=True)
        constraints.append(tau <= math.exp(-program.offset / program.root) * power)
    lmis = []
    for family in program.families:
        blocks = _family_blocks(family, X, tau, constraints)
        lmis.append([block >> 0 for block in blocks])
        constraints.extend(lmis[-1])
    goal = root_det if objective is Objective.ROOT_DET else cp.sum(cp.log(pivots))
    return cp.Problem(cp.Maximize(goal), constraints), X, lmis


def _family_blocks(family: Family, X: Any, tau: Any, constraints: list[Any]) -> list[Any]:
    import cvxpy as cp

    r = family.factors.shape[2]
    rhs = family.c * np.eye(r) if not family.e else family.c * np.eye(r) + (family.e * tau) * np.eye(r)
    if family.B is None:
        image = map_expression(family.Q, X)
        return [_symmetric(rhs - H.T @ image @ H) for H in family.factors]
    E = square_root_factor(family.B)
    if family.is_plain:
        d = X.shape[0]
        return [cp.bmat([[rhs, H.T @ X @ E], [(H.T @ X @ E).T, np.eye(d)]]) for H in family.factors]
    d = X.shape[0]
    Y = cp.Variable((d, d), symmetric=True)
    constraints.append(cp.bmat([[Y, X @ E], [(X @ E).T, np.eye(d)]]) >> 0)
    image = map_expression(family.Q, Y)
    return [_symmetric(rhs - H.T @ image @ H) for H in family.factors]


def _symmetric(M: Any) -> Any:
    return 0.5 * (M + M.T)


def _duals(program: MaxDetProgram, lmis: list[list[Any]]) -> tuple[Any, ...]:
    """One stack for each family; zeros where the solver returned no multiplier."""
    out = []
    for family, group in zip(program.families, lmis, strict=True):
        r = family.factors.shape[2]
        Z = np.zeros((len(group), r, r))
        for i, lmi in enumerate(group):
            if lmi.dual_value is not None:
                value = np.asarray(lmi.dual_value, dtype=float)[:r, :r]
                Z[i] = 0.5 * (value + value.T)
        out.append(Z)
    return tuple(out)
