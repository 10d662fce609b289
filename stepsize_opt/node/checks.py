"""``certify``: what is proved of a given stepsize matrix, and how far it is from the optimum."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal, GoalName, goal_words
from stepsize_opt.inputs import (
    Shown,
    Structure,
    dense,
    pattern_with,
    read_matrix,
)
from stepsize_opt.large import InverseStepsize, StepsizeOperator, large_problem
from stepsize_opt.methods import Algorithm, Method, get_method
from stepsize_opt.node.api import read_problem
from stepsize_opt.node.momentum import MomentumGoal
from stepsize_opt.node.reductions import Component, separate
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import (
    Certificate,
    Descent,
    LowRankCondition,
    closest,
    exp_down,
    finest,
)
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import MatrixSmoothness, Smoothness
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Matrix, is_identity


@dataclass(frozen=True, repr=False)
class StepsizeCheck(Shown):
    """What ``certify`` found out about a given D.

    Attributes
    ----------
    goal
        By which D is judged.
    certificate
        Of the goal, as in ``StepsizeResult``; its gap is infinite when D is infeasible.
    condition
        Of T(D) ⪯ D, the condition of ``paper``: feasible, margin and log det D.
    descent
        Of H = 2D − T(D): ``feasible`` means H ≻ 0, ``log_det`` is that of H.
    largest_scale
        The largest s for which sD satisfies the condition (rounded down until proved).
    gap_when_scaled
        The gap of that sD, so how many rounds D's direction costs; NaN for goals that judge H.
    estimated
        What an EstimatedSmoothness notes: the proofs are then about the estimate.  Empty for a proved L.
    momentum
        Whether D is judged as the stepsize of a method with momentum.

    Examples
    --------
    See ``certify``.
    """

    goal: str
    certificate: Certificate
    condition: Certificate
    descent: Certificate
    largest_scale: float
    gap_when_scaled: float
    estimated: str = ""
    momentum: bool = False

    @property
    def feasible(self) -> bool:
        """Whether the guarantee is proved, see ``StepsizeResult.certificate``."""
        return self.certificate.feasible

    @property
    def margin(self) -> float:
        """1 − λmax(D^{−½} T(D) D^{−½}), 2 − λmax for goals that judge H; negative where the guarantee does not hold."""
        return self.certificate.margin

    @property
    def gap(self) -> float:
        """An upper bound on how far D is from optimal; infinite where the guarantee is not proved."""
        return self.certificate.gap

    @property
    def rate(self) -> float:
        """The rate of the goal from below; 0 where the guarantee is not proved."""
        return _rate(self.certificate)

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} from below if H ≻ 0 is proved, otherwise 0."""
        return _rate(self.descent)

    def summary(self) -> dict[str, Any]:
        """Return everything as plain numbers and strings (what ``--json`` prints)."""
        return {
            **asdict(self),
            "feasible": self.feasible,
            "margin": self.margin,
            "gap": self.gap,
            "rate": self.rate,
            "descent_rate": self.descent_rate,
        }

    def _shown(self) -> list[tuple[str, str]]:
        c, words = self.certificate, goal_words(self.goal, self.momentum)
        margin = f"margin {c.margin:.3e}" if math.isfinite(c.margin) else "D is not positive definite"
        rows = [
            ("goal", f"{self.goal}{' with momentum' if self.momentum else ''}"),
            *([("smoothness", self.estimated)] if self.estimated else []),
            (words.feasible, f"{_answered(c)} ({margin})"),
            (f"rate {words.rate}", f"{self.rate:.9g}" if c.feasible else "none: the guarantee is not proved"),
            ("gap of D at most", f"{c.gap:.3e}"),
        ]
        if self.goal == "paper":
            rows += [
                ("H = 2D − T(D) ≻ 0", _answered(self.descent)),
                ("descent rate det(H)^(1/d)", f"{self.descent_rate:.9g}"),
                ("largest scale within the condition", f"{self.largest_scale:.9g}"),
                ("gap of D at that scale", f"{self.gap_when_scaled:.3e}"),
            ]
        else:
            rows.append(("condition T(D) ⪯ D", f"{_answered(self.condition)}, not needed"))
        return rows


def _rate(certificate: Certificate) -> float:
    return exp_down(certificate.log_rate) if certificate.feasible else 0.0


def _answered(certificate: Certificate) -> str:
    if certificate.feasible:
        return "yes, proved"
    # The margin is computed to about d roundings: next to zero it does not tell on which side D lies.
    return "no" if certificate.margin < -1e-9 else "not proved"


def certify(
    D: Any,
    L: Any,
    sketch: Sketch | None = None,
    *,
    algorithm: Algorithm | None = None,
    structure: Structure | None = None,
    goal: GoalName | None = None,
    strong_convexity: Any = None,
    momentum: bool | None = None,
    dual: Any = None,
    optimum: StepsizeResult | None = None,
) -> StepsizeCheck:
    """Check a stepsize matrix: is its guarantee proved, and how far from optimal can it be?

    Parameters
    ----------
    D
        The stepsize matrix, d×d symmetric or an operator with ``todense``, or a StepsizeResult, which knows the sketch,
        algorithm, structure, goal and multiplier that it is for; arguments overrule it.
    L
        As in ``optimal_stepsize``.  A LowRankPlusDiagonal is made dense, and so is D; but the full D of det-CGD2 is
        proved as the operator that it is.
    sketch
        As in ``optimal_stepsize``; that of a StepsizeResult by default.
    algorithm
        As in ``optimal_stepsize``; ``"det-CGD1"`` for a matrix.
    structure
        The set in which D is compared with the best, as in ``optimal_stepsize``; D must lie in it.  ``"full"`` for a
        matrix.
    goal
        By which D is judged, as in ``optimal_stepsize``; ``"paper"`` for a matrix.
    strong_convexity
        M of ``"linear"``: a d×d matrix, or a number μ for μI.
    momentum
        Judge D by the theorem of the method with momentum; False for a matrix.
    dual
        A multiplier of the goal (for example ``result.dual``), d×d.  Any matrix gives a valid bound on the optimum, a
        good one a tight bound.
    optimum
        What ``optimal_stepsize`` returned for the same question: its multiplier bounds the best D, so that the gap is
        that to the optimum.  The bound is proved again for this L, whatever the result belongs to.  Without it the gap
        is bounded by ``dual`` and by ``compression_limit``, and may be large.

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
    >>> best = optimal_stepsize(L, RandK(2, 1))
    >>> round(certify(0.1 * np.eye(2), L, RandK(2, 1), optimum=best).gap, 4)
    0.7136
    >>> check = certify(optimal_stepsize(L, RandK(2, 1), goal="descent"), L)
    >>> check.goal, check.feasible, check.gap < 1e-6
    ('descent', True, True)
    """
    own = D if isinstance(D, StepsizeResult) else None
    if sketch is None:
        sketch = _sketch_of(own)
    if algorithm is None:
        algorithm = "det-CGD1" if own is None else own.method
    if structure is None:
        structure = "full" if own is None else own.structure
    wanted = ("paper" if own is None else own.goal) if goal is None else goal
    method = get_method(algorithm)
    given = read_problem(L, sketch)
    raw = D if own is None else own.D
    if isinstance(raw, InverseStepsize) and not given.is_formed and structure == "full" and not momentum:
        inverse = _certify_inverse(raw, given, sketch, method)
        # A feasible sD has s ≤ e^gap: up to here 1 is the largest scale.
        if inverse is not None and inverse.is_optimal(_AT_THE_BOUNDARY) and wanted in ("paper", "descent"):
            # D ⪯ 𝒫(L)⁻¹ makes H ⪰ D, and no D and no H of any D exceed 𝒫(L)⁻¹.
            descent = replace(inverse, margin=1.0 + inverse.margin)
            certificate = descent if wanted == "descent" else inverse
            gap = math.nan if wanted == "descent" else inverse.gap
            return StepsizeCheck(wanted, certificate, inverse, descent, 1.0, gap, given.estimated)
    smoothness = given.formed() if given.is_formed else MatrixSmoothness(given.todense(), given.estimated)
    stepsize = dense(read_matrix("D", raw.todense() if isinstance(raw, StepsizeOperator) else raw))
    if len(stepsize) != sketch.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {sketch.d}×{sketch.d}"
        raise ValueError(msg)
    if momentum is None:
        momentum = own is not None and own.momentum
    asked = Goal.read(wanted, strong_convexity, sketch.d, momentum=momentum)
    if momentum:
        asked = MomentumGoal.of(asked, sketch.map)
    reference = None
    if optimum is not None:
        if dual is not None:
            msg = "dual and optimum both give a multiplier: leave one of them out"
            raise ValueError(msg)
        dual, reference = _multiplier_of(optimum, asked, sketch.d)
    elif dual is None and own is not None and (own.goal, own.momentum) == (asked.name, momentum):
        dual = own.dual
    Z = None if dual is None else _read_dual(dual, sketch.d)
    pattern = pattern_with(structure, stepsize)
    method.check([sketch])
    with blas_threads(sketch.d):
        reduction = separate(smoothness, sketch.map, pattern, method, stepsize, asked)
        found = [_check_piece(piece, stepsize, Z, reference, asked) for piece in reduction.components]
    together = Certificate.combine if asked.M is None else Certificate.weakest
    certificate = asked.proved(together([piece.certificate for piece in found])).bounded(reduction.log_limit(sketch))
    if isinstance(asked, MomentumGoal):
        certificate = asked.certificate_of_t(certificate)
    scale = min(piece.largest_scale for piece in found)
    if not math.isfinite(scale):
        msg = "D is so small that the largest feasible multiple of it is beyond what float64 holds; scale D up"
        raise ValueError(msg)
    condition = Certificate.combine([piece.condition for piece in found])
    descent = Certificate.combine([piece.descent for piece in found])
    gap = math.nan if asked.judges_metric else _gap_when_scaled(certificate, scale)
    return StepsizeCheck(asked.name, certificate, condition, descent, scale, gap, given.estimated, momentum)


_AT_THE_BOUNDARY = 1e-9


def _certify_inverse(D: InverseStepsize, L: Smoothness, sketch: Sketch, method: Method) -> Certificate | None:
    """Certify the operator that a large det-CGD2 result holds; None where only the dense matrices decide.

    Its rounding to a dense matrix lies on both sides of the boundary D = 𝒫(L)⁻¹, so that nothing is proved of that.
    """
    condition = method.condition(sketch.map)
    if L.is_formed or D.shape[0] != L.d or not is_identity(condition.outer):
        return None
    try:
        problem = large_problem(L.factored(), sketch.map)
    except ValueError:  # a law that takes a dense L only
        return None
    if not isinstance(problem.condition, LowRankCondition):
        return None
    near = D.scaled(problem.power)
    if not np.array_equal(near.U, problem.condition.U):
        return None
    found = problem.condition.certify_inverse(near.p, near.C)
    return None if found is None else found.moved(-2 * problem.power * L.d)


def _sketch_of(own: StepsizeResult | None) -> Sketch:
    if own is None:
        msg = "certify needs sketch: only a StepsizeResult knows its own"
        raise TypeError(msg)
    return own.sketch


def _gap_when_scaled(certificate: Certificate, scale: float) -> float:
    """Return the gap of sD: log det(sD) = log det D + d log s."""
    if not scale > 0.0:
        return math.inf
    d = certificate.d
    return max(0.0, certificate.upper_bound - certificate.log_det - d * math.log(scale)) / d


def _multiplier_of(optimum: Any, asked: Goal, d: int) -> tuple[Matrix, Matrix]:
    """Return the multiplier of a result and its D; raise TypeError or ValueError for one of another question."""
    if not isinstance(optimum, StepsizeResult):
        msg = f"optimum must be the StepsizeResult of optimal_stepsize, got {type(optimum).__name__}"
        raise TypeError(msg)
    if (optimum.goal, optimum.momentum, optimum.d) != (asked.name, asked.momentum, d):
        msg = (
            f"optimum is for goal={optimum.goal!r}, momentum={optimum.momentum}, d={optimum.d}, but D is judged by "
            f"goal={asked.name!r}, momentum={asked.momentum}, d={d}: solve this question for it"
        )
        raise ValueError(msg)
    if optimum.dual is None:
        msg = "optimum has no multiplier, because its L was never made dense: solve with L.todense()"
        raise ValueError(msg)
    return optimum.dual, optimum.D


def _read_dual(dual: Any, d: int) -> Matrix:
    Z = dense(read_matrix("dual", dual))
    if len(Z) != d:
        msg = f"dual is {len(Z)}×{len(Z)} but L is {d}×{d}"
        raise ValueError(msg)
    return Z


# Multiples of the scaled stepsize further from one than this are judged by a multiple that is nearer.
_NEAR_ONE = 300


@dataclass(frozen=True)
class _CheckedPiece:
    """The certificates of the part of D that belongs to a piece, and the largest s with sD within the condition."""

    certificate: Certificate
    condition: Certificate
    descent: Certificate
    largest_scale: float


def _check_piece(
    piece: Component, stepsize: Matrix, Z: Matrix | None, reference: Matrix | None, goal: Goal
) -> _CheckedPiece:
    """Check the part D of a given stepsize that belongs to a piece.

    Z: a multiplier of the goal; reference: the D that belongs to it, at which its bound is best.

    With X near one and D = 2ⁿX in scaled coordinates, the feasible multiples of X form an interval that starts at 0:
    a D that is far from one is feasible if 2ᵐX is for an m > n, and infeasible if 2ᵐX is for an m < n.
    """
    part, program = np.ix_(piece.indices, piece.indices), piece.single
    nothing = Certificate(False, -math.inf, -math.inf, math.inf, program.d)
    dual = None if Z is None else piece.dual_near_one(Z[part])
    X, n = piece.near_one(stepsize[part])
    edge_point = None if X is None else closest(program, X)
    if X is None or edge_point is None:
        return _CheckedPiece(nothing, nothing, nothing, 0.0)
    inside = edge_point.D
    s = float(np.trace(inside) / np.trace(X))
    edge = math.floor(math.log2(s))
    m = n if abs(n) <= _NEAR_ONE else min(max(n, edge - 1), edge + 2)
    D = np.ldexp(X, m)
    of_condition = None if goal.judges_metric else dual
    others = (inside,) if reference is None else (inside, piece.scaling.over(reference[part]))
    condition = (
        finest(program, D).certificate(of_condition, others=others).multiplied(n - m).rescaled(piece.scaling.factors)
    )
    descent = reached = nothing
    if m == n:
        metric = Descent(program, D)
        descent = metric.certificate(dual if goal.name == "descent" else None).rescaled(piece.scaling.factors)
        if piece.bound is not None:
            t = metric.floor_certificate(dual, piece.bound.M)
            reached = t.moved(-piece.bound.shift * program.d)
    if not descent.feasible and condition.feasible:
        # T(D) ⪯ D makes H ⪰ D.
        descent = replace(condition, margin=1.0 + condition.margin, upper_bound=math.inf)
    # A scale beyond the range of float64 is rounded towards zero, and so stays feasible.
    with np.errstate(over="ignore"):
        largest = float(np.nextafter(np.ldexp(s, -n), 0.0)) if abs(n) > _NEAR_ONE else math.ldexp(s, -n)
    if piece.bound is not None:
        certificate = reached
    else:
        certificate = descent if goal.name == "descent" else condition
    return _CheckedPiece(certificate, condition, descent, largest)
