"""The commands ``reproduce`` and ``table`` of the command line.

Exit codes as in ``cli``: 0 success, 1 a bound that a run violated or an answer above the tolerance, 2 a mistake in the
input.  Tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.inputs import load_matrix, read_matrix
from stepsize_opt.node import CommunicationTable, communication_table
from stepsize_validation.cli.common import check_folder, print_json

_REPRODUCE = """examples:
  stepsize-opt reproduce all                      every experiment, at most an hour on two cores, resumable
  stepsize-opt reproduce a d --datasets a1a,w1a   two experiments on two data sets
  stepsize-opt reproduce all --quick              small sizes on embedded data, about a minute

The data sets are svmlight files in the folder that STEPSIZE_OPT_DATA names.  Results are cached under --output: calling
again with the same settings continues where it stopped and rewrites the report.
"""
_TABLE = """examples:
  stepsize-opt table L.npy -k 2
  stepsize-opt table L.npy --layers 10,20 -k 2,5 --bern 0.5
  stepsize-opt table --data breast_cancer --reg 0.01 --json
"""


def add_parsers(commands: Any) -> None:
    """Register both commands with the subparsers of the command line."""
    formatter = argparse.RawDescriptionHelpFormatter
    again = commands.add_parser(
        "reproduce",
        help="run the paper's experiments with the optimal D beside them and write a report",
        description="Run the paper's experiments with the optimal D beside them and write one HTML report.",
        epilog=_REPRODUCE,
        formatter_class=formatter,
    )
    again.add_argument("experiments", nargs="*", default=["all"], metavar="a|b|c|d|all", help="default: all")
    again.add_argument(
        "--output", "-o", type=Path, default=Path("results/reproduce"), help="folder (default: %(default)s)"
    )
    again.add_argument("--datasets", type=_names, help="names with commas between them (default: those of the paper)")
    again.add_argument("--quick", action="store_true", help="small sizes, embedded data unless --datasets is given")
    again.add_argument("--seeds", type=_positive, help="independent runs of each method")
    again.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    again.add_argument("--workers", type=_positive, default=2, help="processes (default: %(default)s)")
    _add_volume(again)
    again.set_defaults(run=_reproduce)

    table = commands.add_parser(
        "table",
        help="Table 1 of the paper for L: communication of each method, computed and as printed",
        description="Table 1 of the paper for any L and layers, computed by the conditions beside the printed forms.",
        epilog=_TABLE,
        formatter_class=formatter,
    )
    table.add_argument("matrix", nargs="?", type=Path, help="smoothness matrix L: .npy, .npz, .csv or .mtx")
    table.add_argument("--data", help="take L = AᵀA/(4m) + 2λI of logistic regression on this data set instead")
    table.add_argument("--reg", type=float, default=0.1, help="λ for --data (default: %(default)s)")
    table.add_argument("--layers", type=_whole_numbers, help="layer sizes such as 10,20 (default: one layer)")
    table.add_argument("-k", type=_whole_numbers, help="numbers sent by rand-k, one or one for each layer")
    table.add_argument(
        "--bern",
        type=_numbers,
        default=[0.5],
        help="probabilities q of Bern-q, one or one for each layer (default: 0.5)",
    )
    table.add_argument("--tol", type=float, default=1e-6, help="certified gap asked for (default: %(default)s)")
    _add_volume(table)
    table.set_defaults(run=_table)


def _add_volume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def _reproduce(args: argparse.Namespace) -> int:
    from stepsize_validation.experiments import Plan, as_text, reproduce

    if args.quick:
        plan = Plan.quick(args.datasets) if args.datasets else Plan.quick()
    else:
        plan = Plan(datasets=tuple(args.datasets)) if args.datasets else Plan()
    plan = replace(plan, seed=args.seed, seeds=args.seeds or plan.seeds)
    check_folder("--output", args.output)
    silent = args.quiet or args.json
    done = reproduce(args.experiments, args.output, plan, workers=args.workers, say=_nothing if silent else _progress)
    if args.json:
        print_json({"report": str(done.report), **done.tables})
    elif not args.quiet:
        saved = done.tables["savings"]
        print(as_text(saved, list(saved[0])))
        for name, counts in done.tables["verdicts"].items():
            print(f"bounds {name}: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
        print(f"report: {done.report}")
    return 0 if done.all_hold else 1


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _nothing(line: str) -> None:
    """Swallow a line of progress."""


def _table(args: argparse.Namespace) -> int:
    if (args.matrix is None) == (args.data is None):
        msg = "give either a matrix file or --data NAME"
        raise ValueError(msg)
    if args.matrix is not None:
        L = read_matrix("L", load_matrix(args.matrix))
    else:
        from stepsize_opt.problems import LogisticRegression, load_dataset

        L = LogisticRegression.from_dataset(load_dataset(args.data), args.reg).smoothness()
    table = communication_table(L, args.layers, k=_one_or_all(args.k), q=_one_or_all(args.bern), tol=args.tol)
    if args.json:
        print_json(table.to_records())
    elif not args.quiet:
        _print_table(table)
    return 0 if all(row.result.status == "optimal" for row in table.rows) else 1


def _print_table(table: CommunicationTable) -> None:
    from rich.console import Console
    from rich.table import Table

    out = Table(
        title=f"Table 1 for layers {','.join(map(str, table.layers))}, k = {','.join(map(str, table.k))}, "
        f"q = {','.join(f'{q:g}' for q in table.q)}",
        caption="communication in units of 2Δ⁰/ε²",
    )
    for name in ("row", "method", "sketch", "stepsize"):
        out.add_column(name)
    for name in ("computed", "printed"):
        out.add_column(name, justify="right")
    out.add_column("")
    for row in table.rows:
        printed = "" if row.printed is None else f"{row.printed:.6g}"
        number = "*" if row.number is None else str(row.number)
        style = "bold" if row.number is None else None
        cells = (number, row.method, row.sketch, row.stepsize, f"{row.computed:.6g}", printed)
        out.add_row(*cells, "≠" if row.differs else "", style=style)
    console = Console()
    console.print(out)
    for row in table.rows:
        if row.differs:
            console.print(f"≠ row {row.number}: {row.note or 'the printed form is not what the condition gives'}")


def _one_or_all(values: Sequence[Any] | None) -> Any:
    return values[0] if values is not None and len(values) == 1 else values


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names:
        msg = f"expected names with commas between them, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return names


def _positive(text: str) -> int:
    return _whole_numbers(text, count=1)[0]


def _whole_numbers(text: str, count: int | None = None) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1 or (count is not None and len(values) != count):
        what = "a positive whole number" if count == 1 else "positive whole numbers with commas between them"
        msg = f"expected {what}, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return values


def _numbers(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [np.nan]
    if not np.all(np.isfinite(values)):
        msg = f"expected numbers with commas between them, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return values
