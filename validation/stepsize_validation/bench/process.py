"""Make the runs of the solver benchmark, each in a process of its own with limits of time and memory."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from stepsize_opt.saving import json_text
from stepsize_solvers import available_solvers
from stepsize_validation.bench.plan import BenchSettings, Plan, Task
from stepsize_validation.bench.results import RESULTS_FILE, Results, open_results, rounded
from stepsize_validation.bench.worker import unavailable_status
from stepsize_validation.origin import environment, origin

WORKER = (sys.executable, "-m", "stepsize_validation.bench.worker")
# Loading the libraries and building the problem takes seconds, on a busy machine some tens of them.
_START_LIMIT = 180.0
# The elapsed time may be so many times the limit of processor time, because the machine may be busy.
_WALL_FACTOR = 6.0
# How often the processor time of the other process is read.  (RLIMIT_CPU would do it without reading, but makes
# Linux count processor time in ticks, too coarse for solves of a millisecond.)
_READ_EVERY = 0.5
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
_PACKAGES = ("numpy", "scipy", "cvxpy", "clarabel", "scs", "mosek")
# What allocators print before they abort: Rust, C++, Python, OpenBLAS and the C library.
_OUT_OF_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "tried to allocate", "Cannot allocate memory")


def run_benchmark(
    plan: Plan,
    folder: Path,
    *,
    resume: bool = True,
    say: Callable[[Task, int, int], None] = lambda task, done, total: None,
) -> Results:
    """Make the runs of the plan that the folder does not have yet, and return all runs that it then has.

    ``say`` gets each task before its run, how many of all tasks are done, and how many there are.  Every run is written
    as it ends, so that a killed benchmark continues.  Raises ValueError when the folder has results of another
    environment or other settings.
    """
    fresh = Results(plan.settings, environment(_PACKAGES), [], origin(f"stepsize-opt bench, {plan}"))
    results = open_results(folder, fresh, resume)
    reasons = {entry.name: entry.reason for entry in available_solvers() if entry.reason is not None}
    finished = {(run["problem"], run["label"]) for run in results.runs}
    tasks = plan.tasks()
    waiting = [task for task in tasks if (task.problem.name, task.label) not in finished]
    with (folder / RESULTS_FILE).open("a", encoding="utf-8") as file:
        for i, task in enumerate(waiting):
            say(task, len(tasks) - len(waiting) + i, len(tasks))
            run = rounded(_not_run(task, results.runs, reasons) or run_task(task, plan.settings))
            results.runs.append(run)
            file.write(json_text(run) + "\n")
            file.flush()
    return results


def _not_run(task: Task, runs: list[dict[str, Any]], reasons: dict[str, str]) -> dict[str, Any] | None:
    """Return the row of a task that need not run: no solver, or a limit hit before the first answer at a smaller d."""
    status = message = ""
    if task.solver in reasons:
        message = reasons[task.solver]
        status = unavailable_status(message)
    for run in runs:
        smaller = run["family"] == task.problem.family == "size" and run["d"] < task.problem.d
        stopped = run["run_status"] in ("time limit", "memory limit") and not run["rungs"]
        if smaller and stopped and run["label"] == task.label:
            status, message = "skipped", f"{run['run_status']} at d={run['d']}"
    if not status:
        return None
    return {**task.row, "run_status": status, "run_message": message, "base_mb": 0.0, "rungs": []}


def run_task(task: Task, settings: BenchSettings) -> dict[str, Any]:
    """Run a task in a process of its own and return its row of the results.

    ``run_status`` is done, time limit, memory limit, crashed, no licence, not installed or unsupported; ``rungs`` has
    what was measured until then, ``base_mb`` the memory of the libraries.
    """
    request = json_text({"task": asdict(task), "settings": asdict(settings)})
    variables = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(settings.threads))}
    # The other process measures this very code: it looks for modules where this one does.
    variables["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
    row: dict[str, Any] = {**task.row, "run_status": "crashed", "run_message": "", "base_mb": 0.0, "rungs": []}
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(
            list(WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
            env=variables,
            # Ctrl-C is for this process, which then ends the other one.
            start_new_session=True,
        )
        try:
            _listen(process, request, settings, row)
        finally:
            process.kill()
            process.wait()
        if row["run_status"] == "crashed":
            complaints.seek(0)
            row |= _cause(process.returncode, complaints.read())
    return row


def _listen(process: subprocess.Popen[str], request: str, settings: BenchSettings, row: dict[str, Any]) -> None:
    """Fill the row from the lines of the process until it ends or exceeds its time."""
    assert process.stdin is not None and process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        process.stdin.write(request)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before it read: the end of its output tells the same
    patience = _Patience(process.pid, _START_LIMIT)
    while True:
        try:
            line = lines.get(timeout=_READ_EVERY)
        except queue.Empty:
            if patience.over:
                message = f"no answer within {patience.limit:g} processor seconds"
                row |= {"run_status": "time limit", "run_message": message}
                return
            continue
        if line is None:
            process.wait()
            return
        values: dict[str, Any] = json.loads(line)
        event = values.pop("event")
        if event == "rung":
            row["rungs"].append(values)
        else:
            row |= values
        if event == "end":
            return
        patience = _Patience(process.pid, settings.time_limit)


class _Patience:
    """Whether a process has computed for ``limit`` seconds since this was made, or kept silent for a multiple of it."""

    def __init__(self, pid: int, limit: float) -> None:
        self.limit = limit
        self._pid = pid
        self._processor, self._wall = _processor_seconds(pid), time.monotonic()

    @property
    def over(self) -> bool:
        if time.monotonic() - self._wall > _WALL_FACTOR * self.limit:
            return True
        return _processor_seconds(self._pid) - self._processor > self.limit


def _processor_seconds(pid: int) -> float:
    """Return user and system time of all threads of a process, to a tick."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    # After the name in parentheses come the fields 3, 4, …; utime and stime are 14 and 15.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
    stream.close()


def _cause(code: int, complaints: str) -> dict[str, str]:
    """Tell why a process ended without a last line."""
    last = next((line.strip() for line in reversed(complaints.splitlines()) if line.strip()), "")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    status = "memory limit" if any(text in complaints for text in _OUT_OF_MEMORY) else "crashed"
    return {"run_status": status, "run_message": f"{how}: {last[:200]}" if last else how}
