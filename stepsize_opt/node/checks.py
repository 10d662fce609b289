"""``certify``: what is proved of a stepsize matrix of the user's own, under both guarantees and every criterion."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.inputs import (
    Direction,
    Structure,
    completed,
    dense,
    pattern_of,
    pattern_with,
    read_matrix,
    refuse_options,
)
from stepsize_opt.limit import LimitBounds
from stepsize_opt.methods import Algorithm, get_method
from stepsize_opt.node.answers import certificate_of_t
from stepsize_opt.node.api import optimal_stepsize, read_problem
from stepsize_opt.node.goals import Criterion, Floor, Goal
from stepsize_opt.node.pieces import Component
from stepsize_opt.node.reductions import descent_program, separate
from stepsize_opt.node.solve import weakest
from stepsize_opt.proofs import (
    Certificate,
    ConvexStep,
    Descent,
    DescentBounds,
    Enclosed,
    Evaluation,
    InBasis,
    Plain,
    certify_point,
    exp_down,
    largest_floor,
    metric_at,
    repair,
    repair_in_basis,
)
from stepsize_opt.sketches import Sketch
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True)
class StepsizeCheck:
    """What ``certify`` found out about a given D.

    Attributes
    ----------
    certificate
        Of D as given, for the condition T(D) ⪯ D; its gap is infinite when D is infeasible.  Its ends are those of
        log det D, or of d log t with D ⪰ tM⁻¹ for the criteria ``euclidean`` and ``linear``.  For ``convex`` the
        condition is 𝒫(D) ⪯ L⁻¹.
    descent
        The same for the descent metric H = 2D − T(D): ``feasible`` means H ≻ 0, ``log_det`` is that of H, or d log t
        with H ⪰ tM⁻¹, and ``upper_bound`` that of the best H.
    largest_scale
        The largest t for which tD is feasible (rounded down until proved).
    gap_when_scaled
        The certified gap of that tD, so how many iterations D's direction costs.

    Examples
    --------
    See ``certify``.
    """

    certificate: Certificate
    descent: Certificate
    largest_scale: float
    gap_when_scaled: float

    @property
    def feasible(self) -> bool:
        """Whether the condition is proved: T(D) ⪯ D, for ``convex`` 𝒫(D) ⪯ L⁻¹."""
        return self.certificate.feasible

    @property
    def margin(self) -> float:
        """1 − λmax(D^{−½} T(D) D^{−½}), negative for an infeasible D."""
        return self.certificate.margin

    @property
    def gap(self) -> float:
        """How far D is from optimal; infinite when D is infeasible."""
        return self.certificate.gap

    @property
    def rate(self) -> float:
        """det(D)^{1/d} or t from below if D is proved feasible, otherwise 0: the condition guarantees nothing then."""
        return exp_down(self.certificate.log_det / self.certificate.d) if self.feasible else 0.0

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} or t from below if H ≻ 0 is proved, otherwise 0."""
        return exp_down(self.descent.log_det / self.descent.d)

    def __repr__(self) -> str:
        c = self.certificate
        return (
            f"StepsizeCheck(feasible={c.feasible}, margin={c.margin:.3e}, gap={c.gap:.3e}, rate={self.rate:.9g}, "
            f"descent_rate={self.descent_rate:.9g}, descent_gap={self.descent.gap:.3e}, "
            f"largest_scale={self.largest_scale:.9g}, gap_when_scaled={self.gap_when_scaled:.3e})"
        )


def certify(
    D: Any,
    L: Any,
    sketch: Sketch,
    *,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    criterion: Criterion = "det",
    lower: Any = None,
    dual: Any = None,
    **options: Any,
) -> StepsizeCheck:
    """Check a stepsize matrix of your own under both guarantees: is it feasible, and how far from optimal?

    Parameters
    ----------
    D
        The stepsize matrix, d×d symmetric.
    L, sketch, algorithm
        The problem, as in ``optimal_stepsize``.
    structure
        The set in which D is compared with the best, as in ``optimal_stepsize``; D must lie in it.
    criterion, lower
        By which D is judged, as in ``optimal_stepsize``; ``"convex"`` has a condition of its own.
    dual
        A multiplier Z ⪰ 0 of the condition (for example ``result.dual``), d×d, for ``criterion="det"``.  Any matrix
        gives a valid bound, a good one a tight bound.  None solves the problem to get one; ``options`` then go to
        ``optimal_stepsize``.
        The descent metric is compared with its optimum, too, which the solver ``auto`` finds under the same limits;
        with a dual given, its bound comes from H⁻¹ of this D alone.

    Returns
    -------
    StepsizeCheck.  ``feasible`` is True only when it is proved in exact arithmetic for the floats given.

    Raises
    ------
    ValueError, TypeError
        As ``optimal_stepsize``, and for a D that does not have the structure.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, certify
    >>> check = certify(0.1 * np.eye(2), [[2.0, 1.0], [1.0, 3.0]], RandK(2, 1))
    >>> check.feasible, round(check.margin, 6), round(check.largest_scale, 6)
    (True, 0.4, 1.666667)
    >>> round(check.certificate.gap, 4)
    0.7136
    """
    method = get_method(algorithm)
    smoothness = read_problem(L, sketch)
    stepsize = dense(read_matrix("D", D))
    if len(stepsize) != sketch.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {sketch.d}×{sketch.d}"
        raise ValueError(msg)
    goal = Goal.read("condition", criterion, lower, sketch.d)
    Z: Matrix | None = None
    refuse_options("certify, which judges by both guarantees,", options, ("guarantee",))
    if dual is not None:
        if options:
            msg = f"options go to a solver, and with a dual nothing is solved: leave out {', '.join(options)} or dual"
            raise ValueError(msg)
        if criterion != "det":
            msg = f"dual goes with criterion='det'; leave it out for criterion={criterion!r}, which is solved"
            raise ValueError(msg)
        Z = dense(read_matrix("dual", dual))
        if len(Z) != sketch.d:
            msg = f"dual is {len(Z)}×{len(Z)} but L is {sketch.d}×{sketch.d}"
            raise ValueError(msg)
    pattern = pattern_with(structure, stepsize)
    method.check([sketch], scalar=pattern_of(structure, sketch.d).is_scalar, clients=False)
    seen = goal.method(method, pattern, sketch.map)
    with blas_threads(sketch.d):
        reduction = separate(dense(smoothness), sketch.map, pattern, seen, stepsize, goal)
        found = [_check_piece(piece, stepsize, Z) for piece in reduction.components]
    combine = Certificate.combine if goal.M is None else weakest
    certificate, descent = combine([piece.certificate for piece in found]), combine([piece.descent for piece in found])
    if sketch.is_exactly_unbiased:
        limit = LimitBounds.combine(reduction.limits).log_bound(sketch.expected_rank)
        certificate, descent = certificate.bounded(limit), descent.bounded(limit)
    scale = min(piece.largest_scale for piece in found)
    if Z is None:
        # The best multiple of D's own blocks bounds D, whose entries may be rounded ones of γW.
        own = structure if pattern.W is None or not scale > 0.0 else Direction(stepsize, pattern.sizes)
        judged: dict[str, Any] = {"criterion": criterion, "lower": lower}
        solved = completed(optimal_stepsize(smoothness, sketch, algorithm=method, structure=own, **judged, **options))
        upper = min(solved.certificate.upper_bound, certificate.upper_bound)
        certificate = replace(certificate, upper_bound=upper)
        limits = {name: options[name] for name in _LIMITS if name in options}
        if goal.is_convex:
            judged = {}
        metric = optimal_stepsize(
            smoothness, sketch, algorithm=method, structure=own, guarantee="descent", **judged, **limits
        )
        descent = replace(descent, upper_bound=min(completed(metric).certificate.upper_bound, descent.upper_bound))
    if scale == 0.0:
        return StepsizeCheck(certificate, descent, 0.0, math.inf)
    if not math.isfinite(scale):
        msg = "D is so small that the largest feasible multiple of it is beyond what float64 holds; scale D up"
        raise ValueError(msg)
    # log det(sD) = log det D + d log s, and sD ⪰ stM⁻¹
    gap = max(0.0, certificate.upper_bound - certificate.log_det - sketch.d * math.log(scale)) / sketch.d
    return StepsizeCheck(certificate, descent, scale, gap)


# Multiples of the scaled stepsize further from one than this are judged by a multiple that is nearer.
_NEAR_ONE = 300
# What the solve of the descent metric takes over from the options of certify.
_LIMITS = ("tol", "time_limit", "max_iters", "verbose")


def _check_piece(piece: Component, stepsize: Matrix, Z: Matrix | None) -> StepsizeCheck:
    """The check of the part D of a given stepsize that belongs to a piece, with the largest t with tD feasible.

    With X near one and D = 2ⁿX in scaled coordinates, the feasible multiples of X form an interval that starts at 0:
    a D that is far from one is feasible if 2ᵐX is for an m > n, and infeasible if 2ᵐX is for an m < n.
    """
    part, program = np.ix_(piece.indices, piece.indices), piece.single
    nothing = Certificate(False, -math.inf, -math.inf, math.inf, program.d)
    dual = None if Z is None else piece.dual_near_one(Z[part])
    X, n = piece.near_one(stepsize[part])
    inside = None if X is None else _inside(piece, X)
    if X is None or inside is None:
        return StepsizeCheck(nothing, nothing, 0.0, math.inf)
    t = float(np.trace(inside) / np.trace(X))
    edge = math.floor(math.log2(t))
    m = n if abs(n) <= _NEAR_ONE else min(max(n, edge - 1), edge + 2)
    D = np.ldexp(X, m)
    # The finest proof first; where rows are graded, plain arithmetic may prove more, see repair.
    proofs = (InBasis(program, D), Evaluation(program, D), Evaluation(program, D, Plain))
    at = next((at for at in proofs if at.feasible), proofs[1])
    descent = nothing
    if piece.floor is not None:
        # The t of D as it is, by which its multiples are judged; it is a guarantee only under the condition.
        reached = _certificate_of_t(piece.floor, at, Enclosed(D, np.zeros_like(D))).multiplied(n - m)
        certificate = replace(reached, feasible=reached.feasible and at.feasible)
        H = metric_at(at) if m == n else None
        descent = nothing if H is None else _certificate_of_t(piece.floor, at, H, 1.0)
    else:
        found = ConvexStep(program, D).certificate(None) if piece.is_convex else certify_point(at, dual, (inside,))
        certificate = found.multiplied(n - m).rescaled(piece.scale)
        if m == n:
            metric = Descent(descent_program(program), D)
            bounds = metric.bounds(None)
            descent = Certificate(metric.feasible, 1.0 + metric.at.margin, bounds.lower, bounds.upper, program.d)
            descent = descent.rescaled(piece.scale)
    if not descent.feasible and certificate.feasible and not piece.is_convex:
        # T(D) ⪯ D makes H ⪰ D.
        descent = replace(certificate, margin=1.0 + certificate.margin, upper_bound=math.inf)
    # A scale beyond the range of float64 is rounded towards zero, and so stays feasible.
    with np.errstate(over="ignore"):
        largest = float(np.nextafter(np.ldexp(t, -n), 0.0)) if abs(n) > _NEAR_ONE else math.ldexp(t, -n)
    return StepsizeCheck(certificate, descent, largest, math.inf)


def _certificate_of_t(floor: Floor, at: Evaluation, A: Enclosed, shift: float = 0.0) -> Certificate:
    """That of the largest t with A ⪰ tM⁻¹ in the original coordinates; the margin is that of D, moved by ``shift``."""
    bounds = DescentBounds(largest_floor(A, floor.M), math.inf)
    return certificate_of_t(at, bounds, shift).moved(-floor.shift * at.program.d)


def _inside(piece: Component, X: Matrix) -> Matrix | None:
    """The largest multiple of X that is proved feasible; None without a proof."""
    if piece.is_convex:
        step = ConvexStep(piece.single, X).repaired()
        return None if step is None else step.D
    found = repair_in_basis(piece.single, X) or repair(piece.single, X)
    return None if found is None else found.D
