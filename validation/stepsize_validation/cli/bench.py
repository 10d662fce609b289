"""The command ``bench``: solvers compared at equal certified gap.

Exit codes as in ``cli``: 0 the benchmark was made (a solver that fails is a row of it) or the stored ratios hold, 1 a
stored ratio does not hold, 2 a mistake in the input, 130 interrupted.  Tables go to standard output, progress to
standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from stepsize_solvers import get_solver
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    check_folder,
    counting,
    print_json,
)
from stepsize_validation.cli.values import names, seconds, whole, wholes
from stepsize_validation.terminal import show

if TYPE_CHECKING:
    from stepsize_validation.bench import Results, Task

_EXAMPLES = """examples:
  stepsize-opt bench                                   everything, at most 30 minutes on two cores
  stepsize-opt bench --quick                           small sizes, a few minutes
  stepsize-opt bench --solvers native,clarabel --sizes 10,20,40 --output mine
  stepsize-opt bench --check                           does the stored benchmark hold on this machine?

Results are written after every run: after Ctrl-C the same command continues where it stopped, and runs of earlier
calls stay in the report.  Real data beyond the embedded sets is taken from the folder that STEPSIZE_OPT_DATA names.
"""


def add_parsers(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="compare the solvers at equal certified gap; --check compares with the stored run",
        description="Compare solvers, formulations and sizes at equal certified gap, each run in its own process.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="rerun a small part of a stored benchmark, compare ratios")
    parser.add_argument("--stored", type=Path, help="results.json for --check (default: the one of the documentation)")
    parser.add_argument("--quick", action="store_true", help="small sizes, default formulations, no real data")
    parser.add_argument(
        "--output", "-o", type=Path, default=Path("results/bench"), help="folder for results (default: %(default)s)"
    )
    parser.add_argument(
        "--solvers",
        type=names,
        default=(),
        help="names with commas between them (default: all)",
    )
    parser.add_argument("--sizes", type=wholes, help="d of the scaling problems, such as 10,20,40")
    parser.add_argument("--time-limit", type=seconds, help="processor seconds for one solve with its certificate")
    parser.add_argument("--memory-limit", type=whole, help="megabytes for one run beyond its libraries")
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the finished runs of --output, or start over",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    return _check(args) if args.check else _run(args)


def _run(args: argparse.Namespace) -> int:
    from stepsize_validation.bench import Plan, run_benchmark, write_report
    from stepsize_validation.experiments import pyplot

    if args.stored is not None:
        msg = "--stored goes with --check"
        raise ValueError(msg)
    plan = Plan.quick() if args.quick else Plan()
    plan = replace(plan, solvers=tuple(name.lower() for name in args.solvers))
    for name in plan.solvers:
        get_solver(name)  # raises for one that cannot run here: a name that was asked for is not left out
    if args.sizes is not None:
        plan = plan.with_sizes(args.sizes)
    limits = {"time_limit": args.time_limit, "memory_mb": args.memory_limit}
    given = {name: value for name, value in limits.items() if value is not None}
    plan = replace(plan, settings=replace(plan.settings, **given))
    check_folder("--output", args.output)
    pyplot()  # a missing matplotlib is found before the runs rather than after them
    try:
        with _progress(args) as say:
            results = run_benchmark(plan, args.output, resume=args.resume, say=say)
    except KeyboardInterrupt:
        print(f"finished runs are kept in {args.output}; the same command continues", file=sys.stderr)
        raise
    written = write_report(results, args.output)
    if args.json:
        print_json({**_as_json(results), "files": [str(path) for path in written]})
    elif not args.quiet:
        _show(results)
        print(f"written to {args.output}: {', '.join(path.name for path in written)}", file=sys.stderr)
    return EXIT_OPTIMAL


def _as_json(results: Results) -> dict[str, Any]:
    from stepsize_validation.bench import summary

    return {
        "environment": results.environment,
        "summary": summary(results),
        "runs": [run.to_dict() for run in results.runs],
    }


def _show(results: Results) -> None:
    from stepsize_validation.bench import all_tables, summary

    show(*(table.rich() for table in all_tables(results)))
    for sentence in summary(results):
        show(escape(f"• {sentence}"))


def _check(args: argparse.Namespace) -> int:
    from stepsize_validation.bench import STORED, Results, check, check_table

    path = args.stored or STORED
    if args.stored is None and not path.is_file():
        msg = "no stored benchmark beside this installation; name its results.json with --stored"
        raise FileNotFoundError(msg)
    stored = Results.load(path)
    with _progress(args) as say:
        rows = check(stored, say)
    holds = all(row.holds for row in rows)
    if args.json:
        records = [
            {"solver": row.label, "stored": row.stored, "now": row.now, "holds": row.holds, "verdict": row.verdict}
            for row in rows
        ]
        print_json({"holds": holds, "ratios": records})
    elif not args.quiet:
        show(check_table(rows, stored).rich())
        print("the stored ratios hold on this machine" if holds else "the stored ratios do not hold on this machine")
    return EXIT_OPTIMAL if holds else EXIT_INACCURATE


@contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Callable[[Task, int, int], None]]:
    """Something to call before each run."""
    with counting(silent=args.quiet or args.json) as bar:
        # The name of the solver without its formulation, so that the line fits 80 columns.
        yield lambda task, done, total: bar(done, total, f"{task.configuration.solver}, {task.problem.name}")
