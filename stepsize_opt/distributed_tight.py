"""Beyond Corollary 1: the smallest K under the bound of Theorem 3 itself.

    g(s, K) = 2(1 + s²λ/n)^K Δ⁰/(sτK) + 2sλΔ^inf/(τn) ≤ ε²,       D = sW,  λ = λ_W,  τ = det(W)^{1/d},  s ≤ s_L

*In s.*  With u = log s both terms are exponentials of convex functions of u (K log(1 + ae^{2u}) − u and u), so g is
convex in u and has one minimum.

*In K.*  At the minimum over s the first term cannot fall with larger s, so a = s²λ/n ≤ 1/(2K−1).  Along s ∝ K^{−½} the
logarithm of the first term changes with K at the rate log(1+a) − a/(1+a) − 1/(2K) ≤ a²/2 − 1/(2K) ≤ 0, because
(2K−1)² ≥ K; the second term falls with s.  So min_s g falls with K, and bisection finds the smallest K.

*What is proved.*  For the direction W the K found is the smallest, up to one part in 10⁹.  Over all D: any D with
λ_D = c has τ ≤ √c τ̄₁ with the bound τ̄₁ of the program without D ⪯ L⁻¹, so no D does better than the direction with
λ = 1, τ = τ̄₁ and no s_L.  When D ⪯ L⁻¹ is slack the two agree up to the gap; otherwise the direction is a heuristic and
the bound says how good it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stepsize_opt.distributed_conditions import Conditions
from stepsize_opt.distributed_fit import Direction, Fitted
from stepsize_opt.distributed_result import TightResult
from stepsize_opt.distributed_targets import Targets

# exp, log1p, pow and sums of a dozen terms: relative errors far below this.
_SLACK = 1e-13


def theorem3(targets: Targets, K: int, variance: float, tau: float) -> float:
    """2(1 + λ/n)^K Δ⁰/(τK) + 2λΔ^inf/(τn), rounded up by one part in 10¹³; infinite on overflow."""
    exponent = K * math.log1p(variance / targets.clients)
    if exponent > 700.0:
        return math.inf
    first = 2.0 * math.exp(exponent) * targets.initial_gap / (tau * K)
    return (first + targets.neighbourhood(variance, tau)) * (1.0 + _SLACK * (1.0 + exponent))


def best_scale(targets: Targets, K: int, variance: float, tau: float, largest: float) -> tuple[float, float]:
    """The s ≤ largest that minimises Theorem 3's bound for sW, and that bound."""

    def value(u: float) -> float:
        s = math.exp(u)
        return theorem3(targets, K, s * s * variance, s * tau)

    if variance <= 0.0:
        # Without variance the bound falls with s.
        return largest, value(math.log(largest))
    high = 0.5 * math.log(targets.clients / (variance * max(1, 2 * K - 1)))
    high = min(high, math.log(largest)) if math.isfinite(largest) else high
    low = high - 60.0
    if targets.delta_inf == 0.0:
        return math.exp(high), value(high)
    u = _golden(value, low, high)
    return math.exp(u), value(u)


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


def smallest_K(targets: Targets, variance: float, tau: float, largest: float, goal: float, start: int) -> int | None:
    """The smallest K with min_s g(s, K) ≤ goal, by doubling and bisection; None when even 2⁶⁰ is not enough."""

    def good(K: int) -> bool:
        return best_scale(targets, K, variance, tau, largest)[1] <= goal

    high = max(1, start)
    while not good(high):
        high *= 2
        if high > 2**60:
            return None
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


def tighten(
    conditions: Conditions, targets: Targets, fitted: Fitted, K: int, homogeneous_bound: float | None
) -> TightResult | None:
    """The smallest K over the multiples of the stepsize found, proved to satisfy Theorem 3's bound.

    ``homogeneous_bound`` is an upper bound on log τ at λ_D ≤ 1 without D ⪯ L⁻¹, if there is one.
    """
    direction = Direction.of(conditions, fitted.D)
    if direction is None:
        return None
    # 10⁻¹² below the boundary of D ⪯ L⁻¹, and 10⁻¹⁰ above the eigenvalue λ below, are far above their rounding errors.
    tau, largest = math.exp(direction.log_tau), direction.descent_scale * (1.0 - 1e-12)
    goal = targets.epsilon2
    # The proofs below give way by 10⁻¹⁰ in λ, so the search aims a little lower.
    found = smallest_K(targets, direction.variance, tau, largest, goal * (1.0 - 4e-10), K)
    lower = None
    if homogeneous_bound is not None and math.isfinite(homogeneous_bound):
        # A goal raised by the slack that theorem3 adds keeps this a lower bound.
        relaxed = goal * (1.0 + 8.0 * _SLACK)
        lower = smallest_K(targets, 1.0, math.exp(homogeneous_bound) * (1.0 + _SLACK), math.inf, relaxed, K)
    for more in range(3):
        if found is None:
            return None
        s, _ = best_scale(targets, found + more, direction.variance, tau, largest)
        D = np.asarray(s * direction.W)
        log_tau = conditions.log_tau(D)
        variance = conditions.estimate(D) * (1.0 + 1e-10)
        if log_tau is None or not (conditions.proves_descent(D) and conditions.proves_variance(D, variance)):
            continue
        bound = theorem3(targets, found + more, variance, math.exp(log_tau))
        if bound <= goal:
            return TightResult(conditions.lift(D), found + more, bound, K / (found + more), lower)
    return None
