"""The commands ``solve``, ``certify`` and ``compare``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.certificates import write_certificate
from stepsize_opt.goals import GOAL_NAMES, MOMENTUM_GOALS, coordinates_sent
from stepsize_opt.inputs import check_dense, json_text, write_text
from stepsize_opt.node import StepsizeResult, certify, optimal_stepsize
from stepsize_opt.planning import compare
from stepsize_opt.sketches import parse_sketch, sketch_forms
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_algorithm,
    add_matrix,
    add_sketch,
    add_solver,
    add_strong_convexity,
    add_structure,
    add_volume,
    answer,
    check_output,
    exit_code,
    grouped,
    load_problem,
    progress,
    read_strong_convexity,
    reported,
    solving,
    write_matrix,
)
from stepsize_validation.cli.files import is_result, load_matrix
from stepsize_validation.cli.values import positive, processes

OUTPUTS = (".npz", ".json", ".npy", ".csv")

_SOLVE_EXAMPLES = f"""examples:
  stepsize-opt solve L.npy --sketch randk:8 --output D.npz
  stepsize-opt solve --data breast_cancer --reg 0.1 --sketch randk:25%
  stepsize-opt solve L.mtx --sketch bernq:0.5@10,20 --structure block:10,20 --json
  stepsize-opt solve L.npy --sketch gaussian:4 --algorithm det-CGD2 -q -o D.csv
  stepsize-opt solve L.npy --sketch randk:8 --goal descent --epsilon2 1e-4 --initial-gap 0.7
  stepsize-opt solve L.npy --sketch randk:8 --goal linear --strong-convexity 0.01
  stepsize-opt solve L.npy --sketch randk:8 --goal convex --momentum
  stepsize-opt solve L.npy --sketch randk:8 --certificate D.cert.json

sketches: {sketch_forms()}

exit codes: 0 optimal, 1 certified gap above --tol, 2 mistake in the input, 3 solver cannot run, 130 interrupted
"""

_CERTIFY_EXAMPLES = """examples:
  stepsize-opt certify D.npy L.npy --sketch randk:8
  stepsize-opt certify D.npz --data breast_cancer --reg 0.1 --json
  stepsize-opt certify D.npy L.npy --sketch randk:8 --goal descent

A file that 'solve' wrote (.npz) holds the sketch, algorithm, structure, goal and multiplier that it is for; options
overrule it.  The gap of any other D is bounded by the limit; --solve compares it with the optimum.

exit codes: 0 the guarantee is proved (with --solve or a saved D also the gap within --tol), 1 not, 2 mistake in input
"""

_COMPARE_EXAMPLES = """examples:
  stepsize-opt compare L.npy --sketch randk:8
  stepsize-opt compare --data digits --reg 0.01 --sketch randk:4 --json
  stepsize-opt compare --data digits --reg 0.01 --penalty ridge --sketch randk:4 --goal linear
"""


def add_parsers(commands: Any) -> None:
    """Register the three commands."""
    solve = commands.add_parser("solve", help="compute the optimal stepsize for L and a sketch", epilog=_SOLVE_EXAMPLES)
    add_matrix(solve)
    add_sketch(solve, required=True)
    add_algorithm(solve, default="det-CGD1")
    add_structure(solve, default="full")
    add_goal(solve, default=GOAL_NAMES[0])
    add_momentum(solve)
    add_solver(solve)
    add_accuracy(solve)
    solve.add_argument("--jobs", type=processes, default=1, help="processes for many components, -1 for all cores")
    solve.add_argument("--output", "-o", type=Path, help="write D with its summary (.npz, .json) or alone (.npy, .csv)")
    solve.add_argument(
        "--certificate", type=Path, help="write what proves D (.json), for 'python -m stepsize_opt.verify FILE'"
    )
    add_volume(solve)
    solve.set_defaults(run=_solve)

    checking = commands.add_parser("certify", help="check a stepsize matrix of your own", epilog=_CERTIFY_EXAMPLES)
    checking.add_argument("stepsize", type=Path, help="the matrix D: .npy, .npz, .csv or .mtx")
    add_matrix(checking)
    add_sketch(checking)
    add_algorithm(checking)
    add_structure(checking)
    add_goal(checking)
    add_momentum(checking)
    checking.add_argument("--solve", action="store_true", help="solve the problem, for the gap to the optimum")
    add_solver(checking)
    add_volume(checking)
    checking.set_defaults(run=_certify)

    comparing = commands.add_parser(
        "compare", help="both optima and the paper's choices of D", epilog=_COMPARE_EXAMPLES
    )
    add_matrix(comparing)
    add_sketch(comparing, required=True)
    add_goal(comparing, default=GOAL_NAMES[0], momentum=False)
    add_solver(comparing)
    add_volume(comparing)
    comparing.set_defaults(run=_compare)


_ACCURACY = {
    "epsilon2": "ε², the accuracy for the mean of E‖∇f‖² (goals paper, descent, euclidean)",
    "accuracy": "the accuracy for E f − f* (goals linear, convex)",
    "initial_gap": "Δ⁰ = f(x⁰) − f^inf",
    "initial_distance": "‖x⁰ − x*‖ (goal convex)",
}


def add_accuracy(parser: argparse.ArgumentParser) -> None:
    """Add the options that turn a rate into rounds."""
    rounds = parser.add_argument_group("rounds", "print how many rounds the result guarantees")
    for name, words in _ACCURACY.items():
        rounds.add_argument(f"--{name.replace('_', '-')}", type=positive, help=words)


def add_goal(parser: argparse.ArgumentParser, default: str | None = None, *, momentum: bool = True) -> None:
    """Add --goal and --strong-convexity; without a default the goal may come from a file."""
    parser.add_argument(
        "--goal",
        choices=tuple(dict.fromkeys((*GOAL_NAMES, *MOMENTUM_GOALS))) if momentum else GOAL_NAMES,
        default=default,
        help="what is maximised: det D under the paper's condition; for H = 2D - T(D) and without the condition det H "
        "(descent), its least eigenvalue (euclidean) or the linear rate (linear)"
        f"{'; convex: for convex f with --momentum' if momentum else ''} (default: {GOAL_NAMES[0]})",
    )
    add_strong_convexity(parser)


def add_momentum(parser: argparse.ArgumentParser) -> None:
    """Add --momentum."""
    parser.add_argument(
        "--momentum",
        action="store_true",
        help="for a method that keeps two vectors; with --goal linear or convex (docs/momentum.md)",
    )


def _solve(args: argparse.Namespace) -> int:
    if args.output is not None:
        check_output("--output", args.output, OUTPUTS)
    if args.certificate is not None:
        check_output("--certificate", args.certificate, (".json",))
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    if args.output is not None and args.output.suffix.lower() != ".npz":
        check_dense(f"--output {args.output}: D", sketch.d)  # only .npz holds D by blocks
    with progress(f"solving d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_stepsize(
            L,
            sketch,
            algorithm=args.algorithm,
            structure=args.structure,
            goal=args.goal,
            strong_convexity=read_strong_convexity(args.strong_convexity),
            momentum=args.momentum,
            n_jobs=args.jobs,
            **solving(args),
        )
    if args.output is not None:
        with reported(args.output, quiet=args.quiet):
            _write(result, args.output)
    if args.certificate is not None:
        with reported(args.certificate, quiet=args.quiet):
            M = read_strong_convexity(args.strong_convexity)
            write_certificate(result, L, args.certificate, strong_convexity=M)
    rounds = _rounds(args, result)
    answer(args, result, lambda: {**result.summary(), **rounds})
    if not (args.json or args.quiet):
        _print_more(result, rounds, saved=args.output is not None)
    return exit_code(result.status)


def _rounds(args: argparse.Namespace, result: StepsizeResult) -> dict[str, Any]:
    """Return the rounds and the floats that the result guarantees; nothing if no accuracy was given."""
    given = {name: getattr(args, name) for name in _ACCURACY if getattr(args, name) is not None}
    if not given:
        return {}
    rounds = result.iterations(**given)
    return {"rounds": rounds, "floats": coordinates_sent(rounds, result.sketch.expected_nonzeros)}


def _print_more(result: StepsizeResult, rounds: dict[str, Any], *, saved: bool) -> None:
    """Print the rounds, the range of D, and how to keep it."""
    if rounds:
        print(f"  guaranteed after {grouped(rounds['rounds'])} rounds, {grouped(rounds['floats'])} floats sent")
    diagonal = np.asarray(result.stepsize.diagonal())
    shown = "" if saved else "; not saved: --output D.npz writes D with its certificate"
    print(f"  diagonal of D from {diagonal.min():.4g} to {diagonal.max():.4g}{shown}")


def _write(result: StepsizeResult, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        result.save(path)
    elif suffix == ".json":
        write_text(path, json_text({**result.summary(), "D": result.D}, indent=2) + "\n")
    else:
        write_matrix(result.D, path)


def _certify(args: argparse.Namespace) -> int:
    saved = StepsizeResult.load(args.stepsize) if is_result(args.stepsize) else None
    D = load_matrix(args.stepsize, "D") if saved is None else saved
    if saved is None and args.sketch is None:
        msg = f"{args.stepsize} does not hold the sketch that D is for: name it with --sketch, such as --sketch randk:8"
        raise ValueError(msg)
    if saved is not None and args.goal is None:
        args.goal = saved.goal  # the goal linear takes M from the data set
    L = load_problem(args)
    sketch = saved.sketch if saved is not None and args.sketch is None else parse_sketch(args.sketch, L.shape[0])
    asked: dict[str, Any] = {
        "algorithm": args.algorithm or (saved.method if saved is not None else "det-CGD1"),
        "structure": args.structure or (saved.structure if saved is not None else "full"),
        "goal": args.goal or (saved.goal if saved is not None else "paper"),
        "strong_convexity": read_strong_convexity(args.strong_convexity),
        "momentum": args.momentum or (saved is not None and saved.momentum),
    }
    with progress("certifying", quiet=args.quiet, verbose=args.verbose):
        optimum = optimal_stepsize(L, sketch, **asked, **solving(args)) if args.solve else None
        check = certify(D, L, sketch, **asked, optimum=optimum)
    answer(args, check, check.summary)
    # The gap of a matrix without a multiplier is not known before a solve.
    judges_gap = args.solve or saved is not None
    judged = check.certificate.is_optimal(args.tol) if judges_gap else check.feasible
    if not (args.json or args.quiet):
        print(f"  verdict: {_verdict(check.feasible, judged, args.tol)}")
    return EXIT_OPTIMAL if judged else EXIT_INACCURATE


def _verdict(feasible: bool, judged: bool, tol: float) -> str:
    """Return the reason of the exit code."""
    if not feasible:
        return "the guarantee is not proved for this D"
    return "proved" if judged else f"the guarantee is proved, but not that the gap is within {tol:g}"


def _compare(args: argparse.Namespace) -> int:
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    with progress(f"comparing stepsizes for d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        table = compare(
            L,
            sketch,
            goal=args.goal,
            strong_convexity=read_strong_convexity(args.strong_convexity),
            **solving(args),
        )
    answer(args, table, table.to_records)
    return max(exit_code(row.result.status) for row in table.rows)
