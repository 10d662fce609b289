"""Beyond Corollary 1: the smallest K under the bound of Theorem 3 itself.

    g(s, K) = 2(1 + s²λ/n)^K Δ⁰/(sτK) + 2sλΔ^inf/(τn) ≤ ε²,       D = sW,  λ = λ_W,  τ = det(W)^{1/d},  s ≤ s_L

*In s.*  With u = log s both terms are exponentials of convex functions of u (K log(1 + ae^{2u}) − u and u), so g is
convex in u and has one minimum.

*In K.*  At the minimum over s the first term cannot fall with larger s, so a = s²λ/n ≤ 1/(2K−1).  Along s ∝ K^{−½} the
logarithm of the first term changes with K at the rate log(1+a) − a/(1+a) − 1/(2K) ≤ a²/2 − 1/(2K) ≤ 0, because
(2K−1)² ≥ K; the second term falls with s.  So min_s g falls with K, and bisection finds the smallest K.

*Descent metric.*  With η(s) = det(2sW − s²WLW)^{1/d} in the place of sτ, −log η is convex in u and falls with the slope
ρ ≤ 1, so the same steps hold; at half or less of the best s, ρ ≥ 1 − 1/e.

*What is proved.*  For the direction W the K found is the smallest, up to one part in 10⁸.  Over all D: any D with
λ_D = c has τ ≤ √c τ̄₁ with the bound τ̄₁ of the program without D ⪯ L⁻¹, so no D does better than the direction with
λ = 1, τ = τ̄₁ (2τ̄₁ for the metric) and no s_L.  When D ⪯ L⁻¹ is slack the two agree up to the gap; otherwise the
direction is a heuristic and the bound says how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stepsize_opt.clients.fit import Fitted, Multiples, fit_multiple
from stepsize_opt.clients.result import TightResult
from stepsize_opt.clients.targets import Targets
from stepsize_opt.proofs import UNIT, Conditions

# Above the rounding that the bound of Theorem 3 adds to itself, and that the proofs of λ_D and τ give way by.
_SLACK = 1e-9


def theorem3(targets: Targets, K: int, lambda_D: float, rate: float) -> float:
    """2(1 + λ/n)^K Δ⁰/(τK) + 2λΔ^inf/(τn), rounded up; infinite on overflow."""
    return targets.epsilon2 * _excess(targets, K, lambda_D, math.log(rate))


def _excess(targets: Targets, K: int, lambda_D: float, log_rate: float) -> float:
    """The bound of Theorem 3 divided by ε², rounded up.  By logarithms: ε², Δ⁰, Δ^inf, λ and 1/K may all be tiny."""
    total, common = 0.0, math.log(2.0) - log_rate - math.log(targets.epsilon2)
    exponent = K * math.log1p(lambda_D / targets.clients)
    for gap, *terms in (
        (targets.initial_gap, exponent, -math.log(K)),
        (targets.delta_inf if lambda_D > 0.0 else 0.0, _log(lambda_D), -math.log(targets.clients)),
    ):
        if gap > 0.0:
            value = math.fsum([math.log(gap), common, *terms])
            if value > 700.0:
                return math.inf
            # The logarithms round by one unit each, the exponent by its own size too.
            sizes = math.fsum(abs(x) for x in (math.log(gap), log_rate, math.log(targets.epsilon2), *terms))
            total += math.exp(value) * (1.0 + 8.0 * UNIT * (8.0 + sizes))
    return total * (1.0 + 8.0 * UNIT)


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else 0.0


@dataclass(frozen=True)
class Ray:
    """The multiples sW, s ≤ e^log_largest: λ_W, and the logarithm of the rate of sW as a function of log s."""

    lambda_D: float
    log_rate: Callable[[float], float]
    log_largest: float


@dataclass(frozen=True)
class BestScale:
    """The s that minimises Theorem 3's bound for sW, and that bound divided by ε²."""

    s: float
    excess: float


def best_scale(targets: Targets, K: int, ray: Ray) -> BestScale:
    """The best s of a ray."""
    lambda_D = ray.lambda_D

    def value(u: float) -> float:
        return _excess(targets, K, math.exp(2.0 * u) * lambda_D, ray.log_rate(u))

    if lambda_D <= 0.0:
        # Without variance the bound falls with s.
        return BestScale(math.exp(ray.log_largest), value(ray.log_largest))
    high = min(0.5 * math.log(targets.clients / (lambda_D * max(1, 2 * K - 1))), ray.log_largest)
    low = high
    if targets.delta_inf > 0.0:
        # The two terms without (1 + a)^K are equal here.
        terms = [targets.initial_gap, targets.clients, 1.0 / K, 1.0 / lambda_D, 1.0 / targets.delta_inf]
        low = min(high, 0.5 * math.fsum(map(math.log, terms)))
    # Below that and below a = 1/(2K−1), each by a factor of e in s, the first term falls faster than the second grows.
    u = _golden(value, low - 1.0, high)
    return BestScale(math.exp(u), value(u))


def _golden(f: Callable[[float], float], low: float, high: float) -> float:
    """The minimiser of a convex f on [low, high], or the end ``high``, to 10⁻⁹."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    a, b = low, high
    x, y = b - ratio * (b - a), a + ratio * (b - a)
    fx, fy = f(x), f(y)
    # The bound is flat at its minimum, so an error of 10⁻⁹ in log s changes it by 10⁻¹⁸.
    while b - a > 1e-9:
        if fx <= fy:
            b, y, fy = y, x, fx
            x = b - ratio * (b - a)
            fx = f(x)
        else:
            a, x, fx = x, y, fy
            y = a + ratio * (b - a)
            fy = f(y)
    middle = 0.5 * (a + b)
    return high if f(high) <= f(middle) else middle


def smallest_K(targets: Targets, ray: Ray, goal: float, start: int) -> int | None:
    """The smallest K with min_s g(s, K) ≤ goal·ε², by doubling and bisection; None when 2⁶⁰·start is not enough."""

    def good(K: int) -> bool:
        return best_scale(targets, K, ray).excess <= goal

    high, most = start, start << 60
    while not good(high):
        high *= 2
        if high > most:
            return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def tighten(
    conditions: Conditions, targets: Targets, fitted: Fitted, K: int, homogeneous_bound: float | None
) -> TightResult:
    """The smallest K over the multiples of the stepsize found, proved to satisfy Theorem 3's bound.

    (12) implies that bound with a share of ε² to spare, so the stepsize found and its K are an answer where none better
    is proved.  ``homogeneous_bound`` is an upper bound on log τ at λ_D ≤ 1 without D ⪯ L⁻¹, if there is one.
    """
    if targets.initial_gap == 0.0:
        return _tight(conditions, targets, fitted, 1, K, 1)  # only the term without K is left
    lower = None
    if homogeneous_bound is not None and math.isfinite(homogeneous_bound):
        # A goal raised by the rounding that the bound contains keeps this a lower bound.
        lower = smallest_K(targets, Ray(1.0, lambda u: homogeneous_bound + u, math.inf), 1.0 + _SLACK, K)
    direction = Multiples.of(conditions, fitted.D)
    if direction is None:
        return _tight(conditions, targets, fitted, K, K, lower)
    ray = Ray(fitted.lambda_D, direction.log_rate_at, direction.log_largest)
    # The proofs below give way by rounding errors, so the search aims a little lower.
    found = smallest_K(targets, ray, 1.0 - _SLACK, K)
    for smaller in () if found is None else range(found, min(found + 3, K)):
        s = best_scale(targets, smaller, ray).s
        tried = fit_multiple(conditions, direction, math.log(s), _within(targets, smaller))
        if tried is not None:
            return _tight(conditions, targets, tried, smaller, K, lower)
    return _tight(conditions, targets, fitted, K, K, lower)


def _within(targets: Targets, K: int) -> Callable[[Fitted], bool]:
    return lambda fitted: _excess(targets, K, fitted.lambda_D, fitted.log_rate) <= 1.0


def _tight(
    conditions: Conditions, targets: Targets, fitted: Fitted, K: int, before: int, lower: int | None
) -> TightResult:
    bound = theorem3(targets, K, fitted.lambda_D, fitted.rate)
    return TightResult(conditions.lift(fitted.D), K, bound, before / K, lower)
