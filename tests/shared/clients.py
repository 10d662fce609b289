"""Random clients, and results for them that are judged in exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stepsize_opt import Sketch, optimal_distributed_stepsize
from stepsize_opt.results import DistributedResult
from stepsize_solvers.programs.maps import Matrix
from stepsize_validation.properties.exact import log, rational
from stepsize_validation.properties.judges import Clients, DistributedPoint, judge_distributed

TARGETS = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.1}


def random_clients(d: int, n: int, seed: int, reg: float = 0.05) -> list[Matrix]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        A = rng.standard_normal((max(1, d - 1), d)) * rng.uniform(0.3, 2.0, size=d)
        out.append(A.T @ A / (4.0 * len(A)) + reg * np.eye(d))
    return out


def problem_of(clients: Sequence[Matrix], sketch: Sketch | Sequence[Sketch], **options: Any) -> Clients:
    """The problem with one sketch for all clients or one for each, and TARGETS unless others are given."""
    laws = [sketch] * len(clients) if isinstance(sketch, Sketch) else sketch
    return Clients(tuple(clients), tuple(laws), **{**TARGETS, **options})


def judged(
    clients: Sequence[Matrix], sketch: Sketch | Sequence[Sketch], *, solver: str = "auto", **options: Any
) -> DistributedResult:
    """A result whose every statement holds in exact arithmetic, and whose rate is tight."""
    problem = problem_of(clients, sketch, **options)
    result = optimal_distributed_stepsize(**problem.arguments, solver=solver)
    judge_distributed(problem, result)
    det = DistributedPoint(problem, rational(np.array(result.D))).det
    assert math.log(result.rate) == pytest.approx(float(log(det)) / len(result.D), abs=1e-9)
    return result
