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

from validation.bench_records import CRASHED, MEMORY_LIMIT, TIME_LIMIT, BenchRun, BenchSettings, Rung, Task

WORKER = (sys.executable, "-m", "validation.bench_worker")
# Loading the libraries and building the problem takes seconds, on a busy machine some tens of them.
_START_LIMIT = 180.0
# Processor time is limited in the other process; this many times as much may pass on the clock of a busy machine.
_CLOCK_FACTOR = 6.0
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
# What allocators say before they abort: Rust, C++, Python, OpenBLAS and the C library.
_OUT_OF_MEMORY = ("memory allocation of", "bad_alloc", "MemoryError", "tried to allocate", "Cannot allocate memory")


def run_task(task: Task, settings: BenchSettings) -> BenchRun:
    """Run a task in a process of its own; whatever happens to it becomes the status of the run."""
    began = time.perf_counter()
    request = json.dumps({**task.to_dict(), "settings": asdict(settings)})
    environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(settings.threads))}
    # The other process measures this very code, wherever it is started.
    paths = [str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
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
    base, limit = 0.0, _START_LIMIT
    while True:
        try:
            line = lines.get(timeout=limit)
        except queue.Empty:
            return TIME_LIMIT, f"no answer within {limit:g} s of the clock", tuple(rungs), base
        if line is None:
            process.wait()
            return CRASHED, "", tuple(rungs), base
        message: dict[str, Any] = json.loads(line)
        event = message.pop("event")
        if event == "end":
            return message["status"], message["message"], tuple(rungs), base
        if event == "ready":
            base, limit = message["base_mb"], _CLOCK_FACTOR * settings.time_limit
        else:
            rungs.append(Rung(**message))


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)
    stream.close()


def _cause(code: int, complaints: str) -> tuple[str, str]:
    """Why a process ended without a last word."""
    last = next((line.strip() for line in reversed(complaints.splitlines()) if line.strip()), "")
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    if code == -signal.SIGXCPU:
        return TIME_LIMIT, how
    status = MEMORY_LIMIT if any(text in complaints for text in _OUT_OF_MEMORY) else CRASHED
    return status, f"{how}: {last[:200]}" if last else how
