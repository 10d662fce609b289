"""A goal of your own: the mean of E‖∇f‖² in a norm with weights, one for each coordinate."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from stepsize_opt import RandK, certify, optimal_stepsize
from stepsize_opt.goals import FloorGoal, GoalWords
from stepsize_validation.data import random_smoothness


class Weighted(FloorGoal, by_name=False):
    """The largest t with H ⪰ tM⁻¹, so that (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(tK) in the norm of M⁻¹, the weights."""

    name: ClassVar[str] = "weighted"
    words: ClassVar[GoalWords] = GoalWords(
        "t with H ⪰ tW", "H ⪰ tW with t > 0", "2Δ⁰/ε²", ("epsilon2", "initial_gap"), "H"
    )


if __name__ == "__main__":
    L, weights = random_smoothness(np.random.default_rng(0), 6, 100.0), np.array([1.0, 1.0, 1.0, 4.0, 4.0, 4.0])
    goal = Weighted(np.diag(1.0 / weights))
    result = optimal_stepsize(L, RandK(6, 2), goal=goal)
    print(f"{result.status}, t = {result.rate:.5f}, certified gap below 1e-6: {result.gap < 1e-6}")
    print(f"no method of rank 2 has more than 2/tr(LW) = {2.0 / (weights @ np.diag(L)):.5f}; limit {result.limit:.5f}")
    print(f"proved again: {certify(result, L, goal=goal).feasible}")
    print(f"{result.iterations(epsilon2=1e-3, initial_gap=1.0)} rounds")
