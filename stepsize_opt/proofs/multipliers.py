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

*The descent metric.*  Without D ⪯ L⁻¹, and η = det(H)^{1/d}, H = 2D − DLD, in the place of τ: det H = det D det P,
P = 2I − L^½DL^½, and log det P ≤ ⟨Z, P⟩ − d − log det Z for every Z ≻ 0.  Z = L^½U₀U₀ᵀL^½ makes that
2T₀ − ⟨Y₀, D⟩ − d − log det L − log det(U₀U₀ᵀ), and the same steps give

    √η ≤ g (cT + 2T₀ + S)/(2d),      g = exp(−(log det Q + log det L + log det(U₀U₀ᵀ))/2d).

For c = κη it reads u ≤ bu² + a, u = √η, which holds below the smaller root and above the larger one.  The latter cannot
be: λ_{sD} = s²λ_D and H(sD) ⪰ sH(D) for s ≤ 1, so the best η at c is at most √(c/c̃) times that at c̃ ≤ c; where the
inequality is violated at c̃ = κη̃, a feasible D with κη = c > c̃ would have η < √(c/c̃) c̃/κ ≤ c/κ = η.

*Homogeneous bounds.*  Without D ⪯ L⁻¹ (T₀ = 0), λ_{sD} = s²λ_D: if τ ≤ τ₁ for c = 1 then τ ≤ √c τ₁, and c = κτ gives
τ ≤ κτ₁².  H ⪯ 2D makes η ≤ 2τ: η ≤ 2√c τ₁ and, with c = κη, η ≤ 4κτ₁².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, Plain, embedded
from stepsize_opt.proofs.cholesky import log_det_from_below, proved_cholesky
from stepsize_opt.proofs.conditions import ClientGroup, Conditions
from stepsize_opt.proofs.evaluation import log_det_conjugate
from stepsize_opt.proofs.roundings import UNIT, power_of_two_scaling
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_solvers.programs import Indices, Matrix, Pattern, Stack

# Products, quotients and a square root of a few positive numbers: far fewer than 32 roundings.
_UP = 1.0 + 32.0 * UNIT


def _log(x: float) -> float:
    return math.log(x) if x > 0.0 else -math.inf


@dataclass(frozen=True)
class Bound:
    """An upper bound on τ as a function of c or κ, in the user's coordinates.

    power: τ^{1/power} ≤ g(cT + rest)/terms, ½ for the variable A, 1 for D, and 2 for the metric, where τ stands for η;
    g, T, rest = T₀ + S (2T₀ + S for the metric): see the module's text; homogeneous: the bound comes from the program
    without D ⪯ L⁻¹ and c = 1; doubled: it is one on τ where η is asked for; log_scale: of D; log_clients: of the Lᵢ.
    Everything is a logarithm, so that c and κ of any size may be asked for.
    """

    power: float
    homogeneous: bool
    doubled: bool
    log_g: float
    T: float
    rest: float
    terms: int
    log_scale: float
    log_clients: float = 0.0

    def _plain(self, log_c: float) -> float:
        """log τ at a given c, in scaled coordinates."""
        energy = float(np.logaddexp(log_c + _log(self.T), _log(self.rest)))
        doubled = math.log(2.0) if self.doubled else 0.0
        return self.power * (energy - math.log(self.terms) + self.log_g) + doubled

    def _finish(self, log_rate: float, log_bound: float) -> float:
        """In the user's coordinates, with the rounding of the few logarithms that were added; infinite if none."""
        value = log_rate + self.log_scale
        if not math.isfinite(value):
            return math.inf
        terms = [value, self.log_scale, self.log_clients, self.log_g, log_bound, _log(self.T), _log(self.rest)]
        return value + 16.0 * UNIT * (8.0 + math.fsum(abs(x) for x in terms if math.isfinite(x)))

    def at_lambda(self, log_c: float) -> float:
        """An upper bound on log τ when λ_D ≤ c."""
        scaled = log_c - self.log_clients
        if self.homogeneous:
            return self._finish(self._plain(0.0) + 0.5 * scaled, log_c)
        return self._finish(self._plain(scaled if self.T > 0.0 else -math.inf), log_c)

    def at_factor(self, log_kappa: float) -> float:
        """An upper bound on log τ when λ_D ≤ κτ, κ in the user's coordinates."""
        if not math.isfinite(log_kappa):
            return self.at_lambda(math.inf)
        # τ = τ̃ e^{log_scale}, so κτ = (κ e^{log_scale}) τ̃.
        scaled = log_kappa + self.log_scale - self.log_clients
        if self.homogeneous:
            return self._finish(2.0 * self._plain(0.0) + scaled, log_kappa)
        b = self.log_g + scaled + _log(self.T) - math.log(self.terms)
        a = self.log_g + _log(self.rest) - math.log(self.terms)
        if self.power < 1.0:
            # (b + √(b² + 4a))/2 = b(1 + √(1 + r))/2 with r = 4a/b², and at most b + √a, which is as good for a large r.
            ratio = math.log(4.0) + a - 2.0 * b if b > -math.inf else math.inf
            if ratio < 60.0:
                return self._finish(b + math.log(0.5 + 0.5 * math.sqrt(1.0 + math.exp(ratio))), log_kappa)
            return self._finish(float(np.logaddexp(b, 0.5 * a)), log_kappa)
        # a/(1 − b), or 2a/(1 + √(1 − 4ab)), where the rounding of the exponent of b or 4ab counts 1/(1 − b) times.
        exponent = b if self.power == 1.0 else math.log(4.0) + a + b
        sizes = 8.0 + abs(exponent) + abs(self.log_g) + abs(scaled)
        share = math.exp(min(exponent, 1.0)) * (1.0 + 64.0 * UNIT * sizes)
        if self.power > 1.0:
            root = math.log(2.0) - math.log1p(math.sqrt(1.0 - share)) if share < 1.0 else math.inf
            return self._finish(2.0 * (a + root), log_kappa)
        return self._finish(a - math.log1p(-share), log_kappa) if share < 1.0 else math.inf


@dataclass(frozen=True, eq=False)
class Multipliers:
    """U₀ (d, r) and, for each group of clients, the Uᵢ stacked as (m, d, r).

    inverse: U₀, of D ⪯ L⁻¹ or of the metric, where it is triangular and near a root of (2L − LD̂L)⁻¹; None without.
    """

    clients: tuple[Stack, ...]
    inverse: Matrix | None


@dataclass(frozen=True, eq=False)
class Gram:
    """Y = Σ Lᵢ Uᵢ Uᵢᵀ Lᵢ, and Σ tr(Uᵢᵀ Lᵢ Uᵢ) from above."""

    Y: Approximate
    energy: float

    @staticmethod
    def of(L: Sequence[Approximate], U: Stack) -> Gram:
        exact = L[0].exact
        # All LᵢUᵢ side by side: Y is one product, and the energy one inner product.
        columns = L[0].side_by_side([M @ exact(V) for M, V in zip(L, U, strict=True)])
        return Gram(columns @ columns.T, columns.inner_from_above(exact(np.hstack(list(U)))))


def rate_bound(
    conditions: Conditions,
    multipliers: Multipliers,
    reference: Matrix | None,
    linear: bool,
    rows: Indices | None = None,
    arithmetic: type[Approximate] = Pair,
) -> Bound | None:
    """The bound that the multipliers prove; None when they prove nothing.

    ``reference`` is D̂ for the quadratic form; ``linear`` says that Vᵢ = 𝒞ᵢ(A) and D is full.  ``rows`` asks for the
    quadratic form in these rows and columns of D alone.  ``arithmetic``: errors of the higher precision are relative to
    whole rows; where the rows of D are graded, plain arithmetic may prove more.
    """
    d, exact, L = conditions.d, arithmetic.exact, conditions.L.to(arithmetic)
    metric = conditions.metric and multipliers.inverse is not None
    Q = exact(np.zeros((d, d)))
    T, rest = 0.0, 0.0

    def enclosing(M: Enclosed) -> Approximate:
        return arithmetic.enclosing(M.value, M.error)

    for group, U in zip(conditions.groups, multipliers.clients, strict=True):
        gram = Gram.of([exact(M) for M in group.matrices], U)
        T += gram.energy
        if linear:
            Q = Q + enclosing(group.map.enclose(gram.Y.rounded().symmetric()))
        elif reference is not None:
            left, right = _factors(conditions, group, gram.Y.rounded().symmetric())
            R, B = (left, right) if rows is None else (_below_on(rows, left), _below_on(rows, right))
            if R is None or B is None:
                return None
            half, middle = exact(reference) @ enclosing(B), enclosing(R)
            tangent = middle @ half
            Q = Q + tangent + tangent.T
            rest += middle.inner_from_above(half @ exact(reference))
    homogeneous = multipliers.inverse is None
    if multipliers.inverse is not None:
        gram = Gram.of([L], multipliers.inverse[None])
        Q = Q + gram.Y
        rest += 2.0 * gram.energy if metric else gram.energy
    conjugate = _conjugate(conditions.pattern, Q.rounded().symmetric())
    if conjugate is None or not math.isfinite(conjugate + T + rest):
        return None
    log_g, terms = conjugate, 2 * d if metric else d
    if linear or metric:
        below = log_det_from_below(conditions.L.rounded())
        own = _triangular_log_det(multipliers.inverse) if metric and multipliers.inverse is not None else 0.0
        if below is None or not math.isfinite(own):
            return None
        log_g = conjugate - below - own
        log_g += 4.0 * UNIT * (abs(conjugate) + abs(below) + abs(own))
    log_g = log_g / terms + 4.0 * UNIT * abs(log_g / terms)
    return Bound(
        power=2.0 if metric else 0.5 if linear else 1.0,
        homogeneous=homogeneous,
        doubled=conditions.metric and not metric,
        log_g=log_g,
        T=T * _UP,
        rest=rest * _UP,
        terms=terms,
        log_scale=conditions.log_scale,
        log_clients=conditions.log_clients,
    )


def _triangular_log_det(U: Matrix) -> float:
    """A lower bound on log det(U Uᵀ) of a triangular U: its diagonal decides; −inf when U is singular or not that."""
    diagonal = np.abs(np.diagonal(U))
    triangular = not np.any(np.tril(U, -1)) or not np.any(np.triu(U, 1))
    if U.shape[0] != U.shape[1] or not triangular or not np.all((diagonal > 0.0) & np.isfinite(diagonal)):
        return -math.inf
    logs = np.log(diagonal)
    return 2.0 * math.fsum(logs) - 8.0 * UNIT * (math.fsum(np.abs(logs)) + 1.0)


def _conjugate(pattern: Pattern, Q: Enclosed) -> float | None:
    """``log_det_conjugate``, with Q scaled by powers of two to a diagonal near one where the pattern allows it.

    Coordinates that are never compressed leave Q with a diagonal of many orders of magnitude.
    """
    diagonal = np.diagonal(Q.value)
    if pattern.W is not None or not np.all((diagonal > 0.0) & np.isfinite(diagonal)):
        return log_det_conjugate(pattern, Plain(Q.value, Q.error), _block_log_det)
    s = power_of_two_scaling(diagonal)
    scaled = log_det_conjugate(pattern, Plain(s[:, None] * Q.value * s, s[:, None] * Q.error * s), _block_log_det)
    shift = 2.0 * math.log(2.0) * float(np.sum(np.frexp(s)[1] - 1))
    return None if scaled is None else scaled + shift + 4.0 * UNIT * (abs(scaled) + abs(shift))


def _block_log_det(Q: Approximate, s: slice) -> float | None:
    return log_det_from_below(Q.rounded())


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
        return Enclosed(embedded(M.value[inside], rows, d), embedded(M.error[inside], rows, d))
    cross = M.value[np.ix_(rest, rows)]
    schur = M.value[inside] - cross.T @ np.linalg.pinv(M.value[np.ix_(rest, rest)]) @ cross
    kept = np.union1d(rows, rest)
    part = np.ix_(kept, kept)

    def lowered(loss: float) -> Enclosed | None:
        lower = embedded(0.5 * (schur + schur.T) - loss * np.diag(np.diagonal(M.value)[rows]), rows, d)
        value = M.value - lower
        above = Enclosed(value[part], (M.error + UNIT * np.abs(value))[part]).symmetric()
        return None if proved_cholesky(above) is None else Enclosed(lower, np.zeros_like(lower))

    return first_proved(losses(16.0 * d * UNIT, 1e-7, 8.0), lowered)
