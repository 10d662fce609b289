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

*c = κτ, no K given.*  Both are inequalities in τ alone, with b = gκT/d: τ² ≤ bτ + a has the solution
τ ≤ (b + √(b² + 4a))/2 with a = gT₀/d; τ ≤ bτ + a has τ ≤ a/(1 − b) with a = g(T₀ + S)/d when b < 1.  Either is tight
at the optimum: there the multipliers make the inequality an equality at the optimal τ, and it has only one positive
root.

*Without D ⪯ L⁻¹* (T₀ = 0) the conditions are homogeneous, λ_{sD} = s²λ_D: if τ ≤ τ₁ for c = 1 then τ ≤ √c τ₁, and
c = κτ gives τ ≤ κτ₁².  For A = DLD that is what the inequality says already.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.certificate import first_proved, losses
from stepsize_opt.proofs.cholesky import is_proved_definite, log_det_from_below
from stepsize_opt.proofs.conditions import ClientGroup, Conditions
from stepsize_opt.proofs.duals import Tangent, log_det_conjugate
from stepsize_opt.proofs.intervals import LOG_2, Interval, log_sum
from stepsize_opt.proofs.roundings import UNIT, power_of_two_scaling
from stepsize_solvers.programs import Indices, Matrix, Pattern, Stack


@dataclass(frozen=True)
class Bound(ABC):
    """An upper bound on τ as a function of c or κ, in the user's coordinates.

    log_g, T, rest = T₀ + S: see the module's text; log_scale: of D; log_clients: of the Lᵢ.
    Everything is a logarithm, so that c and κ of any size may be asked for.
    """

    log_g: float
    T: float
    rest: float
    d: int
    log_scale: Interval
    log_clients: Interval

    def at_lambda(self, log_c: float) -> float:
        """Return an upper bound on log τ when λ_D ≤ c."""
        return self._finish(self._given_c(_few_roundings(log_c) - self.log_clients))

    def at_factor(self, log_kappa: float) -> float:
        """Return an upper bound on log τ when λ_D ≤ κτ, κ in the user's coordinates."""
        if not math.isfinite(log_kappa):
            return self.at_lambda(math.inf)
        # τ = τ̃ e^{log_scale}, so κτ = (κ e^{log_scale}) τ̃.
        return self._finish(self._given_factor(_few_roundings(log_kappa) + self.log_scale - self.log_clients))

    @abstractmethod
    def _given_c(self, log_c: Interval) -> Interval:
        """Return log τ at a given c, in scaled coordinates."""

    @abstractmethod
    def _given_factor(self, log_kappa: Interval) -> Interval:
        """Return log τ at c = κτ, in scaled coordinates."""

    def _log_share(self, energy: float) -> Interval:
        """Return log(g·energy/d)."""
        return _log(energy) + self.log_g - _log(self.d)

    def _log_sum(self, log_c: Interval) -> Interval:
        """Return log(g(cT + rest)/d); a T of 0 holds for every c."""
        rest = self._log_share(self.rest)
        return log_sum(log_c + self._log_share(self.T), rest) if self.T > 0.0 else rest

    def _finish(self, log_rate: Interval) -> float:
        """Return log τ from above in the user's coordinates; infinite if that is no bound."""
        value = (log_rate + self.log_scale).high
        return value if abs(value) < _LARGEST_LOG else math.inf


class MetricBound(Bound):
    """τ² ≤ g(cT + T₀)/d, for a full D of det-CGD1."""

    def _given_c(self, log_c: Interval) -> Interval:
        return 0.5 * self._log_sum(log_c)

    def _given_factor(self, log_kappa: Interval) -> Interval:
        a = self._log_share(self.rest)
        if not self.T > 0.0:
            return 0.5 * a
        b = log_kappa + self._log_share(self.T)
        # (b + √(b² + 4a))/2 = b(1 + √(1 + r))/2 with r = 4a/b², and at most b + √a, which is as good for a large r.
        ratio = 2.0 * LOG_2 + a - 2.0 * b
        if ratio.high < 60.0:
            return b + (0.5 + 0.5 * (1.0 + ratio.exp()).sqrt()).log()
        return log_sum(b, 0.5 * a)


class TangentBound(Bound):
    """τ ≤ g(cT + T₀ + S)/d."""

    def _given_c(self, log_c: Interval) -> Interval:
        return self._log_sum(log_c)

    def _given_factor(self, log_kappa: Interval) -> Interval:
        a = self._log_share(self.rest)
        if not self.T > 0.0:
            return a
        left = 1.0 - (log_kappa + self._log_share(self.T)).exp()
        return a - left.log() if left.low > 0.0 else Interval.exact(math.inf)


class HomogeneousBound(TangentBound):
    """τ ≤ √c τ₁ and τ ≤ κτ₁², τ₁ = g(T + S)/d, without D ⪯ L⁻¹."""

    @property
    def _log_first(self) -> Interval:
        return self._log_sum(Interval.exact(0.0))

    def _given_c(self, log_c: Interval) -> Interval:
        return self._log_first + 0.5 * log_c

    def _given_factor(self, log_kappa: Interval) -> Interval:
        return 2.0 * self._log_first + log_kappa


# Logarithms of larger numbers come from a zero and bound nothing.
_LARGEST_LOG = 1e300


def _log(x: float) -> Interval:
    return Interval.exact(x).log()


def _few_roundings(x: float) -> Interval:
    """Return all numbers that x may be the value of, after a logarithm and a few sums."""
    return Interval.around(x, 16.0 * UNIT * (8.0 + abs(x))) if math.isfinite(x) else Interval.exact(x)


@dataclass(frozen=True, eq=False)
class Multipliers:
    """U₀ (d, r) of D ⪯ L⁻¹, None without, and for each group of clients the Uᵢ stacked as (m, d, r)."""

    clients: tuple[Stack, ...]
    inverse: Matrix | None


def metric_bound(
    conditions: Conditions, multipliers: Multipliers, arithmetic: type[Approximate] = Pair
) -> Bound | None:
    """Return the bound for a full D of det-CGD1, of which Vᵢ = 𝒞ᵢ(A); None when the multipliers prove nothing."""
    proof = _Proof(conditions, arithmetic)
    for group, U in zip(conditions.groups, multipliers.clients, strict=True):
        Y = proof.with_client(group, U)
        proof.Q = proof.Q + group.map.enclose(Y).to(arithmetic)
    proof.with_inverse(multipliers.inverse)
    below = log_det_from_below(conditions.L.rounded())
    return None if below is None else proof.bound(MetricBound, Interval.exact(-below))


def tangent_bound(
    conditions: Conditions,
    multipliers: Multipliers,
    reference: Matrix,
    rows: Indices | None = None,
    arithmetic: type[Approximate] = Pair,
) -> Bound | None:
    """Return the bound by the tangent at a reference D̂; None when the multipliers prove nothing.

    ``rows`` asks for the quadratic form in these rows and columns of D alone.  ``arithmetic``: errors of the higher
    precision are relative to whole rows; where the rows of D are graded, plain arithmetic may prove more.
    """
    proof, exact = _Proof(conditions, arithmetic), arithmetic.exact(reference)
    for group, U in zip(conditions.groups, multipliers.clients, strict=True):
        factors: list[Enclosed | None] = list(_factors(conditions, group, proof.with_client(group, U)))
        if rows is not None:
            factors = [None if M is None else _below_on(rows, M) for M in factors]
        R, B = (None if M is None else M.to(arithmetic) for M in factors)
        if R is None or B is None:
            return None
        half = exact @ B
        tangent = Tangent.of(R, half, half @ exact)
        proof.Q = proof.Q + tangent.linear
        proof.rest += tangent.constant
    proof.with_inverse(multipliers.inverse)
    return proof.bound(HomogeneousBound if multipliers.inverse is None else TangentBound, Interval.exact(0.0))


class _Proof:
    """⟨Q, X⟩ ≤ cT + rest for X = A or X = D, summed up from the multipliers."""

    def __init__(self, conditions: Conditions, arithmetic: type[Approximate]) -> None:
        self.conditions, self.arithmetic = conditions, arithmetic
        self.Q = arithmetic.exact(np.zeros((conditions.d, conditions.d)))
        self.T, self.rest = Interval.exact(0.0), Interval.exact(0.0)

    def with_client(self, group: ClientGroup, U: Stack) -> Enclosed:
        """Add the energies of a group to T; return ΣYᵢ."""
        Y, energy = _gram([self.arithmetic.exact(M) for M in group.matrices], U)
        self.T += energy
        return Y.rounded().symmetric()

    def with_inverse(self, U: Matrix | None) -> None:
        """Add the multiplier of D ⪯ L⁻¹, if there is one."""
        if U is not None:
            Y, energy = _gram([self.conditions.L.to(self.arithmetic)], U[None])
            self.Q = self.Q + Y
            self.rest += energy

    def bound(self, kind: type[Bound], log_det: Interval) -> Bound | None:
        """Return the bound with g = exp((log det + conjugate of Q)/d); None where it is not finite."""
        conditions = self.conditions
        conjugate = _conjugate(conditions.pattern, self.Q.rounded().symmetric())
        if conjugate is None:
            return None
        log_g = ((conjugate + log_det) / conditions.d).high
        if not math.isfinite(log_g + self.T.high + self.rest.high):
            return None
        scales = conditions.log_scale, conditions.log_clients
        return kind(log_g, self.T.high, self.rest.high, conditions.d, *scales)


def _gram(L: Sequence[Approximate], U: Stack) -> tuple[Approximate, float]:
    """Return Σ Lᵢ Uᵢ Uᵢᵀ Lᵢ, and Σ tr(Uᵢᵀ Lᵢ Uᵢ) from above."""
    exact = L[0].exact
    # All LᵢUᵢ side by side: the first is one product, the second one inner product.
    columns = L[0].side_by_side([M @ exact(V) for M, V in zip(L, U, strict=True)])
    return columns @ columns.T, columns.inner(exact(np.hstack(list(U)))).high


def _conjugate(pattern: Pattern, Q: Enclosed) -> float | None:
    """``log_det_conjugate``, with Q scaled by powers of two to a diagonal near one where the pattern allows it.

    Coordinates that are never compressed leave Q with a diagonal of many orders of magnitude.
    """
    diagonal = np.diagonal(Q.value)
    if pattern.W is not None or not np.all((diagonal > 0.0) & np.isfinite(diagonal)):
        return log_det_conjugate(pattern, Q)
    s = power_of_two_scaling(diagonal)
    scaled = log_det_conjugate(pattern, Q * np.multiply.outer(s, s))
    return None if scaled is None else (scaled + 2.0 * LOG_2 * int(np.sum(np.frexp(s)[1] - 1))).high


def _factors(conditions: Conditions, group: ClientGroup, Y: Enclosed) -> tuple[Enclosed, Enclosed]:
    """R and B of ⟨Y, V(D)⟩ = ⟨R, D B D⟩."""
    if conditions.sketch_outside:
        return group.map.enclose(Y), conditions.L.rounded()
    return Y, conditions.centred_L(group)


def _below_on(rows: Indices, M: Enclosed) -> Enclosed | None:
    """A matrix below M ⪰ 0 that is zero outside the given rows and columns: M/M_FF in them, lowered until proved.

    Where D_R is small and D_F is not, the exact minimum over D_FR is worth more than a tangent, whose part outside R
    is a difference of large numbers.
    """
    d = len(M.value)
    rest = np.setdiff1d(np.flatnonzero(np.diagonal(M.value)), rows)
    inside = np.ix_(rows, rows)
    if rest.size == 0:
        return M.block(rows).on(rows, d)
    cross = M.value[np.ix_(rest, rows)]
    schur = M.value[inside] - cross.T @ np.linalg.pinv(M.value[np.ix_(rest, rest)]) @ cross
    diagonal = np.diag(M.value.diagonal()[rows])
    kept = np.union1d(rows, rest)

    def lowered(loss: float) -> Enclosed | None:
        lower = Enclosed.exact(0.5 * (schur + schur.T) - loss * diagonal).on(rows, d)
        return lower if is_proved_definite((M - lower).block(kept).symmetric()) else None

    return first_proved(losses(16.0 * d * UNIT, 1e-7, 8.0), lowered)
