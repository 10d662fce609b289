"""Distributed stepsizes: the paper's setting on real data, and the native solver against the lifted forms."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

from benchmarks.harness import GAP, Measured, at_hand, main, timed
from shared.clients import random_clients
from stepsize_opt.clients import optimal_distributed_stepsize
from stepsize_opt.planning import compare_distributed
from stepsize_opt.problems import find_federated_infimum
from stepsize_opt.sketches import RandK
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
        scalar = next(row.K for row in table.rows if row.method == "DCGD")
        for row in table.rows:
            if row.result is None:
                continue
            gap = row.result.gap if row.result.status == "optimal" else math.inf
            note = f"{row.result.solver_stats.solve_time:.3g} s, K = {row.K}, DCGD {scalar}"
            case = f"{name}, {clients} clients, {row.method}, {row.stepsize} D, {row.seeds} seeds, {row.goal}"
            yield Measured("gap, clients with real data", case, gap, at_most=GAP, note=note)


def forms(quick: bool) -> Iterator[Measured]:
    """Times faster than Clarabel on the linear form in A, on random problems with λ_D ≤ 1.

    At D = L⁻¹ λ_D is a few times ω = d/k − 1: D ⪯ L⁻¹ is slack for k = 1, but not for k = 2d/3.
    """
    n = 3 if quick else 5
    goal = {"epsilon2": 1.0, "initial_gap": 1e-9, "delta_inf": 0.0, "iterations": n}
    # Imports and first calls do not count.
    optimal_distributed_stepsize(random_clients(2, n, 1), RandK(2, 1), solver="clarabel", **goal)
    for d in (6, 10) if quick else (6, 10, 15, 20, 25):
        matrices = random_clients(d, n, 1)
        for sketch in (RandK(d, 1), RandK(d, -(-2 * d // 3))):
            solve = partial(optimal_distributed_stepsize, matrices, sketch, **goal)
            ours, theirs = timed(solve), timed(partial(solve, solver="clarabel"))
            case = f"d = {d}, {n} clients, k = {sketch.k}"
            yield Measured("gap, random clients", case, ours.answer.gap, at_most=GAP, note=f"{ours.seconds:.3g} s")
            note = f"{theirs.seconds:.3g} s, gap {theirs.answer.gap:.0e}"
            faster = theirs.seconds / ours.seconds
            yield Measured("times faster than Clarabel on the linear form", case, faster, note=note)


STUDIES = (forms, data)

if __name__ == "__main__":
    sys.exit(main(STUDIES))
