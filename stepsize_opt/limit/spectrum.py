"""The limit is a spectral problem: eigenvalues in, inclusion probabilities out; eigenvectors make directions of them.

With LV = MV Diag(ℓ), VᵀMV = I (M = I but for the goal ``linear``), the directions a_j = v_j/√ℓ_j are
L-orthonormal, and D = A Diag(h) Aᵀ = V Diag(h/ℓ) Vᵀ has tr(LD) = Σh and D ⪯ L⁻¹ if and only if h ≤ 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh, lapack

from stepsize_opt.inputs import SMOOTHNESS_REMEDY
from stepsize_opt.proofs import power_of_two_scaling
from stepsize_solvers.programs import Matrix, Vector

# eigh is wrong by roundings of the largest eigenvalue, so the smallest keeps half of its digits down to this share.
_TRUSTED = 2.0**-26


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues ℓ of L relative to M, ascending, and eigenvectors V (columns): LV = MV Diag(ℓ), VᵀMV = I."""

    values: Vector
    vectors: Matrix

    @staticmethod
    def of(L: Matrix, M: Matrix | float = 1.0) -> Spectrum:
        """By the symmetric eigenproblem in plain floating point; what it gives is proved later."""
        if isinstance(M, float):
            values, vectors = np.linalg.eigh(L)
            if not values[0] > _TRUSTED * values[-1]:
                values, vectors = _jacobi(np.linalg.cholesky(L))
            return Spectrum(values / M, vectors / np.sqrt(M))
        scale = power_of_two_scaling(L.diagonal())
        B, N = scale[:, None] * L * scale, scale[:, None] * M * scale
        values, vectors = eigh(B, N)
        if not values[0] > _TRUSTED * values[-1]:
            root = np.linalg.cholesky(N)
            values, inner = _jacobi(np.linalg.solve(root, np.linalg.cholesky(B)))
            vectors = np.linalg.solve(root.T, inner)
        return Spectrum(values, scale[:, None] * vectors)

    @property
    def directions(self) -> Matrix:
        """A = V Diag(ℓ)^{−½}, AᵀLA = I."""
        return np.asarray(self.vectors / np.sqrt(self.values))

    def matrix(self, h: Vector) -> Matrix:
        """D = V Diag(h/ℓ) Vᵀ, symmetric."""
        half = self.vectors * np.sqrt(h / self.values)
        return np.asarray(half @ half.T)


def _jacobi(R: Any) -> tuple[Vector, Matrix]:
    """Eigenvalues and eigenvectors of RRᵀ by Jacobi rotations of Rᵀ, whose small singular values keep their digits.

    So they do whatever the units of the coordinates are, the rows of R; eigh loses what is below the rounding of the
    largest.  It takes several times as long.
    """
    sigma, _, vectors, work, _, info = lapack.dgejsv(R.T, joba=0, jobu=3, jobr=0)  # 0: for columns of any size
    values = (sigma * (work[0] / work[1]))[::-1] ** 2
    if info != 0 or not values[0] > 0.0:
        msg = f"L is too close to singular for its eigenvectors in float64; {SMOOTHNESS_REMEDY}"
        raise ValueError(msg)
    return np.asarray(values), np.asarray(vectors[:, ::-1])


def equal_probabilities(d: int, k: float) -> Vector:
    """h of the largest det D: k/d for all."""
    return np.full(d, k / d)


def floor_probabilities(values: Vector, k: float) -> Vector:
    """h of the largest t with D ⪰ tM⁻¹, and among these of the largest det D, from the eigenvalues ℓ of LM⁻¹.

    h ≥ tℓ with t = min(k/Σℓ, 1/max ℓ).  Where 1/max ℓ is the smaller, part of the budget k is left: maximise Σ log h
    subject to tℓ ≤ h ≤ 1 and Σh = k, which has h = clip(c, tℓ, 1) with one number c.
    """
    top, total = float(values.max()), float(values.sum())
    if k * top <= total:
        return np.asarray(np.minimum(values * (k / total), 1.0))
    least = values / top
    if k >= len(values):
        return np.ones_like(least)
    # With c between the m-th and the next largest entry, the m largest stay and the others are c.
    falling = np.sort(least)[::-1]
    kept = np.concatenate([[0.0], np.cumsum(falling)[:-1]])
    level = (k - kept) / (len(values) - np.arange(len(values)))
    m = int(np.argmax(level >= falling))  # there is one: k > Σℓ/max ℓ makes the last level larger than its entry
    return np.asarray(np.clip(level[m], least, 1.0))
