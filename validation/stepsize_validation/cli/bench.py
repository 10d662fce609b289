"""The command ``bench``: solvers compared at equal certified gap.

Exit codes as in ``cli``: 0 the benchmark was made (a solver that fails is a row of it), 2 a mistake in the input, 130
interrupted.  Tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepsize_solvers import get_solver
from stepsize_validation.cli.common import EXIT_OPTIMAL, check_folder, counting
from stepsize_validation.cli.values import names, seconds, whole, wholes

if TYPE_CHECKING:
    from stepsize_validation.bench import Plan, Results

_EXAMPLES = """examples:
  stepsize-opt bench                                   everything, at most 30 minutes on two cores
  stepsize-opt bench --quick                           small sizes, a few minutes
  stepsize-opt bench --solvers native,clarabel --sizes 10,20,40 --output mine
  stepsize-opt bench --report --output mine            tables and figures again, without a run

Results are written after every run: after Ctrl-C the same command continues where it stopped, and runs of earlier
calls stay in the tables.  Real data beyond the embedded sets is taken from the folder that STEPSIZE_OPT_DATA names.
"""


def add_parsers(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "bench",
        help="compare the solvers at equal certified gap",
        description="Compare the solvers at equal certified gap, each run in a process of its own.",
        epilog=_EXAMPLES,
    )
    folder = Path("results/bench")
    parser.add_argument("--quick", action="store_true", help="small sizes, no real data")
    parser.add_argument("--report", action="store_true", help="tables and figures of --output again, without a run")
    parser.add_argument("--output", "-o", type=Path, default=folder, help="folder for results (default: %(default)s)")
    parser.add_argument("--solvers", type=names, default=(), help="names with commas between them (default: all)")
    parser.add_argument("--sizes", type=wholes, help="d of the scaling problems, such as 10,20,40")
    parser.add_argument("--time-limit", type=seconds, help="processor seconds for one solve with its certificate")
    parser.add_argument("--memory-limit", type=whole, help="megabytes for one run beyond its libraries")
    parser.add_argument("--no-resume", action="store_true", help="drop the finished runs of --output and start over")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    from stepsize_validation.bench import Results, all_tables, draw_all, settings_text, summary

    # Found before the runs rather than after them.
    missing = [name for name in ("matplotlib", "pandas") if find_spec(name) is None]
    if missing:
        msg = f"bench needs {', '.join(missing)}: pip install 'stepsize-opt[reports]'"
        raise ModuleNotFoundError(msg)
    results = Results.read(args.output) if args.report else _run(args)
    written = draw_all(results, args.output)
    if not args.quiet:
        for table in all_tables(results):
            print(f"{table.title}\n\n{table.text}\n\n{table.frame.to_string()}\n")
        print(*summary(results), settings_text(results), sep="\n\n")
        print(f"written to {args.output}: {', '.join(written)}", file=sys.stderr)
    return EXIT_OPTIMAL


def _run(args: argparse.Namespace) -> Results:
    from stepsize_validation.bench import run_benchmark

    plan = _plan(args)
    check_folder("--output", args.output)
    try:
        with counting(silent=args.quiet) as bar:
            return run_benchmark(
                plan,
                args.output,
                resume=not args.no_resume,
                say=lambda task, done, total: bar(done, total, f"{task.solver}, {task.problem.name}"),
            )
    except KeyboardInterrupt:
        print(f"finished runs are kept in {args.output}; the same command continues", file=sys.stderr)
        raise


def _plan(args: argparse.Namespace) -> Plan:
    from stepsize_validation.bench import Plan

    plan = Plan.quick() if args.quick else Plan()
    plan = replace(plan, solvers=tuple(name.lower() for name in args.solvers))
    for name in plan.solvers:
        get_solver(name)  # raises for one that cannot run here: a name that was asked for is not left out
    if args.sizes is not None:
        plan = plan.with_sizes(args.sizes)
    limits = {"time_limit": args.time_limit, "memory_mb": args.memory_limit}
    given = {name: value for name, value in limits.items() if value is not None}
    return replace(plan, settings=replace(plan.settings, **given))
