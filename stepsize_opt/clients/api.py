"""The optimal stepsize and the smallest number of iterations for n clients: the public function.

Distributed det-CGD1, x⁺ = x − (D/n) Σ Sᵢ∇fᵢ(x), and det-CGD2, x⁺ = x − (1/n) Σ Tᵢ D∇fᵢ(x), reach E‖∇f‖² ≤ ε² (in the
norm of D/det(D)^{1/d}) within K steps under the conditions of Corollary 1 of the paper, called (12) and (12′):

    D L D ⪯ D,     λ_D ≤ min{ n/K, nε² det(D)^{1/d}/(4Δ^inf) },     K ≥ 12Δ⁰/(det(D)^{1/d} ε²).

The derivations are in ``docs/distributed.md``; each module of this package states what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

from stepsize_opt.clients import search
from stepsize_opt.clients.fit import ProvedMultiple, Slack, best_multiple, read_iterations, slacks
from stepsize_opt.clients.problem import Targets, read_clients, reduce_clients
from stepsize_opt.clients.programs import ClientPrograms
from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.clients.search import Question, Runs
from stepsize_opt.goals import CLIENT_GOALS, Goal, GoalName, PaperGoal, coordinates_sent, goal_class
from stepsize_opt.inputs.checks import check_one_of, read_only, solve_settings
from stepsize_opt.inputs.structures import Structure, multiples_of, pattern_of
from stepsize_opt.methods import Algorithm, get_method
from stepsize_opt.node import StepsizeResult, optimal_stepsize
from stepsize_opt.proofs import UNIT, Certificate, exp_down, exp_up
from stepsize_opt.sketches.base import Sketch
from stepsize_solvers import check_solver
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Status

Seeds: TypeAlias = Literal["independent", "shared"]
SEEDS: tuple[str, ...] = get_args(Seeds)


def _shared_seeds(node: StepsizeResult, targets: Targets, requested: int | None, **asked: Any) -> DistributedResult:
    """Return the answer of clients that draw the same sketch, from that of one node with L."""
    rate, upper = node.rate, node.certificate.log_rate_bound
    K = targets.single_iterations(rate)
    smallest = targets.single_iterations(exp_up(upper)) if math.isfinite(upper) else 1
    status, message = node.status, node.message
    if requested is not None and requested >= K:
        K, smallest = requested, 1
    elif requested is not None:
        status = (Status.INFEASIBLE if requested < smallest else Status.INACCURATE).value
        message = why_not(requested, K, smallest, node.goal_class)
    return DistributedResult(
        status=status,
        D=node.D,
        K=K,
        smallest_K=smallest,
        lambda_D=0.0,
        rate=rate,
        descent_rate=max(node.descent_rate, rate),
        binding=("T(D) ⪯ D",) if node.goal_class.needs_condition else (),
        certificate=node.certificate,
        targets=targets,
        floats_per_client=(coordinates_sent(K, node.expected_nonzeros),) * targets.clients,
        solver_stats=node.solver_stats,
        reductions=("shared seeds: the clients are one node with L", *node.reductions),
        iterations_requested=requested,
        gammas=node.gammas,
        message=message,
        **asked,
    )


def why_not(requested: int, needed: int, smallest: int, goal: type[Goal]) -> str:
    """Explain why a K below the one that is proved to work was refused; the other goal may allow fewer iterations."""
    if requested >= smallest:
        return f"K = {requested} could not be decided: {needed} works, below {smallest} nothing does"
    under = "the condition" if goal.needs_condition else "the descent metric"
    return f"K = {requested} is proved too small under {under}; the smallest K that works is {needed}"


def optimal_distributed_stepsize(
    smoothness: Sequence[Any],
    sketch: Sketch | str | Sequence[Sketch | str],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    iterations: int | None = None,
    mean_smoothness: Any = None,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    goal: GoalName = "paper",
    seeds: Seeds = "independent",
    solver: str = "auto",
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> DistributedResult:
    """Find the globally optimal D and the smallest K under the distributed conditions (12) or (12′), with a proof.

    Without ``iterations`` the smallest K comes from the one convex program without K,

        maximise log det D   subject to   D ⪯ L⁻¹,   λ_D ≤ nε² min{1/(12Δ⁰), 1/(4Δ^inf)} det(D)^{1/d},

    because K ≥ 12Δ⁰/(det(D)^{1/d}ε²) is tight at the optimum.  K is then rounded up to a whole number and D rescaled,
    so that all of (12) holds exactly for the K returned.  With ``iterations=K`` the D of largest determinant is found
    for that K; a K for which (12) has no solution gets the status ``infeasible`` and the smallest K that has one.

    Parameters
    ----------
    smoothness : sequence of array-like or sparse matrix of shape (d, d)
        The clients' matrices L₁, …, L_n, each symmetric positive semidefinite.
    sketch
        The distribution of every Sᵢ (or Tᵢ), or one sketch for each client; also by text such as ``"randk:8"``.
    epsilon2
        The accuracy ε² > 0 asked for.
    initial_gap
        Δ⁰ = f(x⁰) − f^inf ≥ 0.
    delta_inf
        Δ^inf = f^inf − (1/n)Σfᵢ^inf ≥ 0, how much the clients disagree.
    iterations
        K, a whole number; None finds the smallest.
    mean_smoothness : array-like or sparse matrix of shape (d, d), optional
        L of f = (1/n)Σfᵢ, positive definite; None takes (1/n)ΣLᵢ.
    algorithm : str or Method
        ``"det-CGD1"`` for (12), ``"det-CGD2"`` for (12′), in any case, or a ``Method``.
    structure : str, BlockDiagonal or Direction
        ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``, whose best multiple
        ``gammas`` of the result names; this also checks a D of your own (docs/clients.md).
    goal : str
        ``"paper"``, the paper's, or ``"descent"`` with ``seeds="shared"``, as in ``optimal_stepsize``.
    seeds : str
        ``"independent"``: every client draws its own sketch, as in the paper.  ``"shared"``: all clients draw the same,
        which takes one sketch for all and makes the problem that of one node with L: no λ_D, no Δ^inf, and usually
        orders of magnitude fewer rounds.
    solver
        ``"auto"`` (the project's own), or a name from ``available_solvers``.
    tol
        The certified gap asked for: of log det(D)^{1/d}, and so the relative excess of K over the best possible.
    verbose
        Print the progress of the solver.
    time_limit
        Seconds for the whole call, None for no limit; see ``optimal_stepsize``.
    max_iters
        Iterations of each program that is solved, None for the solver's default.
    options
        The solver's own options, by its own names.

    Returns
    -------
    DistributedResult with ``D``, ``K``, ``lambda_D``, ``rate``, ``binding``, ``gap``, ``status`` and ``certificate``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described; the message names the argument.
    SolverUnavailable
        For a solver that is not installed or has no licence.
    RuntimeError
        When no solver returned a usable matrix.

    See Also
    --------
    optimal_stepsize : the same for one node.
    compare_distributed : the optima beside the stepsizes of the literature.
    plan : all methods within a budget.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, optimal_distributed_stepsize
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> result = optimal_distributed_stepsize(clients, RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5)
    >>> result.status, result.K
    ('optimal', 306)
    """
    solving: dict[str, Any] = {"tol": tol, "verbose": verbose, "time_limit": time_limit, "max_iters": max_iters}
    settings = solve_settings(**solving, options=options)
    method = get_method(algorithm)
    check_one_of("goal", goal, CLIENT_GOALS)
    check_one_of("seeds", seeds, SEEDS)
    if seeds == "independent" and not goal_class(goal).needs_condition:
        msg = (
            f"goal={goal!r} goes with seeds='shared'; for independent seeds take goal='paper', "
            "whose result has descent_rate and iterations() of its D"
        )
        raise ValueError(msg)
    requested = read_iterations(iterations)
    clients = read_clients(smoothness, sketch, mean_smoothness)
    targets = Targets(epsilon2, initial_gap, delta_inf, len(clients.matrices))
    pattern = pattern_of(structure, clients.d)
    method.check(clients.sketches)
    check_solver(solver, settings)
    asked: dict[str, Any] = {"method": method, "structure": structure, "goal": goal, "tol": tol, "seeds": seeds}
    asked["sketches"] = tuple(clients.sketches)
    if seeds == "shared":
        if clients.common_sketch is None:
            msg = "seeds='shared' takes one sketch for all clients: different laws cannot have the same draw"
            raise ValueError(msg)
        solving |= {"algorithm": method, "structure": structure, "goal": goal, "solver": solver, "options": options}
        node = optimal_stepsize(clients.smoothness, clients.common_sketch, **solving)
        return _shared_seeds(node, targets, requested, **asked)
    # det(D)^{1/d} enters K once directly and once through λ_D, so the program must be twice as exact as K.
    settings = replace(settings, tol=settings.tol / 4.0)
    with blas_threads(clients.d):
        conditions, notes = reduce_clients(clients, pattern, method)
        question = Question(ClientPrograms.of(conditions), (math.inf, math.inf), solver, settings)
        found, status, message = _answer(question, targets, requested, tol)
        best = found.best
        descent = conditions.descent_log_rate(best.D)
    if not message and status is not Status.OPTIMAL:
        message = "; ".join([status.meaning, status.remedy, *search.failures(found.runs)])
    if settings.verbose:
        print(f"proved K = {best.K}, gap {found.certificate.gap:.2e}")
    rate = best.rate
    D = read_only(conditions.lift(best.D))
    return DistributedResult(
        status=status.value,
        D=D,
        K=best.K,
        smallest_K=found.smallest_K,
        lambda_D=best.lambda_D,
        rate=rate,
        # D ⪯ L⁻¹ makes H ⪰ D, also where the proof for H itself fails.
        descent_rate=rate if descent is None else max(exp_down(descent), rate),
        binding=tuple(slack.condition for slack in found.slacks if slack.log <= slack.binds),
        certificate=found.certificate,
        targets=targets,
        floats_per_client=tuple(best.K * s.expected_nonzeros for s in clients.sketches),
        solver_stats=search.statistics(found.runs),
        reductions=(*notes, *found.notes),
        iterations_requested=requested,
        gammas=multiples_of(structure, D),
        message=message,
        **asked,
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """The best multiple of a direction, what is proved of it, below which K nothing works, and all runs so far."""

    best: ProvedMultiple
    certificate: Certificate
    smallest_K: int
    slacks: list[Slack]
    runs: Runs
    notes: tuple[str, ...]

    @property
    def unproved(self) -> Status:
        """Why there is no proof of optimality: a limit, an interruption, or accuracy."""
        stopped = (run.outcome.status for run in self.runs if run.outcome and run.outcome.status.is_stopped)
        return next(stopped, Status.INACCURATE)


def _answer(question: Question, targets: Targets, requested: int | None, tol: float) -> tuple[_Found, Status, str]:
    """Find the answer for the K asked for, or for the smallest one where that is None or impossible."""
    K = 1 if requested is None and targets.initial_gap == 0.0 else requested
    found = _find(question, targets, K, ())
    if found.certificate.feasible:
        return found, Status.OPTIMAL if found.certificate.is_optimal(tol) else found.unproved, ""
    if requested is None:
        msg = "the conditions could not be proved for K = 1"
        raise RuntimeError(msg)
    found = _find(question, targets, None, found.runs)
    status = Status.INFEASIBLE if requested < found.smallest_K else found.unproved
    return found, status, why_not(requested, found.best.K, found.smallest_K, PaperGoal)


def _find(question: Question, targets: Targets, K: int | None, runs: Runs) -> _Found:
    """Find the best D for a given K, or the smallest K with its D; raises RuntimeError without a proved stepsize."""
    limits = targets.log_limits(K)
    conditions = question.conditions
    answer, runs = search.answered(replace(question, limits=limits), runs)
    best = best_multiple(conditions, targets, answer.direction, K)
    if answer.direction is not None and best is None:
        plain = search.plain_run(conditions, runs)
        runs = (*runs, plain)
        best = best_multiple(conditions, targets, plain.direction, K)
    if best is None:
        msg = f"no solver returned a stepsize for d = {conditions.d}: {'; '.join(search.all_notes(runs)) or 'no point'}"
        raise RuntimeError(msg)
    # Logarithms of fractions are sums of two roundings: these are above the exact ones.
    log_c, log_kappa = (limit + 8.0 * UNIT * (1.0 + abs(limit)) for limit in limits)
    upper = search.upper_bound(runs, (log_c, log_kappa))
    smallest = 1
    if K is None and math.isfinite(upper):
        smallest = targets.least_iterations(exp_up(upper))
    left = slacks(conditions, targets, best)
    margin = -math.expm1(-min(slack.log for slack in left))
    # For a given K the certificate tells how much larger det(D)^{1/d} could be; it does not look for smaller K.
    certificate = Certificate.of_rate(margin, best.free_log_rate, upper, conditions.d)
    certificate = replace(certificate, feasible=targets.enough(best.K, best.rate))
    return _Found(best, certificate, smallest, left, runs, (*search.all_notes(runs), *answer.notes))
