"""The command ``plan``: which method to run within a budget of numbers, with a picture."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import read_matrix
from stepsize_opt.planning import plan
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_matrix,
    add_solver,
    add_volume,
    check_one_source,
    check_output,
    counting,
    load_clients,
    print_json,
    read_lower,
    said,
)
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.values import names, nonnegative, positive, seed, whole

_EXAMPLES = """examples:
  stepsize-opt plan L.npy --budget 10 --epsilon2 1e-4 --initial-gap 0.7
  stepsize-opt plan --data breast_cancer --clients 5 --budget 8 --epsilon2 1e-4 --figure plan.png
  stepsize-opt plan --data digits --reg 0.01 --rounds 1000 --epsilon2 1e-3 --criterion det,euclidean --json

With --data, f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising the functions, unless given.
exit codes: 0 a method stays within the budget, 1 none does, 2 mistake in the input, 3 solver cannot run
"""


def add_parsers(commands: Any) -> None:
    """Register ``plan``."""
    parser = commands.add_parser(
        "plan",
        help="which method to run within a budget of numbers",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_matrix(parser)
    parser.add_argument("--clients", type=whole, help="share the rows of --data over n clients")
    parser.add_argument("--seed", type=seed, help="seed of the shuffle of --clients (default: 0)")
    parser.add_argument("--budget", type=positive, help="numbers that a client may send a round (default: d)")
    parser.add_argument("--total", type=positive, help="numbers that all clients may send in all")
    parser.add_argument("--rounds", type=whole, help="rounds at most")
    parser.add_argument("--criterion", type=names, default=("det",), help="det, euclidean, linear, or several of them")
    parser.add_argument("--epsilon2", type=positive, help="ε², the goal for E‖∇f‖² of det and euclidean")
    parser.add_argument("--accuracy", type=positive, help="the goal for E f(x) − f* of linear")
    parser.add_argument("--lower", help="for linear: a number mu > 0 or a file with M, M below the Hessian")
    parser.add_argument("--initial-gap", type=positive, help="Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 with --data")
    parser.add_argument("--delta-inf", type=nonnegative, help="Δ^inf = f^inf − (1/n)Σfᵢ^inf; found with --data")
    parser.add_argument("--figure", type=Path, help="draw rounds against numbers sent (.png, .pdf, .svg)")
    add_solver(parser)
    add_volume(parser, verbose=False)
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    if args.figure is not None:
        check_output("--figure", args.figure, (".png", ".pdf", ".svg"))
    with counting(silent=args.quiet) as show:
        answer = plan(
            _problem(args),
            args.budget,
            epsilon2=args.epsilon2,
            accuracy=args.accuracy,
            criterion=args.criterion,
            initial_gap=args.initial_gap,
            delta_inf=args.delta_inf,
            lower=read_lower(args.lower),
            total=args.total,
            rounds=args.rounds,
            on_progress=show,
            solver=args.solver,
            tol=args.tol,
            time_limit=args.time_limit,
        )
    if args.figure is not None:
        from stepsize_validation.cli.plan_figure import plan_figure

        with said(args.figure, quiet=args.quiet):
            plan_figure(answer, args.figure)
    best = {criterion: answer.best_for(criterion) for criterion in answer.criteria}
    if args.json:
        limits = {criterion: [list(pair) for pair in pairs] for criterion, pairs in answer.limits.items()}
        print_json({"rows": answer.to_records(), "limit_rounds": limits, "notes": list(answer.notes)})
    elif not args.quiet:
        print(answer)
        for criterion in [criterion for criterion, row in best.items() if row is None]:
            print(f"{criterion}: no method stays within the budget, {answer.budget}")
    return EXIT_OPTIMAL if all(row is not None for row in best.values()) else EXIT_INACCURATE


def _problem(args: argparse.Namespace) -> Any:
    """L of the matrix file, or the objective on the data set."""
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
