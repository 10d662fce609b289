"""The commands ``bench``, ``reproduce`` and ``check``: solvers, the paper's experiments, its claims.

``bench`` and ``reproduce`` print tables to standard output and their progress to standard error.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from stepsize_opt import parse_sketch
from stepsize_opt.inputs.checks import did_you_mean
from stepsize_solvers import available_solvers, get_solver
from stepsize_validation.cli.common import EXIT_INACCURATE, EXIT_OPTIMAL, check_folder, progress
from stepsize_validation.cli.options import add, command, names, positive, seed, whole, wholes


def add_parsers(commands: Any) -> None:
    """Register the three commands."""
    bench = command(commands, "bench", _bench)
    bench.add_argument("--quick", action="store_true", help="three small sizes, nothing else")
    bench.add_argument("--report", action="store_true", help="tables and figures of --output again, without a run")
    add(bench, "--output", default=Path("results/bench"), help="folder for results (default: %(default)s)")
    bench.add_argument("--solvers", type=names, default=(), help="names with commas between them (default: all)")
    bench.add_argument("--sizes", type=wholes, help="d of the scaling problems, such as 10,20,40")
    bench.add_argument("--time-limit", type=positive, help="processor seconds for one solve with its certificate")
    bench.add_argument("--memory-limit", dest="memory_mb", type=whole, help="megabytes for a run beyond its libraries")
    bench.add_argument("--no-resume", action="store_true", help="drop the finished runs of --output and start over")
    add(bench, "--quiet")

    reproduce = command(commands, "reproduce", _reproduce)
    known = "a, b, c, d, e, f, sensitivity or all (default)"
    reproduce.add_argument("experiments", nargs="*", default=["all"], metavar="EXPERIMENT", help=known)
    add(reproduce, "--output", default=Path("results/reproduce"), help="folder for results (default: %(default)s)")
    reproduce.add_argument("--datasets", type=names, help="names with commas between them (default: the paper's)")
    reproduce.add_argument("--quick", action="store_true", help="small sizes, embedded data unless --datasets is given")
    reproduce.add_argument("--seeds", type=whole, help="independent runs of each method")
    reproduce.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    reproduce.add_argument("--workers", type=whole, default=2, help="processes (default: %(default)s)")
    add(reproduce, "--quiet")

    check = command(commands, "check", _check)
    check.add_argument("--sketch", help="check this sketch, such as randk:3, instead of sketches of every kind")
    check.add_argument("--size", type=whole, default=5, help="d of --sketch (default: 5)")
    check.add_argument("--examples", type=whole, default=200, help="examples of each claim (default: 200)")
    check.add_argument("--seed", type=seed, default=0, help="of the examples (default: 0)")


def _need(*packages: str) -> None:
    """Raise ModuleNotFoundError before the runs rather than after them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        msg = f"this command needs {', '.join(missing)}: pip install {' '.join(missing)}"
        raise ModuleNotFoundError(msg)


def _bench(args: argparse.Namespace) -> int:
    """Compare the solvers at equal certified gap.

    examples:
      stepsize-opt bench                  at most 30 minutes on two cores
      stepsize-opt bench --quick          three small sizes, half a minute
      stepsize-opt bench --solvers native,clarabel --sizes 10,20,40 --output mine
      stepsize-opt bench --report --output mine

    Results are written after every run: after Ctrl-C the same command continues
    where it stopped, and runs of earlier calls stay in the tables.  Real data
    beyond the embedded sets is taken from the folder that STEPSIZE_OPT_DATA names.
    """
    _need("matplotlib", "pandas")
    from stepsize_validation import bench

    results = bench.Results.read(args.output) if args.report else _run(args)
    written = bench.draw_all(results, args.output)
    if not args.quiet:
        for table in bench.all_tables(results):
            print(f"{table.title}. {fill(table.text)}\n\n{table.frame.to_string()}\n")
        print(*map(fill, [*bench.summary(results), bench.settings_text(results)]), sep="\n\n")
        print(f"written to {args.output}: {', '.join(written)}", file=sys.stderr)
    return EXIT_OPTIMAL


def _run(args: argparse.Namespace) -> Any:
    from stepsize_validation import bench

    plan = _plan(args, bench.Plan.quick() if args.quick else bench.Plan())
    check_folder("--output", args.output)
    try:
        with progress("starting", quiet=args.quiet) as show:

            def say(task: Any, done: int, total: int) -> None:
                show(done, total, f"{task.solver}, {task.problem.name}")

            return bench.run_benchmark(plan, args.output, resume=not args.no_resume, say=say)
    except KeyboardInterrupt:
        print(f"finished runs are kept in {args.output}; the same command continues", file=sys.stderr)
        raise


def _plan(args: argparse.Namespace, plan: Any) -> Any:
    """Return the plan with the solvers, sizes and limits that the arguments name."""
    plan = replace(plan, solvers=tuple(name.lower() for name in args.solvers))
    timed = [solver.name for solver in available_solvers()]
    for name in plan.solvers:
        if name not in timed:
            msg = (
                f"--solvers takes {', '.join(timed)}, got {name!r}{did_you_mean(name, timed)}; cvxpy's other solvers "
                "run in a process of their own, whose time is not measured"
            )
            raise ValueError(msg)
        get_solver(name)  # raises for one that cannot run here: a name that was asked for is not left out
    if args.sizes is not None:
        plan = replace(plan, sizes=tuple(sorted(set(args.sizes))), native_sizes=())
    given = {name: getattr(args, name) for name in ("time_limit", "memory_mb") if getattr(args, name) is not None}
    return replace(plan, settings=replace(plan.settings, **given))


def _reproduce(args: argparse.Namespace) -> int:
    """Run the paper's experiments with the optimal D; write tables and figures.

    examples:
      stepsize-opt reproduce all           at most an hour on two cores, resumable
      stepsize-opt reproduce a d --datasets a1a,w1a
      stepsize-opt reproduce all --quick   on embedded data, about a minute

    The data sets are svmlight files in the folder that STEPSIZE_OPT_DATA names.
    The result of each job is kept under --output: the same command continues where
    it stopped and writes the tables again.
    """
    _need("matplotlib", "pandas")
    from stepsize_validation.experiments import Plan, reproduce

    sets = {"datasets": args.datasets} if args.datasets else {}
    plan = Plan.quick(**sets) if args.quick else Plan(**sets)
    plan = replace(plan, seed=args.seed, seeds=args.seeds or plan.seeds)
    check_folder("--output", args.output)
    quiet = {"say": lambda line: None} if args.quiet else {}
    done = reproduce(args.experiments, args.output, plan, workers=args.workers, **quiet)
    if not args.quiet:
        if len(done.savings):
            columns = ["experiment", "data", "variant", "goal", "best of the paper", "predicted", "observed"]
            print("iterations of the best of the paper's choices over those of the optimal D:")
            print(done.savings[columns].to_string(index=False, float_format="%.3f", na_rep="–"))
            print("\nhow many bounds hold:")
            print(done.verdicts.to_string(index=False))
        print(f"tables and figures: {done.folder}")
    return 0 if done.all_hold else 1


def _check(args: argparse.Namespace) -> int:
    """Check Proposition 1, feasibility and sketches in exact arithmetic.

    examples:
      stepsize-opt check
      stepsize-opt check --examples 1000 --seed 1
      stepsize-opt check --sketch randk:3 --size 6

    A sketch of your own: stepsize_validation.properties.check_sketch(sketch).
    """
    _need("hypothesis")
    from stepsize_validation.properties.checks import check_claims

    sketch = None if args.sketch is None else parse_sketch(args.sketch, args.size)
    failed = 0
    for checked in check_claims(args.examples, args.seed, sketch):
        failed += bool(checked.failure)
        verdict = "FALSE" if checked.failure else "holds"
        print(f"{verdict}  {checked.claim}  ({checked.examples} {checked.unit})", flush=True)
        if checked.failure:
            print(f"       {checked.failure}")
    return EXIT_INACCURATE if failed else EXIT_OPTIMAL
