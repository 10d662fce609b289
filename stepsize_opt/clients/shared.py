"""Shared seeds: all clients draw the same sketch, so that n clients are one node.

(1/n)ΣS∇fᵢ = S∇f, and the same for T: with one draw for all clients the update is that of a single node with
f = (1/n)Σfᵢ and its smoothness matrix L.  There is no λ_D, no Δ^inf and no neighbourhood, and Theorem 1 of the paper
(or the descent metric) gives K ≥ 2Δ⁰/(rate·ε²).  The server knows the seed, so that no indices travel.

L = (1/n)ΣLᵢ is no matrix of floats; it is rounded up (``stepsize_opt.proofs.mean_above``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from stepsize_opt.clients.result import DistributedCertificate, DistributedResult
from stepsize_opt.clients.targets import Targets
from stepsize_opt.goals import GoalName
from stepsize_opt.methods import Method
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.proofs import exp_down, exp_up
from stepsize_opt.rounds import coordinates_sent
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Matrix, Status

Seeds: TypeAlias = Literal["independent", "shared"]
SEEDS: tuple[str, ...] = get_args(Seeds)


def shared_seeds(
    L: Matrix,
    sketch: Sketch,
    targets: Targets,
    *,
    tol: float,
    algorithm: Method,
    goal: GoalName,
    requested: int | None = None,
    **options: Any,
) -> DistributedResult:
    """Solve for clients that draw the same sketch, as one node with L; ``options`` go to ``optimal_stepsize``."""
    # The certified gap of n clients is e^x − 1 for an interval of width x.
    node = optimal_stepsize(
        L,
        sketch,
        algorithm=algorithm,
        goal=goal,
        tol=math.log1p(tol),
        **options,
    )
    log_rate, upper = node.log_det / node.d, node.certificate.upper_bound / node.d
    rate = exp_down(log_rate)
    needed = targets.single_iterations(rate)
    smallest = targets.single_iterations(exp_up(upper)) if math.isfinite(upper) else 1
    certificate = DistributedCertificate(node.certificate.feasible, log_rate, upper, smallest)
    status, message, K = node.status, node.message, needed
    if requested is not None:
        if requested >= needed:
            K, certificate = requested, replace(certificate, smallest_K=1)
        else:
            status = (Status.INFEASIBLE if requested < smallest else Status.INACCURATE).value
            message = why_not(requested, needed, smallest, goal)
    if status == Status.OPTIMAL.value and not certificate.is_optimal(tol):
        status = Status.INACCURATE.value
    return DistributedResult(
        status=status,
        D=node.D,
        K=K,
        lambda_D=0.0,
        rate=rate,
        descent_rate=max(node.descent_rate, rate),
        goal=goal,
        binding=("T(D) ⪯ D",) if goal == "paper" else (),
        certificate=certificate,
        targets=targets,
        numbers_per_client=(coordinates_sent(K, sketch.expected_nonzeros),) * targets.clients,
        solver_stats=node.solver_stats,
        reductions=("shared seeds: the clients are one node with L", *node.reductions),
        method=algorithm,
        sketches=(node.sketch,) * targets.clients,
        structure=node.structure,
        tol=tol,
        seeds="shared",
        iterations_requested=requested,
        message=message,
    )


def why_not(requested: int, needed: int, smallest: int, goal: str) -> str:
    """What is said of a K below the one that is proved to work; the other goal may allow fewer iterations."""
    if requested >= smallest:
        return f"K = {requested} could not be decided: {needed} works, below {smallest} nothing does"
    under = "the condition" if goal == "paper" else "the descent metric"
    return f"K = {requested} is proved too small under {under}; the smallest K that works is {needed}"
