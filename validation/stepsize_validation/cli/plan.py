"""The command ``plan``: which method to run within a budget of floats, with a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.planning import Budget, plan
from stepsize_opt.tables import Table
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    FIGURES,
    check_output,
    check_source,
    load_objective,
    print_json,
    progress,
    read_strong_convexity,
    reported,
)
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.options import MATRIX, SOLVER, add, command, names, positive, values, whole
from stepsize_validation.figures import grid, save_figure


def add_parsers(commands: Any) -> None:
    """Register ``plan``."""
    parser = command(commands, "plan", _plan)
    add(parser, *MATRIX, "--clients", "--seed")
    parser.add_argument("--budget", type=positive, help="floats that a client may send per round (default: d)")
    parser.add_argument("--total", type=positive, help="floats that all clients may send in all")
    parser.add_argument("--rounds", type=whole, help="rounds at most")
    several = "descent (default), euclidean, linear, or several of them"
    add(parser, "--goal", choices=None, type=names, default=("descent",), help=several)
    add(parser, "--epsilon2", "--accuracy", "--initial-gap", "--delta-inf", "--strong-convexity")
    add(parser, "--figure", *SOLVER, "--json", "--quiet")


def _plan(args: argparse.Namespace) -> int:
    r"""Show which method to run within a budget of floats.

    examples:
      stepsize-opt plan L.npy --budget 10 --epsilon2 1e-4 --initial-gap 0.7
      stepsize-opt plan --data breast_cancer --clients 5 --budget 8 \
          --epsilon2 1e-4 --figure plan.png
      stepsize-opt plan --data digits --reg 0.01 --rounds 1000 --epsilon2 1e-3 \
          --goal descent,euclidean --json

    With --data, f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising
    the functions, unless given.

    exit codes: 0 a method stays within the budget, 1 none does, 2 mistake in the
    input, 3 solver cannot run
    """
    check_output("--figure", args.figure, FIGURES)
    problem, budget = _problem(args), Budget(args.budget, args.total, args.rounds)
    goal = values(args, "--goal", "--epsilon2", "--accuracy", "--initial-gap", "--delta-inf")
    goal["strong_convexity"] = read_strong_convexity(args)
    with progress("starting", quiet=args.quiet) as show:
        answer = plan(problem, budget, on_progress=show, **goal, solving=values(args, *SOLVER))
    if args.figure is not None:
        with reported(args.figure, quiet=args.quiet):
            _draw(answer, args.figure)
    best = {goal: answer.best_for(goal) for goal in answer.goals}
    if args.json:
        limits = {goal: [list(pair) for pair in pairs] for goal, pairs in answer.limits.items()}
        print_json({"rows": answer.to_records(), "limit_rounds": limits, "notes": list(answer.notes)})
    elif not args.quiet:
        print(answer)
        for name in [name for name, row in best.items() if row is None]:
            print(f"{name}: no method stays within the budget")
    return EXIT_OPTIMAL if all(row is not None for row in best.values()) else EXIT_INACCURATE


def _draw(table: Table, path: Path) -> None:
    """Draw a panel for each goal."""
    figure, axes = grid(len(table.goals), (7.0, 4.2))
    for axis, goal in zip(axes, table.goals, strict=True):
        table.plot(axis, goal=goal)
    save_figure(figure, path, dpi=150)


def _problem(args: argparse.Namespace) -> Any:
    """Return L of the matrix file, or the objective on the data set."""
    check_source(args, files=args.matrix is not None)
    if args.matrix is None:
        if args.clients is None and args.seed is not None:
            msg = "--seed is that of the shuffle of --clients, which are not given"
            raise ValueError(msg)
        return load_objective(args)
    if args.initial_gap is None:
        msg = "--initial-gap is needed with a matrix file: f(x⁰) − f^inf, which L does not tell"
        raise ValueError(msg)
    return read_matrix("L", load_matrix(args.matrix))
