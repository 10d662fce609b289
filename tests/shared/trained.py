"""The problems that processes and the numpy runner both solve."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    optimal_stepsize,
)
from stepsize_opt.problems import Federated, SoftmaxRegression
from stepsize_validation.data import random_quadratic

ITERATIONS, SEED = 60, 3
# Near the minimum f decides by its last digits, which depend on the order of a sum.
FEEDBACK_ROUNDS = 24
# The sketch and the method of each case.
SOFTMAX: dict[str, tuple[Sketch, str]] = {
    "rand-4": (RandK(18, 4), "det-CGD1"),
    "rand-1": (RandK(18, 1), "det-CGD1"),
    "independent": (IndependentSampling(np.linspace(0.05, 0.4, 18)), "det-CGD1"),
    "layers of coins": (BernQ([0.5, 0.3], [6, 12]), "det-CGD1"),
    "det-CGD2": (RandK(18, 4), "det-CGD2"),
    "det-CGD2, gaussian": (Gaussian(18, 4), "det-CGD2"),
}
MOMENTUM: dict[str, dict[str, Any]] = {
    "momentum, linear": {"goal": "linear", "strong_convexity": 0.1},
    "momentum, convex": {"goal": "convex"},
}
FEEDBACK: dict[str, dict[str, Any]] = {
    "feedback, shared": {"places": "shared"},
    "feedback, own": {"places": "own"},
    "feedback, measured": {"places": "shared", "rule": "measured"},
}
SHAPES = {"first": (3, 2), "second": (4,), "third": (1,)}
LAYERED: dict[str, Sketch] = {
    "first": RandK(6, 2),
    "second": IndependentSampling(np.full(4, 0.3)),
    "third": Identity(1),
}


def softmax_problem(n: int) -> Federated:
    rng = np.random.default_rng(0)
    return Federated(
        tuple(SoftmaxRegression(rng.standard_normal((40, 6)) + i, rng.integers(0, 3, 40), 3, 0.1) for i in range(n))
    )


def layered_problem(n: int) -> Federated:
    rng = np.random.default_rng(1)
    return Federated(tuple(random_quadratic(np.geomspace(0.1, 2.0, 11), rng) for _ in range(n)))


def layered_stepsize(n: int) -> list[Any]:
    """The blocks of D, one for each parameter."""
    sizes = [sketch.d for sketch in LAYERED.values()]
    sketch = LayerWise(list(LAYERED.values()))
    D = optimal_stepsize(layered_problem(n).smoothness(), sketch, structure=BlockDiagonal(sizes)).D
    ends = np.cumsum([0, *sizes])
    return [np.asarray(D)[a:b, a:b] for a, b in pairwise(ends)]
