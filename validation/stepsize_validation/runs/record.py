"""What a run leaves behind: gradient norms, values and numbers sent, for each seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.programs import Indices, Matrix, Vector

# Coordinates are sent as float64; which ones they are follows from shared random seeds and costs nothing, as in the
# paper's count.
BITS_PER_NUMBER = 64


@dataclass(frozen=True, eq=False)
class Run:
    """The record of a run of K steps for s seeds.

    squared_norms: ‖∇f(xᵏ)‖²_{D/det(D)^{1/d}}, shape (s, K); euclidean: ‖∇f(xᵏ)‖², shape (s, K).
    descent: ⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩/det(D)^{1/d}, shape (s, K); E[S] = I makes its mean that of squared_norms.
    sent: numbers sent in each round by all clients together, shape (s, K).
    values: f at the steps ``value_steps`` (the last is K, after the final step), shape (s, number of steps).
    start_value: f(x⁰); lower_bound: a proved bound on f^inf; rate: det(D)^{1/d}.
    diverged_at: the step at which a run was stopped because it diverged; K is then the number of steps recorded.
    """

    algorithm: str
    squared_norms: Matrix
    euclidean: Matrix
    descent: Matrix
    sent: Matrix
    values: Matrix
    value_steps: Indices
    final_points: Matrix
    start_value: float
    lower_bound: float
    rate: float
    diverged_at: int | None = None

    @property
    def iterations(self) -> int:
        return int(self.squared_norms.shape[1])

    @property
    def seeds(self) -> int:
        return int(self.squared_norms.shape[0])

    @property
    def initial_gap(self) -> float:
        """f(x⁰) minus the proved lower bound: at least Δ⁰."""
        return self.start_value - self.lower_bound

    @property
    def final_values(self) -> Vector:
        return self.values[:, -1]

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

    def weighted_means(self) -> Matrix:
        """G_k = (1/k) Σ_{j<k} ‖∇f(xʲ)‖²_{D/det(D)^{1/d}} for k = 1 … K and each seed, shape (s, K)."""
        return _running_means(self.squared_norms)

    def euclidean_means(self) -> Matrix:
        """E_k = (1/k) Σ_{j<k} ‖∇f(xʲ)‖², shape (s, K)."""
        return _running_means(self.euclidean)

    def bits(self) -> Vector:
        """Bits sent in the first k rounds, k = 1 … K, on average over the seeds."""
        return np.asarray(np.cumsum(self.sent.mean(axis=0)) * BITS_PER_NUMBER)


def _running_means(norms: Matrix) -> Matrix:
    return np.asarray(np.cumsum(norms, axis=1) / np.arange(1, norms.shape[1] + 1))


def first_below(curve: Vector, level: float) -> int | None:
    """The smallest k = 1 … K with curve[k−1] ≤ level, or None when the curve never gets there."""
    below = np.flatnonzero(curve <= level)
    return int(below[0]) + 1 if below.size else None


def log_steps(iterations: int, count: int) -> Indices:
    """At most ``count`` whole numbers from 1 to ``iterations``, evenly spread on a log scale, both ends included."""
    return np.unique(np.rint(np.geomspace(1, iterations, count)).astype(np.intp))
