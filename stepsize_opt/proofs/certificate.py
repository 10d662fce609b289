"""Certificate: a proved interval for the optimum, whoever computed the answer.

Take any multiplier Z ⪰ 0 of F(D) = D − 𝒬(D B D) ⪰ 0 and any reference D̂ ≻ 0.  For every feasible D,

    log det D ≤ log det D + ⟨Z, F(D)⟩.

With R = 𝒬*(Z) the concave term −⟨R, D B D⟩ lies below its tangent at D̂, −⟨R D̂ B + B D̂ R, D⟩ + ⟨R, D̂ B D̂⟩.  The
right-hand side becomes log det D − ⟨Q, D⟩ + s with

    Q = R D̂ B + B D̂ R − Z,      s = ⟨R, D̂ B D̂⟩,

and its maximum over D ≻ 0 is ``s − log det Q − d`` when Q ≻ 0.  For block-diagonal D only the blocks of Q count;
for D = Diag(γᵢWᵢ) the maximum is ``s + log det W + Σ dᵢ log(dᵢ/⟨Qᵢᵢ, Wᵢ⟩) − d``.  Multiplying Z by a factor t changes s
to ts and Q to tQ, and t = d/s is best.

The bound needs no assumption on the solver: poor multipliers make it weak, never wrong.  Every number here is
evaluated with its rounding error (``.arithmetic``), so the interval [log det D, upper bound] holds in
exact arithmetic for the floats returned.

``gap = (upper bound − log det D)/d`` is the logarithm of the factor by which a rate can be exceeded, here that of
det(D)^{1/d}: with a gap of 10⁻⁶ no stepsize matrix of the same structure saves more than one iteration in a million.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Pair
from stepsize_opt.proofs.cholesky import proved_cholesky
from stepsize_opt.proofs.evaluation import Evaluation, log_det_conjugate, shifted_matrix
from stepsize_opt.proofs.maps import adjoint_below, lowers_to_positive
from stepsize_opt.proofs.roundings import UNIT, gamma, sum_from_below
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_solvers.programs import Matrix, Pattern, PositiveMap, Vector


class Unproved(ValueError):
    """Raised for a valid question whose answer float64 cannot prove."""


@dataclass(frozen=True)
class Certificate:
    """What is proved about a stepsize matrix; one that contradicts itself is not made (ArithmeticError).

    Attributes
    ----------
    feasible
        D satisfies every constraint, in exact arithmetic.
    margin
        Smallest eigenvalue of D^{−½} G(D) D^{−½}; for condition (3), 1 − λmax(D^{−½} E[SDLDS] D^{−½}); for n clients,
        one minus the largest quotient of the two sides of a condition.
    log_det
        A lower bound on log det D, tight to rounding; on d times the logarithm of any other rate.
    upper_bound
        No feasible D has a larger log det.
    d
        Size of D.
    gap
        log_rate_bound − log_rate: no feasible D has a rate above e^gap times that of this one.  The iterations are
        inversely proportional to the rate, so a small gap is their relative excess over the fewest possible.

    Examples
    --------
    See ``certify``.
    """

    feasible: bool
    margin: float
    log_det: float
    upper_bound: float
    d: int

    def __post_init__(self) -> None:
        # The last gate: whatever went wrong before, no result says "feasible" with bounds that are no bounds.
        numbers = self.log_det == self.log_det and self.upper_bound == self.upper_bound
        if not numbers or (self.feasible and not -math.inf < self.log_det <= self.upper_bound):
            msg = f"an error of the library: the bounds {self.log_det!r} and {self.upper_bound!r} contradict each other"
            raise ArithmeticError(msg)

    @staticmethod
    def of_rate(margin: float, log_rate: float, log_rate_bound: float, d: int) -> Certificate:
        """Return the certificate of a rate, feasible if it is above zero, from logarithms right to two roundings."""
        lower, upper = d * log_rate, d * log_rate_bound
        lower, upper = lower - 4.0 * UNIT * abs(lower), upper + 4.0 * UNIT * abs(upper)
        return Certificate(lower > -math.inf, margin, lower, upper, d)

    @property
    def log_rate(self) -> float:
        """log_det/d: the logarithm of det(D)^{1/d}, or of another rate."""
        return self.log_det / self.d

    @property
    def log_rate_bound(self) -> float:
        """upper_bound/d."""
        return self.upper_bound / self.d

    @property
    def gap(self) -> float:
        """log_rate_bound − log_rate, at least 0; infinite without a bound, or where D is not proved feasible."""
        if not self.feasible or not math.isfinite(self.upper_bound):
            return math.inf
        return max(0.0, self.upper_bound - self.log_det) / self.d

    def is_optimal(self, tol: float) -> bool:
        """Whether D is proved feasible and within ``tol`` of the best possible."""
        return self.feasible and self.gap <= tol

    def rescaled(self, scale: Vector) -> Certificate:
        """The certificate of ΛDΛ for a diagonal Λ of powers of two: log det and its bound move by 2 Σ log Λ_j."""
        return self.moved(log_det_power(scale))

    def moved(self, power: int) -> Certificate:
        """The same certificate for a log det that is larger by power·log 2, and so is its bound."""
        return self.shifted(math.log(2.0) * power)

    def shifted(self, shift: float) -> Certificate:
        """The same certificate for a log det that is larger by a number, right to two roundings; so is its bound."""
        if shift == 0.0:
            return self
        lower, upper = sum_from_below(self.log_det, shift), -sum_from_below(-self.upper_bound, -shift)
        return Certificate(self.feasible, self.margin, lower, upper, self.d)

    def bounded(self, upper_bound: float) -> Certificate:
        """The certificate with one more upper bound."""
        return replace(self, upper_bound=min(self.upper_bound, upper_bound))

    def multiplied(self, power: int) -> Certificate:
        """The certificate of 2^power D, when it is known to be feasible just as D is; the bound stays."""
        if power == 0:
            return self
        lower = sum_from_below(self.log_det, self.d * math.log(2.0) * power)
        return replace(self, log_det=lower, margin=1.0 - math.ldexp(1.0 - self.margin, min(power, 1000)))

    @staticmethod
    def combine(parts: Sequence[Certificate]) -> Certificate:
        """The certificate of Diag(D₁, …, D_m) for a problem that separates into the parts."""
        if len(parts) == 1:
            return parts[0]
        lower, upper = math.fsum(part.log_det for part in parts), math.fsum(part.upper_bound for part in parts)
        # Each sum is rounded once.
        lower, upper = math.nextafter(lower, -math.inf), math.nextafter(upper, math.inf)
        return Certificate(
            feasible=all(part.feasible for part in parts),
            margin=min(part.margin for part in parts),
            log_det=lower,
            upper_bound=upper,
            d=sum(part.d for part in parts),
        )

    @staticmethod
    def weakest(parts: Sequence[Certificate]) -> Certificate:
        """Return the certificate of a rate that is the smallest of those of the parts."""
        if len(parts) == 1:
            return parts[0]
        lower, upper = min(part.log_rate for part in parts), min(part.log_rate_bound for part in parts)
        margin = min(part.margin for part in parts)
        return Certificate.of_rate(margin, lower, upper, sum(part.d for part in parts))


def log_det_power(scale: Vector) -> int:
    """n with det(ΛDΛ) = 2ⁿ det D, Λ = Diag(scale) of powers of two."""
    exponents: list[int] = np.frexp(scale)[1].tolist()
    return 2 * (sum(exponents) - len(scale))


def semidefinite(Z: Matrix, arithmetic: type[Approximate] = Pair) -> Approximate | None:
    """A positive semidefinite matrix next to Z, in the given precision; None when Z holds no usable number.

    Z itself when that is proved positive definite, otherwise V Diag(w₊) Vᵀ from its eigenvalues as A Aᵀ with a matrix A
    of floats: positive semidefinite by construction, also when Z has a low rank.
    """
    if Z.ndim != 2 or not np.isfinite(Z).all():
        return None
    symmetric = np.asarray(0.5 * (Z + Z.T))
    if proved_cholesky(symmetric) is not None:
        return arithmetic.exact(symmetric)
    w, V, info = lapack.dsyevd(symmetric.T, compute_v=1, lower=1)
    if info != 0 or w[-1] <= 0.0:
        return None
    A = arithmetic.exact(V * np.sqrt(np.maximum(w, 0.0)))
    return A @ A.T


# By how much of its diagonal a multiplier is raised, at most, to make its image positive semidefinite: a law that is
# unbiased up to 1e-9 only may need d times as much.
_LARGEST_LIFT = 1e-5


@dataclass(frozen=True, eq=False)
class Multiplier:
    """A multiplier Z ⪰ 0 and R = 𝒬̲*(Z) ⪰ 0."""

    Z: Approximate
    R: Approximate

    @staticmethod
    def near(Q: PositiveMap, dual: Matrix, arithmetic: type[Approximate]) -> Multiplier | None:
        """One next to the given matrix, raised until its image is proved to be as the tangent needs; or None."""
        Z = semidefinite(dual, arithmetic)
        if Z is None:
            return None
        d, positive, diagonal = len(dual), lowers_to_positive(Q), np.maximum(np.diagonal(dual), 0.0)

        def lifted(lift: float) -> Multiplier | None:
            # A diagonal entry of 𝒬*(Z) has at least the weight that 𝒬 gives to that of Z, which may be zero.
            raised = Z + arithmetic.exact(np.diag(lift * (diagonal + float(diagonal.mean())))) if lift > 0.0 else Z
            R = adjoint_below(Q, raised)
            proved = positive or proved_cholesky(R.rounded().symmetric()) is not None
            return Multiplier(raised, R) if proved else None

        return first_proved((0.0, *losses(8.0 * d * gamma(d + 2), _LARGEST_LIFT, 16.0)), lifted)


def upper_bound(at: Evaluation, dual: Matrix, patterns: Sequence[Pattern] = ()) -> float:
    """A proved upper bound on log det D over the feasible set; +inf when this multiplier proves nothing.

    ``dual`` is a Z of any quality, near one; ``at`` is the reference D̂, best the answer.  The bound is one for D of the
    program's pattern, or of any of the ``patterns``.
    """
    d = at.program.d
    found = Multiplier.near(at.condition.Q, dual, at.arithmetic)
    if found is None:
        return math.inf
    half = at.half
    if at.condition.B_slack is not None:
        # A smaller B has a larger feasible set: the lower end of a rounded B gives the valid bound, and its quadratic
        # term may be replaced by the larger one of the upper end.  The tangent needs B ⪰ 0.
        B = shifted_matrix(at.condition, -1.0)
        if proved_cholesky(B) is None:
            return math.inf
        half = at.times(B)
    tangent = found.R @ half
    linear = found.R.inner_from_above(at.square)
    if not (math.isfinite(linear) and linear > 0.0):
        return math.inf
    t = d / linear  # the best factor of the multiplier; any rounding of it leaves the bound valid
    Q = -found.Z + tangent + tangent.T
    conjugates = [
        log_det_conjugate(pattern, Q, at.block_log_det, at.log_det_above)
        for pattern in (patterns or (at.program.pattern,))
    ]
    if None in conjugates:
        return math.inf
    conjugate = max(value for value in conjugates if value is not None)
    # log det(tQ) = d log t + log det Q; the slack covers the rounding of the five numbers.
    summands = (t * linear, conjugate, -d * math.log(t), -float(d))
    return math.fsum(summands) + 8.0 * UNIT * math.fsum(map(abs, summands))


def direction_bound(at: Evaluation, dual: Matrix, directions: Sequence[Matrix]) -> float:
    """A proved upper bound on log det D over the feasible multiples of the given directions W; +inf without a proof.

    γ𝒬(WBW) ⪯ W gives γ ≤ ⟨Z, W⟩/⟨𝒬*(Z), WBW⟩.  No tangent is taken, so B may be as graded as it likes.
    """
    found = Multiplier.near(at.condition.Q, dual, at.arithmetic)
    if found is None:
        return math.inf
    exact, B = at.arithmetic.exact, shifted_matrix(at.condition, -1.0)
    bounds: list[float] = []
    for W in directions:
        energy = -((-found.R).inner_from_above(exact(W) @ exact(B) @ exact(W)))
        linear, above = found.Z.inner_from_above(exact(W)), at.log_det_above(W)
        if above is None or not (0.0 < energy and linear / energy < math.inf):
            return math.inf
        term = len(W) * math.log(linear / energy)
        bounds.append(above + term + 4.0 * UNIT * (abs(above) + abs(term) + len(W)))  # the quotient's rounding, too
    return max(bounds)


def inverse_bound(at: Evaluation) -> float:
    """−log det B, a proved bound when the condition is DBD ⪯ D, that is D ⪯ B⁻¹; +inf when it is another.

    Unlike the bound from multipliers it loses nothing when B is nearly singular.
    """
    below = at.log_det_below(shifted_matrix(at.condition, -1.0)) if at.condition.is_plain else None
    return math.inf if below is None else -below


def certify_point(at: Evaluation, dual: Matrix | None, others: Sequence[Matrix] = (), tol: float = 0.0) -> Certificate:
    """The certificate of a stepsize: feasible or not, margin, log det, and an upper bound from a multiplier.

    The bound holds for a set that contains D: for D = Diag(γᵢWᵢ), whose entries are rounded, also over all multiples
    of the blocks of D.  It is taken with D itself as reference and, while the bounds leave a gap above ``tol``, again
    in twice the precision, and with the other reference points (a solver's multiplier fits its raw point better than
    the repaired one).
    """
    pattern = at.program.pattern
    patterns = [pattern] if pattern.W is None else [pattern, replace(pattern, W=at.D)]

    def bound_at(reference: Evaluation) -> float:
        if dual is None:
            return math.inf
        if pattern.direction is not None:
            return direction_bound(reference, dual, (pattern.direction, at.D))
        return upper_bound(reference, dual, patterns)

    upper = inverse_bound(at)
    d, log_det = at.program.d, -math.inf if at.log_det is None else at.log_det
    references: list[Matrix | None] = [None, *others] if at.arithmetic is Pair else [None, at.D, *others]
    for other in references:  # None stands for ``at`` itself
        if at.feasible and (upper - log_det) / d <= tol:
            break
        if other is None:
            upper = min(upper, bound_at(at))
        elif dual is not None and np.isfinite(other).all():
            upper = min(upper, bound_at(at.elsewhere(0.5 * (other + other.T))))
    return Certificate(at.feasible, at.margin, log_det, upper, d)
