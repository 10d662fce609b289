"""What the commands share: exit codes, reading a problem, writing results, progress, printing."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.planning import check_known_bound
from stepsize_opt.saving import atomic_write, json_text
from stepsize_solvers.programs import Status
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.options import REG
from stepsize_validation.data import federated_logistic, load_dataset, logistic_regression, split

EXIT_OPTIMAL, EXIT_INACCURATE, EXIT_INPUT, EXIT_SOLVER, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
OUTPUTS = (".npz", ".json", ".npy", ".csv")
FIGURES = (".png", ".pdf", ".svg")


def exit_code(status: str) -> int:
    """Return the exit code of a result."""
    if status == Status.INTERRUPTED.value:
        return EXIT_INTERRUPTED
    return EXIT_OPTIMAL if status == Status.OPTIMAL.value else EXIT_INACCURATE


# Reading a problem


def check_source(args: argparse.Namespace, *, files: bool) -> None:
    """Raise ValueError unless the arguments name either files or a data set; fill in what the latter needs."""
    if files == (args.data is not None):
        msg = "give either a matrix file or --data NAME"
        raise ValueError(msg)
    for name in ("reg", "penalty", "clients", "seed"):
        if files and getattr(args, name, None) is not None:
            msg = f"--{name} goes with --data: a matrix file is taken as it is"
            raise ValueError(msg)
    args.reg, args.penalty = args.reg or REG, args.penalty or "nonconvex"


def load_problem(args: argparse.Namespace) -> Any:
    """Return L from the matrix file or the data set that the arguments name."""
    check_source(args, files=args.matrix is not None)
    if args.matrix is not None:
        return read_matrix("L", load_matrix(args.matrix))
    objective = load_objective(args)
    if args.goal == "linear":
        if args.strong_convexity is None and args.penalty == "ridge":
            args.strong_convexity = repr(args.reg)
        check_known_bound(read_strong_convexity(args), objective.strong_convexity(), objective.d)
    elif getattr(args, "momentum", False) and args.penalty != "ridge":
        msg = "--momentum is proved for convex f, and the paper's penalty is not convex: use --penalty ridge"
        raise ValueError(msg)
    return objective.smoothness()


def load_objective(args: argparse.Namespace) -> Any:
    """Return logistic regression on a data set; --clients share its rows, shuffled, in equal parts."""
    data = load_dataset(args.data)
    if getattr(args, "clients", None) is None:
        return logistic_regression(data, args.reg, args.penalty)
    parts = split(data, args.clients, np.random.default_rng(args.seed or 0))
    return federated_logistic(parts, args.reg, args.penalty)


def read_strong_convexity(args: argparse.Namespace) -> Any:
    """Read the number or the matrix that ``--strong-convexity`` names."""
    text = args.strong_convexity
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        if not Path(text).is_file():
            msg = f"--strong-convexity: expected a number or a file with a matrix, got {text!r}"
            raise ValueError(msg) from None
        return load_matrix(Path(text), "strong_convexity")


# Writing results


def check_output(option: str, path: Path | None, endings: Sequence[str]) -> None:
    """Raise before a long solve rather than after it: OSError or ValueError unless the file can be written."""
    if path is None:
        return
    if path.suffix.lower() not in endings or path.is_dir():
        msg = f"{option} {path}: expected the name of a file that ends in {', '.join(endings)}"
        raise ValueError(msg)
    _try_to_write(option, path, path.resolve().parent)


def check_folder(option: str, path: Path) -> None:
    """Make the folder for results; raise OSError when no file can be written there."""
    with suppress(OSError):
        path.mkdir(parents=True, exist_ok=True)
    _try_to_write(option, path, path)


def _try_to_write(option: str, path: Path, folder: Path) -> None:
    """Permissions alone do not tell (read-only file systems, root)."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        msg = f"{option} {path}: no file can be written in {folder} ({error.strerror})"
        raise OSError(msg) from error


@contextmanager
def reported(path: Path, *, quiet: bool = False) -> Iterator[None]:
    """Report on standard error, after a file was written, its name and whether another was replaced."""
    note = "wrote {}, replacing the file that was there" if path.exists() else "wrote {}"
    yield
    if not quiet:
        print(note.format(path), file=sys.stderr)


def finish(args: argparse.Namespace, result: Any, more: dict[str, Any] | None = None) -> int:
    """Write a result to --output, print it, in JSON with ``more``, and return its exit code."""
    if args.output is not None:
        with reported(args.output, quiet=args.quiet):
            _write(result, args.output)
    answer(args, result, lambda: {**result.summary(), **(more or {})})
    return exit_code(result.status)


def _write(result: Any, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        result.save(path)
        return
    with atomic_write(path) as file:
        if suffix == ".json":
            file.write((json_text({**result.summary(), "D": result.D}, indent=2) + "\n").encode())
        elif suffix == ".npy":
            np.save(file, result.D)
        else:
            np.savetxt(file, result.D, delimiter=",", fmt="%.17g")  # 17 digits bring every float back: D stays feasible


# Progress and printing


@contextmanager
def log_on_stderr(wanted: bool) -> Iterator[None]:
    """Send what solvers print, in Python or below it, to standard error; the result alone goes to output."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    output = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)


@contextmanager
def progress(text: str, *, quiet: bool = False, verbose: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """Show a spinner with the elapsed time on standard error, if that is a terminal, or what the solver prints.

    Yields a function to call with how many are done, of how many, and the next.
    """
    console = Console(stderr=True)
    if quiet or verbose or not console.is_terminal or console.is_dumb_terminal:
        with log_on_stderr(verbose):
            yield lambda done, total, text: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task(text)
        # Drawn at once: a row that takes less than the time between two frames is named as well.
        yield lambda done, total, text: bar.update(line, description=f"{done}/{total} {text}", refresh=True)


def answer(args: argparse.Namespace, result: Any, value: Callable[[], Any]) -> None:
    """Print a result in its text form, or its value as JSON, unless the command is to be quiet."""
    if args.json:
        print_json(value())
    elif not args.quiet:
        print(result)


def print_columns(title: str, rows: Sequence[Sequence[str]]) -> None:
    """Print rows of words under a title, each column as wide as its longest word."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip())


def grouped(number: float) -> str:
    """Return a count with a space between groups of three digits; an infinite one as inf."""
    return f"{number:,.0f}".replace(",", " ")


def print_json(value: Any) -> None:
    """Print JSON, as ``stepsize_opt.saving.json_text`` writes it."""
    print(json_text(value, indent=2))
