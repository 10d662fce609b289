"""The command ``solve-distributed``: the smallest K and the best D for clients, from their matrices or a data set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import parse_sketch
from stepsize_opt.clients.api import SEEDS, optimal_distributed_stepsize
from stepsize_opt.goals import CLIENT_GOALS
from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.planning import compare_distributed
from stepsize_opt.problems import find_federated_infimum
from stepsize_validation.cli.common import (
    OUTPUTS,
    answer,
    check_output,
    check_source,
    exit_code,
    finish,
    load_objective,
    progress,
)
from stepsize_validation.cli.files import load_matrix
from stepsize_validation.cli.options import MATRIX, SOLVER, add, command, values

_QUESTION = ("--iterations", "--algorithm", "--structure", "--seeds", "--goal")


def add_parsers(commands: Any) -> None:
    """Register ``solve-distributed``."""
    parser = command(commands, "solve-distributed", _solve_distributed)
    parser.add_argument(
        "matrices", nargs="*", type=Path, help="smoothness matrix of each client: .npy, .npz, .csv or .mtx"
    )
    add(parser, *MATRIX[1:], "--clients", "--seed")
    add(parser, "--sketch", action="append", required=True, help="once for all clients, or once for each in order")
    add(parser, "--epsilon2", default=1e-4, help="ε², the goal for E‖∇f‖² (default: 1e-4)")
    add(parser, "--initial-gap", "--delta-inf", "--iterations", "--algorithm", "--structure")
    parser.add_argument(
        "--seeds",
        choices=SEEDS,
        default=SEEDS[0],
        help="whether every client draws its own sketch, or all the same one: one node then (default: %(default)s)",
    )
    add(parser, "--goal", choices=CLIENT_GOALS, help="the paper's condition, or with --seeds shared the descent metric")
    parser.add_argument("--compare", action="store_true", help="a table of shared seeds, DCGD, DCGD-mat and det-CGD")
    add(parser, *SOLVER, "--output", "--json", "--verbose", "--quiet")
    fixed = {name: parser.get_default(name.removeprefix("--")) for name in ("--output", *_QUESTION)}
    parser.set_defaults(fixed=fixed)


def _problem(args: argparse.Namespace) -> dict[str, Any]:
    """Return the clients' matrices and the gaps; those that are not given are found for the clients of a data set."""
    gaps = values(args, "--initial-gap", "--delta-inf")
    missing = [name for name, value in gaps.items() if value is None]
    if args.matrices:
        if missing:
            msg = f"{' and '.join(missing)} must be given with matrix files, which do not hold the functions"
            raise ValueError(msg)
        matrices = [read_matrix(f"smoothness[{i}]", load_matrix(path)) for i, path in enumerate(args.matrices)]
        return {"smoothness": matrices, **gaps}
    if args.clients is None:
        msg = "--clients is needed with --data: the number of clients that share its rows"
        raise ValueError(msg)
    objective = load_objective(args)
    if missing:
        infimum = find_federated_infimum(objective)
        start = float(objective.value(np.zeros((1, objective.d)))[0])
        found = {"initial_gap": start - infimum.whole.found, "delta_inf": infimum.delta_inf}
        gaps |= {name: found[name] for name in missing}
    matrices = list(objective.client_smoothness())
    return {"smoothness": matrices, "mean_smoothness": objective.smoothness(), **gaps}


def _solve_distributed(args: argparse.Namespace) -> int:
    r"""Find the best D and the smallest K for n clients.

    examples:
      stepsize-opt solve-distributed L1.npy L2.npy --sketch randk:8 \
          --initial-gap 0.7 --delta-inf 0.01 -o D.npz
      stepsize-opt solve-distributed L1.npy L2.npy --sketch randk:8 \
          --sketch randk:2 --initial-gap 0.7 --delta-inf 0.01
      stepsize-opt solve-distributed --data breast_cancer --clients 5 \
          --sketch randk:1 --compare
      stepsize-opt solve-distributed --data breast_cancer --clients 5 \
          --sketch randk:1 --seeds shared --goal descent

    With --data, f(x⁰) − f^inf and f^inf − (1/n)Σfᵢ^inf are found by minimising
    the functions, unless given.

    exit codes: 0 optimal, 1 certified gap above --tol or K too small, 2 mistake in
    the input, 3 solver cannot run
    """
    given = [name for name, value in args.fixed.items() if getattr(args, name.removeprefix("--")) != value]
    if args.compare and given:
        msg = f"--compare shows a fixed set of methods and does not go with {', '.join(given)}"
        raise ValueError(msg)
    check_output("--output", args.output, OUTPUTS)
    check_source(args, files=bool(args.matrices))
    problem, solver = {**_problem(args), **values(args, "--epsilon2")}, values(args, *SOLVER, "--verbose")
    n, d = len(problem["smoothness"]), problem["smoothness"][0].shape[0]
    sketches = [parse_sketch(text, d) for text in args.sketch]
    problem["sketch"] = sketches[0] if len(sketches) == 1 else sketches
    if args.compare:
        return _compare(args, {**problem, "solving": solver})
    with progress(f"solving d = {d}, n = {n}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_distributed_stepsize(**problem, **solver, **values(args, *_QUESTION))
    return finish(args, result)


def _compare(args: argparse.Namespace, problem: dict[str, Any]) -> int:
    """Print the table of all methods."""
    with progress("starting", quiet=args.quiet, verbose=args.verbose) as show:
        table = compare_distributed(on_progress=show, **problem)
    answer(args, table, table.to_records)
    return max(exit_code(row.result.status) for row in table.rows if row.result is not None)
