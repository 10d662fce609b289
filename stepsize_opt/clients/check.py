"""``certify_distributed``: what is proved of a stepsize matrix of the user's own for n clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np

from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.fit import Multiples, best_multiple, read_iterations, variance_bounds
from stepsize_opt.clients.problem import Targets, read_clients, reduce_clients
from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.goals import CLIENT_GOALS, GoalName
from stepsize_opt.inputs import (
    Direction,
    Immutable,
    Scaling,
    Shown,
    Structure,
    check_one_of,
    dense,
    pattern_of,
    pattern_with,
    read_matrix,
    read_only,
)
from stepsize_opt.methods import Algorithm, get_method
from stepsize_opt.proofs import (
    UNIT,
    AtStepsize,
    Conditions,
    Enclosed,
    Pair,
    exp_down,
    exp_up,
    first_proved,
    lambda_from_below,
    log_rate_from_above,
    losses,
    refutes,
)
from stepsize_opt.records import completed
from stepsize_opt.sketches import Sketch
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix

# D in scaled coordinates, where L is near one: DLD is then a float, and D keeps the bits of its roundings.
_LEAST, _MOST = 2.0**-900, 2.0**500
# The bound on λ_D is tried next to its estimate, and up to so many times farther above it.
_FARTHEST = 4.0**23


@dataclass(frozen=True, eq=False, repr=False)
class DistributedCheck(Shown, Immutable):
    """What ``certify_distributed`` found out about a given D.

    Attributes
    ----------
    conditions
        Each condition of (12) or (12′) in words with True where it is proved, False where its opposite is proved, and
        None where rounding leaves it open (or where it depends on a K or a rate that D does not have).
    K
        The number of iterations for which D is judged: the one asked for, otherwise the smallest whole number that is
        proved to be at least 12Δ⁰/(τε²); None when no τ > 0 is proved.  ``smallest_K`` is the other end.
    lambda_below
        A proved lower bound on λ_D.
    lambda_D
        A proved upper bound on it.
    rate
        A proved lower bound on τ = det(D)^{1/d}, or det(H)^{1/d} with H = 2D − DLD for the goal ``descent``; 0
        when D ≻ 0 (H ≻ 0) is not proved.
    rate_above
        A proved upper bound on it.
    descent_rate
        A proved lower bound on det(H)^{1/d}, 0 when H ≻ 0 is not proved.
    goal
        What was asked for, ``paper`` or ``descent``.
    targets
        ε², Δ⁰, Δ^inf and n, as they were given.
    best_multiple
        The multiple of D with the smallest K (for a given K: the largest that the conditions on λ_D and D ⪯ L⁻¹ allow),
        proved, read-only; None when D ≻ 0 is not proved.
    best_multiple_K
        The iterations that it needs; None where no multiple of D satisfies the conditions for the K asked for.
    best_multiple_log_rate
        A proved lower bound on log τ of the best multiple, before K was rounded up to a whole number.
    optimum
        The answer of ``optimal_distributed_stepsize`` to the same question, when it was asked for.

    Examples
    --------
    See ``certify_distributed``.
    """

    conditions: Mapping[str, bool | None]
    K: int | None
    lambda_below: float
    lambda_D: float
    rate: float
    rate_above: float
    descent_rate: float
    goal: str
    targets: Targets
    best_multiple: Matrix | None
    best_multiple_K: int | None
    best_multiple_log_rate: float
    optimum: DistributedResult | None

    @property
    def feasible(self) -> bool:
        """Whether all conditions are proved for (D, K)."""
        return all(holds is True for holds in self.conditions.values())

    @property
    def infeasible(self) -> bool:
        """Whether a condition is proved to be violated; neither this nor ``feasible`` where rounding decides."""
        return any(holds is False for holds in self.conditions.values())

    @property
    def smallest_K(self) -> int:
        """Fewer iterations are proved to be too few for D."""
        return self.targets.least_iterations(self.rate_above)

    @property
    def largest_K(self) -> float:
        """λ_D ≤ n/K is proved up to this whole number; infinite without variance, 0 where it holds for no K."""
        if self.lambda_D == 0.0:
            return math.inf
        return 0 if math.isinf(self.lambda_D) else math.floor(Fraction(self.targets.clients) / Fraction(self.lambda_D))

    @property
    def bound(self) -> float:
        """What Theorem 3 proves of the mean squared gradient norm after K iterations; at most ε² if ``feasible``.

        Infinite where the condition on D alone (D ⪯ L⁻¹, or H ≻ 0) is not proved.  λ_D may be larger than (12) allows.
        """
        alone = next(iter(self.conditions.values()))
        if alone is not True or self.K is None or not self.rate > 0.0 or math.isinf(self.lambda_D):
            return math.inf
        return self.targets.theorem3(self.K, self.lambda_D, self.rate)

    @property
    def gap(self) -> float:
        """log(τ̄/τ), τ̄ the proved bound of the optimum, as in a certificate; infinite if infeasible or not solved."""
        return self._gap(math.log(self.rate) if self.feasible else -math.inf)

    @property
    def gap_of_best_multiple(self) -> float:
        """The same for the best multiple of D: what its direction costs."""
        return self._gap(self.best_multiple_log_rate if self.best_multiple_K is not None else -math.inf)

    def _gap(self, log_rate: float) -> float:
        return math.inf if self.optimum is None else max(0.0, self.optimum.certificate.log_rate_bound - log_rate)

    def _shown(self) -> list[tuple[str, str]]:
        words = {True: "proved", False: "violated", None: "open"}
        rows = [(name, words[holds]) for name, holds in self.conditions.items()]
        rows += [
            ("K", f"{self.K}, {self.best_multiple_K} for the best multiple of D"),
            ("λ_D", f"from {self.lambda_below:.9g} to {self.lambda_D:.9g}"),
            (f"rate, goal {self.goal}", f"{self.rate:.9g}"),
            ("descent rate det(H)^(1/d)", f"{self.descent_rate:.9g}"),
        ]
        if self.optimum is not None:
            rows.append(("K of the optimum", str(self.optimum.K)))
            rows.append(("gap of D at most", f"{self.gap:.3g}, {self.gap_of_best_multiple:.3g} for its best multiple"))
        return rows


def certify_distributed(
    D: Any,
    smoothness: Sequence[Any],
    sketch: Sketch | Sequence[Sketch],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    iterations: int | None = None,
    mean_smoothness: Any = None,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    goal: GoalName = "paper",
    solve: bool = False,
    solver: str = "auto",
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> DistributedCheck:
    """Check a stepsize matrix of your own for n clients: does it satisfy (12) or (12′), and what does it reach?

    Parameters
    ----------
    D
        The stepsize matrix, d×d symmetric.
    smoothness
        The clients' matrices L₁, …, L_n, each d×d symmetric positive semidefinite.
    sketch
        The distribution of every Sᵢ, or one sketch for each client; seeds are independent.  With shared seeds n clients
        are one node, whose stepsize ``certify`` checks.
    epsilon2
        The accuracy ε² > 0 asked for.
    initial_gap
        Δ⁰ = f(x⁰) − f^inf ≥ 0.
    delta_inf
        Δ^inf = f^inf − (1/n)Σfᵢ^inf ≥ 0.
    mean_smoothness
        L of f = (1/n)Σfᵢ; None takes (1/n)ΣLᵢ.
    algorithm
        ``"det-CGD1"`` for (12), ``"det-CGD2"`` for (12′), or a ``Method``.
    goal
        ``"paper"`` or ``"descent"``, as in ``optimal_distributed_stepsize``.
    iterations
        K; None judges D for the smallest K that its rate allows.
    structure
        The set in which D is compared with the best; D must lie in it.
    solve
        Solve for the optimum and compare D with it.
    solver
        Of the solve, as in ``optimal_distributed_stepsize``; this and all that follows needs ``solve=True``.
    tol
        The certified gap asked for.
    verbose
        Print the progress of the solver.
    time_limit
        Seconds for the solve, None for no limit.
    max_iters
        Iterations of each solve, None for the solver's default.
    options
        The solver's own options, by its own names.

    Returns
    -------
    DistributedCheck.  Its statements hold in exact arithmetic for the floats given.

    Raises
    ------
    ValueError, TypeError
        As ``optimal_distributed_stepsize``, and for a D that does not have the structure or is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, certify_distributed
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> check = certify_distributed(
    ...     0.02 * np.eye(2), clients, RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5
    ... )
    >>> check.feasible, check.K, check.best_multiple_K
    (True, 601, 433)
    """
    check_one_of("goal", goal, CLIENT_GOALS)
    method = get_method(algorithm)
    clients = read_clients(smoothness, sketch, mean_smoothness)
    targets = Targets(epsilon2, initial_gap, delta_inf, len(clients.matrices))
    requested = read_iterations(iterations)
    stepsize = dense(read_matrix("D", D))
    if len(stepsize) != clients.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but the clients' matrices are {clients.d}×{clients.d}"
        raise ValueError(msg)
    pattern = pattern_with(structure, stepsize)
    method.check(clients.sketches, scalar=pattern_of(structure, clients.d).is_scalar, clients=True)
    optimum = None
    if solve:
        positive = pattern.W is not None and bool(np.linalg.eigvalsh(stepsize)[0] > 0.0)
        # The multiples of D's own blocks contain D, whose entries may be rounded ones of γW.
        own = Direction(stepsize, pattern.sizes) if positive else structure
        optimum = optimal_distributed_stepsize(
            clients.matrices,
            clients.sketches,
            epsilon2=epsilon2,
            initial_gap=initial_gap,
            delta_inf=delta_inf,
            iterations=iterations,
            mean_smoothness=clients.mean,
            algorithm=method,
            structure=own,
            goal=goal,
            solver=solver,
            tol=tol,
            verbose=verbose,
            time_limit=time_limit,
            max_iters=max_iters,
            options=options,
        )
        completed(optimum)
    with blas_threads(clients.d):
        conditions, _ = reduce_clients(clients, pattern, method, metric=goal == "descent")
        return _check(conditions, targets, _scaled(conditions, stepsize), requested, optimum)


def _scaled(conditions: Conditions, D: Matrix) -> Matrix:
    """Return D in the coordinates of the conditions; raises ValueError where they have no floats for it."""
    with np.errstate(over="ignore", under="ignore"):
        scaling = Scaling(conditions.scale)
        scaled = scaling.over(D)
        same = np.array_equal(scaling.times(scaled), D)
    diagonal = np.abs(np.diagonal(scaled))
    if not (same and np.abs(scaled).max() < _MOST and np.all((diagonal == 0.0) | (diagonal > _LEAST))):
        smallest, largest = np.abs(np.diagonal(D)).min(), np.abs(D).max()
        msg = (
            f"D has entries up to {largest:.3g} and diagonal entries down to {smallest:.3g}, "
            "too far from the inverse of the smoothness matrices for proofs in float64; scale D towards it"
        )
        raise ValueError(msg)
    return scaled


def _check(
    conditions: Conditions, targets: Targets, D: Matrix, requested: int | None, optimum: DistributedResult | None
) -> DistributedCheck:
    """Judge D, in the coordinates of the conditions."""
    log_rate, metric = conditions.log_rate(D), conditions.metric_log_rate(D)
    rate = 0.0 if log_rate is None else exp_down(log_rate)
    above = exp_up(log_rate_from_above(conditions, D))
    below, lambda_D = lambda_from_below(conditions, D), _lambda_from_above(conditions, D)
    K = requested
    if K is None and rate > 0.0:
        K = targets.least_iterations(rate)
    multiple, multiple_K, multiple_log_rate = _best_multiple(conditions, targets, D, requested)
    return DistributedCheck(
        conditions={
            "2D − DLD ≻ 0" if conditions.metric else "D ⪯ L⁻¹": _verdict(conditions.allows(D), refutes(conditions, D)),
            **_targets_met(targets, K, (below, lambda_D), (rate, above), "H" if conditions.metric else "D"),
        },
        K=K,
        lambda_below=below,
        lambda_D=lambda_D,
        rate=rate,
        rate_above=above,
        descent_rate=0.0 if metric is None else exp_down(metric),
        goal="descent" if conditions.metric else "paper",
        targets=targets,
        best_multiple=multiple,
        best_multiple_K=multiple_K,
        best_multiple_log_rate=multiple_log_rate,
        optimum=optimum,
    )


def _targets_met(
    targets: Targets, K: int | None, lambdas: tuple[float, float], rates: tuple[float, float], matrix: str
) -> dict[str, bool | None]:
    """Decide the conditions that the targets ask for by proved bounds on λ_D and τ; None where they leave it open."""
    (below, lambda_D), (rate, above) = lambdas, rates
    bounded, factor = math.isfinite(lambda_D), targets.det_factor
    share = enough = None
    small: bool | None = True
    if K is not None:
        n = targets.clients
        share = _verdict(bounded and Fraction(lambda_D) * K <= n, Fraction(below) * K > n)
        enough = _verdict(targets.enough(K, rate), math.isfinite(above) and not targets.enough(K, above))
    if factor is not None:
        proved = rate > 0.0 and bounded and Fraction(lambda_D) <= factor * Fraction(rate)
        small = _verdict(proved, math.isfinite(above) and Fraction(below) > factor * Fraction(above))
    root = f"det({matrix})^(1/d)"
    return {"λ_D ≤ n/K": share, f"λ_D ≤ nε² {root}/(4Δ^inf)": small, f"K ≥ 12Δ⁰/({root} ε²)": enough}


def _verdict(proved: bool, refuted: bool) -> bool | None:
    return True if proved else False if refuted else None


def _lambda_from_above(conditions: Conditions, D: Matrix) -> float:
    """Return a proved upper bound on λ_D, next to its estimate; infinite without a proof."""
    at = conditions.at(D, Pair)
    if not any(image.value.any() or image.error.any() for images in at.images for image in images):
        return 0.0
    # Neither arithmetic is always the finer one: a D that was proved in plain arithmetic is recognised by it.
    return min(_least_proved(conditions.d, at), _least_proved(conditions.d, conditions.at(D, Enclosed)))


def _least_proved(d: int, at: AtStepsize) -> float:
    first = 4.0 * d * UNIT
    bounds = chain.from_iterable(variance_bounds(at, retreat) for retreat in losses(first, _FARTHEST * first))
    found = first_proved(bounds, lambda c: c if math.isfinite(c) and at.proves(c) else None)
    return math.inf if found is None else found


def _best_multiple(
    conditions: Conditions, targets: Targets, D: Matrix, requested: int | None
) -> tuple[Matrix | None, int | None, float]:
    """Return the best multiple of D in the user's coordinates, its K, and log τ before K is rounded up."""
    K = 1 if requested is None and targets.initial_gap == 0.0 else requested
    direction = Multiples.of(conditions, D)
    best = None if direction is None else best_multiple(conditions, targets, direction, K)
    if best is None:
        return None, None, -math.inf
    enough = targets.enough(best.K, best.rate)
    return read_only(conditions.lift(best.D)), best.K if enough else None, best.free_log_rate
