"""A child process that dies by SIGKILL at a chosen moment: when it touches files of a folder for the m-th time.

Python reports every opening and renaming of a file to its audit hooks.  Counting these kills at the same place in every
repetition, in the middle of a write as well as between two, whatever the code that writes looks like.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOUCHES = ("open", "os.rename", "os.remove")


@dataclass(frozen=True)
class Child:
    """A process that was started; ``join`` waits for it and gives its error, or "" when it ended or was killed."""

    pid: int
    report: Path

    def join(self) -> str:
        os.waitpid(self.pid, 0)
        return self.report.read_text(encoding="utf-8") if self.report.exists() else ""


def start(work: Callable[[], Any], folder: Path, dies_at: int | None = None) -> Child:
    """Do ``work`` in a child process, killed when it touches files below ``folder`` for the ``dies_at``-th time."""
    report = folder.with_name(f"{folder.name}-{os.urandom(4).hex()}.error")
    pid = os.fork()
    if pid:
        return Child(pid, report)
    touches = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touches
        if event in _TOUCHES and any(str(folder) + os.sep in str(value) for value in arguments):
            touches += 1
            if touches == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.addaudithook(watch)
        work()
    except Exception as error:
        report.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
    finally:
        os._exit(0)
