"""The numbers of the distributed conditions (12): ε², Δ⁰, Δ^inf and n, and what they ask of K, λ_D and det(D)^{1/d}.

    λ_D ≤ min{ n/K, nε² τ/(4Δ^inf) },      K ≥ 12Δ⁰/(τ ε²),      τ = det(D)^{1/d}                 (paper, Corollary 1)

Inequalities are decided on exact rationals: every float is one, and K is a whole number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from stepsize_opt.inputs import positive_number, real_number, whole_number
from stepsize_opt.proofs import UNIT, rounded_down, rounded_up


def nonnegative_number(name: str, value: float) -> float:
    """``value`` as a float; raises TypeError or ValueError unless it is a finite number of at least zero."""
    number = real_number(name, value)
    if not 0.0 <= number < math.inf:
        msg = f"{name} must be a finite number of at least 0, got {value!r}; round what is below 0 by an error up to 0"
        raise ValueError(msg)
    return number + 0.0  # no −0


def log_fraction(x: Fraction) -> float:
    """log x for x > 0 of any size, right to a few roundings of its own size."""
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(x / Fraction(2) ** shift) + shift * math.log(2.0)


@dataclass(frozen=True)
class Targets:
    """What is asked for: E‖∇f‖² ≤ ε² from Δ⁰ = f(x⁰) − f^inf with Δ^inf = f^inf − (1/n) Σ fᵢ^inf and n clients."""

    epsilon2: float
    initial_gap: float
    delta_inf: float
    clients: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon2", positive_number("epsilon2", self.epsilon2))
        object.__setattr__(self, "initial_gap", nonnegative_number("initial_gap", self.initial_gap))
        object.__setattr__(self, "delta_inf", nonnegative_number("delta_inf", self.delta_inf))
        object.__setattr__(self, "clients", whole_number("clients", self.clients))

    @property
    def det_factor(self) -> Fraction | None:
        """nε²/(4Δ^inf), the factor of τ in the second bound on λ_D; None for Δ^inf = 0, when there is no bound."""
        return self._share(4 * Fraction(self.delta_inf))

    @property
    def kappa(self) -> Fraction | None:
        """nε² min{1/(12Δ⁰), 1/(4Δ^inf)}: with K = 12Δ⁰/(τε²), the bounds on λ_D are κτ; None when there is no bound."""
        return self._share(max(12 * Fraction(self.initial_gap), 4 * Fraction(self.delta_inf)))

    def _share(self, divisor: Fraction) -> Fraction | None:
        return self.clients * Fraction(self.epsilon2) / divisor if divisor else None

    @property
    def log_det_factor(self) -> float:
        """The logarithm of the factor, infinite without one: it has a float also where the factor has none."""
        return math.inf if self.det_factor is None else log_fraction(self.det_factor)

    @property
    def log_kappa(self) -> float:
        """log κ, infinite without a bound."""
        return math.inf if self.kappa is None else log_fraction(self.kappa)

    def log_share(self, K: int) -> float:
        """log(n/K)."""
        return log_fraction(Fraction(self.clients, K))

    def lambda_allowed(self, K: int, rate: float) -> float:
        """min{n/K, nε²τ/(4Δ^inf)}, rounded down; ``rate`` must be a lower bound of det(D)^{1/d}."""
        bound = Fraction(self.clients, K)
        if self.det_factor is not None:
            bound = min(bound, self.det_factor * Fraction(rate))
        return rounded_down(bound)

    def lambda_allowed_for_some_K(self, rate: float) -> float:
        """κτ, rounded down: λ_D below it satisfies (12) for the real number K = 12Δ⁰/(τε²)."""
        return math.inf if self.kappa is None else rounded_down(self.kappa * Fraction(rate))

    def enough(self, K: int, rate: float) -> bool:
        """Whether K ≥ 12Δ⁰/(τε²), exactly."""
        return K * Fraction(rate) * Fraction(self.epsilon2) >= 12 * Fraction(self.initial_gap)

    def least_iterations(self, rate: float | Fraction) -> int:
        """The smallest whole K ≥ 1 with K ≥ 12Δ⁰/(τε²), exactly."""
        return self._least(12, rate)

    def single_iterations(self, rate: float | Fraction) -> int:
        """The smallest whole K ≥ 1 with K ≥ 2Δ⁰/(τε²), exactly: what one node needs."""
        return self._least(2, rate)

    def _least(self, factor: int, rate: float | Fraction) -> int:
        if not math.isfinite(rate):
            return 1
        return max(1, math.ceil(factor * Fraction(self.initial_gap) / (Fraction(rate) * Fraction(self.epsilon2))))

    def neighbourhood(self, lambda_D: float, rate: float) -> float:
        """2λ_DΔ^inf/(τ n), rounded up: the part of the bound of Theorem 3 that does not vanish with K."""
        return rounded_up(2 * Fraction(lambda_D) * Fraction(self.delta_inf) / (Fraction(rate) * self.clients))

    def theorem3(self, K: int, lambda_D: float, rate: float) -> float:
        """2(1 + λ/n)^K Δ⁰/(τK) + 2λΔ^inf/(τn), rounded up; infinite on overflow.

        By logarithms, because ε², Δ⁰, Δ^inf, λ and 1/K may all be tiny, and divided by ε² until the end.
        """
        log_rate, log_goal = math.log(rate), math.log(self.epsilon2)
        parts = [(self.initial_gap, K * math.log1p(lambda_D / self.clients), -math.log(K))]
        if lambda_D > 0.0:
            parts.append((self.delta_inf, math.log(lambda_D), -math.log(self.clients)))
        total = 0.0
        for gap, *terms in parts:
            if gap == 0.0:
                continue
            value = math.fsum([math.log(gap), math.log(2.0) - log_rate - log_goal, *terms])
            if value > 700.0:
                return math.inf
            # The logarithms round by one unit each, the exponent by its own size too.
            sizes = math.fsum(abs(x) for x in (math.log(gap), log_rate, log_goal, *terms))
            total += math.exp(value) * (1.0 + 8.0 * UNIT * (8.0 + sizes))
        return self.epsilon2 * (total * (1.0 + 8.0 * UNIT))
