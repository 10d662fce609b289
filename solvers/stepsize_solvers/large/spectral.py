"""Stepsizes under 𝒬(M) = aM + b tr(M)I for an L with few distinct eigenvalues ℓ_j of multiplicities m_j: D = Σ δ_j Π_j.

L, 𝒬 and log det are the same in every basis that keeps the eigenspaces Π_j of L, so by concavity some best D is a
number δ_j on each of them.  With τ = tr(DLD) = Σ m_jℓ_jδ_j² and h_j = cδ_j − aℓ_jδ_j² − bτ:

*Descent metric*, c = 2: the largest Σ m_j log h_j.   *Condition*, c = 1: the largest Σ m_j log δ_j with h ≥ 0.

Both are maxima of Σ (w m_j log δ_j + ν_j log h_j), which Newton's method finds: w = 0 and ν = m; or w = 1 and equal
ν_j → 0, where z_j = ν_j/(m_jh_j) are multipliers with the gap Σ ν_j.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_solvers.programs import Vector

_MOST_STEPS = 100
_LAST = 1e-10  # Σ ν_j for each dimension: far below any tolerance
_SHRINK = 0.1


@dataclass(frozen=True, eq=False)
class SpectralPoint:
    """δ, and ν/(mh) for each eigenvalue: multipliers of the condition, or 1/h of the metric."""

    delta: Vector
    multiplier: Vector


@dataclass(frozen=True, eq=False)
class Spectral:
    """Eigenvalues ℓ with multiplicities m, and a, b of 𝒬."""

    values: Vector
    counts: Vector
    a: float
    b: float

    def condition(self) -> SpectralPoint:
        """The best δ under the condition."""
        delta, share = self._start(1.0), 1.0
        while True:
            nu = np.full(len(delta), share * float(self.counts.mean()))
            delta = self._centre(delta, 1.0, 1.0, nu)
            if share <= _LAST:
                return SpectralPoint(delta, nu / (self.counts * self._room(delta, 1.0)))
            share *= _SHRINK

    def metric(self) -> SpectralPoint:
        """The best δ for the descent metric."""
        delta, share = self._start(2.0), 1.0
        while True:
            # Eigenvalues of small multiplicity would let h come near zero at once: they begin with a larger weight.
            nu = np.maximum(self.counts, share * float(self.counts.mean()))
            delta = self._centre(delta, 2.0, 0.0, nu)
            if np.array_equal(nu, self.counts):
                return SpectralPoint(delta, 1.0 / self._room(delta, 2.0))
            share *= _SHRINK

    def _room(self, delta: Vector, c: float) -> Vector:
        """h."""
        energies = self.values * delta * delta
        return np.asarray(c * delta - self.a * energies - self.b * float(self.counts @ energies))

    def _start(self, c: float) -> Vector:
        """A δ well inside of h > 0: for small δ h/δ is near c."""
        delta = 1.0 / (self.a * self.values + self.b * float(self.counts @ self.values))
        while not (self._room(delta, c) > 0.1 * delta).all():
            delta = 0.5 * delta
        return np.asarray(delta)

    def _centre(self, delta: Vector, c: float, w: float, nu: Vector) -> Vector:
        """The maximum of Σ (w m log δ + ν log h), from a δ with h > 0."""
        m, values = self.counts, self.values
        for _ in range(_MOST_STEPS):
            h = self._room(delta, c)
            weight = nu / h
            total = float(weight.sum())
            J = np.diag(c - 2.0 * self.a * values * delta)
            J -= 2.0 * self.b * np.multiply.outer(np.ones_like(h), m * values * delta)
            gradient = w * m / delta + J.T @ weight
            hessian = (J.T * (weight / h)) @ J + np.diag(
                w * m / delta**2 + 2.0 * values * (self.a * weight + self.b * total * m)
            )
            scale = 1.0 / np.sqrt(hessian.diagonal())
            step = scale * np.linalg.solve(hessian * scale[:, None] * scale, gradient * scale)
            gain = float(gradient @ step)
            length = 1.0 / max(1.0, 1.2 * float((-step / delta).max()))
            while length > 1e-12 and not self._rises(delta, length * step, c, w, nu, 0.1 * length * gain):
                length *= 0.5
            # 1e-24: squared changes of δ at rounding level
            if length <= 1e-12 or gain <= 1e-24 * float(m.sum()):
                break
            delta = delta + length * step
        return delta

    def _rises(self, delta: Vector, step: Vector, c: float, w: float, nu: Vector, least: float) -> bool:
        """Whether the step leads to h > 0 and to a value that is larger by at least so much."""
        old, new = self._room(delta, c), self._room(delta + step, c)
        if not new.min() > 0.0:
            return False
        change = float(w * self.counts @ np.log1p(step / delta) + nu @ np.log(new / old))
        return change >= least - 1e-15 * float(self.counts.sum())
