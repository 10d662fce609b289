"""What a run is given: its stepsize, its sketches, and whether clients share their draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepsize_opt.inputs import check_objective, check_one_of, dense, read_matrix
from stepsize_opt.large import StepsizeOperator
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.sketches import Sketch, sketch_of_each
from stepsize_solvers.programs import Matrix


def rate_of(D: Matrix) -> float:
    """Return det(D)^{1/d}."""
    return math.exp(float(np.linalg.slogdet(D)[1]) / len(D))


def read_stepsize(D: Any, d: int) -> Matrix:
    """Return D as a positive definite array; raise ValueError or TypeError for any other."""
    if isinstance(D, StepsizeOperator):
        msg = "run takes D as a matrix, and this D is an operator: pass D.todense(), or loop over result.compressor()"
        raise TypeError(msg)
    out = dense(read_matrix("D", D))
    if out.shape != (d, d):
        msg = f"D must have shape ({d}, {d}) as the objective has d={d}, got {out.shape}"
        raise ValueError(msg)
    try:
        np.linalg.cholesky(out)
    except np.linalg.LinAlgError as error:
        msg = "D must be symmetric positive definite"
        raise ValueError(msg) from error
    return out


def read_sketches(objective: Objective | Federated, sketch: Sketch | Sequence[Sketch]) -> tuple[Sketch, ...]:
    """Return one sketch for each client; raises TypeError or ValueError for what is none, a wrong number or size."""
    check_objective("objective", objective)
    n = objective.n if isinstance(objective, Federated) else 1
    return tuple(sketch_of_each(sketch, n, objective.d))


def count_senders(client_seeds: str, sketches: Sequence[Sketch]) -> int:
    """Return how many clients send with one and the same draw."""
    check_one_of("client_seeds", client_seeds, ("independent", "shared"))
    if client_seeds == "independent":
        return 1
    if any(one != sketches[0] for one in sketches):
        msg = "client_seeds='shared' takes one sketch for all clients: different laws cannot have the same draw"
        raise ValueError(msg)
    return len(sketches)
