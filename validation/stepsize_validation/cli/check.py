"""The command ``check``: Proposition 1, feasibility and sketches on random problems, in exact arithmetic."""

from __future__ import annotations

import argparse
from typing import Any

from stepsize_opt import parse_sketch
from stepsize_validation.cli.common import EXIT_INACCURATE, EXIT_OPTIMAL
from stepsize_validation.cli.values import seed, whole

_EXAMPLES = """examples:
  stepsize-opt check
  stepsize-opt check --examples 1000 --seed 1
  stepsize-opt check --sketch randk:3 --size 6

A sketch of your own: stepsize_validation.properties.check_sketch(sketch).
"""


def add_parsers(commands: Any) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "check",
        help="check Proposition 1, feasibility and sketches in exact arithmetic",
        description="Check the claims behind the optimal D on random problems, each decided in rational arithmetic.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--sketch", help="check this sketch, such as randk:3, instead of sketches of every kind")
    parser.add_argument("--size", type=whole, default=5, help="d of --sketch (default: 5)")
    parser.add_argument("--examples", type=whole, default=200, help="examples of each claim (default: 200)")
    parser.add_argument("--seed", type=seed, default=0, help="of the examples (default: 0)")
    parser.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    try:
        from stepsize_validation.properties.checks import check_claims
    except ModuleNotFoundError as error:
        msg = "stepsize-opt check needs Hypothesis: pip install hypothesis"
        raise ModuleNotFoundError(msg) from error
    sketch = None if args.sketch is None else parse_sketch(args.sketch, args.size)
    failed = 0
    for checked in check_claims(args.examples, args.seed, sketch):
        failed += bool(checked.failure)
        verdict = "FALSE" if checked.failure else "holds"
        print(f"{verdict}  {checked.claim}  ({checked.examples} {checked.unit})", flush=True)
        if checked.failure:
            print(f"       {checked.failure}")
    return EXIT_INACCURATE if failed else EXIT_OPTIMAL
