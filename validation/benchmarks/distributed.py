"""Distributed stepsizes: the paper's setting on real data."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.harness import GAP, Measured, at_hand, main
from stepsize_opt import RandK
from stepsize_opt.planning import compare_distributed
from stepsize_opt.problems import find_federated_infimum
from stepsize_validation.data import federated_logistic, load_dataset, split


def data(quick: bool) -> Iterator[Measured]:
    """λ = 0.1, equal shares of the shuffled rows, rand-1, ε² = 10⁻⁴: certified gap, seconds, K compared with DCGD.

    The paper's setting; Δ⁰ and Δ^inf are found by minimising f and every fᵢ.
    """
    clients = 10 if quick else 100
    for name in at_hand("breast_cancer") if quick else at_hand("a1a", "mushrooms", "phishing"):
        objective = federated_logistic(split(load_dataset(name), clients, np.random.default_rng(0)), 0.1)
        infimum = find_federated_infimum(objective)
        table = compare_distributed(
            objective.client_smoothness(),
            RandK(objective.d, 1),
            mean_smoothness=objective.smoothness(),
            epsilon2=1e-4,
            initial_gap=float(objective.value(np.zeros((1, objective.d)))[0]) - infimum.whole.found,
            delta_inf=infimum.delta_inf,
        )
        scalar = next(row.rounds for row in table.rows if row.method == "DCGD")
        for row in table.rows:
            if row.result is None:
                continue
            gap = row.result.gap if row.result.status == "optimal" else math.inf
            note = f"{row.result.solver_stats.solve_time:.3g} s, K = {row.rounds:g}, DCGD {scalar:g}"
            case = f"{name}, {clients} clients, {row.method}, {row.stepsize} D, {row.seeds} seeds, {row.goal}"
            yield Measured("gap, clients with real data", case, gap, at_most=GAP, note=note)


if __name__ == "__main__":
    sys.exit(main([data]))
