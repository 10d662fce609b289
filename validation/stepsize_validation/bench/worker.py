"""The process of one benchmark run: ``python -m stepsize_validation.bench.worker``, a task as JSON on standard input.

It answers with lines of JSON on standard output: ``ready`` once the libraries are loaded and the problem is built,
``rung`` after each solve, ``end`` with the status.  What solvers print goes to standard error.  A solver that takes
this process down loses nothing but the rungs that it did not finish.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np

from stepsize_opt.inputs import json_text
from stepsize_opt.proofs import Evaluation, certify_point, repair
from stepsize_solvers import get_solver
from stepsize_solvers.conic import FINEST_ACCURACY, forget_models
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
from stepsize_validation.bench.problems import ClientsProblem, NodeProblem
from stepsize_validation.bench.records import (
    DONE,
    MEMORY_LIMIT,
    NO_LICENCE,
    NOT_INSTALLED,
    UNSUPPORTED,
    BenchSettings,
    Configuration,
    Rung,
    Task,
)

# A solver that misses a target is asked for so many times more accuracy, at most twice.
_REFINEMENTS = (1.0, 0.1, 0.01)
_MEGABYTE = 2.0**20
Say = Callable[[dict[str, Any]], None]


def main() -> None:
    # Native code prints to descriptor 1 whatever Python does: keep a copy for the answers and send 1 to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        print(json_text(message), file=answers, flush=True)

    request = json.load(sys.stdin)
    task, settings = Task.from_dict(request), BenchSettings(**request["settings"])
    status, message = DONE, ""
    try:
        _run(task, settings, say)
    except MemoryError as error:
        status, message = MEMORY_LIMIT, str(error)
    except SolverUnavailable as error:
        status, message = unavailable_status(str(error)), str(error)
    except UnsupportedProgram as error:
        status, message = UNSUPPORTED, str(error)
    say({"event": "end", "status": status, "message": message})


def unavailable_status(reason: str) -> str:
    """A missing licence or a missing package, from a solver's reason."""
    return NO_LICENCE if "licen" in reason.lower() else NOT_INSTALLED


def _run(task: Task, settings: BenchSettings, say: Say) -> None:
    solver = get_solver(task.configuration.solver)
    problem = task.problem.build()
    reason = solver.unsupported(problem.program) if isinstance(problem, NodeProblem) else None
    if reason is not None:
        raise UnsupportedProgram(reason)
    _warm_up(solver)
    limit_memory(settings.memory_mb)
    say({"event": "ready", "base_mb": peak_megabytes()})

    def call(tol: float) -> Answer:
        if isinstance(problem, NodeProblem):
            return _node(solver, problem, task.configuration, settings, tol)
        return _clients(problem, task.configuration, tol)

    def solve(tol: float) -> float | None:
        rung = _rung(call, settings, tol)
        say({"event": "rung", **asdict(rung)})
        return rung.gap

    climb(settings.targets, _finest_tol(task.configuration), solve)


def climb(targets: Sequence[float], finest: float, solve: Callable[[float], float | None]) -> None:
    """For each target g not yet reached solve with tolerance g, g/10, g/100: none below ``finest``, none twice.

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


def _finest_tol(configuration: Configuration) -> float:
    """The tolerance below which a solver behind cvxpy is given the same options."""
    return 1e2 * FINEST_ACCURACY if configuration.lift else 0.0


def _warm_up(solver: Solver) -> None:
    """Solve a tiny problem: what is imported and initialised on first use does not count."""
    tiny = Program.single(np.array([[1.0, 0.3], [0.3, 1.0]]), DiagonalPlusScaled(np.array([1.0, 1.0]), 1.0))
    if solver.unsupported(tiny) is None:
        solver.solve(tiny, Settings(tol=1e-3))


@dataclass(frozen=True)
class Proof:
    """Raw violation, rate and certified gap as in ``Rung``; None for what there is not."""

    violation: float | None = None
    rate: float | None = None
    gap: float | None = None


@dataclass(frozen=True)
class Answer:
    """What a solve handed back, and the proof, made when asked for."""

    status: str
    message: str
    stats: SolverStats
    prove: Callable[[], Proof]
    compile: float = 0.0
    closed_form: bool = False


class _Measured(NamedTuple):
    """Processor seconds, elapsed seconds and the answer of one solve."""

    seconds: float
    wall: float
    answer: Answer


def _rung(call: Callable[[float], Answer], settings: BenchSettings, tol: float) -> Rung:
    measured: list[_Measured] = []
    while len(measured) < settings.repeats and (not measured or measured[-1].wall < settings.repeat_below):
        # Without this the second solve would find a compiled model, and SCS would start from the first answer.
        forget_models()
        processor, wall = time.process_time(), time.perf_counter()
        answer = call(tol)
        measured.append(_Measured(time.process_time() - processor, time.perf_counter() - wall, answer))
    seconds = median_low([one.seconds for one in measured])
    median = next(one for one in measured if one.seconds == seconds)
    wall, answer = median.wall, median.answer
    if "MemoryError" in answer.message:
        raise MemoryError(answer.message)
    began = time.perf_counter()
    proof = answer.prove()
    setup = answer.stats.setup_time or 0.0
    return Rung(
        tol=tol,
        status=answer.status,
        seconds=seconds,
        wall=wall,
        setup=setup,
        compile=answer.compile,
        solve=max(0.0, wall - setup - answer.compile),
        iterations=answer.stats.num_iters,
        raw_violation=proof.violation,
        rate=proof.rate,
        gap=proof.gap,
        certify=time.perf_counter() - began,
        peak_mb=peak_megabytes(),
        repeats=len(measured),
        closed_form=answer.closed_form,
        message=answer.message.splitlines()[0] if answer.message else "",
    )


def _node(
    solver: Solver, problem: NodeProblem, configuration: Configuration, settings: BenchSettings, tol: float
) -> Answer:
    """The solver alone; its point is repaired and certified afterwards."""
    outcome = solver.solve(problem.program, Settings(tol=tol, extra=configuration.extra))
    extra = outcome.stats.extra_stats
    return Answer(
        status=outcome.status.value,
        message=outcome.message,
        stats=outcome.stats,
        prove=lambda: _proof(problem, outcome, settings.targets[-1]),
        compile=float(extra.get("compile_time") or 0.0),
        closed_form=bool(extra.get("closed_form")),
    )


def _clients(problem: ClientsProblem, configuration: Configuration, tol: float) -> Answer:
    """The whole call, with its repair and certificate: only it knows the programs that it poses to the solver."""
    try:
        result = problem.solve(configuration.solver, tol, **configuration.extra)
    except RuntimeError as error:
        if isinstance(error, SolverUnavailable):
            raise
        return Answer(Status.SOLVER_ERROR.value, str(error), SolverStats(configuration.solver), Proof)
    runs = result.solver_stats.extra_stats["runs"]
    proof = Proof(rate=result.rate, gap=result.gap if math.isfinite(result.gap) else None)
    compiled = math.fsum(run.get("compile_time") or 0.0 for run in runs)
    return Answer(result.status, result.message, result.solver_stats, lambda: proof, compiled)


def _proof(problem: NodeProblem, outcome: Outcome, tol: float) -> Proof:
    if outcome.X is None or not np.all(np.isfinite(outcome.X)):
        return Proof()
    raw = 0.5 * (outcome.X + outcome.X.T)
    margin = Evaluation(problem.program, raw).margin
    violation = max(0.0, -margin) if math.isfinite(margin) else None
    repaired = repair(problem.program, raw)
    if repaired is None:
        return Proof(violation)
    dual = outcome.duals[0][0] if outcome.duals else None
    certificate = certify_point(repaired, dual, (raw,), tol).rescaled(problem.scale)
    gap = certificate.gap if math.isfinite(certificate.gap) else None
    return Proof(violation, math.exp(certificate.log_det / problem.program.d), gap)


def peak_megabytes() -> float:
    """Largest resident memory of this process so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        # getrusage would also count what the parent held at the moment it started this process.
        for line in status.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM"):
                return float(line.split()[1]) / 1024.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (_MEGABYTE if sys.platform == "darwin" else 1024.0)


def limit_memory(megabytes: int) -> None:
    """Let the address space grow by so much from here; libraries reserve address space that they never touch."""
    import resource

    statm = Path("/proc/self/statm")
    held = int(statm.read_text(encoding="ascii").split()[0]) * resource.getpagesize() if statm.is_file() else 0
    limit = held + int(megabytes * _MEGABYTE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard == resource.RLIM_INFINITY or limit <= hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    main()
