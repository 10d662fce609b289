"""``certify``: what is proved of a given stepsize matrix, under both guarantees and every criterion."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.inputs import (
    Direction,
    Shown,
    Structure,
    completed,
    dense,
    parse_structure,
    pattern_of,
    pattern_with,
    read_matrix,
)
from stepsize_opt.methods import Algorithm, get_method
from stepsize_opt.node.answers import certificate_of_t
from stepsize_opt.node.api import optimal_stepsize, read_problem
from stepsize_opt.node.goals import Criterion, Floor, Goal, Guarantee
from stepsize_opt.node.pieces import Component
from stepsize_opt.node.reductions import descent_program, separate
from stepsize_opt.node.result import FLOORS, StepsizeResult
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


@dataclass(frozen=True, repr=False)
class StepsizeCheck(Shown):
    """What ``certify`` found out about a given D.

    Attributes
    ----------
    guarantee
        By which D is judged: ``"condition"`` or ``"descent"``.
    criterion
        What is compared with the best possible under it.
    condition
        The certificate of D as given for the condition T(D) ⪯ D; its gap is infinite when D is infeasible.  Its ends
        are those of log det D, or of d log t with D ⪰ tM⁻¹ for the criteria ``euclidean`` and ``linear``.  For
        ``convex`` the condition is 𝒫(D) ⪯ L⁻¹.
    descent
        The same for the descent metric H = 2D − T(D): ``feasible`` means H ≻ 0, ``log_det`` is that of H, or d log t
        with H ⪰ tM⁻¹, and ``upper_bound`` that of the best H.
    largest_scale
        The largest t for which tD satisfies the condition (rounded down until proved).
    gap_when_scaled
        The certified gap of that tD under the condition, so how many iterations D's direction costs.

    Examples
    --------
    See ``certify``.
    """

    guarantee: str
    criterion: str
    condition: Certificate
    descent: Certificate
    largest_scale: float
    gap_when_scaled: float

    @property
    def certificate(self) -> Certificate:
        """That of the guarantee by which D is judged: ``condition`` or ``descent``."""
        return self.descent if self.guarantee == "descent" else self.condition

    @property
    def feasible(self) -> bool:
        """Whether the guarantee is proved: T(D) ⪯ D, or H ≻ 0 for ``descent``; for ``convex`` 𝒫(D) ⪯ L⁻¹."""
        return self.certificate.feasible

    @property
    def margin(self) -> float:
        """1 − λmax(D^{−½} T(D) D^{−½}), 2 − λmax for ``descent``; negative where the guarantee does not hold."""
        return self.certificate.margin

    @property
    def gap(self) -> float:
        """How far D is from optimal under the guarantee; infinite where the guarantee is not proved."""
        return self.certificate.gap

    @property
    def rate(self) -> float:
        """det^{1/d} or t of D, of H for ``descent``, from below; 0 where the guarantee is not proved."""
        return _rate(self.certificate)

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} or t from below if H ≻ 0 is proved, otherwise 0."""
        return _rate(self.descent)

    def summary(self) -> dict[str, Any]:
        """Everything as plain numbers and strings (what ``--json`` prints)."""
        return {
            **asdict(self),
            "feasible": self.feasible,
            "margin": self.margin,
            "gap": self.gap,
            "rate": self.rate,
            "descent_rate": self.descent_rate,
            "descent_gap": self.descent.gap,
        }

    def rows(self) -> list[tuple[str, str]]:
        c, floor = self.certificate, FLOORS.get(self.criterion)
        judged = "H" if self.guarantee == "descent" else "D"
        margin = f"margin {c.margin:.3e}" if math.isfinite(c.margin) else "D is not positive definite"
        return [
            ("guarantee", self._guarantee),
            ("feasible", f"{_answered(c)} ({margin})"),
            (f"log det {judged} / d" if floor is None else "log t", f"{c.log_det / c.d:.9f}"),
            ("upper bound / d", f"{c.upper_bound / c.d:.9f}"),
            ("gap of D", f"{c.gap:.3e}"),
            (
                f"rate {_value(judged, floor)}",
                f"{self.rate:.9g}" if c.feasible else "none: the guarantee is not proved",
            ),
            *self._other(floor),
            ("largest scale within the condition", f"{self.largest_scale:.9g}"),
            ("gap of D at that scale", f"{self.gap_when_scaled:.3e}"),
        ]

    @property
    def _guarantee(self) -> str:
        if self.criterion == "convex":
            return "condition for convex f, 𝒫(D) ⪯ L⁻¹"
        return "descent, H = 2D − T(D) ≻ 0" if self.guarantee == "descent" else "condition, T(D) ⪯ D"

    def _other(self, floor: str | None) -> list[tuple[str, str]]:
        """What is proved under the guarantee that D is not judged by."""
        if self.guarantee == "descent":
            return [("condition T(D) ⪯ D", f"{_answered(self.condition)}, not needed")]
        rate = f"{self.descent_rate:.9g} (gap {self.descent.gap:.3e})"
        return [
            ("H = 2D − T(D) positive definite", _answered(self.descent)),
            (f"descent rate {_value('H', floor)}", rate),
        ]


def _rate(certificate: Certificate) -> float:
    return exp_down(certificate.log_det / certificate.d) if certificate.feasible else 0.0


def _value(letter: str, floor: str | None) -> str:
    return f"det({letter})^(1/d)" if floor is None else f"t, {letter} ⪰ {floor}"


def _answered(certificate: Certificate) -> str:
    if certificate.feasible:
        return "yes, proved"
    # The margin is computed to about d roundings: next to zero it does not tell on which side D lies.
    return "no" if certificate.margin < -1e-9 else "not proved"


def certify(
    D: Any,
    L: Any,
    sketch: Sketch,
    *,
    algorithm: Algorithm | None = None,
    structure: Structure | None = None,
    guarantee: Guarantee | None = None,
    criterion: Criterion | None = None,
    lower: Any = None,
    dual: Any = None,
    **options: Any,
) -> StepsizeCheck:
    """Check a stepsize matrix: is its guarantee proved, and how far from optimal is it?

    Parameters
    ----------
    D
        The stepsize matrix, d×d symmetric, or a StepsizeResult, which knows the algorithm, structure, guarantee and
        criterion that it is for; arguments overrule it.
    L, sketch
        The problem, as in ``optimal_stepsize``.
    algorithm
        As in ``optimal_stepsize``; ``"det-CGD1"`` for a matrix.
    structure
        The set in which D is compared with the best, as in ``optimal_stepsize``; D must lie in it.  ``"full"`` for a
        matrix.
    guarantee, criterion, lower
        By which D is judged, as in ``optimal_stepsize``: ``"condition"`` and ``"det"`` for a matrix.  The other
        guarantee is checked, too; ``"convex"`` has a condition of its own.
    dual
        A multiplier of the guarantee (for example ``result.dual``), d×d, for ``criterion="det"``.  Any matrix gives a
        valid bound, a good one a tight bound.  None solves the problem to get one; ``options`` then go to
        ``optimal_stepsize``.
        The descent metric is compared with its optimum, too, which the solver ``auto`` finds under the same limits;
        with a dual given, nothing is solved, and the bound of the other guarantee may be weak.

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
    >>> from stepsize_opt import RandK, certify, optimal_stepsize
    >>> L = [[2.0, 1.0], [1.0, 3.0]]
    >>> check = certify(0.1 * np.eye(2), L, RandK(2, 1))
    >>> check.feasible, round(check.margin, 6), round(check.largest_scale, 6)
    (True, 0.4, 1.666667)
    >>> round(check.gap, 4)
    0.7136
    >>> check = certify(optimal_stepsize(L, RandK(2, 1), guarantee="descent"), L, RandK(2, 1))
    >>> check.guarantee, check.feasible, check.gap < 1e-6
    ('descent', True, True)
    """
    own = _Question.of(D) if isinstance(D, StepsizeResult) else _Question()
    own = own.overruled(algorithm, structure, guarantee, criterion)
    method = get_method(own.algorithm)
    smoothness = read_problem(L, sketch)
    stepsize = dense(read_matrix("D", D.D if isinstance(D, StepsizeResult) else D))
    if len(stepsize) != sketch.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {sketch.d}×{sketch.d}"
        raise ValueError(msg)
    asked = Goal.read(own.guarantee, own.criterion, lower, sketch.d)
    goal = replace(asked, guarantee="condition")  # the reduction for the condition is one for the descent metric, too
    Z = None if dual is None else _read_dual(dual, goal, sketch.d, options)
    pattern = pattern_with(own.structure, stepsize)
    method.check([sketch], scalar=pattern_of(own.structure, sketch.d).is_scalar, clients=False)
    seen = goal.method(method, pattern, sketch.map)
    with blas_threads(sketch.d):
        reduction = separate(dense(smoothness), sketch.map, pattern, seen, stepsize, goal)
        found = [_check_piece(piece, stepsize, Z, asked.guarantee) for piece in reduction.components]
    combine = Certificate.combine if goal.M is None else weakest
    limit = reduction.log_limit(sketch)
    condition = combine([piece.condition for piece in found]).bounded(limit)
    descent = combine([piece.descent for piece in found]).bounded(limit)
    scale = min(piece.largest_scale for piece in found)
    if Z is None:
        # The best multiple of D's own blocks bounds D, whose entries may be rounded ones of γW.
        best = own.structure if pattern.W is None or not scale > 0.0 else Direction(stepsize, pattern.sizes)
        judged: dict[str, Any] = {"criterion": own.criterion, "lower": lower}
        solved = completed(optimal_stepsize(smoothness, sketch, algorithm=method, structure=best, **judged, **options))
        condition = condition.bounded(solved.certificate.upper_bound)
        limits = {name: options[name] for name in _LIMITS if name in options}
        if goal.is_convex:
            judged = {}
        metric = optimal_stepsize(
            smoothness, sketch, algorithm=method, structure=best, guarantee="descent", **judged, **limits
        )
        descent = descent.bounded(completed(metric).certificate.upper_bound)
    if not math.isfinite(scale):
        msg = "D is so small that the largest feasible multiple of it is beyond what float64 holds; scale D up"
        raise ValueError(msg)
    gap = math.inf
    if scale > 0.0:
        # log det(sD) = log det D + d log s, and sD ⪰ stM⁻¹
        gap = max(0.0, condition.upper_bound - condition.log_det - sketch.d * math.log(scale)) / sketch.d
    return StepsizeCheck(asked.guarantee, asked.criterion, condition, descent, scale, gap)


@dataclass(frozen=True, eq=False)
class _Question:
    """What a D is an answer to, beside L and the sketch."""

    algorithm: Algorithm = "det-CGD1"
    structure: Structure = "full"
    guarantee: str = "condition"
    criterion: str = "det"

    @staticmethod
    def of(result: StepsizeResult) -> _Question:
        """That of a result."""
        return _Question(result.algorithm, result.structure, result.guarantee, result.criterion)  # type: ignore[arg-type]

    def overruled(
        self, algorithm: Algorithm | None, structure: Structure | None, guarantee: str | None, criterion: str | None
    ) -> _Question:
        """The question with what is given in the place of its own parts; ``convex`` knows the condition alone."""
        if guarantee is None:
            guarantee = "condition" if isinstance(criterion, str) and criterion == "convex" else self.guarantee
        return _Question(
            self.algorithm if algorithm is None else algorithm,
            self._structure() if structure is None else structure,
            guarantee,
            self.criterion if criterion is None else criterion,
        )

    def _structure(self) -> Structure:
        """The structure that a result names; raises ValueError for a direction, of which it holds the name alone."""
        try:
            return parse_structure(str(self.structure))
        except ValueError:
            msg = f"structure must be given: the result holds no more than the name of its own, {self.structure}"
            raise ValueError(msg) from None


def _read_dual(dual: Any, goal: Goal, d: int, options: dict[str, Any]) -> Matrix:
    if options:
        msg = f"options go to a solver, and with a dual nothing is solved: leave out {', '.join(options)} or dual"
        raise ValueError(msg)
    if goal.criterion != "det":
        msg = f"dual goes with criterion='det'; leave it out for criterion={goal.criterion!r}, which is solved"
        raise ValueError(msg)
    Z = dense(read_matrix("dual", dual))
    if len(Z) != d:
        msg = f"dual is {len(Z)}×{len(Z)} but L is {d}×{d}"
        raise ValueError(msg)
    return Z


# Multiples of the scaled stepsize further from one than this are judged by a multiple that is nearer.
_NEAR_ONE = 300
# What the solve of the descent metric takes over from the options of certify.
_LIMITS = ("tol", "time_limit", "max_iters", "verbose")


@dataclass(frozen=True)
class _CheckedPiece:
    """Both certificates of the part of D that belongs to a piece, and the largest t with tD feasible."""

    condition: Certificate
    descent: Certificate
    largest_scale: float


def _check_piece(piece: Component, stepsize: Matrix, Z: Matrix | None, guarantee: str) -> _CheckedPiece:
    """The check of the part D of a given stepsize that belongs to a piece; Z, a multiplier of the guarantee.

    With X near one and D = 2ⁿX in scaled coordinates, the feasible multiples of X form an interval that starts at 0:
    a D that is far from one is feasible if 2ᵐX is for an m > n, and infeasible if 2ᵐX is for an m < n.
    """
    part, program = np.ix_(piece.indices, piece.indices), piece.single
    nothing = Certificate(False, -math.inf, -math.inf, math.inf, program.d)
    dual = None if Z is None else piece.dual_near_one(Z[part])
    of_condition, of_metric = (None, dual) if guarantee == "descent" else (dual, None)
    X, n = piece.near_one(stepsize[part])
    inside = None if X is None else _inside(piece, X)
    if X is None or inside is None:
        return _CheckedPiece(nothing, nothing, 0.0)
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
        found = (
            ConvexStep(program, D).certificate(None) if piece.is_convex else certify_point(at, of_condition, (inside,))
        )
        certificate = found.multiplied(n - m).rescaled(piece.scale)
        if m == n:
            metric = Descent(descent_program(program), D)
            bounds = metric.bounds(of_metric)
            descent = Certificate(metric.feasible, 1.0 + metric.at.margin, bounds.lower, bounds.upper, program.d)
            descent = descent.rescaled(piece.scale)
    if not descent.feasible and certificate.feasible and not piece.is_convex:
        # T(D) ⪯ D makes H ⪰ D.
        descent = replace(certificate, margin=1.0 + certificate.margin, upper_bound=math.inf)
    # A scale beyond the range of float64 is rounded towards zero, and so stays feasible.
    with np.errstate(over="ignore"):
        largest = float(np.nextafter(np.ldexp(t, -n), 0.0)) if abs(n) > _NEAR_ONE else math.ldexp(t, -n)
    return _CheckedPiece(certificate, descent, largest)


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
