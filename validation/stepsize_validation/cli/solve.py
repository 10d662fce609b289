"""The commands ``solve``, ``certify`` and ``compare``."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import parse_sketch
from stepsize_opt.certificates import write_certificate
from stepsize_opt.goals import GOAL_NAMES, coordinates_sent
from stepsize_opt.inputs.checks import check_dense
from stepsize_opt.node import StepsizeResult, certify, optimal_stepsize
from stepsize_opt.planning import compare
from stepsize_opt.sketches.base import sketch_forms
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_INTERRUPTED,
    EXIT_OPTIMAL,
    OUTPUTS,
    answer,
    check_output,
    exit_code,
    finish,
    grouped,
    load_problem,
    progress,
    read_strong_convexity,
    reported,
)
from stepsize_validation.cli.files import is_result, load_matrix
from stepsize_validation.cli.options import MATRIX, ROUNDS, SOLVER, add, command, processes, values

_QUESTION = ("--algorithm", "--structure", "--goal", "--momentum")


def add_parsers(commands: Any) -> None:
    """Register the three commands."""
    solve = command(commands, "solve", _solve)
    forms = textwrap.fill(f"sketches: {sketch_forms()}", 79, break_long_words=False)
    solve.epilog = f"{solve.epilog}\n\n{forms}"
    add(solve, *MATRIX)
    add(solve, "--sketch", required=True)
    add(solve, *_QUESTION, "--strong-convexity", *SOLVER, *ROUNDS, "--output", "--json", "--verbose", "--quiet")
    solve.add_argument("--jobs", type=processes, default=1, help="processes for many components, -1 for all cores")
    solve.add_argument(
        "--certificate", type=Path, help="write what proves D (.json), for 'python -m stepsize_opt.verify FILE'"
    )

    checking = command(commands, "certify", _certify)
    checking.add_argument("stepsize", type=Path, help="the matrix D: .npy, .npz, .csv or .mtx")
    add(checking, *MATRIX, "--sketch", "--strong-convexity", "--momentum")
    add(checking, "--algorithm", "--structure", "--goal", default=None)
    checking.add_argument("--solve", action="store_true", help="solve the problem, for the gap to the optimum")
    add(checking, *SOLVER, "--json", "--verbose", "--quiet")

    comparing = command(commands, "compare", _compare)
    add(comparing, *MATRIX)
    add(comparing, "--sketch", required=True)
    add(comparing, "--goal", choices=GOAL_NAMES)
    add(comparing, "--strong-convexity", *SOLVER, "--json", "--verbose", "--quiet")


def _solve(args: argparse.Namespace) -> int:
    r"""Compute the optimal stepsize for L and a sketch.

    examples:
      stepsize-opt solve L.npy --sketch randk:8 --output D.npz
      stepsize-opt solve --data breast_cancer --reg 0.1 --sketch randk:25%
      stepsize-opt solve L.mtx --sketch bernq:0.5@10,20 --structure block:10,20
      stepsize-opt solve L.npy --sketch gaussian:4 --algorithm det-CGD2 -q -o D.csv
      stepsize-opt solve L.npy --sketch randk:8 --goal descent --epsilon2 1e-4 \
          --initial-gap 0.7
      stepsize-opt solve L.npy --sketch randk:8 --goal linear \
          --strong-convexity 0.01
      stepsize-opt solve L.npy --sketch randk:8 --certificate D.cert.json

    exit codes: 0 optimal, 1 certified gap above --tol, 2 mistake in the input,
    3 solver cannot run, 130 interrupted
    """
    check_output("--certificate", args.certificate, (".json",))
    check_output("--output", args.output, OUTPUTS)
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    if args.output is not None and args.output.suffix.lower() != ".npz":
        check_dense(f"--output {args.output}: D", sketch.d)  # only .npz holds D by blocks
    M = read_strong_convexity(args)
    settings = {**values(args, *_QUESTION, *SOLVER, "--verbose"), "n_jobs": args.jobs}
    with progress(f"solving d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_stepsize(L, sketch, strong_convexity=M, **settings)
    if args.certificate is not None:
        with reported(args.certificate, quiet=args.quiet):
            write_certificate(result, L, args.certificate, strong_convexity=M)
    rounds = _rounds(args, result)
    code = finish(args, result, rounds)
    if not (args.json or args.quiet):
        _print_more(result, rounds, saved=args.output is not None)
    return code


def _rounds(args: argparse.Namespace, result: StepsizeResult) -> dict[str, Any]:
    """Return the rounds and the floats that the result guarantees; nothing if no accuracy was given."""
    given = {name: value for name, value in values(args, *ROUNDS).items() if value is not None}
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


def _certify(args: argparse.Namespace) -> int:
    """Check a stepsize matrix of your own.

    examples:
      stepsize-opt certify D.npy L.npy --sketch randk:8
      stepsize-opt certify D.npz --data breast_cancer --reg 0.1 --json

    A file that 'solve' wrote (.npz) holds the sketch, algorithm, structure, goal
    and multiplier that it is for; options overrule it.  The gap of any other D is
    bounded by the limit; --solve compares it with the optimum.

    exit codes: 0 the guarantee is proved (with --solve or a saved D also the gap
    within --tol), 1 not, 2 mistake in the input
    """
    saved = StepsizeResult.load(args.stepsize) if is_result(args.stepsize) else None
    D = load_matrix(args.stepsize, "D") if saved is None else saved
    if saved is None and args.sketch is None:
        msg = f"{args.stepsize} does not hold the sketch that D is for: name it with --sketch, such as --sketch randk:8"
        raise ValueError(msg)
    known: dict[str, Any] = {"algorithm": "det-CGD1", "structure": "full", "goal": GOAL_NAMES[0], "momentum": False}
    if saved is not None:
        known = {name: getattr(saved, name) for name in known} | {"algorithm": saved.method}
    question = {name: getattr(args, name) or value for name, value in known.items()}
    args.goal = question["goal"]  # the goal linear takes M from the data set
    L = load_problem(args)
    sketch = saved.sketch if saved is not None and args.sketch is None else parse_sketch(args.sketch, L.shape[0])
    question["strong_convexity"] = read_strong_convexity(args)
    with progress("certifying", quiet=args.quiet, verbose=args.verbose):
        solver = values(args, *SOLVER, "--verbose")
        optimum = optimal_stepsize(L, sketch, **question, **solver) if args.solve else None
        if optimum is not None and exit_code(optimum.status) == EXIT_INTERRUPTED:
            raise KeyboardInterrupt
        check = certify(D, L, sketch, **question, optimum=optimum)
    answer(args, check, check.summary)
    # The gap of a matrix without a multiplier is not known before a solve.
    judges_gap = args.solve or saved is not None
    judged = check.certificate.is_optimal(args.tol) if judges_gap else check.feasible
    if not (args.json or args.quiet):
        proved = "proved" if judged else f"the guarantee is proved, but not that the gap is within {args.tol:g}"
        print(f"  verdict: {proved if check.feasible else 'the guarantee is not proved for this D'}")
    return EXIT_OPTIMAL if judged else EXIT_INACCURATE


def _compare(args: argparse.Namespace) -> int:
    r"""Compare both optima and the paper's choices of D.

    examples:
      stepsize-opt compare L.npy --sketch randk:8
      stepsize-opt compare --data digits --reg 0.01 --sketch randk:4 --json
      stepsize-opt compare --data digits --penalty ridge --sketch randk:4 \
          --goal linear
    """
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    solver = values(args, *SOLVER, "--verbose")
    with progress(f"comparing stepsizes for d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        table = compare(L, sketch, goal=args.goal, strong_convexity=read_strong_convexity(args), solving=solver)
    answer(args, table, table.to_records)
    return max(exit_code(row.result.status) for row in table.rows)
