"""The distributed conditions (12) and (12′) evaluated with proofs.

    λ_D = maxᵢ λmax( Lᵢ^½ Vᵢ(D) Lᵢ^½ ),     Vᵢ(D) = E[(Sᵢ−I) D L D (Sᵢ−I)]  for distributed det-CGD1  (paper, Theorem 3)
                                           Vᵢ(D) = D E[(Tᵢ−I) L (Tᵢ−I)] D  for distributed det-CGD2,

and D L D ⪯ D, that is D ⪯ L⁻¹.

*A factor that dominates.*  Floating-point Cholesky of Lᵢ with its diagonal raised by a few rounding errors gives H with
H Hᵀ ⪰ Lᵢ in exact arithmetic (:mod:`stepsize_opt.verified`), for singular Lᵢ too.  Vᵢ ⪰ 0, so Hᵀ Vᵢ H ⪯ cI proves
λmax(Lᵢ^½ Vᵢ Lᵢ^½) = λmax(Vᵢ^½ Lᵢ Vᵢ^½) ≤ λmax(Vᵢ^½ HHᵀ Vᵢ^½) ≤ c.

*Scaling.*  For a positive diagonal Λ that commutes with every sketch, D̃ = Λ⁻¹DΛ⁻¹, L̃ = ΛLΛ and L̃ᵢ = ΛLᵢΛ have the same
λ_D and the same D ⪯ L⁻¹.  Λ holds powers of two, so the scaled problem is the same problem bit for bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from solvers.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Vector,
    block_slices,
)
from solvers.maxdet.program import Stack
from solvers.program import Pattern
from stepsize_opt.verified import UNIT, Enclosed, gamma, log_det_from_below, proved_cholesky, sandwich


def centred_magnitude(Q: PositiveMap, M: Matrix) -> Matrix:
    """Entrywise bound on what rounded coefficients of 𝒬(M) − M act on: the map with the coefficients |𝒬| + 1.

    The coefficients of the centred map are differences such as β − 1, so their rounding errors are relative to β and 1.
    """
    if isinstance(Q, DiagonalPlusScaled):
        return DiagonalPlusScaled(np.abs(Q.alpha), abs(Q.beta) + 1.0).apply(M)
    if isinstance(Q, Hadamard):
        return (np.abs(Q.P) + 1.0) * M
    if isinstance(Q, ScaledPlusTrace):
        return ScaledPlusTrace(Q.size, Q.a + 1.0, Q.b).apply(M)
    if isinstance(Q, CongruenceSum):
        return CongruenceSum(Q.weights, np.abs(Q.matrices) + np.eye(Q.d)).apply(M)
    if isinstance(Q, Layered):
        out = (abs(Q.between) + 1.0) * M
        for layer, s in zip(Q.layers, block_slices([layer.d for layer in Q.layers]), strict=True):
            out[s, s] = centred_magnitude(layer, M[s, s])
        return out
    msg = f"no rounding bound for a map of type {type(Q).__name__}"
    raise TypeError(msg)


def _roundings(Q: PositiveMap) -> int:
    """Roundings in one entry of 𝒬(M) − M with its coefficients: a few for an entrywise map, else two inner products."""
    if isinstance(Q, DiagonalPlusScaled | Hadamard):
        return Q.roundings + 4
    if isinstance(Q, Layered):
        return max(_roundings(layer) for layer in Q.layers)
    return 2 * Q.d + 6 + (int(Q.weights.size) if isinstance(Q, CongruenceSum) else 0)


@dataclass(frozen=True, eq=False)
class CentredMap:
    """𝒞(M) = E[(S−I) M (S−I)] = 𝒫(M) − M of one sketch, with its rounding."""

    full: PositiveMap

    @cached_property
    def centred(self) -> PositiveMap:
        return self.full.centered()

    @property
    def is_zero(self) -> bool:
        """Whether the sketch is the identity, by its coefficients."""
        return not np.any(self.centred.magnitude(np.ones((self.full.d, self.full.d))))

    def enclose(self, M: Enclosed) -> Enclosed:
        """An enclosure of 𝒞(M)."""
        value = self.centred.apply(M.value)
        return Enclosed(value, self._error(M)).symmetric()

    def enclose_adjoint(self, Z: Enclosed) -> Enclosed:
        """An enclosure of 𝒞*(Z); the error bound of 𝒞 serves, because magnitudes of a symmetric S are self-adjoint."""
        return Enclosed(self.centred.adjoint(Z.value), self._error(Z)).symmetric()

    def _error(self, M: Enclosed) -> Matrix:
        rounding = gamma(_roundings(self.full))
        return centred_magnitude(self.full, M.error * (1.0 + rounding) + rounding * np.abs(M.value))


def dominating_factor(L: Matrix) -> Matrix | None:
    """H with H Hᵀ ⪰ L, proved, for a positive semidefinite L; None when L is not positive semidefinite to rounding."""
    n = L.shape[0]
    diagonal = np.diagonal(L)
    zero = diagonal <= 0.0
    if np.any(diagonal < 0.0) or np.any(L[zero]):
        return None
    out = np.zeros_like(L)
    keep = np.flatnonzero(~zero)
    if keep.size == 0:
        return out
    raised = L[np.ix_(keep, keep)].copy()
    np.einsum("ii->i", raised)[:] += 2.0 * n * gamma(n + 2) * diagonal[keep]
    factor, info = lapack.dpotrf(raised, lower=1, clean=1)
    if info != 0:
        return None
    out[np.ix_(keep, keep)] = factor
    return out


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


@dataclass(frozen=True, eq=False)
class Conditions:
    """One distributed problem in scaled coordinates: L, the clients, the order of sketch and stepsize, the pattern.

    ``sketch_last`` is True for det-CGD1 (Vᵢ = 𝒞ᵢ(DLD)) and False for det-CGD2 (Vᵢ = D𝒞ᵢ(L)D).  D of the user is
    Diag(scale) D Diag(scale).
    """

    L: Matrix
    groups: tuple[ClientGroup, ...]
    sketch_last: bool
    pattern: Pattern
    scale: Vector

    @property
    def d(self) -> int:
        return int(self.L.shape[0])

    @property
    def log_scale(self) -> float:
        """log det(ΛΛ)/d, what the logarithm of τ moves by when D goes back to the user's coordinates."""
        return 2.0 * math.log(2.0) * float(np.sum(np.frexp(self.scale)[1] - 1)) / self.d

    def lift(self, D: Matrix) -> Matrix:
        """D in the user's coordinates (exact)."""
        return self.scale[:, None] * D * self.scale

    def centred_L(self, group: ClientGroup) -> Enclosed:
        """An enclosure of 𝒞(L), the constant of (12′)."""
        return group.map.enclose(Enclosed(self.L, np.zeros_like(self.L)))

    def variance(self, group: ClientGroup, D: Matrix) -> Enclosed:
        """An enclosure of V(D)."""
        if self.sketch_last:
            return group.map.enclose(sandwich(D, self.L, D))
        B = self.centred_L(group)
        M = sandwich(D, B.value, D)
        absD = np.abs(D)
        return Enclosed(M.value, M.error + absD @ B.error @ absD * (1.0 + gamma(2 * self.d))).symmetric()

    def estimate(self, D: Matrix) -> float:
        """λ_D in plain floating point."""
        top = 0.0
        for group in self.groups:
            M = self.variance(group, D).value
            images = group.factors.transpose(0, 2, 1) @ (M @ group.factors)
            top = max(top, float(np.linalg.eigvalsh(images)[:, -1].max()))
        return top

    def magnitude(self, D: Matrix) -> float:
        """The largest sum of magnitudes behind a row of Hᵀ V(D) H, to which rounding errors are relative."""
        top = 0.0
        for group in self.groups:
            absD, absL, absH = np.abs(D), np.abs(self.L), np.abs(group.factors)
            if self.sketch_last:
                M = centred_magnitude(group.map.full, absD @ absL @ absD)
            else:
                M = absD @ centred_magnitude(group.map.full, absL) @ absD
            sizes = absH.transpose(0, 2, 1) @ (M @ absH)
            top = max(top, float(sizes.sum(axis=2).max()))
        return top

    def proves_variance(self, D: Matrix, c: float) -> bool:
        """Whether λ_D ≤ c is proved for the given floats."""
        if not math.isfinite(c):
            return c == math.inf
        n = self.d
        for group in self.groups:
            M = self.variance(group, D)
            H = group.factors
            absH = np.abs(H)
            images = H.transpose(0, 2, 1) @ (M.value @ H)
            # Two products of n terms each round by γ_{2n} of the product of magnitudes.
            inner = M.error + gamma(2 * n) * (np.abs(M.value) + M.error)
            errors = absH.transpose(0, 2, 1) @ (inner @ absH) * (1.0 + gamma(2 * n))
            for image, error in zip(images, errors, strict=True):
                gap = Enclosed(c * np.eye(n) - image, error + UNIT * (c * np.eye(n) + np.abs(image))).symmetric()
                if proved_cholesky(gap) is None:
                    return False
        return True

    def proves_descent(self, D: Matrix) -> bool:
        """Whether D ≻ 0 and D L D ⪯ D are proved."""
        if proved_cholesky(Enclosed(D, np.zeros_like(D))) is None:
            return False
        M = sandwich(D, self.L, D)
        value = D - M.value
        return proved_cholesky(Enclosed(value, M.error + UNIT * np.abs(value)).symmetric()) is not None

    def log_tau(self, D: Matrix) -> float | None:
        """A proved lower bound on log det(D)^{1/d} in the user's coordinates."""
        below = log_det_from_below(Enclosed(D, np.zeros_like(D)))
        if below is None:
            return None
        value = below / self.d + self.log_scale
        return value - 8.0 * UNIT * (abs(value) + abs(below) / self.d + abs(self.log_scale))


def exp_down(x: float) -> float:
    """A lower bound on eˣ (the library's exp is right to one unit in the last place)."""
    return math.exp(x) * (1.0 - 4.0 * UNIT)


def exp_up(x: float) -> float:
    """An upper bound on eˣ."""
    return math.exp(x) * (1.0 + 4.0 * UNIT) if x < 700.0 else math.inf
