"""The command line ``stepsize-opt``.

Exit codes: 0 an optimal answer, 1 an answer above the tolerance or a check that failed, 2 a mistake in the input, 3 a
solver that cannot run, 130 interrupted.  Results go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from stepsize_opt import __version__
from stepsize_solvers.programs import SolverUnavailable, UnsupportedProgram
from stepsize_validation.cli import demo, distributed, doctor, plan, solve, studies
from stepsize_validation.cli.common import EXIT_INPUT, EXIT_INTERRUPTED, EXIT_OPTIMAL, EXIT_SOLVER
from stepsize_validation.cli.options import Parser, with_option_names

_EXAMPLES = """examples:
  stepsize-opt demo
  stepsize-opt solve L.npy --sketch randk:8 --output D.npz
  stepsize-opt compare --data digits --reg 0.01 --sketch randk:4
  stepsize-opt doctor
"""


def parser() -> argparse.ArgumentParser:
    """Return the whole command line."""
    root = Parser(
        prog="stepsize-opt",
        description="Globally optimal, certified matrix stepsizes for compressed gradient descent.",
        epilog=_EXAMPLES,
    )
    root.add_argument("--version", action="version", version=f"stepsize-opt {__version__}")
    commands = root.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (solve, distributed, plan, studies, demo, doctor):
        command.add_parsers(commands)
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    _prepare_streams()
    try:
        try:
            args = parser().parse_args(argv)
            code = int(args.run(args))
        finally:
            sys.stdout.flush()  # --help leaves by SystemExit
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (``| head``): nothing is wrong.  Keep Python from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OPTIMAL
    except SolverUnavailable as error:
        return _complain(error, EXIT_SOLVER)
    except MemoryError as error:
        return _complain(f"not enough memory: {str(error) or 'an allocation failed'}", EXIT_INPUT)
    except (ValueError, TypeError, OSError, OverflowError, ModuleNotFoundError, UnsupportedProgram) as error:
        return _complain(error, EXIT_INPUT)
    except RuntimeError as error:
        return _complain(error, EXIT_SOLVER)
    return code


def _prepare_streams() -> None:
    """Let a closed stream (``>&-``) take what is written; letters that an encoding lacks become \\u2212."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)  # libraries in C write to the number
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif isinstance(stream, io.TextIOWrapper) and number:
            stream.reconfigure(errors="backslashreplace")


def _complain(error: Exception | str, code: int) -> int:
    words = with_option_names(str(error)).split()  # one line, whatever a library's message holds
    print("error:", *words, file=sys.stderr)
    return code
