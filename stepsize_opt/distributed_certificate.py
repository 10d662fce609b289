"""Upper bounds on det(D)^{1/d} under the distributed conditions, from multipliers of any quality.

Let τ = det(D)^{1/d} and let D satisfy D ⪯ L⁻¹ and λ_D ≤ c.  Then Lᵢ Vᵢ(D) Lᵢ ⪯ c Lᵢ, because Lᵢ^½ Vᵢ Lᵢ^½ ⪯ cI, and
L A L ⪯ L for A = DLD (or for A = D).  Take any matrices Uᵢ, U₀ and put

    Yᵢ = Lᵢ Uᵢ Uᵢᵀ Lᵢ,   Y₀ = L U₀ U₀ᵀ L,   T = Σ tr(Uᵢᵀ Lᵢ Uᵢ),   T₀ = tr(U₀ᵀ L U₀).

The Yᵢ are positive semidefinite by construction, also when Lᵢ is singular, and Σ⟨Yᵢ, Vᵢ(D)⟩ ≤ cT, ⟨Y₀, A⟩ ≤ T₀.

*Full D of det-CGD1.*  Vᵢ = 𝒞ᵢ(A) is linear in A = DLD, and log det A = 2d log τ + log det L.  With Q = Σ 𝒞ᵢ*(Yᵢ) + Y₀,
log det A ≤ log det A − ⟨Q, A⟩ + cT + T₀; the maximum over A, then over a common factor of the U's, gives

    τ² ≤ g (cT + T₀)/d,      g = exp(−(log det Q + log det L)/d).

*Everything else.*  Vᵢ = 𝒬ᵢ(D Bᵢ D); with Rᵢ = 𝒬ᵢ*(Yᵢ), a reference D̂ and the tangent of the convex ⟨Rᵢ, D Bᵢ D⟩ at D̂,
Q = Σ (Rᵢ D̂ Bᵢ + Bᵢ D̂ Rᵢ) + Y₀ and S = Σ ⟨Rᵢ, D̂ Bᵢ D̂⟩ give, over the pattern of D,

    τ ≤ g (cT + T₀ + S)/d,      g = exp(−log det Q/d).

*c = κτ, no K given.*  Both are inequalities in τ alone: τ² ≤ b τ + a has the solution τ ≤ (b + √(b² + 4a))/2 with
b = gκT/d and a = gT₀/d; τ ≤ bτ + a has τ ≤ a/(1 − b) with a = g(T₀ + S)/d when b < 1.  Either is tight at the optimum:
there the multipliers make the inequality an equality at the optimal τ, and it has only one positive root.

*Homogeneous bounds.*  Without D ⪯ L⁻¹ (T₀ = 0), λ_{sD} = s²λ_D: if τ ≤ τ₁ for c = 1 then τ ≤ √c τ₁, and c = κτ gives
τ ≤ κτ₁².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from solvers.maps import Matrix
from solvers.maxdet.program import Stack
from stepsize_opt.certificate import log_det_conjugate
from stepsize_opt.distributed_conditions import ClientGroup, Conditions, exp_up
from stepsize_opt.verified import UNIT, Enclosed, gamma, inner_from_above, log_det_from_below

# Products, quotients and a square root of a few positive numbers: far fewer than 32 roundings.
_UP = 1.0 + 32.0 * UNIT


@dataclass(frozen=True)
class Bound:
    """An upper bound on τ as a function of c or κ, in the user's coordinates.

    linear: the inequality is in τ² (variable A) rather than in τ; g, T, rest = T₀ + S: see the module's text;
    homogeneous: the bound comes from the program without D ⪯ L⁻¹ and c = 1.
    """

    linear: bool
    homogeneous: bool
    log_g: float
    T: float
    rest: float
    d: int
    log_scale: float

    def _plain(self, c: float) -> float:
        """log τ at a given c, in scaled coordinates."""
        energy = (c * self.T + self.rest) / self.d * _UP
        if not (0.0 < energy < math.inf):
            return math.inf
        value = math.log(energy) + self.log_g
        return value / 2.0 if self.linear else value

    def _finish(self, log_tau: float) -> float:
        value = log_tau + self.log_scale
        # Logarithms of numbers between 10⁻³⁰⁰ and 10³⁰⁰ are below 700; a few of them were added.
        return value + 4.0 * UNIT * (abs(value) + abs(self.log_scale) + 3.0 * 700.0)

    def at_variance(self, c: float) -> float:
        """An upper bound on log τ when λ_D ≤ c."""
        if self.homogeneous:
            return self._finish(self._plain(1.0) + 0.5 * math.log(c)) if math.isfinite(c) else math.inf
        if not math.isfinite(c) and self.T > 0.0:
            return math.inf
        return self._finish(self._plain(c if self.T > 0.0 else 0.0))

    def at_factor(self, kappa: float) -> float:
        """An upper bound on log τ when λ_D ≤ κτ, κ in the user's coordinates."""
        if not math.isfinite(kappa):
            return self.at_variance(math.inf)
        # τ = τ̃ e^{log_scale}, so κτ = (κ e^{log_scale}) τ̃.
        scaled = kappa * exp_up(self.log_scale) * _UP
        if self.homogeneous:
            return self._finish(2.0 * self._plain(1.0) + math.log(scaled))
        g = exp_up(self.log_g)
        b = g * scaled * self.T / self.d * _UP
        a = g * self.rest / self.d * _UP
        if self.linear:
            tau = 0.5 * (b + math.sqrt(b * b + 4.0 * a)) * _UP
        else:
            tau = a / (1.0 - b) * (1.0 + 8.0 * UNIT / (1.0 - b)) * _UP if b < 1.0 else math.inf
        return self._finish(math.log(tau)) if 0.0 < tau < math.inf else math.inf


@dataclass(frozen=True, eq=False)
class Multipliers:
    """U₀ (d, r) and, for each group of clients, the Uᵢ stacked as (m, d, r)."""

    clients: tuple[Stack, ...]
    descent: Matrix | None


def _gram(L: Stack, U: Stack) -> tuple[Enclosed, float]:
    """Σ Lᵢ Uᵢ Uᵢᵀ Lᵢ as an enclosure, and Σ tr(Uᵢᵀ Lᵢ Uᵢ) from above."""
    m, d, r = U.shape
    absL, absU = np.abs(L), np.abs(U)
    T = L @ U
    T_error = gamma(d) * (absL @ absU) * (1.0 + gamma(d))
    energy = float(np.sum(U * T))
    slack = float(np.sum(absU * (T_error + gamma(m * d * r) * np.abs(T)))) * (1.0 + gamma(m * d * r))
    columns = T.transpose(0, 2, 1).reshape(-1, d)
    errors = T_error.transpose(0, 2, 1).reshape(-1, d)
    sizes = np.abs(columns)
    value = columns.T @ columns
    cross = (sizes + errors).T @ errors
    error = cross + cross.T + gamma(m * r + 2) * (sizes.T @ sizes)
    return Enclosed(value, error * (1.0 + gamma(m * r + 2))).symmetric(), energy + slack


def upper_bound(
    conditions: Conditions, multipliers: Multipliers, reference: Matrix | None, linear: bool
) -> Bound | None:
    """The bound that the multipliers prove; None when they prove nothing.

    ``reference`` is D̂ for the quadratic form; ``linear`` says that Vᵢ = 𝒞ᵢ(A) and D is full.
    """
    d = conditions.d
    Q, Q_error = np.zeros((d, d)), np.zeros((d, d))
    T, rest = 0.0, 0.0
    for group, U in zip(conditions.groups, multipliers.clients, strict=True):
        Y, energy = _gram(group.matrices, U)
        T += energy
        if linear:
            R = group.map.enclose_adjoint(Y)
            Q, Q_error = Q + R.value, Q_error + R.error + UNIT * np.abs(Q + R.value)
        elif reference is not None:
            part, error, moved = _tangent(conditions, group, Y, reference)
            Q, Q_error = Q + part, Q_error + error + UNIT * np.abs(Q + part)
            rest += moved
    homogeneous = multipliers.descent is None
    if multipliers.descent is not None:
        Y, energy = _gram(conditions.L[None], multipliers.descent[None])
        Q, Q_error = Q + Y.value, Q_error + Y.error + UNIT * np.abs(Q + Y.value)
        rest += energy
    conjugate = log_det_conjugate(conditions.pattern, Enclosed(Q, Q_error).symmetric())
    if conjugate is None or not math.isfinite(conjugate + T + rest):
        return None
    log_g = conjugate
    if linear:
        below = log_det_from_below(Enclosed(conditions.L, np.zeros_like(conditions.L)))
        if below is None:
            return None
        log_g = conjugate - below
        log_g += 4.0 * UNIT * (abs(conjugate) + abs(below))
    log_g = log_g / d + 4.0 * UNIT * abs(log_g / d)
    return Bound(linear, homogeneous, log_g, T * _UP, rest * _UP, d, conditions.log_scale)


def _tangent(conditions: Conditions, group: ClientGroup, Y: Enclosed, D: Matrix) -> tuple[Matrix, Matrix, float]:
    """R D̂ B + B D̂ R with its error, and ⟨R, D̂BD̂⟩ from above."""
    d = conditions.d
    if conditions.sketch_last:
        R = group.map.enclose_adjoint(Y)
        B = Enclosed(conditions.L, np.zeros((d, d)))
    else:
        R = Y
        B = conditions.centred_L(group)
    rounding = gamma(2 * d + 2)
    absR, absD, absB = np.abs(R.value) + R.error, np.abs(D), np.abs(B.value) + B.error
    DB = D @ B.value
    half = R.value @ DB
    # |RDB − fl| ≤ γ|R||D||B| + E_R|D||B| + |R||D|E_B, all three bounded by magnitudes that include the errors.
    half_error = (rounding * absR + R.error) @ (absD @ absB) + absR @ (absD @ B.error)
    middle = DB @ D
    middle_error = rounding * (absD @ absB @ absD) + absD @ B.error @ absD
    moved = inner_from_above(R, Enclosed(middle, middle_error * (1.0 + rounding)).symmetric())
    error = (half_error + half_error.T) * (1.0 + rounding) + 2.0 * UNIT * np.abs(half + half.T)
    return half + half.T, error, moved
