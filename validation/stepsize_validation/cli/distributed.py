"""The command ``solve-distributed``: the smallest K and the best D for clients that share a data set."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.clients import SEEDS, DistributedComparison, compare_distributed, optimal_distributed_stepsize
from stepsize_opt.inputs import NAMED_STRUCTURES
from stepsize_opt.node import GUARANTEES
from stepsize_opt.sketches import parse_sketch
from stepsize_solvers.programs import Matrix
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_algorithm,
    add_sketch,
    add_solver,
    add_structure,
    add_volume,
    answer,
    check_output,
    counting,
    exit_code,
    load_clients,
    log_on_stderr,
    progress,
    said,
    solving,
    write_matrix,
)
from stepsize_validation.cli.values import nonnegative, positive, seed, whole

_EXAMPLES = """examples:
  stepsize-opt solve-distributed --data breast_cancer --clients 10 --sketch randk:1 --structure diagonal
  stepsize-opt solve-distributed --data digits --clients 20 --sketch randk:10% --epsilon2 1e-3 --json
  stepsize-opt solve-distributed --data breast_cancer --clients 5 --sketch randk:1 --compare
  stepsize-opt solve-distributed --data breast_cancer --clients 5 --sketch randk:1 --seeds shared --guarantee descent

f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising the functions, unless given.
exit codes: 0 optimal, 1 certified gap above --tol or K too small, 2 mistake in the input, 3 solver cannot run
"""


def add_parsers(commands: Any) -> None:
    """Register ``solve-distributed``."""
    parser = commands.add_parser(
        "solve-distributed",
        help="the best D and the smallest K for n clients",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", required=True, help="data set whose rows the clients share, shuffled, in equal parts")
    parser.add_argument("--clients", type=whole, required=True, help="number of clients n")
    parser.add_argument("--reg", type=positive, default=0.1, help="λ of the regulariser (default: %(default)s)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the shuffle (default: %(default)s)")
    add_sketch(parser, required=True)
    parser.add_argument("--epsilon2", type=positive, default=1e-4, help="ε², the goal for E‖∇f‖² (default: 1e-4)")
    parser.add_argument("--initial-gap", type=nonnegative, help="Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 when not given")
    parser.add_argument("--delta-inf", type=nonnegative, help="Δ^inf = f^inf − (1/n)Σfᵢ^inf; found when not given")
    parser.add_argument("--iterations", type=whole, help="K, if fixed; otherwise the smallest is found")
    add_algorithm(parser, default="det-CGD1")
    add_structure(parser, default="full")
    parser.add_argument(
        "--seeds",
        choices=SEEDS,
        default=SEEDS[0],
        help="whether every client draws its own sketch, or all the same one: one node then (default: %(default)s)",
    )
    parser.add_argument(
        "--guarantee",
        choices=GUARANTEES,
        default=GUARANTEES[0],
        help="(12) as in the paper, or the descent metric 2D − DLD in the place of D (default: %(default)s)",
    )
    parser.add_argument("--compare", action="store_true", help="a table of shared seeds, DCGD, DCGD-mat and det-CGD")
    add_solver(parser)
    parser.add_argument("--output", "-o", type=Path, help="write D with its summary (.npz) or alone (.npy, .csv)")
    add_volume(parser)
    parser.set_defaults(run=_solve_distributed)


@dataclass(frozen=True, eq=False)
class _Clients:
    matrices: list[Matrix]
    mean: Matrix
    initial_gap: float
    delta_inf: float


def _load(args: argparse.Namespace) -> _Clients:
    from stepsize_opt.problems import find_federated_infimum

    objective = load_clients(args)
    initial_gap, delta_inf = args.initial_gap, args.delta_inf
    if initial_gap is None or delta_inf is None:
        infimum = find_federated_infimum(objective)
        start = float(objective.value(np.zeros((1, objective.d)))[0])
        initial_gap = start - infimum.whole.found if initial_gap is None else initial_gap
        delta_inf = infimum.delta_inf if delta_inf is None else delta_inf
    return _Clients(list(objective.client_smoothness()), objective.smoothness(), initial_gap, delta_inf)


def _solve_distributed(args: argparse.Namespace) -> int:
    if args.compare:
        _refuse_what_compare_fixes(args)
    if args.output is not None:
        check_output("--output", args.output, (".npz", ".npy", ".csv"))
    clients = _load(args)
    sketch = parse_sketch(args.sketch, len(clients.mean))
    problem: dict[str, Any] = {
        "epsilon2": args.epsilon2,
        "initial_gap": clients.initial_gap,
        "delta_inf": clients.delta_inf,
        "mean_smoothness": clients.mean,
        **solving(args),
    }
    if args.compare:
        with counting(silent=args.quiet or args.verbose) as count, log_on_stderr(args.verbose):
            comparison = compare_distributed(clients.matrices, sketch, on_progress=count, **problem)
        return _print_comparison(comparison, args)
    with progress(f"solving d = {sketch.d}, n = {args.clients}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_distributed_stepsize(
            clients.matrices,
            sketch,
            iterations=args.iterations,
            algorithm=args.algorithm,
            structure=args.structure,
            seeds=args.seeds,
            guarantee=args.guarantee,
            **problem,
        )
    if args.output is not None:
        with said(args.output, quiet=args.quiet):
            if args.output.suffix.lower() == ".npz":
                result.save(args.output)
            else:
                write_matrix(result.D, args.output)
    answer(args, result, result.summary)
    return exit_code(result.status)


def _refuse_what_compare_fixes(args: argparse.Namespace) -> None:
    """Raise ValueError for an option that the table of --compare would leave out of account."""
    fixed: dict[str, Any] = {"output": None, "iterations": None, "algorithm": "det-CGD1"}
    fixed |= {"structure": NAMED_STRUCTURES["full"], "seeds": SEEDS[0], "guarantee": GUARANTEES[0]}
    given = [f"--{name}" for name, default in fixed.items() if getattr(args, name) != default]
    if given:
        msg = f"--compare shows a fixed set of methods and does not go with {', '.join(given)}"
        raise ValueError(msg)


def _print_comparison(comparison: DistributedComparison, args: argparse.Namespace) -> int:
    answer(args, comparison, comparison.to_records)
    results = [row.result for row in comparison.rows if row.result is not None]
    return EXIT_OPTIMAL if all(exit_code(r.status) == EXIT_OPTIMAL for r in results) else EXIT_INACCURATE
