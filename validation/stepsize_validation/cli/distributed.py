"""The command ``solve-distributed``: the smallest K and the best D for clients, from their matrices or a data set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.clients import SEEDS, optimal_distributed_stepsize
from stepsize_opt.goals import CLIENT_GOALS
from stepsize_opt.inputs import NAMED_STRUCTURES, read_matrix
from stepsize_opt.planning import compare_distributed
from stepsize_opt.sketches import Sketch, parse_sketch
from stepsize_opt.tables import Table
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_algorithm,
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
    reported,
    solving,
    write_matrix,
)
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.values import nonnegative, positive, seed, whole

_REG = 0.1

_EXAMPLES = """examples:
  stepsize-opt solve-distributed L1.npy L2.npy --sketch randk:8 --initial-gap 0.7 --delta-inf 0.01 -o D.npz
  stepsize-opt solve-distributed L1.npy L2.npy --sketch randk:8 --sketch randk:2 --initial-gap 0.7 --delta-inf 0.01
  stepsize-opt solve-distributed --data breast_cancer --clients 10 --sketch randk:1 --structure diagonal
  stepsize-opt solve-distributed --data digits --clients 20 --sketch randk:10% --epsilon2 1e-3 --json
  stepsize-opt solve-distributed --data breast_cancer --clients 5 --sketch randk:1 --compare
  stepsize-opt solve-distributed --data breast_cancer --clients 5 --sketch randk:1 --seeds shared --goal descent

With --data, f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising the functions, unless given.

exit codes: 0 optimal, 1 certified gap above --tol or K too small, 2 mistake in the input, 3 solver cannot run
"""


def add_parsers(commands: Any) -> None:
    """Register ``solve-distributed``."""
    parser = commands.add_parser(
        "solve-distributed",
        help="the best D and the smallest K for n clients",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "matrices", nargs="*", type=Path, help="smoothness matrix of each client: .npy, .npz, .csv or .mtx"
    )
    parser.add_argument("--data", help="take clients that share the rows of this data set, shuffled, in equal parts")
    parser.add_argument("--clients", type=whole, help="number of clients for --data")
    parser.add_argument("--reg", type=positive, help=f"λ of the regulariser for --data (default: {_REG})")
    parser.add_argument("--seed", type=seed, help="seed of the shuffle for --data (default: 0)")
    parser.add_argument(
        "--sketch",
        action="append",
        required=True,
        help="for example randk:8; once for all clients, or once for each client in their order",
    )
    parser.add_argument("--epsilon2", type=positive, default=1e-4, help="ε², the goal for E‖∇f‖² (default: 1e-4)")
    parser.add_argument("--initial-gap", type=nonnegative, help="Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 with --data")
    parser.add_argument("--delta-inf", type=nonnegative, help="Δ^inf = f^inf − (1/n)Σfᵢ^inf; found with --data")
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
        "--goal",
        choices=CLIENT_GOALS,
        default=CLIENT_GOALS[0],
        help="the condition as in the paper, or with --seeds shared the descent metric (default: %(default)s)",
    )
    parser.add_argument("--compare", action="store_true", help="a table of shared seeds, DCGD, DCGD-mat and det-CGD")
    add_solver(parser)
    parser.add_argument("--output", "-o", type=Path, help="write D with its summary (.npz) or alone (.npy, .csv)")
    add_volume(parser)
    parser.set_defaults(run=_solve_distributed)


def _load(args: argparse.Namespace) -> dict[str, Any]:
    """Read the clients' matrices and the gaps, as the library's functions take them."""
    if bool(args.matrices) == (args.data is not None):
        msg = "give either the matrix file of each client or --data NAME"
        raise ValueError(msg)
    return _from_files(args) if args.matrices else _from_data(args)


def _from_files(args: argparse.Namespace) -> dict[str, Any]:
    for name in ("clients", "reg", "seed"):
        if getattr(args, name) is not None:
            msg = f"--{name} goes with --data: there is one client for each matrix file"
            raise ValueError(msg)
    for option, value in (("--initial-gap", args.initial_gap), ("--delta-inf", args.delta_inf)):
        if value is None:
            msg = f"{option} is needed with matrix files, which do not hold the functions"
            raise ValueError(msg)
    matrices = [read_matrix(f"smoothness[{i}]", load_matrix(path)) for i, path in enumerate(args.matrices)]
    return {"smoothness": matrices, "initial_gap": args.initial_gap, "delta_inf": args.delta_inf}


def _from_data(args: argparse.Namespace) -> dict[str, Any]:
    from stepsize_opt.problems import find_federated_infimum

    if args.clients is None:
        msg = "--clients is needed with --data: the number of clients that share its rows"
        raise ValueError(msg)
    args.reg = args.reg or _REG
    objective = load_clients(args)
    initial_gap, delta_inf = args.initial_gap, args.delta_inf
    if initial_gap is None or delta_inf is None:
        infimum = find_federated_infimum(objective)
        start = float(objective.value(np.zeros((1, objective.d)))[0])
        initial_gap = start - infimum.whole.found if initial_gap is None else initial_gap
        delta_inf = infimum.delta_inf if delta_inf is None else delta_inf
    return {
        "smoothness": list(objective.client_smoothness()),
        "mean_smoothness": objective.smoothness(),
        "initial_gap": initial_gap,
        "delta_inf": delta_inf,
    }


def _read_sketches(texts: list[str], n: int, d: int) -> Sketch | list[Sketch]:
    """Return the sketch of all n clients, or the list of theirs; raises ValueError for another number of texts."""
    sketches = [parse_sketch(text, d) for text in texts]
    if len(sketches) == 1:
        return sketches[0]
    if len(sketches) != n:
        msg = f"--sketch was given {len(sketches)} times for {n} clients; give it once for all, or once for each client"
        raise ValueError(msg)
    return sketches


def _solve_distributed(args: argparse.Namespace) -> int:
    if args.compare:
        _refuse_what_compare_fixes(args)
    if args.output is not None:
        check_output("--output", args.output, (".npz", ".npy", ".csv"))
    problem = {**_load(args), "epsilon2": args.epsilon2, **solving(args)}
    n, d = len(problem["smoothness"]), problem["smoothness"][0].shape[0]
    problem["sketch"] = _read_sketches(args.sketch, n, d)
    if args.compare:
        with counting(silent=args.quiet or args.verbose) as count, log_on_stderr(args.verbose):
            comparison = compare_distributed(on_progress=count, **problem)
        return _print_comparison(comparison, args)
    with progress(f"solving d = {d}, n = {n}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_distributed_stepsize(
            iterations=args.iterations,
            algorithm=args.algorithm,
            structure=args.structure,
            seeds=args.seeds,
            goal=args.goal,
            **problem,
        )
    if args.output is not None:
        with reported(args.output, quiet=args.quiet):
            if args.output.suffix.lower() == ".npz":
                result.save(args.output)
            else:
                write_matrix(result.D, args.output)
    answer(args, result, result.summary)
    return exit_code(result.status)


def _refuse_what_compare_fixes(args: argparse.Namespace) -> None:
    """Raise ValueError for an option that the table of --compare would leave out of account."""
    fixed: dict[str, Any] = {"output": None, "iterations": None, "algorithm": "det-CGD1"}
    fixed |= {"structure": NAMED_STRUCTURES["full"], "seeds": SEEDS[0], "goal": CLIENT_GOALS[0]}
    given = [f"--{name}" for name, default in fixed.items() if getattr(args, name) != default]
    if given:
        msg = f"--compare shows a fixed set of methods and does not go with {', '.join(given)}"
        raise ValueError(msg)


def _print_comparison(comparison: Table, args: argparse.Namespace) -> int:
    answer(args, comparison, comparison.to_records)
    results = [row.result for row in comparison.rows if row.result is not None]
    return EXIT_OPTIMAL if all(exit_code(r.status) == EXIT_OPTIMAL for r in results) else EXIT_INACCURATE
