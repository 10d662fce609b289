"""log det X under many matrix inequalities of one kind, in factored form.

    maximise    log det X
    subject to  F_j(X) = (c + e τ(X)) I − H_jᵀ 𝒬(φ(X)) H_j ⪰ 0      for every factor H_j of every family,
                X ≻ 0 in a pattern,        τ(X) = exp((log det X − offset)/root)

where φ(X) = X (a linear family) or φ(X) = X B X with B ⪰ 0 (a quadratic one), 𝒬 is a positive map and c, e ≥ 0.
Each F_j is matrix-concave: 𝒬 keeps the order, X ↦ XBX is matrix-convex, and τ is a power of at most one of the
concave det(X)^{1/d}, because root ≥ d.

The distributed conditions of det-CGD are instances with H_j H_jᵀ = L_j, which also serves singular L_j:
H_jᵀ M H_j ⪯ cI just when λmax(L_j^½ M L_j^½) ≤ c.

==============================  =============  ==============  =========  =====================
condition                       X              𝒬               B          H H ᵀ
==============================  =============  ==============  =========  =====================
(12), full D                    A = D L D      𝒫ᵢ − id         –          Lᵢ
D ⪯ L⁻¹, full D                 A              identity        –          L
(12), D with a pattern          D              𝒫ᵢ − id         L          Lᵢ
(12′)                           D              identity        𝒫ᵢ(L) − L  Lᵢ
D ⪯ L⁻¹, any pattern            D              identity        –          L
==============================  =============  ==============  =========  =====================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepsize_solvers.programs import Matrix, Pattern, PositiveMap, SolverStats, Status, is_identity

Stack = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Family:
    """Constraints (c + e τ(X)) I − H_jᵀ 𝒬(φ(X)) H_j ⪰ 0 that share 𝒬, B, c and e.

    factors: the H_j, shape (n, d, r); a factor of smaller rank is padded with zero columns.
    B: None for φ(X) = X, a positive semidefinite d×d matrix for φ(X) = X B X.
    """

    Q: PositiveMap
    factors: Stack
    B: Matrix | None = None
    c: float = 1.0
    e: float = 0.0

    def __post_init__(self) -> None:
        if self.factors.ndim != 3 or self.factors.shape[1] != self.Q.d:
            msg = f"factors must have shape (n, {self.Q.d}, r) for a map of size {self.Q.d}, got {self.factors.shape}"
            raise ValueError(msg)
        if not (self.c >= 0.0 and self.e >= 0.0 and self.c + self.e > 0.0 and math.isfinite(self.c + self.e)):
            msg = f"c and e must be nonnegative, finite and not both zero, got c={self.c!r}, e={self.e!r}"
            raise ValueError(msg)

    @property
    def degree(self) -> int:
        """φ(tX) = t^degree φ(X)."""
        return 1 if self.B is None else 2

    @property
    def is_plain(self) -> bool:
        """Whether 𝒬 is the identity."""
        return is_identity(self.Q)

    def weights(self) -> Matrix:
        """Σ_j 𝒬*(H_j H_jᵀ), the gradient of Σ_j tr F_j of a linear family up to its sign."""
        stacked = self.factors.transpose(0, 2, 1).reshape(-1, self.Q.d)
        return self.Q.adjoint(stacked.T @ stacked)


@dataclass(frozen=True, eq=False)
class MaxDetProgram:
    """maximise log det X subject to every constraint of the families, X ≻ 0 with the pattern."""

    families: tuple[Family, ...]
    pattern: Pattern
    root: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.families:
            msg = "a program without constraints is unbounded"
            raise ValueError(msg)
        for family in self.families:
            if family.Q.d != self.pattern.d:
                msg = f"a family is for d={family.Q.d} but the pattern is for d={self.pattern.d}"
                raise ValueError(msg)
        if not self.root >= self.pattern.d:
            msg = f"root must be at least d={self.pattern.d} for τ to be concave, got {self.root!r}"
            raise ValueError(msg)

    @property
    def d(self) -> int:
        return self.pattern.d

    @property
    def total_size(self) -> int:
        """The sizes of all matrix inequalities together."""
        return sum(f.factors.shape[0] * f.factors.shape[2] for f in self.families)

    def tau(self, log_det: float) -> float:
        """τ as a function of log det X."""
        return math.exp((log_det - self.offset) / self.root)

    def largest_scale(self, log_det: float, tops: Sequence[float]) -> float:
        """The largest t with tX feasible, from log det X and each family's largest eigenvalue of all H_jᵀ𝒬(φ(X))H_j.

        It is the minimum over the families of the root of c + eτ(X) t^{d/root} = t^p top, p the degree.
        """
        scale = math.inf
        for family, top in zip(self.families, tops, strict=True):
            if top > 0.0:
                lift = family.e * self.tau(log_det) if family.e else 0.0
                scale = min(scale, _root(family.c / top, lift / top, family.degree, self.d / self.root))
        return scale


def _root(a: float, b: float, p: int, q: float) -> float:
    """The positive t with t^p = a + b t^q, from below, for a, b ≥ 0 and p > q > 0."""
    if b == 0.0:
        return float(a ** (1.0 / p))
    if a == 0.0:
        return float(b ** (1.0 / (p - q)))
    # At t the larger of the two terms is at least half of t^p, and neither is more than all of it.
    low = max(a ** (1.0 / p), b ** (1.0 / (p - q)))
    high = max((2.0 * a) ** (1.0 / p), (2.0 * b) ** (1.0 / (p - q)))
    for _ in range(60):  # halves the logarithm of a ratio of at most 2^{1/(p−q)} down to rounding
        middle = math.sqrt(low * high)
        if middle**p <= a + b * middle**q:
            low = middle
        else:
            high = middle
    return float(low)


@dataclass(frozen=True, eq=False)
class MaxDetOutcome:
    """A solver's raw answer: X, and for each family the multipliers Z_j ⪰ 0, stacked as (n, r, r).

    Both may be inexact; whoever uses them repairs and certifies.
    """

    status: Status
    X: Matrix | None
    duals: tuple[Stack, ...]
    stats: SolverStats
    message: str = ""
