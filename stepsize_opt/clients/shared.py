"""Shared seeds: all clients draw the same sketch, so that n clients are one node.

(1/n)ΣS∇fᵢ = S∇f, and the same for T: with one draw for all clients the update is that of a single node with
f = (1/n)Σfᵢ and its smoothness matrix L.  There is no λ_D, no Δ^inf and no neighbourhood, and Theorem 1 of the paper
(or the descent metric) gives K ≥ 2Δ⁰/(rate·ε²).  The server knows the seed, so that no indices travel.

L = (1/n)ΣLᵢ is no matrix of floats; it is rounded up (``stepsize_opt.proofs.mean_above``).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, get_args

from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.clients.targets import Targets
from stepsize_opt.node import StepsizeResult
from stepsize_opt.proofs import exp_up
from stepsize_opt.rounds import coordinates_sent
from stepsize_solvers.programs import Status

Seeds: TypeAlias = Literal["independent", "shared"]
SEEDS: tuple[str, ...] = get_args(Seeds)


def shared_seeds(node: StepsizeResult, targets: Targets, requested: int | None) -> DistributedResult:
    """Return the answer of clients that draw the same sketch, from that of one node with L."""
    rate, upper = node.rate, node.certificate.log_rate_bound
    K = targets.single_iterations(rate)
    smallest = targets.single_iterations(exp_up(upper)) if math.isfinite(upper) else 1
    status, message = node.status, node.message
    if requested is not None and requested >= K:
        K, smallest = requested, 1
    elif requested is not None:
        status = (Status.INFEASIBLE if requested < smallest else Status.INACCURATE).value
        message = why_not(requested, K, smallest, node.goal)
    return DistributedResult(
        status=status,
        D=node.D,
        K=K,
        smallest_K=smallest,
        lambda_D=0.0,
        rate=rate,
        descent_rate=max(node.descent_rate, rate),
        goal=node.goal,
        binding=("T(D) ⪯ D",) if node.goal == "paper" else (),
        certificate=node.certificate,
        targets=targets,
        floats_per_client=(coordinates_sent(K, node.expected_nonzeros),) * targets.clients,
        solver_stats=node.solver_stats,
        reductions=("shared seeds: the clients are one node with L", *node.reductions),
        method=node.method,
        sketches=(node.sketch,) * targets.clients,
        structure=node.structure,
        tol=node.tol,
        seeds="shared",
        iterations_requested=requested,
        message=message,
        question=node,
    )


def why_not(requested: int, needed: int, smallest: int, goal: str) -> str:
    """What is said of a K below the one that is proved to work; the other goal may allow fewer iterations."""
    if requested >= smallest:
        return f"K = {requested} could not be decided: {needed} works, below {smallest} nothing does"
    under = "the condition" if goal == "paper" else "the descent metric"
    return f"K = {requested} is proved too small under {under}; the smallest K that works is {needed}"
