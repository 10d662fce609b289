"""The goals of a stepsize: what is maximised, and what that guarantees.

With T(D) the left-hand side of the method's condition, H = 2D − T(D) its descent metric and Δ⁰ = f(x⁰) − f^inf:

=========  ==============================  ==================================================================
goal       the rate that is maximised      what it guarantees after K rounds
=========  ==============================  ==================================================================
paper      det(D)^{1/d} with T(D) ⪯ D      (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(rate K) in the norm of D/det(D)^{1/d}
descent    det(H)^{1/d}                    the same with H in place of D, without a condition
euclidean  t with H ⪰ tI                   (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(t K) in the Euclidean norm
linear     t with H ⪰ tM⁻¹, M ⪯ ∇²f        E f(x^K) − f* ≤ (1 − t)^K Δ⁰
=========  ==============================  ==================================================================

The goals of ``METRIC_GOALS`` judge the descent metric; they are those of ``compression_limit`` and ``plan``.

With momentum (docs/momentum.md) the rate is the t with H ⪰ t²𝒫(M⁻¹), M = I for ``convex``, which needs momentum:

=========  ==================================================================
linear     E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰
convex     E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)) in the Euclidean norm
=========  ==================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.linalg import eigvalsh

from stepsize_opt.inputs import (
    Scaling,
    Symmetric,
    check_one_of,
    check_positive_definite,
    dense,
    dimensions,
    positive_number,
    read_matrix,
    real_array,
)
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    is_proved_definite,
    twice_gamma,
)
from stepsize_solvers.programs import Indices, Matrix, Vector

GoalName: TypeAlias = Literal["paper", "descent", "euclidean", "linear", "convex"]
GOAL_NAMES: tuple[GoalName, ...] = ("paper", "descent", "euclidean", "linear")
METRIC_GOALS: tuple[GoalName, ...] = ("descent", "euclidean", "linear")
CLIENT_GOALS: tuple[GoalName, ...] = ("paper", "descent")
MOMENTUM_GOALS: tuple[GoalName, ...] = ("linear", "convex")


@dataclass(frozen=True)
class GoalWords:
    """How a goal is shown.

    rate: what its rate is; feasible: what a feasible D satisfies; unit: what rounds are 1/rate times of; arguments:
    those of ``iterations``; judged: the matrix whose determinant or least t is maximised.
    """

    rate: str
    feasible: str
    unit: str
    arguments: tuple[str, str]
    judged: str


_GRADIENT = "2Δ⁰/ε²", ("epsilon2", "initial_gap")
WORDS: dict[str, GoalWords] = {
    "paper": GoalWords("det(D)^(1/d)", "T(D) ⪯ D", *_GRADIENT, "D"),
    "descent": GoalWords("det(H)^(1/d)", "H = 2D − T(D) ≻ 0", *_GRADIENT, "H"),
    "euclidean": GoalWords("t with H ⪰ tI", "H ⪰ tI with t > 0", *_GRADIENT, "H"),
    "linear": GoalWords("t with H ⪰ tM⁻¹", "H ⪰ tM⁻¹ with t > 0", "log(Δ⁰/accuracy)", ("accuracy", "initial_gap"), "H"),
}
_MOMENTUM_RATE = "t with H ⪰ t²𝒫(M⁻¹)"
_MOMENTUM_FEASIBLE = "H ⪰ t²𝒫(M⁻¹) with t > 0"
MOMENTUM_WORDS: dict[str, GoalWords] = {
    "linear": replace(WORDS["linear"], rate=_MOMENTUM_RATE, feasible=_MOMENTUM_FEASIBLE, unit="log(2Δ⁰/accuracy)"),
    "convex": GoalWords(
        f"{_MOMENTUM_RATE}, M = I",
        _MOMENTUM_FEASIBLE,
        "‖x⁰ − x*‖ (2/accuracy)^½",
        ("accuracy", "initial_distance"),
        "H",
    ),
}


def goal_words(goal: str, momentum: bool) -> GoalWords:
    """Return how a goal is shown, with momentum or without memory."""
    return (MOMENTUM_WORDS if momentum else WORDS)[goal]


@dataclass(frozen=True, eq=False)
class CurvatureBound:
    """M of H ⪰ tM⁻¹ in the coordinates of a piece: H̃ ⪰ t̃ M̃⁻¹ with M̃ = 2^shift ΛMΛ near one and t̃ = 2^shift t."""

    M: Matrix | float
    shift: int
    d: int

    @property
    def inverse(self) -> Matrix:
        """M̃⁻¹ in floating point, the floor of the program."""
        return np.eye(self.d) if isinstance(self.M, float) else np.asarray(np.linalg.inv(self.M), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Goal:
    """A goal with its M: given for ``linear``, I for ``euclidean``, None for the others; a number μ stands for μI.

    momentum: for a method that keeps two vectors; M is then I for ``convex``, too.
    """

    name: GoalName = "paper"
    M: Symmetric | float | None = None
    momentum: bool = False

    @staticmethod
    def read(
        goal: object,
        strong_convexity: Any,
        d: int,
        among: tuple[GoalName, ...] = GOAL_NAMES,
        momentum: bool = False,
    ) -> Goal:
        """Read the arguments; raise ValueError or TypeError for an unknown goal or an M that does not go with it."""
        if not isinstance(momentum, bool):
            msg = f"momentum must be True or False, got {momentum!r}: how much of it is best follows from L and M"
            raise TypeError(msg)
        if goal == "convex" and not momentum:
            msg = (
                "goal='convex' is proved with memory only: pass momentum=True, with which x and z are kept; "
                "goal='linear' with strong_convexity=M bounds f − f* without memory"
            )
            raise ValueError(msg)
        name: Any = goal
        check_one_of("goal", name, (*GOAL_NAMES, "convex") if momentum else among)
        if momentum and name not in MOMENTUM_GOALS:
            msg = (
                f"momentum=True is proved for convex f only, goal='linear' or goal='convex', got goal={name!r}: "
                "without memory every goal has an answer"
            )
            raise ValueError(msg)
        M = _read_bound(name, strong_convexity, d)
        return Goal(name, 1.0 if momentum and M is None else M, momentum)

    @property
    def words(self) -> GoalWords:
        return goal_words(self.name, self.momentum)

    @property
    def judges_metric(self) -> bool:
        """Whether H is judged, so that D needs no condition."""
        return self.momentum or self.name in METRIC_GOALS

    @property
    def edges(self) -> Symmetric | None:
        """A matrix whose entries connect coordinates, or None."""
        return None if isinstance(self.M, float) else self.M

    def block(self, indices: Indices) -> Matrix:
        """Return the rows and columns of M that belong to some of the coordinates."""
        assert self.M is not None
        if isinstance(self.M, float):
            return self.M * np.eye(indices.size)
        M: Any = self.M
        return dense(M[indices][:, indices])

    def diagonal(self, indices: Indices) -> Vector | None:
        """Return the diagonal of that block; None without M."""
        if self.M is None:
            return None
        return np.full(indices.size, self.M) if isinstance(self.M, float) else np.asarray(self.M.diagonal()[indices])

    def restricted(self, indices: Indices) -> Matrix | float | None:
        """Return M on some of the coordinates."""
        return self.M if self.M is None or isinstance(self.M, float) else self.block(indices)

    def check(self, L: Matrix, indices: Indices) -> None:
        """Raise ValueError unless 0 ≺ M ⪯ L on a group of coordinates; I of ``euclidean`` is no bound on ∇²f."""
        M = self.curvature(indices)
        if self.name == "linear" and M is not None:
            check_strong_convexity(M, L)

    def proved(self, certificate: Certificate) -> Certificate:
        """Return the certificate of t, for ``linear`` of a t ≤ 1: M ⪯ L makes it so, and M may exceed L by rounding."""
        return replace(certificate, log_det=min(certificate.log_det, 0.0)) if self.name == "linear" else certificate

    def curvature(self, indices: Indices) -> Matrix | float | None:
        """Return M ⪯ ∇²f on some of the coordinates, by which the limit is computed."""
        return self.restricted(indices)

    def curvature_bound(self, indices: Indices, scaling: Scaling) -> CurvatureBound | None:
        """Return M in the coordinates of a piece, D = ΛD̃Λ, or None; raises ValueError if float64 does not hold it."""
        if self.M is None:
            return None
        M, e = self.block(indices), scaling.exponents
        both = e[:, None] + e
        shift = 1 - int((np.frexp(M.diagonal())[1] + 2 * e).max())
        near = np.ldexp(M, both + shift)
        if not np.array_equal(np.ldexp(near, -both - shift), M):
            msg = "M and the best stepsize lie so far apart that float64 does not hold their product; rescale variables"
            raise ValueError(msg)
        number = near[0, 0] == 1.0 and np.array_equal(near, np.eye(len(near)))
        return CurvatureBound(1.0 if number else near, shift, len(near))


PAPER = Goal()


def _read_bound(goal: GoalName, strong_convexity: Any, d: int) -> Symmetric | float | None:
    """Return M of the goal: a d×d matrix, a number μ for μI, or None for a goal that judges a determinant."""
    if (strong_convexity is None) == (goal == "linear"):
        msg = "strong_convexity is the M ⪯ ∇²f of goal='linear', a matrix or a number μ > 0: "
        raise ValueError(msg + ("it is missing" if strong_convexity is None else f"leave it out for goal={goal!r}"))
    if strong_convexity is None:
        return 1.0 if goal == "euclidean" else None
    if dimensions(strong_convexity) == 0:
        number = strong_convexity[()] if isinstance(strong_convexity, np.ndarray) else strong_convexity
        return positive_number("strong_convexity", number)
    M = read_matrix("strong_convexity", strong_convexity)
    if M.shape[0] != d:
        msg = f"strong_convexity is {M.shape[0]}×{M.shape[0]} but L is {d}×{d}"
        raise ValueError(msg)
    return M


def check_strong_convexity(M: Matrix | float, L: Matrix) -> None:
    """Raise ValueError unless M ≻ 0 and M ⪯ L + ηDiag(L) are proved for the M of ``linear``.

    L and M are computed, L often as M plus a singular matrix: η is their rounding and that of the proof.
    """
    matrix = M * np.eye(len(L)) if isinstance(M, float | int) else M
    if not isinstance(M, float | int):
        check_positive_definite("strong_convexity", matrix, "goal='linear' needs M ≻ 0")
    scaling, d = Scaling.of(L.diagonal()), len(L)
    scaled, floor = scaling.times(L), scaling.times(matrix)
    rounding = 16.0 * d * twice_gamma(d + 2) * scaled.diagonal()
    if is_proved_definite((Enclosed.exact(scaled) - floor).plus_diagonal(rounding)):
        return
    excess = float(eigvalsh(floor, scaled)[-1]) - 1.0
    factor = f"{1.0 + excess:.6g}" if excess > 1e-3 else f"1 + {max(excess, UNIT):.1g}"
    msg = (
        "strong_convexity must satisfy M ⪯ L, because ∇²f lies between both, but M exceeds L by a factor of "
        f"{factor}: give a smaller M"
    )
    raise ValueError(msg)


# t = 1 solves in one step; the largest float below it keeps the logarithm finite.
_ALMOST_ONE = math.nextafter(1.0, 0.0)


def relative_rounds(goal: str, rate: float) -> float:
    """Return the rounds that a rate guarantees, in the unit of the goal: 1/rate, −1/log(1 − t) for ``linear``."""
    return 1.0 / (rate if goal != "linear" else -math.log1p(-min(rate, _ALMOST_ONE)))


def iterations_needed(rate: float, epsilon2: float, initial_gap: float) -> int:
    """Return the smallest K with 2Δ⁰/(rate K) ≤ ε², where ``rate`` is det(D)^{1/d} and ``initial_gap`` is Δ⁰.

    Exact for the floats given, however large K is.
    """
    gap, target = positive_number("initial_gap", initial_gap), positive_number("epsilon2", epsilon2)
    return math.ceil(2 * Fraction(gap) / (Fraction(positive_number("rate", rate)) * Fraction(target)))


def linear_iterations(t: float, accuracy: float, initial_gap: float) -> int:
    """Return the smallest K with (1 − t)^K Δ⁰ ≤ accuracy, where ``initial_gap`` is Δ⁰ = f(x⁰) − f*.

    Found to 50 digits behind the point; where these leave a doubt, K is decided exactly up to 10⁴, rounded up beyond.
    """
    gap, target = Fraction(positive_number("initial_gap", initial_gap)), Fraction(positive_number("accuracy", accuracy))
    kept = 1 - Fraction(positive_number("rate", t))
    if gap <= target:
        return 0
    if kept <= 0:
        return 1
    zeros = math.ceil(-math.log10(t))  # of t: 1 − t takes them off its digits, and K has them in front of the point
    with localcontext(Context(prec=60 + 2 * zeros)):
        needed, each = ((Decimal(x.numerator) / x.denominator).ln() for x in (gap / target, 1 / kept))
        K = needed / each
        nearest = K.to_integral_value()
        if abs(K - nearest) > Decimal("1e-30"):
            return math.ceil(K)
    whole = int(nearest)
    return whole if whole <= _DECIDED and kept**whole * gap <= target else whole + 1


_DECIDED = 10**4


def momentum_iterations(goal: str, t: float, accuracy: float, start: Any) -> int:
    """Return the smallest K that momentum with the rate t needs for E f(x^K) − f* ≤ accuracy.

    ``linear``: 2(1 − t)^K Δ⁰ ≤ accuracy, start = Δ⁰.  ``convex``: 2r² ≤ accuracy t²K(K + 3), start = x⁰ − x* or a
    number r ≥ ‖x⁰ − x*‖.
    """
    if goal == "linear":
        return linear_iterations(t, accuracy, 2.0 * positive_number("initial_gap", start))
    if dimensions(start) == 0:
        squared = Fraction(positive_number("initial_distance", start)) ** 2
    else:
        squared = sum((Fraction(x) ** 2 for x in real_array("initial_distance", start).tolist()), Fraction(0))
    rate = Fraction(positive_number("rate", t))
    needed = math.ceil(2 * squared / (rate**2 * Fraction(positive_number("accuracy", accuracy))))  # ≤ K(K + 3)
    K = max(1, (math.isqrt(4 * needed + 9) - 3) // 2)  # (2K + 3)² = 4K(K + 3) + 9
    return K if K * (K + 3) >= needed else K + 1


def coordinates_sent(iterations: int, expected_nonzeros: float) -> float:
    """Return the expected number of floats sent to the server in all rounds; raises OverflowError beyond float64."""
    try:
        return iterations * expected_nonzeros
    except OverflowError:
        digits = math.floor(iterations.bit_length() * math.log10(2.0))
        msg = f"the number of coordinates sent in about 1e{digits} iterations exceeds float64; ask for less accuracy"
        raise OverflowError(msg) from None
