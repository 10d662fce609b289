"""The descent metric H(D) = 2D − 𝒬(DBD), proved from both sides for the floats given.

E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_H holds for every D (no condition), so what counts is log det H, or the largest t with
H ⪰ tM⁻¹ for a given M ≻ 0.

*From below.*  log det of the enclosure of H; H ⪰ tM⁻¹ as in ``.floors``.

*From above.*  For every Y ≻ 0, log det H ≤ ⟨Y, H⟩ − d − log det Y, and t ≤ ⟨Y, H⟩/⟨Y, M⁻¹⟩.  ⟨Y, H(D)⟩ =
⟨2Y, D⟩ − ⟨𝒬*(Y), DBD⟩ is bounded over the pattern as in ``.quadratics``.  With q this bound, over all multiples of Y,

    log det H* ≤ d log(q/d) − log det Y.

Y is any matrix near H⁻¹ (or a multiple of it): a poor one makes the bound weak, never wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.certificate import Certificate, Multiplier, inverse_bound
from stepsize_opt.proofs.cholesky import log_det_from_below
from stepsize_opt.proofs.evaluation import Evaluation
from stepsize_opt.proofs.floors import SHARES, exceeds_inverse, largest_floor, weight_from_below
from stepsize_opt.proofs.quadratics import largest_quadratic
from stepsize_opt.proofs.roundings import SMALLEST_STEPSIZE, UNIT
from stepsize_solvers.programs import Matrix, Program


@dataclass(frozen=True)
class DescentBounds:
    """A proved interval: of log det H* with ``lower`` proved for one D, or of the largest t.

    lower: −inf, or 0 for t, when H is not proved positive definite; upper: +inf when Y proves nothing.
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not self.lower <= self.upper:  # the last gate; NaN does not pass it either
            msg = f"an error of the library: the bounds {self.lower!r} and {self.upper!r} contradict each other"
            raise ArithmeticError(msg)


def metric_at(at: Evaluation) -> Enclosed:
    """An enclosure of H(D) = D + F(D), from that of F(D) = D − 𝒬(DBD)."""
    value = at.D + at.value.value
    return Enclosed(value, at.value.error + UNIT * np.abs(value))


def descent_of(at: Evaluation) -> Certificate:
    """What is proved of H(D) without any Y: H ≻ 0, the margin and log det H from below.

    F(D) ⪰ 0 makes H ⪰ D, so log det D is a bound, too, where D is feasible.
    """
    below = log_det_from_below(metric_at(at))
    lower = -math.inf if below is None else below
    if at.feasible and at.log_det is not None:
        lower = max(lower, at.log_det)
    return Certificate(lower > -math.inf, 1.0 + at.margin, lower, math.inf, at.program.d)


class Descent:
    """A stepsize matrix D with an enclosure of its descent metric H(D) = 2D − 𝒬(DBD).

    The program is one made by ``Program.descent``.  A rounded B is taken at its upper end for what is proved of D and
    at its lower end for what is proved of the optimum.  Raises ValueError for any other program.
    """

    def __init__(self, program: Program, D: Matrix, arithmetic: type[Approximate] = Pair) -> None:
        metric = program.objective
        B = None if metric is None else metric.left.B
        if metric is None or B is None or metric.left.a != 2.0:
            msg = "the descent metric 2D − 𝒬(DBD) is the objective of programs made by Program.descent"
            raise ValueError(msg)
        left = metric.left
        self.program = program
        self.at = Evaluation(Program.single(B, left.Q, program.pattern, left.B_slack), D, arithmetic)
        self.value = metric_at(self.at)

    @property
    def belongs(self) -> bool:
        """Whether D has the pattern, and numbers that are large enough for the error bounds to hold."""
        D = self.at.D
        return bool(D.diagonal().min() >= SMALLEST_STEPSIZE) and self.program.pattern.contains(D)

    @property
    def D(self) -> Matrix:
        return self.at.D

    @cached_property
    def log_det(self) -> float:
        """A proved lower bound on log det H, −inf when H ≻ 0 is not proved; H ≻ 0 makes D ≻ 0."""
        return descent_of(self.at).log_det if self.belongs else -math.inf

    @property
    def feasible(self) -> bool:
        """Whether D has the pattern and H ≻ 0, proved."""
        return self.log_det > -math.inf

    def elsewhere(self, D: Matrix) -> Descent:
        """Another matrix of the same program, in twice the working precision."""
        return Descent(self.program, D)

    def bounds(self, Y: Matrix | None, tol: float = 0.0) -> DescentBounds:
        """The proved interval of log det H* with D as its lower end: [log det H(D), the bound of Y].

        Y: near H(D)⁻¹ up to a factor; H(D)⁻¹ itself is tried when it is not given, or leaves more than tol for each of
        the d dimensions.  For 𝒬 = identity, H = B⁻¹ − (D − B⁻¹)B(D − B⁻¹) ⪯ B⁻¹ bounds it without any Y.
        """
        lower, upper = self.log_det, inverse_bound(self.at)
        if Y is not None and not upper - lower <= tol * self.program.d:
            upper = min(upper, self.log_det_bound(Y))
        inverse = self.inverse if not upper - lower <= tol * self.program.d else None
        if inverse is not None:
            upper = min(upper, self.log_det_bound(inverse))
        return DescentBounds(lower, upper)

    def floor_bounds(self, Y: Matrix | None, M: Matrix | float, tol: float = 0.0) -> DescentBounds:
        """The proved interval of the largest t with H ⪰ tM⁻¹: its lower end is one for D, its upper end from Y.

        A little of H(D)⁻¹ is added to a Y that leaves a relative gap of more than a tol > 0.
        """
        lower = self.largest(M)
        upper = math.inf if Y is None else self.floor_bound(Y, M)
        inverse = self.inverse
        if Y is None or inverse is None or not tol > 0.0:
            return DescentBounds(lower, upper)
        energy = float(np.vdot(Y, self.value.value))
        # A multiplier of low rank makes 𝒬*(Y) nearly singular, which costs much where the pattern is not full.  With
        # ⟨Y, H⟩ = t, a share δt/d of H⁻¹ costs at most δ.
        for share in SHARES if 0.0 < energy < math.inf else ():
            if upper <= lower * (1.0 + tol):
                break
            mixed = Y + (share * tol * energy / self.program.d) * inverse
            upper = min(upper, self.floor_bound(0.5 * (mixed + mixed.T), M))
        return DescentBounds(lower, upper)

    @property
    def inverse(self) -> Matrix | None:
        """H⁻¹ in plain floating point, the natural Y for log det; None when H is not numerically positive definite."""
        K, info = lapack.dpotrf(self.value.value, 1, 1)  # lower, clean
        if info != 0:
            return None
        root = lapack.dtrtri(K, 1)[0]
        return np.asarray(root.T @ root)

    def exceeds(self, t: float, M: Matrix | float) -> bool:
        """Whether H ⪰ tM⁻¹ is proved, for a t > 0 and a matrix M ≻ 0 or a number M = μ standing for μI."""
        return self.belongs and exceeds_inverse(self.value, t, M)

    def largest(self, M: Matrix | float) -> float:
        """A t with H ⪰ tM⁻¹ proved, within a few roundings of the largest; 0 when there is no proof for a t > 0."""
        return largest_floor(self.value, M) if self.belongs else 0.0

    # ---------------------------------------------------------------- from above

    def log_det_bound(self, Y: Matrix) -> float:
        """A proved upper bound on log det H over the pattern; +inf when this Y proves nothing."""
        found = Multiplier.near(self.at.condition.Q, Y, self.at.arithmetic)
        below = None if found is None else log_det_from_below(found.Z.rounded().symmetric())
        if found is None or below is None:
            return math.inf
        d, q = self.program.d, largest_quadratic(self.at, found.Z.scaled(2.0), found.R)
        if not 0.0 < q < math.inf:
            return math.inf
        term = d * math.log(q / d)
        return term - below + 4.0 * UNIT * (abs(term) + abs(below) + d)  # the quotient's rounding, too

    def floor_bound(self, Y: Matrix, M: Matrix | float) -> float:
        """A proved upper bound on the largest t with H(D) ⪰ tM⁻¹ for a D of the pattern; +inf without a proof."""
        found = Multiplier.near(self.at.condition.Q, Y, self.at.arithmetic)
        if found is None:
            return math.inf
        weight = weight_from_below(found.Z.rounded(), M)
        q = largest_quadratic(self.at, found.Z.scaled(2.0), found.R)
        if not (weight > 0.0 and 0.0 < q < math.inf):
            return math.inf
        return q / weight * (1.0 + 4.0 * UNIT)
