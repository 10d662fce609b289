"""The command line ``stepsize-opt``."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code.

    The commands load numerical libraries, which takes a while, and Python shows where Ctrl-C met it: so they are loaded
    here, under a handler that ends the process at once.
    """
    python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background or in a thread
    if python:
        signal.signal(signal.SIGINT, _interrupted)
    from stepsize_validation.cli.root import main as run

    if python:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run(argv)


def _interrupted(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)
