"""Parts that the commands share: exit codes, reading a problem, progress, printing."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from stepsize_opt.inputs import STRUCTURE_FORMS, atomic_write, json_text, read_matrix
from stepsize_opt.methods import method_names
from stepsize_opt.planning import check_known_bound
from stepsize_solvers.programs import Matrix, Status
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.values import method, positive, seconds, structure

EXIT_OPTIMAL, EXIT_INACCURATE, EXIT_INPUT, EXIT_SOLVER, EXIT_INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(status: str) -> int:
    """Return the exit code of a result."""
    if status == Status.INTERRUPTED.value:
        return EXIT_INTERRUPTED
    return EXIT_OPTIMAL if status == Status.OPTIMAL.value else EXIT_INACCURATE


class Help(argparse.RawDescriptionHelpFormatter):
    """Fill paragraphs to the width of the terminal, and keep indented lines, the examples.

    The comment of an example that is too wide goes to a line of its own.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        filled = []
        for indented, group in groupby(text.splitlines(), key=lambda line: line[:1] in ("", " ")):
            lines = list(group)
            examples = [part for line in lines for part in _example(line, width)]
            filled += examples if indented else wrap.wrap(" ".join(lines))
        return "\n".join(filled)


def _example(line: str, width: int) -> list[str]:
    """Return the lines of an example: the command, and below it a comment that does not fit behind it."""
    if len(line) <= width:
        return [line]
    command, *comment = re.split(r"(?<=\S) {2,}", line, maxsplit=1)
    if not comment:
        return _continued(command, width)
    return [command, *textwrap.wrap(comment[0], width, initial_indent=" " * 6, subsequent_indent=" " * 6)]


def _continued(command: str, width: int) -> list[str]:
    """Return the lines of a command that is too wide; each begins with an option, which keeps its value."""
    lines = [""]
    for part in re.split(" (?=-)", command):
        if lines[-1] and len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"      {part}")
        else:
            lines[-1] += f" {part}" if lines[-1] else part
    return lines


class Parser(argparse.ArgumentParser):
    """Mistakes are one line, as those found later are; numbers such as -1e-9 are values, not options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Help)
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.I)

    def error(self, message: str) -> NoReturn:
        msg = f"{message.removeprefix('argument ')}; see '{self.prog} --help'"
        raise ValueError(msg)


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


_REG = 0.1


def add_matrix(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name L."""
    parser.add_argument("matrix", nargs="?", type=Path, help="smoothness matrix L: .npy, .npz, .csv or .mtx")
    parser.add_argument("--data", help="take L = AᵀA/(4m) + 2λI of logistic regression on this data set instead")
    parser.add_argument("--reg", type=positive, help=f"λ for --data (default: {_REG})")
    parser.add_argument(
        "--penalty",
        help="regulariser for --data: nonconvex, the paper's (default), or ridge, (λ/2)‖x‖² with L = AᵀA/(4m) + λI",
    )


def add_sketch(parser: argparse.ArgumentParser, **kwargs: Any) -> None:
    """Add ``--sketch``."""
    parser.add_argument("--sketch", help="for example randk:8, bernq:0.5, independent:0.2", **kwargs)


def add_structure(parser: argparse.ArgumentParser, **kwargs: Any) -> None:
    """Add ``--structure``."""
    parser.add_argument("--structure", type=structure, help=STRUCTURE_FORMS, **kwargs)


def add_algorithm(parser: argparse.ArgumentParser, **kwargs: Any) -> None:
    """Add ``--algorithm``, the name of a method in any case."""
    parser.add_argument("--algorithm", type=method, help=", ".join(method_names()), **kwargs)


def check_output(option: str, path: Path, endings: Sequence[str]) -> None:
    """Raise before a long solve rather than after it: OSError or ValueError unless the file can be written."""
    if path.suffix.lower() not in endings:
        msg = f"{option} {path}: expected a name that ends in {', '.join(endings)}"
        raise ValueError(msg)
    if path.is_dir():
        msg = f"{option} {path}: this is a folder; name a file"
        raise IsADirectoryError(msg)
    if not path.parent.is_dir():
        msg = f"{option} {path}: the folder {path.parent} does not exist"
        raise FileNotFoundError(msg)
    _check_writable(option, path, path.resolve().parent)


def check_folder(option: str, path: Path) -> None:
    """Make the folder for results, or raise OSError when it cannot be made or written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"{option} {path}: the folder cannot be made ({error.strerror})"
        raise OSError(msg) from error
    _check_writable(option, path, path)


def _check_writable(option: str, path: Path, folder: Path) -> None:
    """Try it: permissions alone do not tell (read-only file systems, root)."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        msg = f"{option} {path}: the folder {folder} cannot be written to ({error.strerror})"
        raise OSError(msg) from error


@contextmanager
def reported(path: Path, *, quiet: bool = False) -> Iterator[None]:
    """Report on standard error, after a file was written, its name and whether another was replaced."""
    note = "wrote {}, replacing the file that was there" if path.exists() else "wrote {}"
    yield
    if not quiet:
        print(note.format(path), file=sys.stderr)


def write_matrix(D: Matrix, path: Path) -> None:
    """Write D as .npy or as .csv."""
    with atomic_write(path) as file:
        if path.suffix.lower() == ".npy":
            np.save(file, D)
        else:
            np.savetxt(file, D, delimiter=",", fmt="%.17g")  # 17 digits bring every float back: D stays feasible


def add_solver(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the solver."""
    parser.add_argument("--solver", default="auto", help="auto, or a name from 'stepsize-opt doctor'")
    parser.add_argument("--tol", type=positive, default=1e-6, help="certified gap asked for (default: %(default)s)")
    parser.add_argument("--time-limit", type=seconds, help="seconds for building, compiling and solving")


def solving(args: argparse.Namespace) -> dict[str, Any]:
    """Return what ``add_solver`` and ``add_volume`` read, as the library's functions take it."""
    return {"solver": args.solver, "tol": args.tol, "verbose": args.verbose, "time_limit": args.time_limit}


def add_volume(parser: argparse.ArgumentParser, *, verbose: bool = True) -> None:
    """Add --json, and -v or -q."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    volume = parser.add_mutually_exclusive_group()
    if verbose:
        volume.add_argument(
            "-v", "--verbose", action="store_true", help="print the solver's progress on standard error"
        )
    volume.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def load_problem(args: argparse.Namespace) -> Any:
    """Return L from the matrix file or the data set that the arguments name."""
    check_one_source(args)
    if args.matrix is not None:
        return read_matrix("L", load_matrix(args.matrix))
    from stepsize_validation.data import load_dataset, logistic_regression

    objective = logistic_regression(load_dataset(args.data), args.reg, args.penalty)
    if getattr(args, "goal", None) == "linear":
        known = objective.strong_convexity()
        if args.strong_convexity is None and args.penalty == "ridge":
            args.strong_convexity = repr(args.reg)
        check_known_bound(read_strong_convexity(args.strong_convexity), known, objective.d)
    elif getattr(args, "momentum", False) and args.penalty != "ridge":
        msg = "--momentum is proved for convex f, and the paper's penalty is not convex: use --penalty ridge"
        raise ValueError(msg)
    return objective.smoothness()


def add_strong_convexity(parser: argparse.ArgumentParser) -> None:
    """Add --strong-convexity, the M of the goal linear."""
    parser.add_argument(
        "--strong-convexity", help="for --goal linear: a number mu > 0 or a file with M, M below the Hessian"
    )


def read_strong_convexity(text: str | None) -> Any:
    """Read the number or the matrix that ``--strong-convexity`` names."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        if not Path(text).is_file():
            msg = f"--strong-convexity: expected a number or a file with a matrix, got {text!r}"
            raise ValueError(msg) from None
        return load_matrix(Path(text), "strong_convexity")


def check_one_source(args: argparse.Namespace) -> None:
    """Raise ValueError unless the arguments name either a matrix file or a data set; fills in what the latter needs."""
    if (args.matrix is None) == (args.data is None):
        msg = "give either a matrix file or --data NAME"
        raise ValueError(msg)
    for name in ("reg", "penalty"):
        if args.matrix is not None and getattr(args, name) is not None:
            msg = f"--{name} goes with --data: the L of a matrix file is taken as it is"
            raise ValueError(msg)
    args.reg, args.penalty = args.reg or _REG, args.penalty or "nonconvex"


def load_clients(args: argparse.Namespace) -> Any:
    """Return the objective of clients that share the rows of a data set, shuffled, in equal parts."""
    from stepsize_validation.data import federated_logistic, load_dataset, split

    parts = split(load_dataset(args.data), args.clients, np.random.default_rng(args.seed or 0))
    return federated_logistic(parts, args.reg, getattr(args, "penalty", None) or "nonconvex")


def live(*, quiet: bool) -> Console | None:
    """Return standard error, if it is a terminal on which a line can be drawn again."""
    console = Console(stderr=True)
    return None if quiet or not console.is_terminal or console.is_dumb_terminal else console


@contextmanager
def progress(text: str, *, quiet: bool = False, verbose: bool = False) -> Iterator[None]:
    """Show a spinner with the elapsed time on standard error, if that is a terminal, or what the solver prints."""
    console = live(quiet=quiet or verbose)
    if console is None:
        with log_on_stderr(verbose):
            yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task(text)
        yield


@contextmanager
def counting(*, silent: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function to call with how many are done, of how many, and the next: a bar, if on a terminal."""
    console = live(quiet=silent)
    if console is None:
        yield lambda done, total, text: None
        return
    columns = (MofNCompleteColumn(), BarColumn(8), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        line = bar.add_task("starting", total=None)
        # Drawn at once: a row that takes less than the time between two frames is named as well.
        yield lambda done, total, text: bar.update(line, completed=done, total=total, description=text, refresh=True)


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
    """Print JSON, as ``stepsize_opt.inputs.saving.json_text`` writes it."""
    print(json_text(value, indent=2))
