"""The command line ``stepsize-opt``."""

from __future__ import annotations

# Until main runs nothing answers Ctrl-C but Python, with a traceback: nothing is loaded before it, not even typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    The commands load numerical libraries, which takes a while, and Python shows where Ctrl-C met it: so they are loaded
    here, under a handler that ends the process at once.
    """
    try:
        import signal

        python = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background or a thread
        if python:
            signal.signal(signal.SIGINT, _interrupted)
        from stepsize_validation.cli.root import main as run

        if python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run(argv)
    except KeyboardInterrupt:
        _interrupted()


def _interrupted(*_: Any) -> NoReturn:
    import os

    os.write(2, b"interrupted\n")
    os._exit(130)
