"""The solvers reached through cvxpy: for each its name, its objective and the options that reach high accuracy.

Every row of :data:`BACKENDS` is data.  Its options aim two orders below the gap asked for, because a solver's own
tolerance speaks of its scaled residuals, not of log det D.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from stepsize_solvers.conic.model import COMPILING, Objective, choose_lift, conic_model
from stepsize_solvers.process import ProcessEnded, call_within, silenced, without_warnings
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

# Up to this size a process takes longer to start than a model to compile or a solver to make a step: at d = 10
# these took at most 0.5 s and 0.2 s on a busy machine, at d = 30 up to 9 s and 25 s.
_QUICK = 10
_COMPILING_OPTIONS = ("ignore_dpp", "enforce_dpp", "canon_backend")
_ALONE = Lock()
NO_POINT = "no point was handed over within the limit"


def _no_licence_needed() -> str | None:
    return None


@dataclass(frozen=True)
class Attempt:
    """How one run of a solver ended; a message tells that there is no point."""

    status: Status
    message: str
    steps: int | None = None
    solve_time: float | None = None
    compile_time: float = 0.0


@dataclass(frozen=True)
class CvxpySolver(Solver):
    """One of cvxpy's conic solvers.

    name: as in ``solver="…"``; cvxpy_name: as cvxpy spells it; module: the import that must exist;
    objective: log det where the solver has an exponential cone, otherwise root det;
    options: (settings, accuracy) → the solver's own keyword arguments; licence: why there is none, or None;
    chatty: the library prints to the process's standard output even when asked to be quiet;
    full_only: usable multipliers come back for full D only;
    unfinished: what it calls the end of a run that did not converge, when its last point is there all the same;
    alone: it keeps its options in the process, so that only one thread at a time may run it;
    watches_clock: it stops at a time limit by itself, between two of its steps.
    """

    name: str
    cvxpy_name: str
    module: str
    package: str
    objective: Objective
    options: OptionMaker
    licence: Callable[[], str | None] = _no_licence_needed
    chatty: bool = False
    full_only: bool = False
    unfinished: tuple[str, ...] = ()
    alone: bool = False
    watches_clock: bool = True

    def unavailable(self) -> str | None:
        if importlib.util.find_spec(self.module) is None:
            return f"not installed: pip install {self.package}"
        return self.licence()

    def unsupported(self, program: Program) -> str | None:
        if self.full_only and not program.pattern.is_full:
            return f"cvxpy returns wrong multipliers of {self.cvxpy_name} unless D is a full matrix"
        return None

    def solve(self, program: Program, settings: Settings) -> Outcome:
        reason = self.unavailable()
        if reason is not None:
            msg = f"{self.name} cannot run: {reason}"
            raise SolverUnavailable(msg)
        # Only another process can be ended while cvxpy compiles or a solver is inside one of its steps.  A solver that
        # watches the clock itself is not worth one while its steps are short.
        if settings.time_limit is None or (program.total_size <= _QUICK and self.watches_clock):
            return _solve(self, program, settings)
        left = settings.seconds_left
        try:
            # A solver that stops by itself at the limit still has to hand its point over.
            grace = max(1.0, 0.1 * left) if self.watches_clock else 0.0
            found = call_within(left + grace, _solve, self, program, settings) if left > 0.0 else None
        except ProcessEnded as error:
            return Outcome(Status.SOLVER_ERROR, None, (), SolverStats(self.name), str(error))
        if found is not None:
            return found
        stats = SolverStats(self.name, solve_time=left - settings.seconds_left)
        return Outcome(Status.USER_LIMIT, None, (), stats, NO_POINT)

    def attempt(self, problem: Any, settings: Settings, accuracy: float, extra: Mapping[str, Any]) -> Attempt:
        """Compile a cvxpy problem and run the solver on it once, within the time that is left."""
        # cvxpy warns that a solution may be inaccurate and that a compilation is slow: the certificate measures the
        # first and the statistics show the second.
        with without_warnings, silenced if self.chatty and not settings.verbose else nullcontext():
            clock: Any = None
            running = False
            try:
                options = dict(extra)
                compiling = {name: options.pop(name) for name in _COMPILING_OPTIONS if name in options}
                with COMPILING:
                    data, chain, inverse = problem.get_problem_data(
                        self.cvxpy_name, verbose=settings.verbose, solver_opts={}, **compiling
                    )
                options = {**self.options(settings, accuracy), **options}
                clock, running = options.get("kktsolver"), True
                solver = copy(chain.solver)  # cvxpy has one for the whole process
                if settings.time_limit is not None or settings.max_iters is not None:
                    # Stopped at a limit, its last point is an answer.
                    solver.STATUS_MAP = {**solver.STATUS_MAP, **dict.fromkeys(self.unfinished, "user_limit")}
                with _ALONE if self.alone else nullcontext():
                    # No start from the last answer of a reused model: the same call gives the same numbers.
                    raw = solver.solve_via_data(data, False, settings.verbose, options, {})
                problem.unpack_results(raw, chain, inverse)
            except Exception as error:  # each solver has its own exception types; all mean that it failed
                if "license" in str(error).lower():
                    msg = f"{self.name} cannot run: {error}"
                    raise SolverUnavailable(msg) from error
                if running and _at_limit(settings, getattr(clock, "steps", None)):
                    return Attempt(Status.USER_LIMIT, NO_POINT)
                return Attempt(Status.SOLVER_ERROR, f"{type(error).__name__}: {error}")
        status = CVXPY_STATUS.get(str(problem.status), Status.SOLVER_ERROR)
        stats = problem.solver_stats
        steps = getattr(clock, "steps", stats.num_iters)
        if status is not Status.OPTIMAL and _at_limit(settings, steps):
            status = Status.USER_LIMIT
        elif status is Status.USER_LIMIT and not extra:
            status = Status.INACCURATE  # the solver's own number of iterations; its options may hold a user's limit
        return Attempt(status, "", steps, stats.solve_time, problem.compilation_time or 0.0)


def _solve(backend: CvxpySolver, program: Program, settings: Settings) -> Outcome:
    """Solve here and now."""
    extra = dict(settings.extra)
    lift = choose_lift(program, extra.pop("lift", "auto"))
    objective = Objective(extra.pop("objective", backend.objective.value))
    # A code that breaks down on the way throws its last point away: asked for less, it returns one to certify.
    finest = max(1e-2 * settings.tol, FINEST_ACCURACY)
    start = time.perf_counter()
    model, reused = conic_model(program, lift, objective)
    setup = time.perf_counter() - start
    start, compiled = time.perf_counter(), 0.0
    for accuracy in (finest, 1e2 * finest, 1e4 * finest):
        attempt = backend.attempt(model.problem, settings, accuracy, extra)
        compiled += attempt.compile_time
        if attempt.status is not Status.SOLVER_ERROR or not attempt.message:
            break
    wall = time.perf_counter() - start
    has_point = not attempt.message and model.X.value is not None
    stopped = attempt.status is Status.USER_LIMIT
    return Outcome(
        status=attempt.status,
        X=np.asarray(model.X.value, dtype=float) if has_point else None,
        duals=model.duals(program) if has_point else (),
        stats=SolverStats(
            solver_name=backend.name,
            solve_time=wall if attempt.solve_time is None else attempt.solve_time,
            setup_time=setup,
            num_iters=attempt.steps,
            extra_stats={
                "lift": lift.value,
                "objective": objective.value,
                "accuracy": accuracy,
                "model_reused": reused,
                "wall_time": wall,
                "compile_time": compiled,
            },
        ),
        message=attempt.message or (NO_POINT if stopped and not has_point else ""),
    )


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


def _cvxopt(settings: Settings, accuracy: float) -> dict[str, Any]:
    return {
        "abstol": accuracy,
        "reltol": accuracy,
        "feastol": accuracy,
        "max_iters": _steps(settings, 200),
        "kktsolver": _Clock(settings.deadline),
    }


class _Clock:
    """cvxpy's robust solver of cvxopt's linear systems, which counts the steps and stops at the deadline."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.steps = -1  # the first system belongs to the starting point

    def __call__(self, *problem: Any) -> Callable[..., Any]:
        from cvxpy.reductions.solvers.kktsolver import setup_ldl_factor

        factor = setup_ldl_factor(*problem)

        def watched(*scaling: Any) -> Any:
            if time.perf_counter() > self.deadline:
                raise ArithmeticError  # which is how cvxopt learns that it cannot go on: it returns its last point
            self.steps += 1
            return factor(*scaling)

        return watched


def _sdpa(settings: Settings, accuracy: float) -> dict[str, Any]:
    return {"epsilonStar": accuracy, "epsilonDash": accuracy, "maxIteration": _steps(settings, 200)}


def _copt(settings: Settings, accuracy: float) -> dict[str, Any]:
    options: dict[str, Any] = {"RelGap": accuracy, "FeasTol": accuracy, "DualTol": accuracy}
    if settings.max_iters is not None:
        options["BarIterLimit"] = settings.max_iters
    if settings.time_limit is not None:
        options["TimeLimit"] = _seconds(settings)
    return options


def _mosek_licence() -> str | None:
    """None when there is a licence file, without importing MOSEK; the solve itself finds out whether it is valid."""
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
    CvxpySolver(
        "cvxopt",
        "CVXOPT",
        "cvxopt",
        "'stepsize-opt[solvers]'",
        Objective.ROOT_DET,
        _cvxopt,
        unfinished=("unknown",),
        alone=True,
    ),
    CvxpySolver(
        "sdpa",
        "SDPA",
        "sdpap",
        "'stepsize-opt[solvers]'",
        Objective.ROOT_DET,
        _sdpa,
        chatty=True,
        unfinished=("noINFO",),
        watches_clock=False,
    ),
    # SCS has exponential cones, but took 3 to 13 times fewer iterations with the root of det (d = 6 to 20).
    CvxpySolver("scs", "SCS", "scs", "scs", Objective.ROOT_DET, _scs),
)
