"""The solvers reached through cvxpy: three with tolerances of their own, and any other that has a PSD cone.

The options of ``BACKENDS`` aim two orders below the gap asked for, because a solver's own tolerance speaks of its
scaled residuals, not of log det D.  Any other solver runs as cvxpy sets it up, in the form without exponential cones,
in a process of its own: what it prints, keeps or crashes stays there.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_solvers.conic.model import COMPILING, Objective, choose_lift, conic_model
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.process import ProcessEnded, call_within, without_warnings
from stepsize_solvers.programs import (
    Outcome,
    Program,
    Settings,
    Solver,
    SolverStats,
    SolverUnavailable,
    Status,
)

MOSEK_LICENCE_HELP = (
    "MOSEK found no licence. Academic and trial licences are free: request one at "
    "https://www.mosek.com/license/request/, save the file as ~/mosek/mosek.lic or point MOSEKLM_LICENSE_FILE at it, "
    "or choose another solver (available_solvers() lists them)"
)

# cvxpy's status → ours, any other one is an error.  Only the certificate turns a point into an optimal result.
CVXPY_STATUS: dict[str, Status] = {
    "optimal": Status.OPTIMAL,
    "optimal_inaccurate": Status.INACCURATE,
    "user_limit": Status.USER_LIMIT,
    "infeasible": Status.INFEASIBLE,
    "unbounded": Status.UNBOUNDED,
}

# Residuals near 1e-9 are the best that first-order and interior-point codes reach in float64 on these lifts, so a
# Settings.tol below 100 times this changes nothing.
FINEST_ACCURACY = 1e-9

OptionMaker = Callable[[Settings, float], dict[str, Any]]

NO_POINT = "no point was handed over within the limit"


@dataclass(frozen=True)
class CvxpySolver(Solver):
    """One of cvxpy's conic solvers.

    name: as in ``solver="…"``; cvxpy_name: as cvxpy spells it; module: the import that must exist, and the name of
    its package; objective: log det where the solver has an exponential cone, otherwise root det;
    options: (settings, accuracy) → the solver's own keyword arguments, None for a solver that is run as cvxpy sets it
    up; licence: tells why there is none, or None.
    """

    name: str
    cvxpy_name: str
    module: str
    objective: Objective
    options: OptionMaker | None = None
    licence: Callable[[], str | None] | None = None

    def unavailable(self) -> str | None:
        if importlib.util.find_spec(self.module) is None:
            return f"not installed: pip install {self.module}"
        return None if self.licence is None else self.licence()

    def unsupported(self, program: Program) -> str | None:
        return None

    def check(self, settings: Settings) -> None:
        """Raise ValueError for settings that this solver does not take."""
        if self.options is None and settings.max_iters is not None:
            msg = (
                f"max_iters is not passed to {self.name}, whose name for it is not known here; give it by that name, "
                "options={…}, or set a time_limit"
            )
            raise ValueError(msg)

    def solve(self, program: Program, settings: Settings) -> Outcome:
        self.check(settings)
        reason = self.unavailable()
        if reason is not None:
            msg = f"{self.name} cannot run: {reason}"
            raise SolverUnavailable(msg)
        # Only another process can be ended while cvxpy compiles or a solver is inside one of its steps.  A solver that
        # watches the clock itself is not worth one while its steps are short.
        watches = self.options is not None
        if watches and (settings.time_limit is None or program.total_size <= Sizes.WITHOUT_PROCESS):
            return _solve(self, program, settings)
        left, found = settings.seconds_left, None
        # A solver that stops by itself at the limit still has to hand its point over.
        grace = max(1.0, 0.1 * left) if watches else 0.0
        if left > 0.0:
            try:
                quiet = not (watches or settings.verbose)
                found = call_within(left + grace, _solve, self, program, settings, quiet=quiet)
            except ProcessEnded as error:
                return Outcome(Status.SOLVER_ERROR, None, (), SolverStats(self.name), str(error))
        if found is not None:
            return found
        stats = SolverStats(self.name, solve_time=left - settings.seconds_left)
        return Outcome(Status.USER_LIMIT, None, (), stats, NO_POINT)


def _solve(backend: CvxpySolver, program: Program, settings: Settings) -> Outcome:
    """Solve here and now."""
    extra, start = dict(settings.extra), time.perf_counter()
    lift = choose_lift(program, extra.pop("lift", "auto"))
    objective = Objective(extra.pop("objective", backend.objective.value))
    model = conic_model(program, lift, objective)
    built = time.perf_counter()
    own = {"lift": lift.value, "objective": objective.value}
    # cvxpy warns that a solution may be inaccurate and that a compilation is slow: the certificate measures the first
    # and the statistics show the second.
    with without_warnings:
        try:
            with COMPILING:
                compiled = model.problem.get_problem_data(backend.cvxpy_name, verbose=settings.verbose, solver_opts={})
        except Exception as error:
            stats = SolverStats(backend.name, setup_time=built - start, extra_stats=own)
            return Outcome(Status.SOLVER_ERROR, None, (), stats, _failure(backend, error))
        status, message, used = _run(backend, model.problem, compiled, settings, extra)
    wall, stats = time.perf_counter() - built, model.problem.solver_stats
    has_point = not message and model.X.value is not None
    return Outcome(
        status=status,
        X=np.asarray(model.X.value, dtype=float) if has_point else None,
        duals=model.duals(program) if has_point else (),
        stats=SolverStats(
            solver_name=backend.name,
            solve_time=wall if stats is None or stats.solve_time is None else stats.solve_time,
            setup_time=built - start,
            num_iters=None if stats is None else stats.num_iters,
            extra_stats={**own, **used, "wall_time": wall, "compile_time": model.problem.compilation_time or 0.0},
        ),
        message=message or (NO_POINT if status is Status.USER_LIMIT and not has_point else ""),
    )


def _run(
    backend: CvxpySolver, problem: Any, compiled: Any, settings: Settings, extra: Mapping[str, Any]
) -> tuple[Status, str, dict[str, Any]]:
    """Run the solver; return its status, why there is no point, and the accuracy that it was asked for.

    A code that breaks down on the way throws its last point away: asked for less, it returns one to certify.
    """
    data, chain, inverse = compiled
    finest = max(1e-2 * settings.tol, FINEST_ACCURACY)
    message, used = "", {}
    for accuracy in (finest, 1e2 * finest, 1e4 * finest) if backend.options is not None else (finest,):
        options = dict(extra)
        if backend.options is not None:
            options, used = {**backend.options(settings, accuracy), **extra}, {"accuracy": accuracy}
        try:
            # cvxpy has one solver for the whole process.
            raw = copy(chain.solver).solve_via_data(data, False, settings.verbose, options, {})
            problem.unpack_results(raw, chain, inverse)
        except Exception as error:  # each solver has its own exception types; all mean that it failed
            if extra and isinstance(error, TypeError | ValueError):
                msg = f"options={dict(extra)} cannot be passed to {backend.name}: {error}"
                raise ValueError(msg) from error
            message = _failure(backend, error)
            if _at_limit(settings, None):
                return Status.USER_LIMIT, NO_POINT, used
            continue
        status = CVXPY_STATUS.get(str(problem.status), Status.SOLVER_ERROR)
        if status is not Status.OPTIMAL and _at_limit(settings, problem.solver_stats.num_iters):
            return Status.USER_LIMIT, "", used
        if status is Status.USER_LIMIT and not extra:
            status = Status.INACCURATE  # the solver's own number of iterations; its options may hold a user's limit
        return status, "", used
    return Status.SOLVER_ERROR, message, used


def _failure(backend: CvxpySolver, error: Exception) -> str:
    """What an exception of a solver tells; raises SolverUnavailable where it is about a licence."""
    if "license" in str(error).lower():
        msg = f"{backend.name} cannot run: {error}"
        raise SolverUnavailable(msg) from error
    return f"{type(error).__name__}: {error}"


def _at_limit(settings: Settings, steps: int | None) -> bool:
    """Whether a limit ended a solve that did not succeed; a solver that does not count its steps is believed."""
    if settings.seconds_left <= 0.0:
        return True
    return settings.max_iters is not None and (steps is None or steps >= settings.max_iters)


def _steps(settings: Settings, default: int) -> int:
    return default if settings.max_iters is None else settings.max_iters


def _seconds(settings: Settings) -> float:
    """The time left for a solver; 0 or less would mean no limit to some."""
    return max(settings.seconds_left, 1e-3)


def _scs(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {"eps_abs": accuracy, "eps_rel": accuracy, "max_iters": _steps(settings, 100_000)}
    if settings.time_limit is not None:
        options["time_limit_secs"] = _seconds(settings)
    return options


def _clarabel(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "tol_gap_abs": accuracy,
        "tol_gap_rel": accuracy,
        "tol_feas": accuracy,
        "max_iter": _steps(settings, 200),
        # When it stalls, hand over a point of these residuals instead of an error: the certificate judges it.
        "reduced_tol_gap_abs": 1e-3,
        "reduced_tol_gap_rel": 1e-3,
        "reduced_tol_feas": 1e-3,
        "reduced_tol_ktratio": 1e-2,
        # The matrices of these lifts have dense fronts, where the default multithreaded factorisation only adds noise.
        "max_threads": 1,
    }
    if settings.time_limit is not None:
        options["time_limit"] = _seconds(settings)
    return options


def _mosek(settings: Settings, accuracy: float) -> dict[str, Any]:
    params: dict[str, Any] = {
        "MSK_DPAR_INTPNT_CO_TOL_REL_GAP": accuracy,
        "MSK_DPAR_INTPNT_CO_TOL_PFEAS": accuracy,
        "MSK_DPAR_INTPNT_CO_TOL_DFEAS": accuracy,
    }
    if settings.max_iters is not None:
        params["MSK_IPAR_INTPNT_MAX_ITERATIONS"] = settings.max_iters
    if settings.time_limit is not None:
        params["MSK_DPAR_OPTIMIZER_MAX_TIME"] = _seconds(settings)
    return {"mosek_params": params, "accept_unknown": True}


def _mosek_licence() -> str | None:
    """None when there is a licence file, without importing MOSEK; the solve itself finds out whether it is valid."""
    named = os.environ.get("MOSEKLM_LICENSE_FILE")
    if named or (Path.home() / "mosek" / "mosek.lic").exists():
        return None
    return MOSEK_LICENCE_HELP


BACKENDS: tuple[CvxpySolver, ...] = (
    CvxpySolver("clarabel", "CLARABEL", "clarabel", Objective.LOG_DET, _clarabel),
    CvxpySolver("mosek", "MOSEK", "mosek", Objective.LOG_DET, _mosek, _mosek_licence),
    # SCS has exponential cones, but took 3 to 13 times fewer iterations with the root of det (d = 6 to 20).
    CvxpySolver("scs", "SCS", "scs", Objective.ROOT_DET, _scs),
)


def other_solver(name: str) -> CvxpySolver:
    """The solver with a cone of positive semidefinite matrices that cvxpy knows by this name, in any case.

    Raises ValueError for any other name, SolverUnavailable for a solver that is not installed.
    """
    from cvxpy.reductions.solvers.defines import SOLVER_MAP_CONIC, SOLVER_MAP_QP

    key, own = name.upper(), [backend.cvxpy_name for backend in BACKENDS]
    fitting = [k for k, solver in SOLVER_MAP_CONIC.items() if _has_matrix_cone(solver)]
    if key not in fitting:
        known = key in SOLVER_MAP_CONIC or key in SOLVER_MAP_QP
        why = "has no cone of positive semidefinite matrices" if known else "is unknown"
        others = ", ".join(k.lower() for k in fitting if k not in own)
        msg = (
            f"solver {name!r} {why}; choose 'auto' or one of native, {', '.join(own).lower()}, or a solver of cvxpy's "
            f"with such a cone: {others}"
        )
        raise ValueError(msg)
    if not SOLVER_MAP_CONIC[key].is_installed():
        msg = f"solver {name!r} cannot run: cvxpy does not find its package; install it"
        raise SolverUnavailable(msg)
    return CvxpySolver(name.lower(), key, "cvxpy", Objective.ROOT_DET)


def _has_matrix_cone(solver: Any) -> bool:
    """Whether a solver of cvxpy's takes the cone, which some take in a form of their own (SvecPSD)."""
    return any("PSD" in cone.__name__ for cone in solver.SUPPORTED_CONSTRAINTS)
