"""The best multiple of a given direction under the distributed conditions, with every inequality proved.

For D = sW all conditions are scalar: s ≤ 1/λmax(L^½WL^½), s²λ_W ≤ n/K, sλ_W ≤ nε²τ_W/(4Δ^inf), and sτ_W ≥ 12Δ⁰/(Kε²).
If (s, K) satisfies them, so does (s√(K/K′), K′) for every K′ > K: the feasible K have no gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh

from stepsize_opt.clients.problem import Targets, log_fraction
from stepsize_opt.inputs.checks import whole_number
from stepsize_opt.proofs import (
    PRECISIONS,
    UNIT,
    AtStepsize,
    Conditions,
    Pair,
    exp_down,
    first_proved,
    losses,
)
from stepsize_solvers.programs import Matrix

# A condition counts as binding when its two sides agree to this fraction; rounding K to a whole number moves n/K more.
_BINDS = 1e-4
# An entry of D below this share of the geometric mean of its diagonal entries changes nothing that is computed.
_NOTHING = 2.0**-300
# A retreat so small that no tolerance notices it: up to here plain arithmetic is enough, and it is cheaper.
_CHEAP = 2.0**-42
# e^{±_LARGEST_LOG} is within 10^{±295}: a rounding error of such a number is still a float with all its bits.
_LARGEST_LOG = 680.0


@dataclass(frozen=True, eq=False)
class Multiples:
    """What multiples of W reach: log λ_W and log τ_W in the user's coordinates, in plain floats.

    log_largest: of the largest scale under D ⪯ L⁻¹, that is −log λmax(L^½WL^½).
    Logarithms, because the scale that the targets ask for may be far outside the floats.
    """

    W: Matrix
    log_lambda: float
    log_rate: float
    log_largest: float

    @staticmethod
    def of(conditions: Conditions, D: Matrix) -> Multiples | None:
        """Symmetrise, put into the pattern, measure; None when D is not positive definite."""
        D = conditions.pattern.nearest(D)
        if not np.all(np.isfinite(D)) or not np.all(np.diagonal(D) > 0.0):
            return None
        root = np.sqrt(np.diagonal(D))
        # Entries far below rounding would lose their bits when D is scaled.
        D = np.where(np.abs(D) < _NOTHING * root[:, None] * root, 0.0, D)
        log_rate = conditions.log_rate(D)
        if log_rate is None:
            return None
        try:
            R = cholesky(D, lower=True)
        except LinAlgError:
            return None
        top = float(eigh(R.T @ conditions.L.hi @ R, eigvals_only=True, driver="evd")[-1])
        log_lambda = conditions.at(D, Pair).estimate.log
        return Multiples(D, log_lambda, log_rate, -math.log(top))

    def log_scale(self, log_c: float, log_factor: float) -> float:
        """Return log s of the best s with λ ≤ c and λ ≤ factor·rate; both bounds are infinite when there is none."""
        s = self.log_largest
        if not math.isfinite(self.log_lambda):
            return s
        return min(s, 0.5 * (log_c - self.log_lambda), log_factor + self.log_rate - self.log_lambda)

    def best_log_rate(self, log_c: float, log_factor: float) -> float:
        """Return the logarithm of the rate of the best multiple with λ ≤ c and λ ≤ factor·rate."""
        return self.log_rate + self.log_scale(log_c, log_factor)


@dataclass(frozen=True, eq=False)
class ProvedMultiple:
    """A proved multiple of a direction, scaled: D ⪯ L⁻¹ and λ_D ≤ ``lambda_D``; τ is a lower bound of det(D)^{1/d}.

    K: the iterations for which it is the best, 0 while they are open; free_log_rate: log τ before K was rounded up.
    """

    D: Matrix
    lambda_D: float
    log_rate: float
    K: int
    free_log_rate: float

    @property
    def rate(self) -> float:
        return exp_down(self.log_rate)


def best_multiple(
    conditions: Conditions, targets: Targets, direction: Multiples | None, K: int | None
) -> ProvedMultiple | None:
    """Find the largest multiple for a given K, or the multiple with the smallest K; None without a proof.

    With K given, D ⪯ L⁻¹ and λ_D ≤ min{n/K, nε²τ/(4Δ^inf)} are proved, and K ≥ 12Δ⁰/(τε²) is left open.  Otherwise all
    of (12) is proved: first for the real number K = 12Δ⁰/(τε²), then for a whole one.
    """
    if direction is None:
        return None
    found = _fit(conditions, targets, direction, K)
    if found is None or K is not None:
        return found
    free = found.log_rate

    def prove(whole: int) -> ProvedMultiple | None:
        fitted = _fit(conditions, targets, direction, whole)
        if fitted is None or not targets.enough(whole, fitted.rate):
            return None
        return replace(fitted, free_log_rate=free)

    return first_proved(_whole_numbers(targets.least_iterations(found.rate)), prove)


def _whole_numbers(K: int) -> Iterator[int]:
    """Yield the K to try, from the smallest that exact arithmetic would allow (see the module's text).

    When 12Δ⁰/(τε²) is a whole number to rounding, the retreat of the proof may take one more.  For K above 10¹² a step
    of one is less than the rounding that the proofs give way by; K may then be larger by up to two parts in 10¹⁰.
    """
    check_range("K", log_fraction(Fraction(K)))
    yield from (K, K + 1, K + 2)
    for shift in (48, 44, 40, 36, 32):
        yield K + max(3, K >> shift)


def _fit(conditions: Conditions, targets: Targets, direction: Multiples, K: int | None) -> ProvedMultiple | None:
    """Find the largest multiple with D ⪯ L⁻¹ and a λ_D that is allowed for K, both proved."""
    limits = targets.log_limits(K)
    found = _shrunk(conditions, targets, direction, K, direction.log_scale(*limits))
    if found is None and direction.log_lambda > -math.inf:
        # What rounding may hide in λ_D is more than a few per cent of it: make room for that.
        doubt = math.log(16.0) + conditions.at(direction.W).doubt.log
        cautious = replace(direction, log_lambda=float(np.logaddexp(direction.log_lambda, doubt)))
        found = _shrunk(conditions, targets, direction, K, cautious.log_scale(*limits))
    return found


def _shrunk(
    conditions: Conditions, targets: Targets, direction: Multiples, K: int | None, log_scale: float
) -> ProvedMultiple | None:
    """Shrink the multiple until the proof succeeds; raises ValueError when its numbers are outside the floats."""
    check_range("the rate", direction.log_rate + log_scale)
    check_range("λ_D", min(0.0, direction.log_lambda + 2.0 * log_scale))
    check_range("an entry of D in scaled coordinates", math.log(np.diagonal(direction.W).min()) + log_scale)
    scale = math.exp(log_scale)

    def prove(retreat: float) -> ProvedMultiple | None:
        # λ_D falls with the square of the scale, the rate only linearly: four retreats in D pay for one in λ_D.
        D = np.asarray((scale * (1.0 - 4.0 * retreat)) * direction.W)
        return _proved(conditions, targets, D, K, retreat)

    # Start at the rounding error of the eigenvalues; 8 % is a failure.
    return first_proved(losses(4.0 * conditions.d * UNIT, 0.02), prove)


def _proved(
    conditions: Conditions, targets: Targets, D: Matrix, K: int | None, retreat: float
) -> ProvedMultiple | None:
    """Prove D with a bound on λ_D that is larger by a relative retreat, or return None."""
    log_rate = conditions.log_rate(D)
    if log_rate is None or not conditions.proves_below_inverse(D):
        return None
    for arithmetic in PRECISIONS if retreat > _CHEAP else PRECISIONS[:1]:
        at = conditions.at(D, arithmetic)
        for bound in _variance_bounds(at, retreat):
            found = ProvedMultiple(D, bound, log_rate, K or 0, log_rate)
            allowed = math.isfinite(bound) and bound <= targets.lambda_allowed(K, found.rate)
            if allowed and at.proves(bound):
                return found
    return None


def _variance_bounds(at: AtStepsize, retreat: float) -> Iterator[float]:
    """Yield the bounds on λ_D to try: its estimate, and with what rounding may hide, larger by a relative retreat.

    A λ_D that vanishes, or nearly so, can only be bounded by the rounding of the products that it is made of.
    """
    for doubt in (0.0, 8.0 * at.doubt.value):
        yield (at.estimate.value + doubt) * (1.0 + retreat)


_CLOSER = "take epsilon2 closer to initial_gap and delta_inf, or units in which smoothness matrices are closer to one"


def check_range(name: str, log_value: float, remedy: str = _CLOSER) -> None:
    """Raise ValueError for a positive number without a float, or so small that its rounding errors have none."""
    if -_LARGEST_LOG < log_value < _LARGEST_LOG or log_value == -math.inf:
        return
    msg = f"{name} would be about 1e{log_value / math.log(10.0):+.0f}, beyond what float64 holds; {remedy}"
    raise ValueError(msg)


def read_iterations(iterations: object) -> int | None:
    """Return the K that was asked for, if any; raises TypeError or ValueError for what is none, or has no float."""
    if iterations is None:
        return None
    requested = whole_number("iterations", iterations)
    check_range("iterations", log_fraction(Fraction(requested)), "ask for fewer")
    return requested


class Slack(NamedTuple):
    """The logarithm of the quotient of the two sides of a condition, and up to which it counts as binding."""

    condition: str
    log: float
    binds: float


def slacks(conditions: Conditions, targets: Targets, best: ProvedMultiple) -> list[Slack]:
    """Return the slack of each condition but K ≥ 12Δ⁰/(τε²), in plain floats."""
    direction, K = Multiples.of(conditions, best.D), best.K
    log_alone = math.inf if direction is None else direction.log_largest
    log_lambda = -math.inf if best.lambda_D == 0.0 else math.log(best.lambda_D)
    log_share, log_factor = targets.log_limits(K)
    # K was rounded up, which moves n/K by one part in K.
    binds = -math.log1p(-min(0.5, max(_BINDS, 2.0 / K)))
    return [
        Slack("D ⪯ L⁻¹", log_alone, _BINDS),
        Slack("λ_D ≤ n/K", log_share - log_lambda, binds),
        Slack("λ_D ≤ nε² det(D)^(1/d)/(4Δ^inf)", log_factor + best.log_rate - log_lambda, binds),
    ]
