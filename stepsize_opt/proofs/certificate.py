"""The certificate of an answer, a proved interval for the optimum whoever computed it, and the search for a proof.

``gap = (upper bound − log det D)/d`` is the logarithm of the factor by which a rate can be exceeded, here that of
det(D)^{1/d}: with a gap of 10⁻⁶ no stepsize matrix of the same structure saves more than one iteration in a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np

from stepsize_opt.proofs.intervals import LOG_2, Interval
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Tabled, Vector, plain_rows

Candidate = TypeVar("Candidate")
Proof = TypeVar("Proof")


class Unproved(ValueError):
    """Raised for a valid question whose answer float64 cannot prove."""


@dataclass(frozen=True)
class Certificate(Tabled):
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
        """Return the certificate of a rate from bounds on its logarithm, feasible if it is above zero."""
        bounds = d * Interval(log_rate, log_rate_bound)
        return Certificate(log_rate > -math.inf, margin, bounds.low, bounds.high, d)

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
        """Return whether D is proved feasible and within ``tol`` of the best possible."""
        return self.feasible and self.gap <= tol

    def _shown(self) -> list[tuple[str, str]]:
        return plain_rows({**asdict(self), "gap": self.gap})

    def rescaled(self, scale: Vector) -> Certificate:
        """The certificate of ΛDΛ for a diagonal Λ of powers of two: log det and its bound move by 2 Σ log Λ_j."""
        return self.moved(log_det_power(scale))

    def moved(self, power: int) -> Certificate:
        """Return the certificate of a log det that is larger by power·log 2, and so is its bound."""
        return self if power == 0 else self.shifted(power * LOG_2)

    def shifted(self, shift: Interval) -> Certificate:
        """Return the certificate of a log det that is larger by a number in the interval, and so is its bound."""
        bounds = Interval(self.log_det, self.upper_bound) + shift
        return Certificate(self.feasible, self.margin, bounds.low, bounds.high, self.d)

    def bounded(self, upper_bound: float) -> Certificate:
        """Return the certificate with one more upper bound."""
        return replace(self, upper_bound=min(self.upper_bound, upper_bound))

    def multiplied(self, power: int) -> Certificate:
        """Return the certificate of 2^power D, when it is known to be feasible just as D is; the bound stays."""
        if power == 0:
            return self
        lower = (self.log_det + self.d * power * LOG_2).low
        return replace(self, log_det=lower, margin=1.0 - math.ldexp(1.0 - self.margin, min(power, 1000)))

    @staticmethod
    def combine(parts: Sequence[Certificate]) -> Certificate:
        """Return the certificate of Diag(D₁, …, D_m) for a problem that separates into the parts."""
        if len(parts) == 1:
            return parts[0]
        bounds = Interval.total(Interval(part.log_det, part.upper_bound) for part in parts)
        return Certificate(
            feasible=all(part.feasible for part in parts),
            margin=min(part.margin for part in parts),
            log_det=bounds.low,
            upper_bound=bounds.high,
            d=sum(part.d for part in parts),
        )

    @staticmethod
    def weakest(parts: Sequence[Certificate]) -> Certificate:
        """Return the certificate of a rate that is the smallest of those of the parts."""
        if len(parts) == 1:
            return parts[0]
        lower = min((Interval.exact(part.log_det) / part.d).low for part in parts)
        upper = min((Interval.exact(part.upper_bound) / part.d).high for part in parts)
        margin = min(part.margin for part in parts)
        return Certificate.of_rate(margin, lower, upper, sum(part.d for part in parts))


def log_det_power(scale: Vector) -> int:
    """n with det(ΛDΛ) = 2ⁿ det D, Λ = Diag(scale) of powers of two."""
    exponents: list[int] = np.frexp(scale)[1].tolist()
    return 2 * (sum(exponents) - len(scale))


# ---------------------------------------------------------------- the search for a proof


def first_proved(candidates: Iterable[Candidate], prove: Callable[[Candidate], Proof | None]) -> Proof | None:
    """Return the proof of the first candidate that has one, or None; later candidates are not tried."""
    return next((proof for proof in map(prove, candidates) if proof is not None), None)


def losses(first: float, last: float, factor: float = 4.0) -> Iterator[float]:
    """Yield the relative losses first, factor·first, factor²·first, … up to ``last``; after 0 comes a rounding."""
    loss = first
    while loss <= last:
        yield loss
        loss = max(factor * loss, UNIT)
