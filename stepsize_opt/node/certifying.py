"""``certify``: what is proved of a given stepsize matrix, and how far it is from the optimum."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from stepsize_opt.goals import Goal, GoalName, Units
from stepsize_opt.inputs.checks import check_kind
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.inputs.structures import Structure, pattern_with
from stepsize_opt.large.solve import large_problem
from stepsize_opt.large.stepsizes import InverseStepsize, StepsizeOperator
from stepsize_opt.methods import Algorithm
from stepsize_opt.node.question import Question
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
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.smoothness import MatrixSmoothness
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Matrix, Shown, is_identity


@dataclass(frozen=True, repr=False)
class StepsizeCheck(Shown):
    """What ``certify`` found out about a given D.

    Attributes
    ----------
    goal_class
        The class of the goal by which D is judged; ``goal`` is its name.
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

    Examples
    --------
    See ``certify``.
    """

    goal_class: type[Goal]
    certificate: Certificate
    condition: Certificate
    descent: Certificate
    largest_scale: float
    gap_when_scaled: float
    estimated: str = ""

    @property
    def goal(self) -> GoalName:
        """By which D is judged."""
        return cast(GoalName, self.goal_class.name)

    @property
    def momentum(self) -> bool:
        """Whether D is judged as the stepsize of a method with momentum."""
        return self.goal_class.momentum

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
        own = asdict(self)
        del own["goal_class"]
        derived = ("feasible", "margin", "gap", "rate", "descent_rate")
        more = {name: getattr(self, name) for name in derived}
        return {"goal": self.goal, "momentum": self.momentum, **own, **more}

    def _shown(self) -> list[tuple[str, str]]:
        c, words = self.certificate, self.goal_class.words
        margin = f"margin {c.margin:.3e}" if math.isfinite(c.margin) else "D is not positive definite"
        rows = [
            ("goal", f"{self.goal}{' with momentum' if self.momentum else ''}"),
            *([("smoothness", self.estimated)] if self.estimated else []),
            (words.feasible, f"{_answered(c)} ({margin})"),
            (f"rate {words.rate}", f"{self.rate:.9g}" if c.feasible else "none: the guarantee is not proved"),
            ("gap of D at most", f"{c.gap:.3e}"),
        ]
        if self.goal_class.needs_condition:
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
    sketch: Sketch | str | None = None,
    *,
    algorithm: Algorithm | None = None,
    structure: Structure | None = None,
    goal: GoalName | Goal | None = None,
    strong_convexity: Any = None,
    momentum: bool | None = None,
    dual: Any = None,
    optimum: StepsizeResult | None = None,
) -> StepsizeCheck:
    """Check a stepsize matrix: is its guarantee proved, and how far from optimal can it be?

    Parameters
    ----------
    D : StepsizeResult, StepsizeOperator, array-like or sparse matrix of shape (d, d)
        The stepsize matrix, symmetric, or the operator of a result, or a StepsizeResult, which knows the sketch,
        algorithm, structure, goal and multiplier that it is for; arguments overrule it.
    L : array-like or sparse matrix of shape (d, d), LowRankPlusDiagonal or EstimatedSmoothness
        As in ``optimal_stepsize``.  A LowRankPlusDiagonal is made dense, and so is D; but the full D of det-CGD2 is
        proved as the operator that it is.
    sketch
        As in ``optimal_stepsize``; that of a StepsizeResult by default.
    algorithm : str or Method, optional
        As in ``optimal_stepsize``; ``"det-CGD1"`` for a matrix.
    structure : str, BlockDiagonal or Direction, optional
        The set in which D is compared with the best, as in ``optimal_stepsize``; D must lie in it.  ``"full"`` for a
        matrix.
    goal : str or Goal, optional
        By which D is judged, as in ``optimal_stepsize``; ``"paper"`` for a matrix.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``: a d×d matrix, or a number μ for μI.
    momentum
        Judge D by the theorem of the method with momentum; False for a matrix.
    dual : array-like or sparse matrix of shape (d, d), optional
        A multiplier of the goal (for example ``result.dual``).  Any matrix gives a valid bound on the optimum, a
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

    See Also
    --------
    optimal_stepsize : the best stepsize, with its multiplier.
    write_certificate : a proof that others can check.
    compression_limit : a bound on the rate of every method without memory.

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
    if sketch is None and own is None:
        msg = "certify needs sketch: only a StepsizeResult knows its own"
        raise TypeError(msg)
    question = Question.read(
        L,
        own.sketch if own is not None and sketch is None else sketch,
        algorithm or ("det-CGD1" if own is None else own.method),
        structure or ("full" if own is None else own.structure),
        goal or ("paper" if own is None else own.goal),
        strong_convexity,
        own is not None and own.momentum if momentum is None else momentum,
    )
    raw = D if own is None else own.D
    inverse = _check_inverse(raw, question) if isinstance(raw, InverseStepsize) else None
    if inverse is not None:
        return inverse
    return _check(question, _read_stepsize(raw, question.d), *_multiplier(question, own, dual, optimum))


def _check(question: Question, D: Matrix, Z: Matrix | None, reference: Matrix | None) -> StepsizeCheck:
    """Check a matrix, with a multiplier and the D that it belongs to."""
    L, goal = question.L, question.goal
    if not L.is_formed:
        question = replace(question, L=MatrixSmoothness(L.todense(), L.estimated))
    question.pattern()
    with blas_threads(question.d):
        reduction = separate(question, pattern_with(question.structure, D), D)
        checked = [_check_component(one, D, Z, reference) for one in reduction.components]
        log_limit = question.log_limit(reduction.groups)
    parts, conditions, metrics, scales = zip(*checked, strict=True)
    certificate, scale = goal.combine(parts).bounded(log_limit), min(scales)
    if not math.isfinite(scale):
        msg = "D is so small that the largest feasible multiple of it is beyond what float64 holds; scale D up"
        raise ValueError(msg)
    condition, descent = Certificate.combine(conditions), Certificate.combine(metrics)
    gap = _gap_when_scaled(certificate, scale) if goal.needs_condition else math.nan
    return StepsizeCheck(type(goal), certificate, condition, descent, scale, gap, L.estimated)


def _read_stepsize(D: Any, d: int) -> Matrix:
    stepsize = dense(read_matrix("D", D.todense() if isinstance(D, StepsizeOperator) else D))
    if len(stepsize) != d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {d}×{d}"
        raise ValueError(msg)
    return stepsize


_AT_THE_BOUNDARY = 1e-9


def _check_inverse(D: InverseStepsize, question: Question) -> StepsizeCheck | None:
    """Check the operator that a large det-CGD2 result holds; None where only the dense matrices decide.

    Its rounding to a dense matrix lies on both sides of the boundary D = 𝒫(L)⁻¹, so that nothing is proved of that.
    """
    L, goal = question.L, question.goal
    condition = question.method.condition(question.sketch.map)
    best = goal.is_determinant and goal.under_inverse(question.structure) == "full"
    if L.is_formed or D.shape[0] != L.d or not best or not is_identity(condition.outer):
        return None
    try:
        problem = large_problem(L.factored(), question.sketch.map)
    except ValueError:  # a law that takes a dense L only
        return None
    near = D.scaled(problem.power)
    if not isinstance(problem.condition, LowRankCondition) or not np.array_equal(near.U, problem.condition.U):
        return None
    proved = problem.condition.certify_inverse(near.p, near.C)
    # A feasible sD has s ≤ e^gap: up to here 1 is the largest scale.
    if proved is None or not proved.is_optimal(_AT_THE_BOUNDARY):
        return None
    inverse = proved.moved(-2 * problem.power * L.d)
    # D ⪯ 𝒫(L)⁻¹ makes H ⪰ D, and no D and no H of any D exceed 𝒫(L)⁻¹.
    descent = replace(inverse, margin=1.0 + inverse.margin)
    certificate, gap = (inverse, inverse.gap) if goal.needs_condition else (descent, math.nan)
    return StepsizeCheck(type(goal), certificate, inverse, descent, 1.0, gap, L.estimated)


def _gap_when_scaled(certificate: Certificate, scale: float) -> float:
    """Return the gap of sD: log det(sD) = log det D + d log s."""
    if not scale > 0.0:
        return math.inf
    d = certificate.d
    return max(0.0, certificate.upper_bound - certificate.log_det - d * math.log(scale)) / d


def _multiplier(
    question: Question, own: StepsizeResult | None, dual: Any, optimum: Any
) -> tuple[Matrix | None, Matrix | None]:
    """Return a multiplier for the goal, and the D that it belongs to; raise TypeError or ValueError for a wrong one."""
    goal, d = question.goal, question.d
    if optimum is not None:
        check_kind("optimum", optimum, StepsizeResult, " that optimal_stepsize returned")
        if dual is not None:
            msg = "dual and optimum both give a multiplier: leave one of them out"
            raise ValueError(msg)
        if (optimum.goal_class, optimum.d) != (type(goal), d):
            msg = (
                f"optimum is for goal={optimum.goal!r}, momentum={optimum.momentum}, d={optimum.d}, but D is judged by "
                f"goal={goal.name!r}, momentum={goal.momentum}, d={d}: solve this question for it"
            )
            raise ValueError(msg)
        if optimum.dual is None:
            msg = "optimum has no multiplier, because its L was never made dense: solve with L.todense()"
            raise ValueError(msg)
        return optimum.dual, optimum.D
    if dual is None:
        return (own.dual if own is not None and own.goal_class is type(goal) else None), None
    Z = dense(read_matrix("dual", dual))
    if len(Z) != d:
        msg = f"dual is {len(Z)}×{len(Z)} but L is {d}×{d}"
        raise ValueError(msg)
    return Z, None


# Multiples of the scaled stepsize further from one than this are judged by a multiple that is nearer.
_NEAR_ONE = 300


def _check_component(
    component: Component, stepsize: Matrix, Z: Matrix | None, reference: Matrix | None
) -> tuple[Certificate, Certificate, Certificate, float]:
    """Check the part of a given stepsize that belongs to a component.

    Returns the certificates of the goal, of T(D) ⪯ D and of H, and the largest s with sD within the condition.  With X
    near one and D = 2ⁿX in scaled coordinates, the feasible multiples of X form an interval that starts at 0: a D that
    is far from one is feasible if 2ᵐX is for an m > n, and infeasible if 2ᵐX is for an m < n.
    Z: a multiplier of the goal; reference: the D that it belongs to, at which its bound is best.
    """
    units, program, goal = component.units, component.condition, component.goal
    part = np.ix_(units.indices, units.indices)
    nothing = Certificate(False, -math.inf, -math.inf, math.inf, program.d)
    X, n = _near_one(stepsize[part], units)
    inside = None if X is None else closest(program, X)
    if X is None or inside is None:
        return nothing, nothing, nothing, 0.0
    s = float(np.trace(inside.D) / np.trace(X))
    edge = math.floor(math.log2(s))
    m = n if abs(n) <= _NEAR_ONE else min(max(n, edge - 1), edge + 2)
    D = np.ldexp(X, m)
    at = finest(program, D)
    dual = None if Z is None else _dual_near_one(Z[part], units)
    others = [inside.D, *([] if reference is None else [units.scaling.over(reference[part])])]
    metric = Descent(program, D) if m == n else None
    certificate = goal.judge(at, metric, dual, others).multiplied(n - m).moved(goal.power(units))
    condition = certificate
    if not goal.needs_condition:
        condition = at.certificate(None, others=others).multiplied(n - m).moved(units.power)
    descent = nothing if metric is None else metric.certificate(None).moved(units.power)
    if not descent.feasible and condition.feasible:
        # T(D) ⪯ D makes H ⪰ D.
        descent = replace(condition, margin=1.0 + condition.margin, upper_bound=math.inf)
    # A scale beyond the range of float64 is rounded towards zero, and so stays feasible.
    with np.errstate(over="ignore"):
        largest = float(np.nextafter(np.ldexp(s, -n), 0.0)) if abs(n) > _NEAR_ONE else math.ldexp(s, -n)
    return certificate, condition, descent, largest


def _near_one(D: Matrix, units: Units) -> tuple[Matrix | None, int]:
    """Return X and n with D = 2ⁿΛXΛ and a largest diagonal entry of X in [½, 1); None beyond float64."""
    e, diagonal = units.scaling.exponents, D.diagonal()
    if not diagonal.min() > 0.0:
        return None, 0
    n = int((np.frexp(diagonal)[1] - 2 * e).max())
    shift = e[:, None] + e + n
    X = np.ldexp(D, -shift)
    return (X if np.array_equal(np.ldexp(X, shift), D) else None), n


def _dual_near_one(Z: Matrix, units: Units) -> Matrix:
    """Return an original multiplier in the scaled coordinates, times a power of two: any is as good."""
    e = units.scaling.exponents
    shift = e[:, None] + e
    used = Z != 0.0
    top = int((np.frexp(Z)[1] + shift)[used].max()) if used.any() else 0
    return np.asarray(np.ldexp(Z, shift - top))
