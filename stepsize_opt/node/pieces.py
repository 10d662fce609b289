"""The pieces into which a problem of one node falls: coordinates that stand alone, and scaled programs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from stepsize_opt.goals import CurvatureBound
from stepsize_opt.inputs import out_of_range
from stepsize_opt.proofs import (
    SMALLEST_NORMAL,
    UNIT,
    Certificate,
    Evaluation,
    log_det_power,
)
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import LimitBounds
from stepsize_solvers.programs import (
    Indices,
    Matrix,
    Program,
    Vector,
)

NO_UNDERFLOW = 2.0**-1000  # far above the smallest normal number
Proved = TypeVar("Proved", bound=Evaluation)


@dataclass(frozen=True, eq=False)
class Singletons:
    """Coordinates that stand alone: maximise Σ log D_j subject to w̄_j D_j ≤ 1, solved by D_j = 1/w̄_j.

    weights: w_j = q_j B_jj in scaled coordinates, rounded; error: |w̄_j − w_j| ≤ error_j w_j for w̄_j without rounding.
    scale: the stepsize of the original coordinates is scale_j² D_j.
    """

    indices: Indices
    weights: Vector
    error: Vector
    scale: Vector
    curvature: Vector | None = None  # M_jj, for the largest t with D_j ≥ t/M_jj

    def solve(self) -> SolvedAlone:
        """The answer in the original coordinates.

        Raises ValueError for a stepsize that float64 does not hold.
        """
        inside = (self.weights >= SMALLEST_NORMAL) & (self.weights <= 1.0 / SMALLEST_NORMAL) & (self.error < 0.25)
        weights = np.where(inside, self.weights, 1.0)
        # The quotient and the products round by a few units; the rest lets the general check of the condition, whose
        # error bounds are wider, see it too.
        scaled = (1.0 - 2.0 * self.error - 40.0 * UNIT) / weights
        with np.errstate(over="ignore"):
            D = self.scale * scaled * self.scale
        inside &= (D >= SMALLEST_NORMAL) & np.isfinite(D)
        if not inside.all():
            raise stepsize_out_of_range(int(self.indices[~inside][0]))
        lower, upper = np.log(scaled), -np.log(weights * (1.0 - 2.0 * self.error))
        margin = float(np.min(1.0 - weights * scaled))
        # Rounding of the logarithms (one ulp each), of their arguments and of the exact sums.
        slack = UNIT * (8.0 * len(D) + 4.0 * float(np.abs(lower).sum()))
        below, above = math.fsum(lower) - slack, math.fsum(upper) + slack
        certificate = Certificate(True, margin, below, above, len(D)).rescaled(self.scale)
        reached = None
        if self.curvature is not None:
            # log t = min_j log M_jj + 2 log Λ_j + log D̃_j, each logarithm and sum rounded once.
            shift = np.log(self.curvature) + 2.0 * np.log(self.scale)
            sizes = np.abs(np.log(self.curvature)) + np.abs(2.0 * np.log(self.scale)) + np.abs(lower)
            loss = 16.0 * UNIT * (1.0 + sizes)
            low, high = (len(D) * float((end + shift).min()) for end in (lower - loss, upper + loss))
            reached = Certificate(True, margin, low, high, len(D))
        return SolvedAlone(D, weights / self.scale / self.scale, certificate, reached)


@dataclass(frozen=True, eq=False)
class SolvedAlone:
    """D_j and multipliers Z_j = w_j of coordinates that stand alone, the certificate of log det D, and that of t."""

    D: Vector
    Z: Vector
    certificate: Certificate
    reached: Certificate | None


@dataclass(frozen=True, eq=False)
class Component:
    """One connected piece: the scaled program and how its answer goes back, D[indices, indices] = Λ D̃ Λ."""

    indices: Indices
    scale: Vector
    program: Program
    single: Program  # of the condition 𝒬(DBD) ⪯ D alone, by which D is proved
    bound: CurvatureBound | None = None
    is_convex: bool = False

    @cached_property
    def power(self) -> int:
        """n with det D = 2ⁿ det D̃."""
        return log_det_power(self.scale)

    @property
    def log_shift(self) -> float:
        """What log det D / d, or log t where there is an M, exceeds that of the scaled program by."""
        power = self.power / len(self.scale) if self.bound is None else -self.bound.shift
        return power * math.log(2.0)

    def lower(self, D: Matrix) -> Matrix:
        """A stepsize of the original coordinates in the scaled ones (exact within the range of float64)."""
        return D / self.scale[:, None] / self.scale

    def near_one(self, D: Matrix) -> tuple[Matrix | None, int]:
        """X and n with D = 2ⁿΛXΛ and a largest diagonal entry of X in [½, 1); None where float64 does not hold X."""
        e = np.frexp(self.scale)[1] - 1
        diagonal = D.diagonal()
        if not diagonal.min() > 0.0:
            return None, 0
        n = int((np.frexp(diagonal)[1] - 2 * e).max())
        shift = e[:, None] + e + n
        X = np.ldexp(D, -shift)
        return (X if np.array_equal(np.ldexp(X, shift), D) else None), n

    def dual_near_one(self, Z: Matrix) -> Matrix:
        """A multiplier of the original constraint in the scaled coordinates, times a power of two: any is as good."""
        e = np.frexp(self.scale)[1] - 1
        shift = e[:, None] + e
        used = Z != 0.0
        top = int((np.frexp(Z)[1] + shift)[used].max()) if used.any() else 0
        return np.asarray(np.ldexp(Z, shift - top))

    def lift_stepsize(self, D: Matrix) -> Matrix:
        """A stepsize of the scaled coordinates in the original ones (exact within the range of float64)."""
        return self.scale[:, None] * D * self.scale

    def lower_dual(self, Z: Matrix) -> Matrix:
        """A multiplier of the original constraint in the scaled coordinates (exact within the range of float64)."""
        return self.scale[:, None] * Z * self.scale

    def lift_dual(self, Z: Matrix) -> Matrix:
        """A multiplier of the scaled constraint in the original coordinates (exact within the range of float64)."""
        return Z / self.scale[:, None] / self.scale

    def held(self, at: Proved) -> tuple[Proved, Matrix]:
        """The stepsize as float64 holds it, in the scaled and in the original coordinates.

        Proved feasible again if the range of float64 changed it; raises ValueError if that is not possible.
        """
        with np.errstate(over="ignore"):
            D = self.lift_stepsize(at.D)
        size = np.abs(D)
        if size.min() > NO_UNDERFLOW and size.max() < 1.0 / NO_UNDERFLOW:
            return at, D
        back = self.lower(D)
        inside = (D.diagonal() >= SMALLEST_NORMAL) & np.isfinite(D.diagonal())
        if inside.all() and (back != at.D).any():
            at = at.elsewhere(back)  # entries between coordinates became subnormal or zero
        if not (inside.all() and at.feasible):
            raise stepsize_out_of_range(int(self.indices[np.argmin(inside)]))
        return at, D


def stepsize_out_of_range(coordinate: int) -> ValueError:
    """Return the error for a stepsize outside the range of float64."""
    what = f"the best stepsize of coordinate {coordinate}"
    return out_of_range(what)


@dataclass
class Reduction:
    """The pieces of a problem, the names of the reductions that made them, and what the limit takes from L."""

    components: list[Component] = field(default_factory=list)
    singletons: list[Singletons] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: list[LimitBounds] = field(default_factory=list)

    def log_limit(self, sketch: Sketch) -> float:
        """d log of the limit for draws as sparse as the sketch's, from above; +∞ where E[S] = I is not exact."""
        if not sketch.is_exactly_unbiased:
            return math.inf
        return LimitBounds.combine(self.limits).log_bound(sketch.expected_rank)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
