"""The command ``reproduce`` of the command line.

Exit codes as in ``cli``: 0 success, 1 a bound that a run violated or an answer above the tolerance, 2 a mistake in the
input.  Tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepsize_validation.cli.common import check_folder
from stepsize_validation.cli.values import names, seed, whole

_REPRODUCE = """examples:
  stepsize-opt reproduce all                      every experiment, at most an hour on two cores, resumable
  stepsize-opt reproduce a d --datasets a1a,w1a   two experiments on two data sets
  stepsize-opt reproduce all --quick              small sizes on embedded data, about a minute

The data sets are svmlight files in the folder that STEPSIZE_OPT_DATA names.  The result of each job is kept under
--output: the same command continues where it stopped and writes the tables again.
"""


def add_parsers(commands: Any) -> None:
    """Register the command with the subparsers of the command line."""
    again = commands.add_parser(
        "reproduce",
        help="run the paper's experiments with the optimal D",
        description="Run the paper's experiments with the optimal D added; write tables (CSV) and figures (PNG).",
        epilog=_REPRODUCE,
    )
    known = "a, b, c, d, e, f, sensitivity or all (default)"
    again.add_argument("experiments", nargs="*", default=["all"], metavar="EXPERIMENT", help=known)
    again.add_argument(
        "--output", "-o", type=Path, default=Path("results/reproduce"), help="folder (default: %(default)s)"
    )
    again.add_argument("--datasets", type=names, help="names with commas between them (default: those of the paper)")
    again.add_argument("--quick", action="store_true", help="small sizes, embedded data unless --datasets is given")
    again.add_argument("--seeds", type=whole, help="independent runs of each method")
    again.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    again.add_argument("--workers", type=whole, default=2, help="processes (default: %(default)s)")
    again.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")
    again.set_defaults(run=_reproduce)


def _reproduce(args: argparse.Namespace) -> int:
    from stepsize_validation.experiments import Plan, print_progress, reproduce

    sets = {"datasets": args.datasets} if args.datasets else {}
    plan = Plan.quick(**sets) if args.quick else Plan(**sets)
    plan = replace(plan, seed=args.seed, seeds=args.seeds or plan.seeds)
    check_folder("--output", args.output)
    say = _nothing if args.quiet else print_progress
    done = reproduce(args.experiments, args.output, plan, workers=args.workers, say=say)
    if not args.quiet:
        if len(done.savings):
            columns = ["experiment", "data", "variant", "goal", "best of the paper", "predicted", "observed"]
            print("iterations of the best of the paper's choices over those of the optimal D:")
            print(done.savings[columns].to_string(index=False, float_format="%.3f", na_rep="–"))
            print("\nhow many bounds hold:")
            print(done.verdicts.to_string(index=False))
        print(f"tables and figures: {done.folder}")
    return 0 if done.all_hold else 1


def _nothing(line: str) -> None:
    """Swallow a line of progress."""
