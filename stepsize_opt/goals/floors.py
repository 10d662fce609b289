"""Goals of a largest t: H ⪰ tM⁻¹ with M = I for ``euclidean``, M ⪯ ∇²f for ``linear``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from scipy.linalg import eigvalsh

from stepsize_opt.goals.base import Goal, GoalWords, Units
from stepsize_opt.goals.determinants import GRADIENT, MetricGoal
from stepsize_opt.inputs.checks import dimensions, positive_number
from stepsize_opt.inputs.matrices import Scaling, Symmetric, check_positive_definite, dense, read_matrix
from stepsize_opt.inputs.structures import NAMED_STRUCTURES
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Descent,
    Enclosed,
    Interval,
    is_proved_definite,
    rounded_up,
    twice_gamma,
)
from stepsize_opt.smoothness import LimitBounds, MatrixSmoothness
from stepsize_solvers.programs import Indices, Matrix, Vector

# t = 1 solves in one step; the largest float below it keeps the logarithm finite.
_ALMOST_ONE = math.nextafter(1.0, 0.0)
_LARGEST_RATIO = 1e300
_SMALLEST_M = 2.0**-950


def block_of(M: Symmetric | float, indices: Indices) -> Matrix:
    """Return the rows and columns of M that belong to some of the coordinates."""
    if isinstance(M, float):
        return M * np.eye(indices.size)
    rows: Any = M
    return dense(rows[indices][:, indices])


def part_of(M: Symmetric | float, indices: Indices) -> Matrix | float:
    """Return M on some of the coordinates; a number stays one."""
    return M if isinstance(M, float) else block_of(M, indices)


@dataclass(frozen=True, eq=False)
class FloorGoal(MetricGoal):
    """The largest t with H ⪰ tM⁻¹, a number μ for M = μI.

    In the coordinates of a piece it is H̃ ⪰ t̃ M̃⁻¹ with M̃ = 2^shift ΛMΛ near one and t̃ = 2^shift t.
    """

    has_limit: ClassVar[bool] = True
    M: Symmetric | float = 1.0
    shift: int = 0

    def read_again(self, d: int) -> Goal:
        """Raise TypeError or ValueError for an M that is no positive number and no symmetric d×d matrix."""
        return replace(self, M=_read_curvature("M", self.M, d))

    @property
    def theorems_M(self) -> Symmetric | float:
        """M of the theorem, also where ``M`` is that of the program."""
        return self.M

    def check(self, L: Matrix, indices: Indices) -> None:
        if not isinstance(self.M, float):
            check_positive_definite("M", block_of(self.M, indices), f"the goal {self.name} needs M ≻ 0")

    def at(self, units: Units) -> Goal:
        """Raise ValueError if float64 does not hold M in the coordinates of the piece."""
        M, e = block_of(self.M, units.indices), units.scaling.exponents
        both = e[:, None] + e
        shift = 1 - int((np.frexp(M.diagonal())[1] + 2 * e).max())
        near = np.ldexp(M, both + shift)
        # The program has M⁻¹, and room for what its steps multiply it by.
        if not (np.array_equal(np.ldexp(near, -both - shift), M) and near.diagonal().min() > _SMALLEST_M):
            msg = "M and the best stepsize lie so far apart that float64 does not hold their product; rescale variables"
            raise ValueError(msg)
        number = near[0, 0] == 1.0 and np.array_equal(near, np.eye(len(near)))
        return replace(self, M=1.0 if number else near, shift=shift)

    def restricted(self, indices: Indices) -> Matrix | float:
        return part_of(self.M, indices)

    def power(self, units: Units) -> int:
        return -self.shift * units.indices.size

    def of_coordinates(self, log_det: Certificate, lower: Vector, upper: Vector, units: Units) -> Certificate:
        """log t = min_j log M_jj + 2 log Λ_j + log D̃_j, each logarithm and sum rounded once."""
        d, indices, factors = units.indices.size, units.indices, units.scaling.factors
        M = np.full(d, self.M) if isinstance(self.M, float) else np.asarray(self.M.diagonal()[indices])
        shift = np.log(M) + 2.0 * np.log(factors)
        sizes = np.abs(np.log(M)) + np.abs(2.0 * np.log(factors)) + np.abs(lower)
        loss = 16.0 * UNIT * (1.0 + sizes)
        low, high = (d * float((end + shift).min()) for end in (lower - loss, upper + loss))
        return Certificate(True, log_det.margin, low, high, d)

    def floor(self, d: int) -> Matrix:
        M = self.M
        return np.asarray(np.eye(d) / M if isinstance(M, float) else np.linalg.inv(dense(M)), dtype=np.float64)

    def value(self, metric: Descent, dual: Matrix | None, tol: float = 0.0) -> Certificate:
        return metric.floor_certificate(dual, self.restricted(np.arange(metric.d)), tol)

    def under_inverse(self, structure: Any) -> Any:
        """The largest t is μ/λmax(B), at D = γI."""
        return "scalar" if isinstance(self.M, float) and structure in NAMED_STRUCTURES.values() else None

    def of_inverse(self, certificate: Certificate) -> Certificate:
        assert isinstance(self.M, float)
        return certificate.shifted(certificate.d * Interval.exact(self.M).log())

    def bounds(self, L: MatrixSmoothness, indices: Indices) -> LimitBounds:
        return L.bounds(part_of(self.theorems_M, indices), indices, momentum=self.momentum)


class EuclideanGoal(FloorGoal):
    """The largest t with H ⪰ tI."""

    name: ClassVar[str] = "euclidean"
    words: ClassVar[GoalWords] = GoalWords("t with H ⪰ tI", "H ⪰ tI with t > 0", *GRADIENT, "H")


class StronglyConvex(FloorGoal):
    """What a goal for strongly convex f shares: E f(x^K) − f* ≤ factor (1 − t)^K Δ⁰, M ⪯ ∇²f."""

    takes_curvature: ClassVar[bool] = True
    factor: ClassVar[int] = 1

    @classmethod
    def of(cls, strong_convexity: Any, d: int) -> Self:
        return cls(read_strong_convexity(strong_convexity, d))

    @property
    def strong_convexity(self) -> Any:
        return self.theorems_M

    def check(self, L: Matrix, indices: Indices) -> None:
        check_strong_convexity(part_of(self.theorems_M, indices), L)

    def proved(self, certificate: Certificate) -> Certificate:
        """M ⪯ L makes t ≤ 1, and M may exceed L by rounding."""
        return replace(certificate, log_det=min(certificate.log_det, 0.0))

    @classmethod
    def rounds(cls, rate: float, accuracy: float, start: Any) -> int:
        """Return a K with factor (1 − t)^K Δ⁰ ≤ accuracy: the smallest, or one more within rounding of a tie."""
        gap = cls.factor * Fraction(positive_number("initial_gap", start))
        ratio = gap / Fraction(positive_number("accuracy", accuracy))
        t = positive_number("rate", rate)
        if ratio <= 1:
            return 0
        if t >= 1.0:
            return 1
        if ratio < _LARGEST_RATIO:
            nats = math.log1p(rounded_up(ratio - 1))
        else:
            nats = math.log(ratio.numerator) - math.log(ratio.denominator) + 1e-11
        # Each logarithm is right to two units.
        needed, each = nats * (1.0 + 4.0 * UNIT), -math.log1p(-t) * (1.0 - 4.0 * UNIT)
        return math.ceil(Fraction(needed) / Fraction(each))

    @classmethod
    def relative_rounds(cls, rate: float) -> float:
        return -1.0 / math.log1p(-min(rate, _ALMOST_ONE))


class LinearGoal(StronglyConvex):
    """The largest t with H ⪰ tM⁻¹, M ⪯ ∇²f: a linear rate for strongly convex f."""

    name: ClassVar[str] = "linear"
    words: ClassVar[GoalWords] = GoalWords(
        "t with H ⪰ tM⁻¹", "H ⪰ tM⁻¹ with t > 0", "log(Δ⁰/accuracy)", ("accuracy", "initial_gap"), "H"
    )


def read_strong_convexity(strong_convexity: Any, d: int) -> Symmetric | float:
    """Return M ⪯ ∇²f, a d×d matrix or a number μ for μI."""
    if strong_convexity is None:
        msg = "strong_convexity is the M ⪯ ∇²f of goal='linear', a matrix or a number μ > 0: it is missing"
        raise ValueError(msg)
    return _read_curvature("strong_convexity", strong_convexity, d)


def _read_curvature(name: str, value: Any, d: int) -> Symmetric | float:
    if dimensions(value) == 0:
        return positive_number(name, value[()] if isinstance(value, np.ndarray) else value)
    M = read_matrix(name, value)
    if M.shape[0] != d:
        msg = f"{name} is {M.shape[0]}×{M.shape[0]} but L is {d}×{d}"
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
