"""What belongs to the whole process and not to one thread: the standard streams and the number of BLAS threads.

A context that changes such a thing and puts it back goes wrong when threads overlap: the second to enter takes the
changed state for the original one and leaves it behind for good.  A ``Shared`` context is entered once for all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock, current_thread, main_thread
from typing import Any


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
def _streams_in_the_void() -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as undo:
        void = os.open(os.devnull, os.O_WRONLY)
        undo.callback(os.close, void)
        for stream in (1, 2):
            saved = os.dup(stream)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, stream)
            os.dup2(void, stream)
        # Native code has its own buffer of standard output, which must empty into the void as well.
        undo.callback(ctypes.CDLL(None).fflush, None)
        yield


@contextmanager
def _warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# Send what native code prints to standard output and error into the void, below Python's own streams.
silenced = Shared(_streams_in_the_void)
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
