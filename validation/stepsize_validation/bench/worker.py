"""The process of one benchmark run: ``python -m stepsize_validation.bench.worker``, a task as JSON on standard input.

It answers with lines of JSON on standard output: ``ready`` once the libraries are loaded and the problem is built,
``rung`` after each solve, ``end`` with the status.  What solvers print goes to standard error.  A solver that takes
this process down loses nothing but the rungs that it did not finish.

A rung has the tolerance ``tol``, the solver's own ``status`` and ``message``, ``seconds`` of processor time of all
threads, elapsed time ``wall`` (of which ``setup`` built the model, ``compile`` is cvxpy's translation and ``solve`` the
rest), and what was proved.  Imports are in none of the times, nor is the certificate; only the problems of clients are
measured as whole calls, certificate included.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.proofs import Evaluation, repair
from stepsize_opt.saving import json_text
from stepsize_solvers import get_solver
from stepsize_solvers.conic.backends import FINEST_ACCURACY
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Outcome,
    Program,
    Settings,
    Solver,
    SolverStats,
    SolverUnavailable,
    Status,
    UnsupportedProgram,
)
from stepsize_validation.bench.plan import NATIVE, BenchSettings, ClientsProblem, NodeProblem, Problem, Task

# A solver that misses a target is asked for so many times more accuracy, at most twice.
_REFINEMENTS = (1.0, 0.1, 0.01)
_MEGABYTE = 2**20


def main() -> None:
    """Run the task on standard input."""
    # Native code prints to descriptor 1 whatever Python does: keep a copy for the answers and send 1 to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: str, **values: Any) -> None:
        print(json_text({"event": event, **values}), file=answers, flush=True)

    request = json.load(sys.stdin)
    task = Task(**{**request["task"], "problem": Problem(**request["task"]["problem"])})
    status, message = "done", ""
    try:
        _run(task, BenchSettings(**request["settings"]), say)
    except MemoryError as error:
        status, message = "memory limit", str(error)
    except SolverUnavailable as error:
        status, message = unavailable_status(str(error)), str(error)
    except UnsupportedProgram as error:
        status, message = "unsupported", str(error)
    say("end", run_status=status, run_message=message)


def unavailable_status(reason: str) -> str:
    """Tell a missing licence from a missing package by a solver's reason."""
    return "no licence" if "licen" in reason.lower() else "not installed"


def _run(task: Task, settings: BenchSettings, say: Callable[..., None]) -> None:
    solver = get_solver(task.solver)
    problem = task.problem.build()
    reason = solver.unsupported(problem.program) if isinstance(problem, NodeProblem) else None
    if reason is not None:
        raise UnsupportedProgram(reason)
    _warm_up(solver)
    limit_memory(settings.memory_mb)
    say("ready", base_mb=peak_megabytes())

    def solve(tol: float) -> float | None:
        if isinstance(problem, NodeProblem):
            options = Settings(tol=tol, extra=task.extra)
            rung = _measure(partial(solver.solve, problem.program, options), settings)
            rung |= judge(problem, rung.pop("answer"), settings.targets[-1])
        else:
            rung = _measure(partial(_call, problem, task, tol), settings)
            rung |= _read(rung.pop("answer"))
        rung["solve"] = max(0.0, rung["wall"] - rung["setup"] - rung["compile"])
        say("rung", tol=tol, **rung, peak_mb=peak_megabytes())
        gap: float | None = rung["gap"]
        return gap

    # Below this tolerance a solver behind cvxpy is given the same options.
    climb(settings.targets, 0.0 if task.solver == NATIVE else 1e2 * FINEST_ACCURACY, solve)


def climb(targets: Sequence[float], finest: float, solve: Callable[[float], float | None]) -> None:
    """Solve with tolerance g, g/10, g/100 for each target g not yet reached; none below ``finest``, none twice.

    ``solve`` takes a tolerance and returns the certified gap, or None when there is none.
    """
    reached = math.inf
    tried: set[float] = set()
    for target in targets:
        for factor in _REFINEMENTS:
            tol = max(target * factor, finest)
            if reached <= target:
                break
            if tol not in tried:
                tried.add(tol)
                gap = solve(tol)
                reached = reached if gap is None else min(reached, gap)


def _warm_up(solver: Solver) -> None:
    """Solve a tiny problem, so that imports and the first initialisation do not count."""
    tiny = Program.single(np.array([[1.0, 0.3], [0.3, 1.0]]), DiagonalPlusScaled(np.array([1.0, 1.0]), 1.0))
    if solver.unsupported(tiny) is None:
        solver.solve(tiny, Settings(tol=1e-3))


def _measure(call: Callable[[], Any], settings: BenchSettings) -> dict[str, Any]:
    """Return the median processor seconds of a call, the elapsed seconds, and what it returned as ``answer``."""
    measured: list[dict[str, Any]] = []
    while len(measured) < settings.repeats and (not measured or measured[-1]["wall"] < settings.repeat_below):
        processor, wall = time.process_time(), time.perf_counter()
        answer = call()
        seconds, wall = time.process_time() - processor, time.perf_counter() - wall
        measured.append({"seconds": seconds, "wall": wall, "answer": answer})
    middle = sorted(measured, key=lambda one: one["seconds"])[(len(measured) - 1) // 2]
    return {**middle, "repeats": len(measured)}


def judge(problem: NodeProblem, outcome: Outcome, tol: float) -> dict[str, Any]:
    """Return what a solver claims of its point, and what is proved after a repair; None for what is not.

    raw_violation: how far outside the point is, as a fraction of D; rate: det(D)^{1/d} of the repaired point; gap: its
    certified gap.  ``tol`` is the gap at which the certificate may
    stop improving.
    """
    violation = rate = gap = None
    X = outcome.X
    if X is not None and np.all(np.isfinite(X)):
        raw = 0.5 * (X + X.T)
        violation = _finite(max(0.0, -Evaluation(problem.program, raw).margin))
        repaired = repair(problem.program, raw)
        if repaired is not None:
            dual = outcome.duals[0][0] if outcome.duals else None
            certificate = repaired.certificate(dual, tol, (raw,)).rescaled(problem.scale)
            rate, gap = math.exp(certificate.log_det / problem.program.d), _finite(certificate.gap)
    extra = outcome.stats.extra_stats
    return {
        **_claims(outcome.status.value, outcome.message, outcome.stats),
        "compile": float(extra.get("compile_time") or 0.0),
        "closed_form": bool(extra.get("closed_form")),
        "raw_violation": violation,
        "rate": rate,
        "gap": gap,
    }


def _call(problem: ClientsProblem, task: Task, tol: float) -> DistributedResult | RuntimeError:
    """Make the whole call, with its repair and certificate: only it knows the programs that it poses to the solver."""
    try:
        return problem.solve(task.solver, tol, task.extra)
    except SolverUnavailable:
        raise
    except RuntimeError as error:
        return error


def _read(result: DistributedResult | RuntimeError) -> dict[str, Any]:
    """Return what ``judge`` does for the result of a whole call."""
    proof = {"closed_form": False, "raw_violation": None}
    if isinstance(result, RuntimeError):
        claims = _claims(Status.SOLVER_ERROR.value, str(result), SolverStats(""))
        return {**claims, **proof, "compile": 0.0, "rate": None, "gap": None}
    compiled = math.fsum(run.get("compile_time") or 0.0 for run in result.solver_stats.extra_stats["runs"])
    claims = _claims(result.status, result.message, result.solver_stats)
    return {**claims, **proof, "compile": compiled, "rate": result.rate, "gap": _finite(result.gap)}


def _claims(status: str, message: str, stats: SolverStats) -> dict[str, Any]:
    if "MemoryError" in message:
        raise MemoryError(message)
    first_line = message.splitlines()[0] if message else ""
    return {"status": status, "message": first_line, "setup": stats.setup_time or 0.0}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def peak_megabytes() -> float:
    """Return the largest resident memory of this process so far."""
    # getrusage would also count what the parent held at the moment it started this process.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024.0


def limit_memory(megabytes: int) -> None:
    """Let the address space grow by so much from here: libraries reserve address space that they never touch."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + megabytes * _MEGABYTE
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
