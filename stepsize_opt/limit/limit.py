"""The best descent metric of all methods without memory that send k floats per round: a closed form with a proof."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.goals import METRIC_GOALS, WORDS, Goal, GoalName, check_strong_convexity
from stepsize_opt.inputs import (
    REGULARISE,
    SMOOTHNESS_REMEDY,
    Saved,
    Shown,
    check_positive_definite,
    dense,
    from_fields,
    read_matrix,
    read_only,
)
from stepsize_opt.limit.bounds import LimitBounds
from stepsize_opt.limit.budgets import read_budget, unproved
from stepsize_opt.limit.large import LargeLimit
from stepsize_opt.limit.spectrum import Spectrum, equal_probabilities, floor_probabilities
from stepsize_opt.operators import LowRankPlusDiagonal, stepsize_from_arrays
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    Evaluation,
    InBasis,
    Pair,
    exp_down,
    exp_up,
    largest_floor,
    log_det_from_below,
    power_of_two_scaling,
)
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, Pattern, Program, Vector

LARGEST_LOSS = 0.1  # a proof that takes a larger share of D has failed


@dataclass(frozen=True)
class LimitProblem:
    """A checked problem: L, M (a matrix, a number μ for μI, None for ``descent``), the budget and the upper bound."""

    L: Matrix
    M: Matrix | float | None
    k: float
    goal: str
    upper_bound: float

    @staticmethod
    def read(L: Any, k: object, goal: object, strong_convexity: Any) -> LimitProblem:
        """Raises ValueError or TypeError for arguments that are not as ``compression_limit`` describes."""
        matrix = dense(read_matrix("L", L))
        d = len(matrix)
        budget = read_budget(k, d)
        asked = Goal.read(goal, strong_convexity, d, METRIC_GOALS)
        M = asked.M if asked.M is None or isinstance(asked.M, float) else dense(asked.M)
        with blas_threads(d):
            log_det = check_positive_definite("L", matrix, SMOOTHNESS_REMEDY)
            if asked.name == "linear" and M is not None:
                check_strong_convexity(M, matrix)
            bound = LimitBounds.of(matrix, log_det, M).log_bound(budget)
        return LimitProblem(matrix, M, budget, asked.name, bound)

    def certificate(self, D: Matrix) -> Certificate:
        """Of a D that is known to be attainable: log det D or d log t from below, and the limit from above.

        Raises Unproved where the floats of D are too coarse to come near the limit.
        """
        certificate = self._certificate(D)
        if not certificate.gap <= LARGEST_LOSS:
            share = f"{math.exp(-certificate.gap):.1%}"
            msg = (
                f"the eigenvalues of L lie too far apart for goal={self.goal!r} in float64: what is "
                f"proved of D is {share} of the limit; {REGULARISE}"
            )
            raise unproved(self.k, msg)
        return certificate

    def _certificate(self, D: Matrix) -> Certificate:
        scale = power_of_two_scaling(self.L.diagonal())
        scaled = D / scale[:, None] / scale
        d = len(D)
        if self.M is None:
            below = log_det_from_below(scaled)
            lower = -math.inf if below is None else below
            return Certificate(below is not None, 0.0, lower, math.inf, d).rescaled(scale).bounded(self.upper_bound)
        M = np.diag(self.M * scale * scale) if isinstance(self.M, float) else scale[:, None] * self.M * scale
        t = largest_floor(Enclosed(scaled, np.zeros_like(scaled)), M)
        if t <= 0.0:
            return Certificate(False, 0.0, -math.inf, self.upper_bound, d)
        lower = d * math.log(t)
        return Certificate(True, 0.0, lower - 4.0 * UNIT * (d + abs(lower)), self.upper_bound, d)


@dataclass(frozen=True, eq=False, repr=False)
class CompressionLimit(Shown, Saved):
    """The best rate of a method without memory that sends k floats per round, and a D that has it.

    Attributes
    ----------
    k : float
        Floats per round, on average.
    goal : str
        ``"descent"``, ``"euclidean"`` or ``"linear"``.
    D : numpy.ndarray
        d×d, read-only, with D ⪯ L⁻¹ and tr(LD) ≤ k proved, so that a method attains it (``optimal_method``).  For a
        LowRankPlusDiagonal an operator with ``D @ g``, ``D.diagonal()`` and, when asked, ``D.todense()``.
    probabilities : numpy.ndarray
        h, the inclusion probabilities of the directions of that method, in the order of ascending eigenvalues of L
        (of LM⁻¹ for ``linear``); they add up to k.  For ``euclidean`` and a LowRankPlusDiagonal D = tI, they add up to
        t tr L, and there are none unless U is dense and the diagonal constant.
    certificate : Certificate
        ``log_det`` and ``upper_bound`` are the proved ends of d log of the limit.

    Examples
    --------
    See ``compression_limit``.
    """

    k: float
    goal: str
    D: Any
    probabilities: Vector
    certificate: Certificate

    @property
    def d(self) -> int:
        """Size of L."""
        return self.certificate.d

    @property
    def value(self) -> float:
        """The limit, from below: det(D)^{1/d}, λmin(D), or the largest t with D ⪰ tM⁻¹, proved for the floats of D."""
        return exp_down(self.certificate.log_det / self.d)

    @property
    def upper(self) -> float:
        """The limit, from above: no method x⁺ = x − G∇f(x) with E[rank G] ≤ k has a larger value."""
        return exp_up(self.certificate.upper_bound / self.d)

    @property
    def gap(self) -> float:
        """log(upper/value), which rounding alone makes."""
        return self.certificate.gap

    @property
    def numbers_sent(self) -> float:
        """Numbers sent in all per unit of 2Δ⁰/ε², or of log(Δ⁰/accuracy) for ``linear``: k/value."""
        return self.k / self.value

    def summary(self) -> dict[str, Any]:
        """Everything but the matrix, as plain numbers and strings."""
        return {
            "d": self.d,
            "k": self.k,
            "goal": self.goal,
            "value": self.value,
            "upper": self.upper,
            "numbers_sent": self.numbers_sent,
            "probabilities": self.probabilities.tolist(),
            "certificate": {**asdict(self.certificate), "gap": self.gap},
        }

    def rows(self) -> list[tuple[str, str]]:
        h = self.probabilities
        spread = f"{h[0]:.6g} each" if h.size else "not computed"
        if h.size and h.min() < h.max():
            spread = f"from {h.min():.4g} to {h.max():.4g}"
        return [
            ("budget", f"{self.k:g} of d = {self.d} floats per round"),
            (f"limit, {WORDS[self.goal].rate}", f"{self.value:.9g}"),
            ("proved interval", f"[{self.value:.9g}, {self.upper:.9g}], gap {self.gap:.1e}"),
            ("numbers sent", f"{self.numbers_sent:.6g} for each unit of {WORDS[self.goal].unit}"),
            ("probabilities", spread),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {"k": self.k, "goal": self.goal, "certificate": asdict(self.certificate)}
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
    L: Any, k: float, *, goal: GoalName = "descent", strong_convexity: Any = None
) -> CompressionLimit:
    """Compute the best rate of a method without memory that sends k floats per round, over all sketches and stepsizes.

    Of all methods x⁺ = x − G∇f(x) with a random G of expected rank at most k, drawn independently of ∇f(x), the best
    metric D in E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D solves

        maximise the rate of D   subject to   D ⪯ L⁻¹,  tr(LD) ≤ k,

    which has a closed form (docs/limit.md): (k/d)L⁻¹ for ``descent``, tM⁻¹ with t = min(k/tr(LM⁻¹), 1/λmax(LM⁻¹)) for
    ``euclidean`` (M = I) and ``linear``; budget that is left in the second case goes where det D gains most.
    The limit is one of a single step: momentum, which has memory, is not bound by it.

    Parameters
    ----------
    L
        Smoothness matrix, d×d symmetric positive definite: array, nested list, pandas frame, scipy sparse matrix, or a
        LowRankPlusDiagonal, which is not made dense: ``descent`` needs a dense U, ``euclidean`` and ``linear`` one that
        is dense or without negative entries, ``linear`` a number for ``strong_convexity``.
    k
        Floats per round on average, 0 < k ≤ d; it need not be whole.
    goal
        ``"descent"``, det(D)^{1/d}, for the weighted mean of E‖∇f‖²; ``"euclidean"``, the largest t with D ⪰ tI, for
        the mean in the Euclidean norm; ``"linear"``, the largest t with D ⪰ tM⁻¹, for E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
    strong_convexity
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.

    Returns
    -------
    CompressionLimit with ``value``, its proved upper end ``upper``, ``D``, ``probabilities`` and ``numbers_sent``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described, a singular L, or k > d; the message names the argument and the remedy.

    Examples
    --------
    >>> from stepsize_opt import compression_limit
    >>> limit = compression_limit([[1.0, 0.0], [0.0, 4.0]], 1)
    >>> round(limit.value, 6), round(limit.numbers_sent, 6)
    (0.25, 4.0)
    """
    if isinstance(L, LowRankPlusDiagonal):
        large = LargeLimit.read(L, k, goal, strong_convexity)
        operator, h, certificate = large.answer()
        return CompressionLimit(large.k, large.goal, operator, read_only(h), certificate)
    problem = LimitProblem.read(L, k, goal, strong_convexity)
    with blas_threads(len(problem.L)):
        h, D = _best(problem)
        D = _attainable(problem.L, D, problem.k)
        return CompressionLimit(problem.k, problem.goal, read_only(D), read_only(h), problem.certificate(D))


def _best(problem: LimitProblem) -> tuple[Vector, Matrix]:
    """h and D in plain floating point."""
    L, M, k, d = problem.L, problem.M, problem.k, len(problem.L)
    if M is None:
        return equal_probabilities(d, k), (k / d) * _inverse(L)
    spectrum = Spectrum.of(L, M)
    h = floor_probabilities(spectrum.values, k)
    t = k / float(spectrum.values.sum())
    if t * float(spectrum.values.max()) > 1.0:
        return h, spectrum.matrix(h)
    return h, (t / M) * np.eye(d) if isinstance(M, float | int) else t * _inverse(M)


def _inverse(A: Matrix) -> Matrix:
    """A⁻¹ of a positive definite A, symmetric, in plain floating point; scaled first, so that no entry overflows."""
    scale = power_of_two_scaling(A.diagonal())
    factor, _ = lapack.dpotrf(scale[:, None] * A * scale, 1, 1)  # lower, clean
    root = lapack.dtrtri(factor, 1)[0]
    return np.asarray(scale[:, None] * (root.T @ root) * scale)


def _attainable(L: Matrix, D: Matrix, k: float) -> Matrix:
    """D, or the nearest multiple of it, with D ⪯ L⁻¹ and tr(LD) ≤ k proved for its floats."""
    scale = power_of_two_scaling(L.diagonal())
    B, X = scale[:, None] * L * scale, D / scale[:, None] / scale
    program = Program.single(B, DiagonalPlusScaled.identity(len(B)), Pattern.full(len(B)))
    X = _within_budget(B, 0.5 * (X + X.T), k)
    loss = 0.0
    while loss <= LARGEST_LOSS:
        candidate = np.asarray((1.0 - loss) * X)
        # In the basis of D rounding counts least, but the plain proof is the cheaper one.
        if Evaluation(program, candidate).feasible or InBasis(program, candidate).feasible:
            return np.asarray(scale[:, None] * candidate * scale)
        loss = max(4.0 * loss, len(B) * UNIT)
    msg = f"L is too close to singular for a stepsize of this goal to be proved in float64; {SMOOTHNESS_REMEDY}"
    raise unproved(k, msg)


def _within_budget(L: Matrix, D: Matrix, k: float) -> Matrix:
    """D, lowered until tr(LD) ≤ k is proved."""
    loss = 2.0 * UNIT
    # The rounding of the entries of D may count more than what is taken off, so take off more each time.
    while (used := Pair.exact(L).inner_from_above(Pair.exact(D))) > k:
        loss *= 2.0
        D = D * (k / used * (1.0 - loss))
    return D
