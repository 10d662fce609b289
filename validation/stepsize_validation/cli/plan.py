"""The command ``plan``: which method to run within a budget of floats, with a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import read_matrix
from stepsize_opt.planning import Budget, plan
from stepsize_opt.tables import Table
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_matrix,
    add_solver,
    add_strong_convexity,
    add_volume,
    check_one_source,
    check_output,
    counting,
    load_clients,
    print_json,
    read_strong_convexity,
    reported,
)
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.values import names, nonnegative, positive, seed, whole
from stepsize_validation.figures import file_pyplot, save_figure

_EXAMPLES = """examples:
  stepsize-opt plan L.npy --budget 10 --epsilon2 1e-4 --initial-gap 0.7
  stepsize-opt plan --data breast_cancer --clients 5 --budget 8 --epsilon2 1e-4 --figure plan.png
  stepsize-opt plan --data digits --reg 0.01 --rounds 1000 --epsilon2 1e-3 --goal descent,euclidean --json

With --data, f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising the functions, unless given.

exit codes: 0 a method stays within the budget, 1 none does, 2 mistake in the input, 3 solver cannot run
"""


def add_parsers(commands: Any) -> None:
    """Register ``plan``."""
    parser = commands.add_parser(
        "plan",
        help="which method to run within a budget of floats",
        epilog=_EXAMPLES,
    )
    add_matrix(parser)
    parser.add_argument("--clients", type=whole, help="share the rows of --data over n clients")
    parser.add_argument("--seed", type=seed, help="seed of the shuffle of --clients (default: 0)")
    parser.add_argument("--budget", type=positive, help="floats that a client may send per round (default: d)")
    parser.add_argument("--total", type=positive, help="floats that all clients may send in all")
    parser.add_argument("--rounds", type=whole, help="rounds at most")
    parser.add_argument(
        "--goal", type=names, default=("descent",), help="descent, euclidean, linear, or several of them"
    )
    parser.add_argument("--epsilon2", type=positive, help="ε², the accuracy for E‖∇f‖² of descent and euclidean")
    parser.add_argument("--accuracy", type=positive, help="the accuracy for E f(x) − f* of linear")
    add_strong_convexity(parser)
    parser.add_argument("--initial-gap", type=positive, help="Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 with --data")
    parser.add_argument("--delta-inf", type=nonnegative, help="Δ^inf = f^inf − (1/n)Σfᵢ^inf; found with --data")
    parser.add_argument("--figure", type=Path, help="draw rounds against floats sent (.png, .pdf, .svg)")
    add_solver(parser)
    add_volume(parser, verbose=False)
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    if args.figure is not None:
        check_output("--figure", args.figure, (".png", ".pdf", ".svg"))
    with counting(silent=args.quiet) as show:
        answer = plan(
            _problem(args),
            Budget(args.budget, args.total, args.rounds),
            epsilon2=args.epsilon2,
            accuracy=args.accuracy,
            goal=args.goal,
            initial_gap=args.initial_gap,
            delta_inf=args.delta_inf,
            strong_convexity=read_strong_convexity(args.strong_convexity),
            on_progress=show,
            solver=args.solver,
            tol=args.tol,
            time_limit=args.time_limit,
        )
    if args.figure is not None:
        with reported(args.figure, quiet=args.quiet):
            _draw(answer, args.figure)
    best = {goal: answer.best_for(goal) for goal in answer.goals}
    if args.json:
        limits = {goal: [list(pair) for pair in pairs] for goal, pairs in answer.limits.items()}
        print_json({"rows": answer.to_records(), "limit_rounds": limits, "notes": list(answer.notes)})
    elif not args.quiet:
        print(answer)
        for goal in [goal for goal, row in best.items() if row is None]:
            print(f"{goal}: no method stays within the budget")
    return EXIT_OPTIMAL if all(row is not None for row in best.values()) else EXIT_INACCURATE


def _draw(table: Table, path: Path) -> None:
    """Draw a panel for each goal."""
    plt = file_pyplot()
    count = len(table.goals)
    figure, axes = plt.subplots(1, count, figsize=(7.0 * count, 4.2), squeeze=False, layout="constrained")
    for axis, goal in zip(axes.flat, table.goals, strict=True):
        table.plot(axis, goal=goal)
    save_figure(figure, path, dpi=150)


def _problem(args: argparse.Namespace) -> Any:
    """Return L of the matrix file, or the objective on the data set."""
    check_one_source(args)
    if args.matrix is not None:
        if args.clients is not None:
            msg = "--clients shares the rows of --data and does not go with a matrix file"
            raise ValueError(msg)
        if args.seed is not None:
            msg = "--seed is that of the shuffle of --data and does not go with a matrix file"
            raise ValueError(msg)
        if args.initial_gap is None:
            msg = "--initial-gap is needed with a matrix file: f(x⁰) − f^inf, which L does not tell"
            raise ValueError(msg)
        return read_matrix("L", load_matrix(args.matrix))
    if args.clients is not None:
        return load_clients(args)
    if args.seed is not None:
        msg = "--seed is that of the shuffle of --clients, which are not given"
        raise ValueError(msg)
    from stepsize_validation.data import load_dataset, logistic_regression

    return logistic_regression(load_dataset(args.data), args.reg, args.penalty)
