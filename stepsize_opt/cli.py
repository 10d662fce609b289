"""The command line ``stepsize-opt``: solve a problem, list the solvers, run the demonstration.

Exit codes: 0 an optimal answer, 1 an answer above the tolerance, 2 a mistake in the input, 3 a solver that cannot
run, 130 interrupted.  Tables go to standard output, progress and errors to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from solvers.base import SolverUnavailable
from solvers.outcome import Status
from solvers.registry import available_solvers
from stepsize_opt import __version__
from stepsize_opt.api import ALGORITHMS, optimal_stepsize
from stepsize_opt.compare import Comparison, compare
from stepsize_opt.files import load_matrix
from stepsize_opt.result import StepsizeResult
from stepsize_opt.sketch_text import parse_sketch
from stepsize_opt.smoothness import read_matrix
from stepsize_opt.structures import BlockDiagonal, Structure

if TYPE_CHECKING:
    from validation.runner import Run

EXIT_OPTIMAL, EXIT_INACCURATE, EXIT_INPUT, EXIT_SOLVER, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

_EXAMPLES = """examples:
  stepsize-opt solve L.npy --sketch randk:8 --output D.npz
  stepsize-opt solve --data breast_cancer --reg 0.1 --sketch randk:25%
  stepsize-opt solve L.mtx --sketch bernq:0.5@10,20 --structure block:10,20 --json
  stepsize-opt compare --data digits --reg 0.01 --sketch randk:4
  stepsize-opt solvers
  stepsize-opt demo

sketches: identity, randk:K, randk:P%, bernq:Q, bernq:Q@SIZES, independent:P, gaussian:K, layers:SIZE=SKETCH;...
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = _parser().parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except SolverUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SOLVER
    except BrokenPipeError:
        # The reader of a pipe went away (``| head``): nothing is wrong.  Keep Python from flushing into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OPTIMAL
    except (ValueError, TypeError, FileNotFoundError, ModuleNotFoundError, IsADirectoryError, PermissionError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_INPUT
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SOLVER


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepsize-opt",
        description="Globally optimal, certified matrix stepsizes for compressed gradient descent.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"stepsize-opt {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    solve = commands.add_parser("solve", help="compute the optimal stepsize for L and a sketch")
    _add_problem(solve)
    solve.add_argument("--algorithm", choices=ALGORITHMS, default=ALGORITHMS[0], help="default: %(default)s")
    solve.add_argument(
        "--structure", default="full", help="full, diagonal, scalar or block:SIZES such as block:10,20 (default: full)"
    )
    solve.add_argument(
        "--output", "-o", type=Path, help="write D and the summary: .npz, .json, or D alone as .npy, .csv"
    )
    solve.set_defaults(run=_solve)

    comparing = commands.add_parser("compare", help="both optima beside the paper's choices of D")
    _add_problem(comparing)
    comparing.set_defaults(run=_compare)

    listing = commands.add_parser("solvers", help="list the solvers and why one cannot run")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=_solvers)

    demo = commands.add_parser("demo", help="solve on embedded data, run det-CGD, compare with the predicted rate")
    demo.add_argument("--data", default="breast_cancer", help="data set (default: %(default)s)")
    demo.add_argument("--reg", type=float, default=0.01, help="regularisation λ (default: %(default)s)")
    demo.add_argument("--sketch", default="randk:25%", help="sketch (default: randk:25%%)")
    demo.add_argument("--iterations", type=_whole, default=2000, help="steps of det-CGD (default: %(default)s)")
    demo.add_argument("--seeds", type=_whole, default=16, help="independent runs (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    demo.set_defaults(run=_demo)
    return parser


def _add_problem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("matrix", nargs="?", type=Path, help="smoothness matrix L: .npy, .npz, .csv or .mtx")
    parser.add_argument("--data", help="take L = AᵀA/(4m) + 2λI of logistic regression on this data set instead")
    parser.add_argument("--reg", type=float, default=0.1, help="λ for --data (default: %(default)s)")
    parser.add_argument("--sketch", required=True, help="for example randk:8, bernq:0.5, independent:0.2")
    parser.add_argument("--solver", default="auto", help="auto, or a name from 'stepsize-opt solvers'")
    parser.add_argument("--tol", type=float, default=1e-6, help="certified gap asked for (default: %(default)s)")
    parser.add_argument("--time-limit", type=float, help="seconds for each solve")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-v", "--verbose", action="store_true", help="print the solver's progress")
    volume.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        msg = f"expected a positive whole number, got {text}"
        raise argparse.ArgumentTypeError(msg)
    return value


def _load_problem(args: argparse.Namespace) -> Any:
    if (args.matrix is None) == (args.data is None):
        msg = "give either a matrix file or --data NAME"
        raise ValueError(msg)
    if args.matrix is not None:
        return read_matrix("L", load_matrix(args.matrix))
    from validation.datasets import load_dataset
    from validation.objectives import LogisticRegression

    return LogisticRegression.from_dataset(load_dataset(args.data), args.reg).smoothness()


def _structure(text: str) -> Structure:
    if not text.startswith("block:"):
        return text
    try:
        sizes = tuple(int(part) for part in text.removeprefix("block:").split(","))
    except ValueError as error:
        msg = f"--structure {text!r}: expected block:SIZES with whole numbers, such as block:10,20"
        raise ValueError(msg) from error
    return BlockDiagonal(sizes)


@contextmanager
def _progress(text: str, quiet: bool) -> Iterator[None]:
    """A spinner with the elapsed time on standard error, when that is a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text)
        yield


def _solve(args: argparse.Namespace) -> int:
    L = _load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    structure = _structure(args.structure)
    if args.output is not None:
        _check_output(args.output)
    with _progress(f"solving d = {sketch.d}", args.quiet or args.verbose):
        result = optimal_stepsize(
            L,
            sketch,
            algorithm=args.algorithm,
            structure=structure,
            solver=args.solver,
            tol=args.tol,
            verbose=args.verbose,
            time_limit=args.time_limit,
        )
    if args.output is not None:
        _write(result, args.output)
    if args.json:
        print(json.dumps(result.summary(), indent=2))
    elif not args.quiet:
        Console().print(_result_table(result))
    return EXIT_OPTIMAL if result.status == Status.OPTIMAL.value else EXIT_INACCURATE


_OUTPUTS = (".npz", ".json", ".npy", ".csv")


def _check_output(path: Path) -> None:
    """Fail before a long solve rather than after it."""
    if path.suffix.lower() not in _OUTPUTS:
        msg = f"--output {path}: expected a name that ends in {', '.join(_OUTPUTS)}"
        raise ValueError(msg)
    if not path.parent.is_dir():
        msg = f"--output {path}: the folder {path.parent} does not exist"
        raise FileNotFoundError(msg)


def _write(result: StepsizeResult, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        result.save(path)
    elif suffix == ".json":
        path.write_text(json.dumps({**result.summary(), "D": result.D.tolist()}, indent=2) + "\n", encoding="utf-8")
    elif suffix == ".npy":
        np.save(path, result.D)
    else:
        # 17 digits bring every float64 back exactly, so the file stays feasible.
        np.savetxt(path, result.D, delimiter=",", fmt="%.17g")


def _result_table(result: StepsizeResult) -> Table:
    table = Table(title="optimal stepsize", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in result.rows():
        table.add_row(name, value)
    return table


def _compare(args: argparse.Namespace) -> int:
    L = _load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    with _progress(f"comparing stepsizes for d = {sketch.d}", args.quiet or args.verbose):
        table = compare(L, sketch, solver=args.solver, tol=args.tol, verbose=args.verbose, time_limit=args.time_limit)
    if args.json:
        print(json.dumps(table.to_records(), indent=2))
    elif not args.quiet:
        Console().print(_comparison_table(table, str(sketch)))
    good = all(row.result.status == Status.OPTIMAL.value for row in table.rows)
    return EXIT_OPTIMAL if good else EXIT_INACCURATE


def _comparison_table(comparison: Comparison, sketch: str) -> Table:
    table = Table(title=f"stepsizes for {sketch}", caption="communication in units of 2Δ⁰/ε²")
    table.add_column("method")
    table.add_column("stepsize")
    for name in ("rate", "iterations", "communication", "gap"):
        table.add_column(name, justify="right")
    for row in comparison.rows:
        table.add_row(
            row.method,
            row.stepsize,
            f"{row.rate:.6g}",
            f"{comparison.relative_iterations(row):.3f}x",
            f"{row.communication:.6g}",
            f"{row.result.gap:.0e}",
            style="bold" if row is comparison.best else None,
        )
    return table


def _solvers(args: argparse.Namespace) -> int:
    entries = available_solvers()
    if args.json:
        print(json.dumps([{"name": e.name, "available": e.available, "reason": e.reason} for e in entries], indent=2))
        return EXIT_OPTIMAL
    table = Table(title="solvers")
    table.add_column("name")
    table.add_column("available")
    table.add_column("why not", overflow="fold")
    for entry in entries:
        table.add_row(entry.name, "yes" if entry.available else "no", entry.reason or "")
    Console().print(table)
    return EXIT_OPTIMAL


def _demo(args: argparse.Namespace) -> int:
    from validation.datasets import load_dataset
    from validation.objectives import LogisticRegression
    from validation.runner import run

    console = Console()
    data = load_dataset(args.data)
    objective = LogisticRegression.from_dataset(data, args.reg)
    sketch = parse_sketch(args.sketch, data.d)
    console.print(
        f"Logistic regression with a non-convex regulariser on [bold]{data.name}[/bold]: "
        f"m = {data.m}, d = {data.d}, λ = {args.reg:g}, sketch {sketch}"
    )
    L = objective.smoothness()
    with _progress("comparing stepsizes", False):
        comparison = compare(L, sketch)
    console.print(_result_table(comparison.rows[0].result))
    console.print(_comparison_table(comparison, str(sketch)))
    table = Table(title=f"predicted and observed mean of ‖∇f‖² (weighted), K = {args.iterations}, {args.seeds} seeds")
    for name in ("method", "stepsize"):
        table.add_column(name)
    for name in ("predicted ≤", "observed", "±", "holds"):
        table.add_column(name, justify="right")
    holds = True
    for row in comparison.rows:
        with _progress(f"running {row.method} with {row.stepsize}", False):
            record = run(
                objective,
                row.result.D,
                sketch,
                algorithm=row.method,
                iterations=args.iterations,
                seeds=args.seeds,
                seed=args.seed,
            )
        verdict = _holds(record)
        holds = holds and verdict
        table.add_row(
            row.method,
            row.stepsize,
            f"{record.predicted:.4e}",
            f"{record.observed:.4e}",
            f"{record.standard_error:.0e}",
            "yes" if verdict else "NO",
        )
    console.print(table)
    return EXIT_OPTIMAL if holds else EXIT_INACCURATE


def _holds(record: Run) -> bool:
    """Whether the observed mean, three standard errors up, is below the bound of Theorem 1."""
    error = record.standard_error
    return bool(record.observed + (0.0 if np.isnan(error) else 3.0 * error) <= record.predicted)


if __name__ == "__main__":
    sys.exit(main())
