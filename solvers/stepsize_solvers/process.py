"""What belongs to the whole process, and calls in another one.

*One state for all threads.*  The standard streams and the number of BLAS threads belong to the process.  A context that
changes such a thing and puts it back goes wrong when threads overlap: the second to enter takes the changed state for
the original one and leaves it behind for good.  A ``Shared`` context is entered once for all.

*Calls that can be ended.*  Native code cannot be stopped from inside.  The other process is a fresh interpreter (a fork
would copy locks that other threads hold) which imports no more than the function needs, in particular not the user's
own program.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Lock, current_thread, main_thread
from typing import Any, TypeVar

T = TypeVar("T")


class Shared:
    """A context for any number of threads: the first to enter opens ``make()``, the last to leave closes it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make = make
        self._lock = Lock()
        self._users = 0
        self._opened = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._users == 0:
                self._opened.enter_context(self._make())
            self._users += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._opened.close()


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


without_warnings = Shared(_warnings_ignored)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C, which a terminal sends to all: this one ends them."""
    if current_thread() is not main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- calls in another process


_ANSWER = "import sys; from stepsize_solvers.process import answer; answer(*sys.argv[1:])"


class ProcessEnded(RuntimeError):
    """The other process ended without an answer, by itself."""


def call_within(seconds: float, function: Callable[..., T], *arguments: object, quiet: bool = False) -> T | None:
    """``function(*arguments)``, or None when the answer is not there after ``seconds``; all must be picklable.

    quiet: what the other process prints is thrown away.  Raises what the function raises, and ProcessEnded when the
    process crashes.
    """
    output = subprocess.DEVNULL if quiet else None
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request"), Path(folder, "answer")
        request.write_bytes(pickle.dumps((function, arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
        try:
            code = subprocess.run(
                [sys.executable, "-c", _ANSWER, str(request), str(answer)],
                timeout=None if seconds == math.inf else max(seconds, 0.0),
                env=environment,
                cwd=folder,  # -c looks there first, and a folder of the user's may be named like a package of ours
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
                # Ctrl-C is for this process, which then ends the other one.
                start_new_session=True,
            ).returncode
        except subprocess.TimeoutExpired:
            return None
        if not answer.exists():
            msg = f"its process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
            raise ProcessEnded(msg)
        value, error = pickle.loads(answer.read_bytes())
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


def answer(request: str, file: str) -> None:
    """In the other process: call the function in ``request``; what it returns or raises goes to ``file``."""
    function, arguments = pickle.loads(Path(request).read_bytes())
    try:
        value, error = function(*arguments), None
    except Exception as raised:  # whatever it is belongs to the caller
        value, error = None, raised
    Path(file).write_bytes(pickle.dumps((value, error)))
