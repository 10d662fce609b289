"""The inequality of one step that the proofs of Theorems 1 and 3 sum, by enumeration of the sketch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

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
    weights, outcomes = listed(sketch)
    gradient = objective.gradient(X)
    if algorithm == "det-CGD2":
        steps = np.einsum("rij,sj->rsi", outcomes, gradient @ D)
    else:
        steps = np.einsum("rij,sj->rsi", outcomes, gradient) @ D
    values = objective.value((X - steps).reshape(-1, objective.d)).reshape(len(weights), len(X))
    before = objective.value(X)
    if contraction is not None:
        t, least = contraction
        return _one_step_check(weights @ values, least + (1.0 - t) * (before - least), values)
    decrease = 0.5 * np.einsum("sd,sd->s", gradient, gradient @ (D if metric is None else metric))
    return _one_step_check(weights @ values, before - decrease, values)


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
    weights, outcomes = listed(sketch)
    parts = objective.client_gradients(X)
    expected = np.zeros(len(X))
    seen = np.zeros(len(X))
    for choice in product(range(len(weights)), repeat=objective.n):
        S = outcomes[list(choice)]
        if algorithm == "det-CGD2":
            step = np.einsum("nij,snj->si", S, parts @ D) / objective.n
        else:
            step = np.einsum("nij,snj->si", S, parts) @ D / objective.n
        value = objective.value(X - step)
        expected += float(np.prod(weights[list(choice)])) * value
        seen = np.maximum(seen, np.abs(value))
    gradient, value = parts.mean(axis=1), objective.value(X)
    decrease = 0.5 * np.einsum("sd,sd->s", gradient, gradient @ (D if metric is None else metric))
    right = value - decrease + lambda_D / objective.n * (value - client_infimum)
    return _one_step_check(expected, right, seen[None])


def _one_step_check(left: Vector, right: Vector, values: Matrix) -> OneStepCheck:
    # f sums at most some thousand terms, so its rounding is below 1e4 units of the largest number in the comparison.
    size = np.maximum(np.max(np.abs(values), axis=0), np.abs(right))
    return OneStepCheck(left - right, 1e4 * np.finfo(float).eps * size)
