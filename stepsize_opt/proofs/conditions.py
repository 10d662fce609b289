"""The distributed conditions (12) and (12′) evaluated with proofs.

    λ_D = maxᵢ λmax( Lᵢ^½ Vᵢ(D) Lᵢ^½ ),     Vᵢ(D) = E[(Sᵢ−I) D L D (Sᵢ−I)]  for distributed det-CGD1  (paper, Theorem 3)
                                           Vᵢ(D) = D E[(Tᵢ−I) L (Tᵢ−I)] D  for distributed det-CGD2,

and D L D ⪯ D, that is D ⪯ L⁻¹.

*A factor that dominates.*  Floating-point Cholesky of Lᵢ with its diagonal raised by a few rounding errors gives H with
H Hᵀ ⪰ Lᵢ in exact arithmetic (``.cholesky``), for singular Lᵢ too.  Vᵢ ⪰ 0, so Hᵀ Vᵢ H ⪯ cI proves
λmax(Lᵢ^½ Vᵢ Lᵢ^½) = λmax(Vᵢ^½ Lᵢ Vᵢ^½) ≤ λmax(Vᵢ^½ HHᵀ Vᵢ^½) ≤ c.

*The mean.*  L = (1/n)ΣLᵢ is not a matrix of floats.  It is known in twice the working precision, and what is proved
holds for every matrix within the error of that.  Where floats have to stand for it, f is smooth with every matrix above
L, so L is rounded *up* (``mean_above``).

*Scaling.*  For a positive diagonal Λ that commutes with every sketch, D̃ = Λ⁻¹DΛ⁻¹, L̃ = ΛLΛ and L̃ᵢ = ΛLᵢΛ have the same
λ_D and the same D ⪯ L⁻¹.  λ_D is linear in the Lᵢ and quadratic in D, so a power of two taken out of either comes back
as a power of two.  All of these are exact, and the numbers that enter a proof are near one whatever the user's units.

*What λ_D does not see.*  A coordinate that is never compressed has a zero row in Sᵢ − I, and one on which no fᵢ depends
a zero row in Lᵢ.  λ_D depends on the other rows of D only (``Conditions.noisy``), and only these are multiplied
out: the rounding of the large entries of D would hide a small λ_D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.cholesky import dominating_factor, is_proved_definite, log_det_from_below
from stepsize_opt.proofs.intervals import LOG_2, Interval
from stepsize_opt.proofs.maps import centred_above, centred_image
from stepsize_solvers.programs import (
    Indices,
    Matrix,
    Pattern,
    PositiveMap,
    Stack,
    Vector,
    add_to_diagonal,
    exponent_above,
)


def mean_of(matrices: Sequence[Matrix]) -> Pair:
    """Return (1/n)ΣLᵢ in twice the working precision."""
    return sum((Pair.exact(M) for M in matrices[1:]), Pair.exact(matrices[0])).divided(len(matrices))


def mean_above(matrices: Sequence[Matrix]) -> Matrix:
    """Return a matrix of floats L̂ ⪰ (1/n)ΣLᵢ for symmetric Lᵢ: the mean itself where its entries are floats.

    Diagonal dominance: a symmetric error is at most the diagonal matrix of its row sums, by which the diagonal of the
    rounded mean is raised.
    """
    if len(matrices) == 1:
        return matrices[0]
    exponent = max(map(exponent_above, matrices))  # sums of the largest floats overflow
    scaled = [np.ldexp(M, -exponent) for M in matrices]
    mean = mean_of(scaled)
    assert mean.lo is not None and mean.error is not None
    rounding = np.abs(mean.lo) + mean.error
    if any((np.ldexp(A, exponent) != M).any() for A, M in zip(scaled, matrices, strict=True)):
        rounding += 2.0**-1000  # bits were lost below the normal floats
    above, raised = mean.hi.copy(), 2.0 * rounding.sum(axis=1)  # twice, for the rounding of these sums
    diagonal = above.diagonal()
    np.fill_diagonal(above, np.where(raised > 0.0, np.nextafter(diagonal + raised, np.inf), diagonal))
    out = np.ldexp(above, exponent)
    if (np.ldexp(out, -exponent) != above).any():
        add_to_diagonal(out, 2 * len(out) * math.ulp(0.0))
    return out


@dataclass(frozen=True, eq=False)
class CentredMap:
    """𝒞(M) = E[(S−I) M (S−I)] = 𝒫(M) − M of one symmetric sketch; like 𝒫 it is its own adjoint.

    full: 𝒫; touched: the coordinates that the sketch compresses, increasing; the other rows of S − I are zero.
    """

    full: PositiveMap
    touched: Indices

    @cached_property
    def centred(self) -> PositiveMap:
        return self.full.centered()

    def enclose(self, M: Enclosed) -> Enclosed:
        """Return an enclosure of 𝒞(M)."""
        found = centred_image(self.full, M)
        return found.block(self.touched).on(self.touched, self.full.d).symmetric()

    def above(self, M: Pair) -> Pair:
        """𝒞̄(M) ⪰ 𝒞(M) for M ⪰ 0, zero in the coordinates that are not touched."""
        found = centred_above(self.full, M).block(self.touched).on(self.touched, self.full.d)
        assert isinstance(found, Pair)
        return found


@dataclass(frozen=True, eq=False)
class ClientGroup:
    """Clients with the same sketch: their smoothness matrices, stacked as (m, d, d)."""

    map: CentredMap
    matrices: Stack

    @cached_property
    def factors(self) -> Stack:
        """H with H Hᵀ ⪰ Lᵢ for every client, proved."""
        found = [dominating_factor(L) for L in self.matrices]
        if any(H is None for H in found):
            msg = "a smoothness matrix of a client is not positive semidefinite"
            raise ValueError(msg)
        return np.array(found)


@dataclass(frozen=True)
class Scaled:
    """mantissa · 2^exponent: a nonnegative number that may be outside the range of floats."""

    mantissa: float
    exponent: int

    @property
    def log(self) -> float:
        return math.log(self.mantissa) + self.exponent * math.log(2.0) if self.mantissa > 0.0 else -math.inf

    @property
    def value(self) -> float:
        """The number as a float; infinity above their range."""
        try:
            return math.ldexp(self.mantissa, self.exponent)
        except OverflowError:
            return math.inf


@dataclass(frozen=True, eq=False)
class Conditions:
    """One distributed problem in scaled coordinates: L, the clients, the order of sketch and stepsize, the pattern.

    ``sketch_outside`` is True for Vᵢ = 𝒞ᵢ(DLD) and False for Vᵢ = D𝒞ᵢ(L)D.  D of the user is
    Diag(scale) D Diag(scale), and the user's Lᵢ, scaled likewise, are 2^client_exponent times those of the groups.
    c stands for a bound on λ_D in the user's units throughout.
    """

    L: Pair
    groups: tuple[ClientGroup, ...]
    sketch_outside: bool
    pattern: Pattern
    scale: Vector
    client_exponent: int = 0

    @property
    def d(self) -> int:
        return int(self.L.hi.shape[0])

    @property
    def log_scale(self) -> Interval:
        """log det(ΛΛ)/d, what the logarithm of τ moves by when D goes back to the user's coordinates."""
        return 2.0 * LOG_2 * int(np.sum(np.frexp(self.scale)[1] - 1)) / self.d

    @property
    def log_clients(self) -> Interval:
        """The logarithm of what was taken out of the Lᵢ, and so out of λ_D."""
        return LOG_2 * self.client_exponent

    def lift(self, D: Matrix) -> Matrix:
        """D in the user's coordinates (exact); raises ValueError where they have no floats for it."""
        with np.errstate(over="ignore", under="ignore"):  # what is lost shows on the way back
            lifted = self.scale[:, None] * D * self.scale
            same = np.array_equal(lifted / self.scale[:, None] / self.scale, D)
        if not same:
            low, high = (float(x) for x in (np.min(np.diagonal(lifted)), np.max(np.diagonal(lifted))))
            msg = (
                f"the diagonal of D reaches from {low:.3g} to {high:.3g}, beyond what float64 holds; "
                "choose units in which the smoothness matrices are closer to one"
            )
            raise ValueError(msg)
        return lifted

    def centred_L(self, group: ClientGroup) -> Enclosed:
        """Return an enclosure of 𝒞(L), the constant of (12′)."""
        return group.map.enclose(self.L.rounded())

    def noisy(self, group: ClientGroup) -> Indices:
        """Return the coordinates R of which the rows of D decide the λ_D of a group.

        det-CGD1: A ⪰ 0 with ⟨Lᵢ, 𝒞(A)⟩ = 0 does not count, so λ_D depends on D_R· L D_·R, R = { j : 𝒞*(ΣLᵢ)_jj ≠ 0 }.
        det-CGD2: λ_D depends on D_R· 𝒞(L) D_·R, where R holds the coordinates with a row in some Lᵢ and, in their block
        of the pattern, one that is compressed.
        """
        largest: Vector = np.einsum("nii->ni", group.matrices).max(axis=0)
        if not self.sketch_outside:
            labels = self.pattern.labels
            return np.flatnonzero((largest > 0.0) & np.isin(labels, labels[group.map.touched]))
        found = group.map.enclose(Enclosed.exact(np.diag(largest)))
        return np.flatnonzero(found.value.diagonal() + found.error.diagonal())  # a coefficient may round to zero

    @cached_property
    def variances(self) -> tuple[VarianceMap, ...]:
        """D ↦ V(D) of each group."""
        return tuple(VarianceMap.of(self, group) for group in self.groups)

    def at(self, D: Matrix, arithmetic: type[Approximate] = Enclosed) -> AtStepsize:
        """λ_D of one stepsize; ``arithmetic`` is the precision of Hᵀ V(D) H."""
        return AtStepsize(self, [variance(D) for variance in self.variances], arithmetic)

    def proves_below_inverse(self, D: Matrix) -> bool:
        """Return whether D ≻ 0 and D L D ⪯ D are proved."""
        return is_proved_definite(D) and is_proved_definite(self.minus_quadratic(D, 1.0).rounded().symmetric())

    def minus_quadratic(self, D: Matrix, a: float) -> Pair:
        """aD − DLD, a power of two a."""
        exact = Pair.exact(D)
        return exact * a - exact @ (self.L @ exact)

    def log_rate(self, D: Matrix) -> float | None:
        """Return a proved lower bound on log det(D)^{1/d} in the user's coordinates; None unless D ≻ 0 is proved."""
        return self._log_root(log_det_from_below(D))

    def descent_log_rate(self, D: Matrix) -> float | None:
        """Return a proved lower bound on log det(H)^{1/d}, H = 2D − DLD; None unless H ≻ 0 is proved."""
        return self._log_root(log_det_from_below(self.minus_quadratic(D, 2.0).rounded().symmetric()))

    def _log_root(self, below: float | None) -> float | None:
        return None if below is None else (Interval.exact(below) / self.d + self.log_scale).low


@dataclass(frozen=True, eq=False)
class VarianceMap:
    """D ↦ V̄(D) ⪰ V(D) of one group: D_R· M D_·R with M = L for det-CGD1 and 𝒞̄(L) for det-CGD2, rows R = ``rows``.

    inside: the columns of D that M sees.
    """

    group: ClientGroup
    sketch_outside: bool
    rows: Indices
    inside: Indices
    middle: Pair

    @staticmethod
    def of(conditions: Conditions, group: ClientGroup) -> VarianceMap:
        last = conditions.sketch_outside
        inside = np.arange(conditions.d) if last else group.map.touched
        middle = conditions.L if last else group.map.above(conditions.L)
        return VarianceMap(group, last, conditions.noisy(group), inside, middle.block(inside))

    def __call__(self, D: Matrix) -> Variance:
        half = D[np.ix_(self.rows, self.inside)]
        e = exponent_above(half)
        exact = Pair.exact(np.ldexp(half, -e))
        M = (exact @ (self.middle @ exact.T)).on(self.rows, len(D))
        return Variance(self.group, self.group.map.above(M) if self.sketch_outside else M, e)


@dataclass(frozen=True, eq=False)
class Variance:
    """A matrix V̄ ⪰ V(D)/4^exponent as far as λ_D sees it, zero elsewhere; its numbers are near one."""

    group: ClientGroup
    above: Pair
    exponent: int


@dataclass(frozen=True, eq=False)
class AtStepsize:
    """λ_D of one stepsize: estimated, and bounded by proof.  parts: V̄(D) of each group."""

    conditions: Conditions
    parts: list[Variance]
    arithmetic: type[Approximate]

    @cached_property
    def images(self) -> list[list[Enclosed]]:
        """Hᵀ V̄ H for every client of each group."""
        middles = [part.above.to(self.arithmetic) for part in self.parts]
        return [
            [middle.congruent(H.T) for H in part.group.factors]
            for middle, part in zip(middles, self.parts, strict=True)
        ]

    def _largest(self, of: Callable[[Enclosed], float]) -> Scaled:
        """Return the largest of numbers of the clients, in the user's units."""
        taken_out = self.conditions.client_exponent
        found = [
            Scaled(max(map(of, images)), 2 * part.exponent + taken_out)
            for images, part in zip(self.images, self.parts, strict=True)
        ]
        return max(found, key=lambda s: s.log, default=Scaled(0.0, 0))

    @cached_property
    def estimate(self) -> Scaled:
        """λ_D from the middles of the enclosures."""
        return self._largest(lambda image: max(float(np.linalg.eigvalsh(image.value)[-1]), 0.0))

    @cached_property
    def doubt(self) -> Scaled:
        """What rounding may add to λ_D: the largest sum of the error bounds in a row of Hᵀ V(D) H."""
        return self._largest(lambda image: float(image.error.sum(axis=1).max()))

    def proves(self, c: float) -> bool:
        """Return whether λ_D ≤ c is proved for the given floats."""
        if not math.isfinite(c):
            return c == math.inf
        for images, part in zip(self.images, self.parts, strict=True):
            exponent = math.frexp(c)[1] - 2 * part.exponent - self.conditions.client_exponent
            if exponent < -900:  # not a number near one any more
                return False
            # Far above one a smaller bound holds as well.
            bound = math.ldexp(math.frexp(c)[0], min(exponent, 900))
            if not all(is_proved_definite((-image).plus_diagonal(bound)) for image in images):
                return False
        return True
