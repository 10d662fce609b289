"""Running det-CGD1 and det-CGD2 for several seeds at once and comparing with Theorem 1.

det-CGD1: x⁺ = x − D S ∇f(x);   det-CGD2: x⁺ = x − T D ∇f(x).  Theorem 1 of the paper bounds, for a feasible D,

    G_K = (1/K) Σ_{k<K} E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2(f(x⁰) − f^inf)/(det(D)^{1/d} K).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from solvers.maps import Matrix, Vector
from stepsize_opt.sketches import Sketch


class Objective(Protocol):
    """What a run needs: values and gradients at rows of points, and a proved lower bound on f."""

    @property
    def d(self) -> int: ...
    @property
    def lower_bound(self) -> float: ...
    def value(self, X: Matrix) -> Vector: ...
    def gradient(self, X: Matrix) -> Matrix: ...


@dataclass(frozen=True, eq=False)
class Run:
    """The record of one run: weighted squared gradient norms (seeds × K) and what Theorem 1 needs."""

    squared_norms: Matrix
    final_values: Vector
    initial_gap: float
    rate: float

    @property
    def iterations(self) -> int:
        return int(self.squared_norms.shape[1])

    @property
    def observed(self) -> float:
        """G_K, averaged over the seeds."""
        return float(self.squared_norms.mean())

    @property
    def standard_error(self) -> float:
        """Standard error of :attr:`observed` over the seeds; NaN for a single seed."""
        means = self.squared_norms.mean(axis=1)
        return float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.nan

    @property
    def predicted(self) -> float:
        """The bound of Theorem 1, with the proved lower bound in place of f^inf."""
        return 2.0 * self.initial_gap / (self.rate * self.iterations)


def run(
    objective: Objective,
    D: Matrix,
    sketch: Sketch,
    *,
    algorithm: str = "det-CGD1",
    iterations: int = 1000,
    seeds: int = 8,
    seed: int = 0,
) -> Run:
    """Run the method from x⁰ = 0 with independent sketches for each seed, all seeds in one matrix product.

    The same ``seed`` gives the same numbers.  Raises FloatingPointError when the iterates diverge.
    """
    rng = np.random.default_rng(seed)
    X = np.zeros((seeds, objective.d))
    start = float(objective.value(X[:1])[0])
    rate = math.exp(float(np.linalg.slogdet(D)[1]) / objective.d)
    norms = np.empty((seeds, iterations))
    for k in range(iterations):
        gradient = objective.gradient(X)
        scaled = gradient @ D
        norms[:, k] = np.einsum("sd,sd->s", gradient, scaled) / rate
        if not np.all(np.isfinite(norms[:, k])):
            msg = f"{algorithm} diverged at iteration {k}: D is outside its stepsize condition, or L is wrong"
            raise FloatingPointError(msg)
        X = X - (sketch.apply(gradient, rng) @ D if algorithm == "det-CGD1" else sketch.apply(scaled, rng))
    return Run(norms, objective.value(X), start - objective.lower_bound, rate)
