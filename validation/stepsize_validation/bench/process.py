"""Starting, limiting and listening to the process of one benchmark run."""

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
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from stepsize_opt.inputs import json_text
from stepsize_validation.bench.records import CRASHED, MEMORY_LIMIT, TIME_LIMIT, BenchRun, BenchSettings, Rung, Task

WORKER = (sys.executable, "-m", "stepsize_validation.bench.worker")
# Loading the libraries and building the problem takes seconds, on a busy machine some tens of them.
_START_LIMIT = 180.0
# This many times the limit of processor time may pass on the clock, because the machine may be busy.
_CLOCK_FACTOR = 6.0
# How often the processor time of the other process is looked at.  (RLIMIT_CPU would do it without looking, but makes
# Linux count processor time in ticks, too coarse for solves of a millisecond.)
_LOOK_EVERY = 0.5
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
# What allocators say before they abort: Rust, C++, Python, OpenBLAS and the C library.
_OUT_OF_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "tried to allocate", "Cannot allocate memory")


def run_task(task: Task, settings: BenchSettings) -> BenchRun:
    """Run a task in a process of its own; whatever happens to it becomes the status of the run."""
    began = time.perf_counter()
    request = json_text({**task.to_dict(), "settings": asdict(settings)})
    environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(settings.threads))}
    # The other process measures this very code: it looks for modules where this one does.
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in sys.path)
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(
            list(WORKER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            encoding="utf-8",
            env=environment,
            # Ctrl-C is for this process, which then ends the other one.
            start_new_session=True,
        )
        try:
            status, message, rungs, base = _listen(process, request, settings)
        finally:
            process.kill()
            process.wait()
        if status == CRASHED:
            complaints.seek(0)
            status, message = _cause(process.returncode, complaints.read())
    return BenchRun(task, status, message, rungs, time.perf_counter() - began, base)


def _listen(
    process: subprocess.Popen[str], request: str, settings: BenchSettings
) -> tuple[str, str, tuple[Rung, ...], float]:
    """Status, message, rungs and memory of the libraries, from the lines of the process."""
    assert process.stdin is not None and process.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        process.stdin.write(request)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died before it read: the end of its output tells the same
    rungs: list[Rung] = []
    base, patience = 0.0, _Patience(process.pid, _START_LIMIT)
    while True:
        try:
            line = lines.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            if patience.over:
                return TIME_LIMIT, f"no answer within {patience.limit:g} processor seconds", tuple(rungs), base
            continue
        if line is None:
            process.wait()
            return CRASHED, "", tuple(rungs), base
        message: dict[str, Any] = json.loads(line)
        event = message.pop("event")
        if event == "end":
            return message["status"], message["message"], tuple(rungs), base
        if event == "ready":
            base = message["base_mb"]
        else:
            rungs.append(Rung(**message))
        patience = _Patience(process.pid, settings.time_limit)


class _Patience:
    """Whether a process has computed for ``limit`` seconds since this was made, or kept silent for a multiple of it."""

    def __init__(self, pid: int, limit: float) -> None:
        self.limit = limit
        self._pid = pid
        self._processor, self._clock = _processor_seconds(pid), time.monotonic()

    @property
    def over(self) -> bool:
        if time.monotonic() - self._clock > _CLOCK_FACTOR * self.limit:
            return True
        return _processor_seconds(self._pid) - self._processor > self.limit


def _processor_seconds(pid: int) -> float:
    """User and system time of all threads of a process, to a tick; 0 where /proc does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    # After the name in parentheses come the fields 3, 4, …; utime and stime are 14 and 15.
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
    stream.close()


def _cause(code: int, complaints: str) -> tuple[str, str]:
    """Why a process ended without a last word."""
    last = next((line.strip() for line in reversed(complaints.splitlines()) if line.strip()), "")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    status = MEMORY_LIMIT if any(text in complaints for text in _OUT_OF_MEMORY) else CRASHED
    return status, f"{how}: {last[:200]}" if last else how
