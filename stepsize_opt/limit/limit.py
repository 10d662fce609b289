"""The best descent metric of all methods without memory that send k floats per round: a closed form with a proof."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import METRIC_GOALS, Goal, GoalName, goal_class
from stepsize_opt.inputs import Saved, Shown, from_fields, read_only
from stepsize_opt.large import check_stepsize, stepsize_from_arrays
from stepsize_opt.limit.problem import FormedLimit, FormedMomentum, LimitProblem, ThinLimit, ThinMomentum, read_budget
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.smoothness import proved_smoothness
from stepsize_solvers.programs import Vector


@dataclass(frozen=True, eq=False, repr=False)
class CompressionLimit(Shown, Saved):
    """The best rate of a method that sends k floats per round, without memory or with momentum, and a D that has it.

    Attributes
    ----------
    k : float
        Floats per round, on average.
    goal : str
        ``"descent"``, ``"euclidean"`` or ``"linear"``; with momentum ``"linear"`` or ``"convex"``.
    D : numpy.ndarray
        d×d, read-only, with D ⪯ L⁻¹ and tr(LD) ≤ k proved, so that a method attains it (``optimal_method``).  For a
        LowRankPlusDiagonal an operator with ``D @ g``, ``D.diagonal()`` and, when asked, ``D.todense()``.
    probabilities : numpy.ndarray
        h, the inclusion probabilities of the directions of that method, in the order of ascending eigenvalues of L
        (of LM⁻¹ for ``linear``); they add up to k.  For ``euclidean`` and a LowRankPlusDiagonal D = tI, they add up to
        t tr L, and there are none unless U is dense and the diagonal constant.  With momentum D is then a multiple of
        the identity below that of the limit.
    certificate : Certificate
        ``log_det`` and ``upper_bound`` are the proved ends of d log of the limit.
    momentum : bool
        Whether it is the limit of methods with momentum.

    Examples
    --------
    See ``compression_limit``.
    """

    k: float
    goal: str
    D: Any
    probabilities: Vector
    certificate: Certificate
    momentum: bool = False

    def __post_init__(self) -> None:
        check_stepsize(self.D, self.d)

    @property
    def d(self) -> int:
        """Size of L."""
        return self.certificate.d

    @property
    def _goal_class(self) -> type[Goal]:
        return goal_class(self.goal, self.momentum)

    @property
    def value(self) -> float:
        """The limit, from below: det(D)^{1/d}, λmin(D), or the largest t with D ⪰ tM⁻¹, proved for the floats of D.

        With momentum the largest t with DLD ⪰ t²M⁻¹.
        """
        return exp_down(self.certificate.log_det / self.d)

    @property
    def upper(self) -> float:
        """The limit, from above: no method x⁺ = x − G∇f(x) with E[rank G] ≤ k has a larger value."""
        return exp_up(self.certificate.log_rate_bound)

    @property
    def gap(self) -> float:
        """log(upper/value), which rounding alone makes."""
        return self.certificate.gap

    @property
    def floats_sent(self) -> float:
        """Floats sent in all per unit of 2Δ⁰/ε², k/value; for ``linear`` −k/log(1 − value) per log(Δ⁰/accuracy).

        With momentum per unit of log(2Δ⁰/accuracy), or of ‖x⁰ − x*‖(2/accuracy)^½ for ``convex``.
        """
        return self.k * self._goal_class.relative_rounds(self.value)

    def summary(self) -> dict[str, Any]:
        """Return everything but the matrix, as plain numbers and strings."""
        return {
            "d": self.d,
            "k": self.k,
            "goal": self.goal,
            "momentum": self.momentum,
            "value": self.value,
            "upper": self.upper,
            "floats_sent": self.floats_sent,
            "probabilities": self.probabilities.tolist(),
            "certificate": {**asdict(self.certificate), "gap": self.gap},
        }

    def _shown(self) -> list[tuple[str, str]]:
        h, words = self.probabilities, self._goal_class.words
        spread = f"{h[0]:.6g} each" if h.size else "not computed"
        if h.size and h.min() < h.max():
            spread = f"from {h.min():.4g} to {h.max():.4g}"
        return [
            ("budget", f"{self.k:g} of d = {self.d} floats per round"),
            (f"limit, {words.rate}", f"{self.value:.9g}"),
            ("proved interval", f"[{self.value:.9g}, {self.upper:.9g}], gap {self.gap:.1e}"),
            ("floats sent", f"{self.floats_sent:.6g} for each unit of {words.unit}"),
            ("probabilities", spread),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {"k": self.k, "goal": self.goal, "certificate": asdict(self.certificate), "momentum": self.momentum}
        stepsize = {"D": self.D} if isinstance(self.D, np.ndarray) else self.D.arrays()
        return meta, {**stepsize, "probabilities": self.probabilities}

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> CompressionLimit:
        stepsize = {name: array for name, array in arrays.items() if name != "probabilities"}
        if "D" in stepsize:
            return from_fields(cls, meta, **arrays)
        D = stepsize_from_arrays(stepsize)
        return from_fields(cls, meta, D=D, probabilities=arrays["probabilities"])


def compression_limit(
    L: Any, k: float, *, goal: GoalName = "descent", strong_convexity: Any = None, momentum: bool = False
) -> CompressionLimit:
    """Compute the best rate of a method that sends k floats per round, over all sketches and stepsizes.

    Of all methods x⁺ = x − G∇f(x) with a random G of expected rank at most k, drawn independently of ∇f(x), the best
    metric D in E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D solves

        maximise the rate of D   subject to   D ⪯ L⁻¹,  tr(LD) ≤ k,

    which has a closed form (docs/limit.md): (k/d)L⁻¹ for ``descent``, tM⁻¹ with t = min(k/tr(LM⁻¹), 1/λmax(LM⁻¹)) for
    ``euclidean`` (M = I) and ``linear``; budget that is left in the second case goes where det D gains most.
    The limit is one of a single step: momentum, which has memory, is not bound by it.  With ``momentum=True`` it is the
    limit t = min(k/tr((LM⁻¹)^½), λmax(LM⁻¹)^{−½}) of methods with momentum (docs/momentum.md).

    Parameters
    ----------
    L
        Smoothness matrix, d×d symmetric positive definite: array, nested list, pandas frame, scipy sparse matrix, or a
        LowRankPlusDiagonal, which is not made dense: ``descent`` needs a dense U, ``euclidean`` and ``linear`` one that
        is dense or without negative entries, ``linear`` a number for ``strong_convexity``; momentum a dense U and
        equal entries of the diagonal.
    k
        Floats per round on average, 0 < k ≤ d; it need not be whole.
    goal
        ``"descent"``, det(D)^{1/d}, for the weighted mean of E‖∇f‖²; ``"euclidean"``, the largest t with D ⪰ tI, for
        the mean in the Euclidean norm; ``"linear"``, the largest t with D ⪰ tM⁻¹, for E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
    strong_convexity
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    momentum
        For methods that keep two vectors: goal ``"linear"``, E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰, or ``"convex"``,
        E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)).

    Returns
    -------
    CompressionLimit with ``value``, its proved upper end ``upper``, ``D``, ``probabilities`` and ``floats_sent``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described, a singular L, or k > d; the message names the argument and the fix.

    Examples
    --------
    >>> from stepsize_opt import compression_limit
    >>> limit = compression_limit([[1.0, 0.0], [0.0, 4.0]], 1)
    >>> round(limit.value, 6), round(limit.floats_sent, 6)
    (0.25, 4.0)
    """
    problem = read_limit(L, k, goal, strong_convexity, momentum=momentum)
    D, h, certificate = problem.best()
    stepsize = read_only(D) if isinstance(D, np.ndarray) else D
    return CompressionLimit(problem.k, problem.goal.name, stepsize, read_only(h), certificate, momentum)


def read_limit(
    L: Any, k: object, goal: object, strong_convexity: Any = None, *, momentum: bool = False
) -> LimitProblem:
    """Read the arguments of ``compression_limit``; raise ValueError or TypeError for what is not as described there."""
    smoothness = proved_smoothness(L)
    budget = read_budget(k, smoothness.d)
    asked = Goal.read(goal, strong_convexity, smoothness.d, METRIC_GOALS, momentum)
    if smoothness.is_formed:
        return (FormedMomentum if asked.momentum else FormedLimit).of(smoothness.formed(), budget, asked)
    return (ThinMomentum if asked.momentum else ThinLimit).of(smoothness.factored(), budget, asked)
