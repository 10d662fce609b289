"""The inequality of one step that the proofs of Theorems 1 and 3 sum, by enumeration of the sketch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from shared.moments import listed
from stepsize_opt import Sketch
from stepsize_opt.problems import Federated, Objective
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class OneStepCheck:
    """E[f(x⁺)] − (right side) at each point, with a bound on the rounding of the comparison."""

    excess: Vector
    rounding: Vector

    @property
    def holds(self) -> bool:
        return bool(np.all(self.excess <= self.rounding))

    @property
    def is_equality(self) -> bool:
        return bool(np.all(np.abs(self.excess) <= self.rounding))


def one_step(
    objective: Objective,
    D: Matrix,
    sketch: Sketch,
    X: Matrix,
    algorithm: str = "det-CGD1",
    *,
    metric: Matrix | None = None,
    contraction: tuple[float, float] | None = None,
) -> OneStepCheck:
    """E[f(x⁺)] ≤ f(x) − ½‖∇f(x)‖²_D at each row x of X, with the expectation over the listed law of the sketch.

    This is the inequality that the proof of Theorem 1 sums; no statistics are involved.  ``metric``: a matrix in place
    of D.  ``contraction`` = (t, f*): the right side is f* + (1 − t)(f(x) − f*) instead.  Raises ValueError for a sketch
    whose law cannot be listed.
    """
    gradients, before = objective.gradient(X)[:, None], objective.value(X)
    right = before - _decrease(gradients, D if metric is None else metric)
    if contraction is not None:
        t, least = contraction
        right = least + (1.0 - t) * (before - least)
    return _compared(objective, gradients, D, sketch, X, algorithm, right)


def distributed_one_step(
    objective: Federated,
    D: Matrix,
    sketch: Sketch,
    X: Matrix,
    client_infimum: float,
    lambda_D: float,
    algorithm: str = "det-CGD1",
    metric: Matrix | None = None,
) -> OneStepCheck:
    """E[f(x⁺)] ≤ f(x) − ½‖∇f(x)‖²_D + (λ_D/n)(f(x) − (1/n) Σ fᵢ^inf), the step of the proof of Theorem 3.

    ``metric`` takes the place of D in the norm.

    All combinations of the n clients' outcomes are listed, so n and d must be small; ``client_infimum`` is a number
    that (1/n) Σ fᵢ^inf does not exceed.
    """
    gradients, before = objective.client_gradients(X), objective.value(X)
    right = before - _decrease(gradients, D if metric is None else metric)
    right = right + lambda_D / objective.n * (before - client_infimum)
    return _compared(objective, gradients, D, sketch, X, algorithm, right)


def _decrease(gradients: Vector, metric: Matrix) -> Vector:
    mean = gradients.mean(axis=1)
    return np.asarray(0.5 * np.einsum("sd,sd->s", mean, mean @ metric))


def _compared(
    f: Any, gradients: Vector, D: Matrix, sketch: Sketch, X: Matrix, algorithm: str, right: Vector
) -> OneStepCheck:
    """Compare E f after a step of the clients with the gradients (s, n, d) with the right side."""
    weights, outcomes = listed(sketch)
    n = gradients.shape[1]
    expected, size = np.zeros(len(X)), np.abs(right)
    for choice in product(range(len(weights)), repeat=n):
        S = outcomes[list(choice)]
        moved = gradients @ D if algorithm == "det-CGD2" else gradients
        step = np.einsum("nij,snj->si", S, moved) / n
        value = f.value(X - (step if algorithm == "det-CGD2" else step @ D))
        expected += float(np.prod(weights[list(choice)])) * value
        size = np.maximum(size, np.abs(value))
    # f sums at most some thousand terms, so its rounding is below 1e4 units of the largest number in the comparison.
    return OneStepCheck(expected - right, 1e4 * np.finfo(float).eps * size)
