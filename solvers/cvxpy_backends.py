"""The solvers reached through cvxpy: for each its name, its objective and the options that reach high accuracy.

Every row of :data:`BACKENDS` is data.  Its options aim two orders below the gap asked for, because a solver's own
tolerance speaks of its scaled residuals, not of log det D.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from solvers.base import Settings, Solver, SolverUnavailable
from solvers.cvxpy_form import ConicModel, Objective, choose_lift, conic_model
from solvers.outcome import Outcome, SolverStats, Status
from solvers.program import BlockPattern, LogDetProgram

MOSEK_LICENCE_HELP = (
    "MOSEK found no licence. Academic and trial licences are free: request one at "
    "https://www.mosek.com/license/request/, save the file as ~/mosek/mosek.lic or point MOSEKLM_LICENSE_FILE at it, "
    "or choose another solver (available_solvers() lists them)"
)

# cvxpy's status → ours.  Only the certificate turns a point into an optimal result.
CVXPY_STATUS: dict[str, Status] = {
    "optimal": Status.OPTIMAL,
    "optimal_inaccurate": Status.INACCURATE,
    "user_limit": Status.USER_LIMIT,
    "infeasible": Status.INFEASIBLE,
    "infeasible_inaccurate": Status.SOLVER_ERROR,
    "unbounded": Status.UNBOUNDED,
    "unbounded_inaccurate": Status.SOLVER_ERROR,
    "infeasible_or_unbounded": Status.SOLVER_ERROR,
    "solver_error": Status.SOLVER_ERROR,
}

# Residuals near 1e-9 are the best that first-order and interior-point codes reach in float64 on these lifts, so a
# Settings.tol below 100 times this changes nothing.
FINEST_ACCURACY = 1e-9

OptionMaker = Callable[[Settings, float], dict[str, Any]]


@dataclass(frozen=True)
class CvxpySolver(Solver):
    """One of cvxpy's conic solvers.

    name: as in ``solver="…"``; cvxpy_name: as cvxpy spells it; module: the import that must exist;
    objective: log det where the solver has an exponential cone, otherwise root det;
    options: (settings, accuracy) → the solver's own keyword arguments; licence: why there is none, or None;
    chatty: the library prints to the process's standard output even when asked to be quiet;
    full_only: usable multipliers come back for full D only.
    """

    name: str
    cvxpy_name: str
    module: str
    package: str
    objective: Objective
    options: OptionMaker
    licence: Callable[[], str | None] = lambda: None
    chatty: bool = False
    full_only: bool = False

    def unavailable(self) -> str | None:
        if importlib.util.find_spec(self.module) is None:
            return f"not installed: pip install {self.package}"
        return self.licence()

    def unsupported(self, program: LogDetProgram) -> str | None:
        if self.full_only and not (isinstance(program.pattern, BlockPattern) and program.pattern.is_full):
            return f"cvxpy returns wrong multipliers of {self.cvxpy_name} unless D is a full matrix"
        return None

    def solve(self, program: LogDetProgram, settings: Settings) -> Outcome:
        reason = self.unavailable()
        if reason is not None:
            msg = f"{self.name} cannot run: {reason}"
            raise SolverUnavailable(msg)
        extra = dict(settings.extra)
        lift = choose_lift(program, extra.pop("lift", "auto"))
        objective = Objective(extra.pop("objective", self.objective.value))
        # A code that breaks down on the way throws its last point away: asked for less, it returns one to certify.
        finest = max(1e-2 * settings.tol, FINEST_ACCURACY)
        start = time.perf_counter()
        model, reused = conic_model(program, lift, objective)
        setup = time.perf_counter() - start
        start, compiled = time.perf_counter(), 0.0
        for accuracy in (finest, 1e2 * finest, 1e4 * finest):
            status, message = self._attempt(model, settings, {**self.options(settings, accuracy), **extra})
            compiled += model.problem.compilation_time or 0.0
            if not message:
                break
        wall = time.perf_counter() - start
        stats = model.problem.solver_stats if not message else None
        has_point = not message and model.D.value is not None
        return Outcome(
            status=status,
            D=np.asarray(model.D.value, dtype=float) if has_point else None,
            duals=model.duals() if has_point else (),
            stats=SolverStats(
                solver_name=self.name,
                solve_time=stats.solve_time if stats is not None and stats.solve_time is not None else wall,
                setup_time=setup,
                num_iters=stats.num_iters if stats is not None else None,
                extra_stats={
                    "lift": lift.value,
                    "objective": objective.value,
                    "accuracy": accuracy,
                    "model_reused": reused,
                    "wall_time": wall,
                    "compile_time": compiled,
                },
            ),
            message=message,
        )

    def _attempt(self, model: ConicModel, settings: Settings, options: dict[str, Any]) -> tuple[Status, str]:
        """One run; a message tells that the solver failed without a point."""
        try:
            with silenced() if self.chatty and not settings.verbose else nullcontext():
                status = model.solve(self.cvxpy_name, settings.verbose, options)
        except Exception as error:  # each solver has its own exception types; all mean that it failed on this problem
            if "license" in str(error).lower():
                msg = f"{self.name} cannot run: {error}"
                raise SolverUnavailable(msg) from error
            return Status.SOLVER_ERROR, f"{type(error).__name__}: {error}"
        return CVXPY_STATUS.get(status, Status.SOLVER_ERROR), ""


@contextmanager
def silenced() -> Iterator[None]:
    """Send what native code prints to standard output and error into the void, below Python's own streams."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    void = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(void, 1)
        os.dup2(void, 2)
        yield
    finally:
        # Native code has its own buffer of standard output, which must empty into the void as well.
        ctypes.CDLL(None).fflush(None)
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (void, *saved):
            os.close(descriptor)


def _scs(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {"eps_abs": accuracy, "eps_rel": accuracy, "max_iters": settings.max_iters or 100_000}
    if settings.time_limit is not None:
        options["time_limit_secs"] = settings.time_limit
    return options


def _clarabel(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "tol_gap_abs": accuracy,
        "tol_gap_rel": accuracy,
        "tol_feas": accuracy,
        "max_iter": settings.max_iters or 200,
        # When it stalls, hand over a point of these residuals instead of an error: the certificate judges it.
        "reduced_tol_gap_abs": 1e-3,
        "reduced_tol_gap_rel": 1e-3,
        "reduced_tol_feas": 1e-3,
        "reduced_tol_ktratio": 1e-2,
        # The matrices of these lifts have dense fronts, where the default multithreaded factorisation only adds noise.
        "max_threads": 1,
    }
    if settings.time_limit is not None:
        options["time_limit"] = settings.time_limit
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
        params["MSK_DPAR_OPTIMIZER_MAX_TIME"] = settings.time_limit
    return {"mosek_params": params, "accept_unknown": True}


def _cvxopt(settings: Settings, accuracy: float) -> dict[str, Any]:
    return {
        "abstol": accuracy,
        "reltol": accuracy,
        "feastol": accuracy,
        "max_iters": settings.max_iters or 200,
        "kktsolver": "robust",
    }


def _sdpa(settings: Settings, accuracy: float) -> dict[str, Any]:
    return {"epsilonStar": accuracy, "epsilonDash": accuracy, "maxIteration": settings.max_iters or 200}


def _copt(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {"RelGap": accuracy, "FeasTol": accuracy, "DualTol": accuracy}
    if settings.max_iters is not None:
        options["BarIterLimit"] = settings.max_iters
    if settings.time_limit is not None:
        options["TimeLimit"] = settings.time_limit
    return options


def _mosek_licence() -> str | None:
    """None when a licence file is in sight, without importing MOSEK; the solve itself finds out whether it is valid."""
    named = os.environ.get("MOSEKLM_LICENSE_FILE")
    if named or (Path.home() / "mosek" / "mosek.lic").exists():
        return None
    return MOSEK_LICENCE_HELP


BACKENDS: tuple[CvxpySolver, ...] = (
    CvxpySolver("clarabel", "CLARABEL", "clarabel", "clarabel", Objective.LOG_DET, _clarabel),
    CvxpySolver("mosek", "MOSEK", "mosek", "'stepsize-opt[mosek]'", Objective.LOG_DET, _mosek, _mosek_licence),
    # COPT 8.0.7 calls the exponential-cone form of these programs unbounded; with the root of det it is right.
    # With diagonal or block patterns its primal point is right, but cvxpy 1.9 hands back multipliers of other cones.
    CvxpySolver(
        "copt", "COPT", "coptpy", "'stepsize-opt[copt]'", Objective.ROOT_DET, _copt, chatty=True, full_only=True
    ),
    CvxpySolver("cvxopt", "CVXOPT", "cvxopt", "'stepsize-opt[solvers]'", Objective.ROOT_DET, _cvxopt),
    CvxpySolver("sdpa", "SDPA", "sdpap", "'stepsize-opt[solvers]'", Objective.ROOT_DET, _sdpa, chatty=True),
    # SCS has exponential cones, but took 3 to 13 times fewer iterations with the root of det (d = 6 to 20).
    CvxpySolver("scs", "SCS", "scs", "scs", Objective.ROOT_DET, _scs),
)
