"""The subspace method x⁺ = x − A_J A_Jᵀ∇f(x) for L = UUᵀ + Diag(s²), with directions that are applied, not formed.

With S = Diag(s) and the Householder form of the QR factorisation of S⁻¹U = Q₁R, R = PΣOᵀ,

    L = S (I + Q₁PΣ²PᵀQ₁ᵀ) S,      A = S⁻¹ Q Diag(P, I) Diag(1 + σ², 1)^{−½},      AᵀLA = I,

where Q is the d×d orthogonal matrix whose first r columns are Q₁.  LAPACK's geqrf keeps it as r reflections, and ormqr
applies it and its transpose at the cost of O(dr).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from stepsize_opt.inputs import Array, Shown, positive_number, real_array
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.sketches import SystematicSampling, rounded_to_budget
from stepsize_solvers.programs import Indices, Matrix, Vector

NOT_PROVED = "computed, not proved: AᵀLA = I holds up to the rounding of r reflections, for which no bound is proved"


@dataclass(frozen=True, eq=False, repr=False)
class LargeSubspaceMethod(Shown):
    """x⁺ = x − A_J A_Jᵀ∇f(x) for a LowRankPlusDiagonal: what ``optimal_method`` returns for it, criterion ``det``.

    Attributes
    ----------
    k : float
        Numbers a round.
    sketch : SystematicSampling
        The law of J; every direction has the probability k/d.
    rate : float
        (k/d) det(L)^{−1/d}, the limit, in plain floating point.
    reason : str
        What is not proved, and why.
    """

    k: float
    sketch: SystematicSampling
    rate: float
    scale: Vector
    reflections: Matrix
    factors: Vector
    rotation: Matrix
    values: Vector
    reason: str = NOT_PROVED

    @property
    def d(self) -> int:
        """Size of L."""
        return len(self.scale)

    def draw(self, rng: np.random.Generator) -> Indices:
        """J, ascending: ⌊k⌋ or ⌈k⌉ directions."""
        return np.flatnonzero(self.sketch.sample_diagonal(rng, 1)[0])

    def encode(self, gradient: Array, draw: Indices) -> Vector:
        """A_Jᵀg, the numbers that are sent: shape (d,) → (size of J,)."""
        g = self._vector("gradient", gradient, self.d)
        y = self._reflected("T", g / self.scale)
        r = len(self.values)
        y[:r] = (self.rotation.T @ y[:r]) / np.sqrt(self.values)
        return np.asarray(y[draw])

    def decode(self, numbers: Array, draw: Indices) -> Vector:
        """A_J z, what is subtracted from x: shape (size of J,) → (d,)."""
        y = np.zeros(self.d)
        y[draw] = self._vector("numbers", numbers, len(draw))
        r = len(self.values)
        y[:r] = self.rotation @ (y[:r] / np.sqrt(self.values))
        return np.asarray(self._reflected("N", y) / self.scale)

    def _vector(self, name: str, value: Array, size: int) -> Vector:
        out = real_array(name, value)
        if out.shape != (size,):
            msg = f"{name} must have shape ({size},), got {out.shape}"
            raise ValueError(msg)
        return out

    def _reflected(self, trans: str, y: Vector) -> Vector:
        out, _, info = lapack.dormqr("L", trans, self.reflections, self.factors, y[:, None], 64)
        assert info == 0  # only a wrong argument fails
        return np.asarray(out[:, 0])

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("update", "x⁺ = x − A_J A_Jᵀ ∇f(x), AᵀLA = I"),
            ("budget", f"{self.k:g} of d = {self.d} numbers a round"),
            ("directions", f"{len(self.values)} Householder reflections"),
            ("rate det(D)^(1/d)", f"{self.rate:.9g}"),
            ("proof", self.reason),
        ]


def large_subspace_method(L: LowRankPlusDiagonal, k: object, criterion: str) -> LargeSubspaceMethod:
    """The subspace method of an L that is never formed; raises ValueError for what has no such method."""
    budget, d = positive_number("k", k), L.d
    if budget > d:
        msg = f"k must be at most d={d}, got {k}: with d numbers a round the step L⁻¹∇f itself can be sent"
        raise ValueError(msg)
    if criterion != "det" or sparse.issparse(L.U) or L.rank > d:
        msg = "a LowRankPlusDiagonal has a subspace method for criterion='det' and a dense U, r ≤ d; use L.todense()"
        raise ValueError(msg)
    scale = np.sqrt(L.own)
    work: Any = np.asfortranarray(L.U / scale[:, None])
    reflections, factors, _, info = lapack.dgeqrf(work, overwrite_a=1)
    assert info == 0  # only a wrong argument fails
    rotation, sigma, _ = np.linalg.svd(np.triu(reflections[: L.rank]))
    values = 1.0 + sigma**2
    log_det = float(np.log(L.own).sum() + np.log(values).sum())
    sketch = SystematicSampling(rounded_to_budget(np.full(d, budget / d), budget))
    rate = budget / d * float(np.exp(-log_det / d))
    return LargeSubspaceMethod(budget, sketch, rate, scale, reflections, factors, rotation, values)
