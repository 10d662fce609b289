"""The numbers of the distributed conditions (12): ε², Δ⁰, Δ^inf and n, and what they ask of K, λ_D and det(D)^{1/d}.

    λ_D ≤ min{ n/K, nε² τ/(4Δ^inf) },      K ≥ 12Δ⁰/(τ ε²),      τ = det(D)^{1/d}                 (paper, Corollary 1)

Inequalities are decided on exact rationals: every float is one, and K is a whole number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from stepsize_opt.checks import positive_number, whole_number


def nonnegative_number(name: str, value: float) -> float:
    """``value`` as a float; raises TypeError or ValueError unless it is a finite number of at least zero."""
    return 0.0 if value == 0 and not isinstance(value, bool) else positive_number(name, value)


def rounded_down(x: Fraction) -> float:
    """A float of at most x, next to it."""
    value = float(x)
    return value if Fraction(value) <= x else math.nextafter(value, -math.inf)


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
    def det_factor(self) -> float:
        """nε²/(4Δ^inf), the factor of τ in the second bound on λ_D; infinite for Δ^inf = 0."""
        return math.inf if self.delta_inf == 0.0 else self.clients * self.epsilon2 / (4.0 * self.delta_inf)

    @property
    def kappa(self) -> float:
        """nε² min{1/(12Δ⁰), 1/(4Δ^inf)}: with K = 12Δ⁰/(τε²), the bounds on λ_D are κτ."""
        first = math.inf if self.initial_gap == 0.0 else self.clients * self.epsilon2 / (12.0 * self.initial_gap)
        return min(first, self.det_factor)

    def variance_allowed(self, K: int, tau: float) -> float:
        """min{n/K, nε²τ/(4Δ^inf)}, rounded down; ``tau`` must be a lower bound of det(D)^{1/d}."""
        bound = Fraction(self.clients, K)
        if self.delta_inf > 0.0:
            second = self.clients * Fraction(self.epsilon2) * Fraction(tau) / (4 * Fraction(self.delta_inf))
            bound = min(bound, second)
        return rounded_down(bound)

    def variance_allowed_for_some_K(self, tau: float) -> float:
        """κτ, rounded down: λ_D below it satisfies (12) for the real number K = 12Δ⁰/(τε²)."""
        largest = max(12 * Fraction(self.initial_gap), 4 * Fraction(self.delta_inf))
        if largest == 0:
            return math.inf
        return rounded_down(self.clients * Fraction(self.epsilon2) * Fraction(tau) / largest)

    def enough(self, K: int, tau: float) -> bool:
        """Whether K ≥ 12Δ⁰/(τε²), exactly."""
        return K * Fraction(tau) * Fraction(self.epsilon2) >= 12 * Fraction(self.initial_gap)

    def least_iterations(self, tau: float) -> int:
        """The smallest whole K ≥ 1 with K ≥ 12Δ⁰/(τε²), exactly."""
        if not math.isfinite(tau):
            return 1
        return max(1, math.ceil(12 * Fraction(self.initial_gap) / (Fraction(tau) * Fraction(self.epsilon2))))

    def neighbourhood(self, variance: float, tau: float) -> float:
        """2λ_DΔ^inf/(τ n), the part of the bound of Theorem 3 that does not vanish with K."""
        return 2.0 * variance * self.delta_inf / (tau * self.clients)
