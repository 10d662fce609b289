"""Stepsizes under 𝒬(M) = aM + b tr(M)I for an L with few distinct eigenvalues ℓ_j of multiplicities m_j: D = Σ δ_j Π_j.

L, 𝒬 and log det are the same in every basis that keeps the eigenspaces Π_j of L, so by concavity some best D is a
number δ_j on each of them.  With τ = tr(DLD) = Σ m_jℓ_jδ_j² and h_j = cδ_j − aℓ_jδ_j² − bτ:

*Descent metric*, c = 2: the largest Σ m_j log h_j.   *Condition*, c = 1: the largest Σ m_j log δ_j with h ≥ 0.

Both are maxima of Σ (w m_j log δ_j + ν_j log h_j), which Newton's method finds: w = 0 and ν = m; or w = 1 and equal
ν_j → 0, where z_j = ν_j/(m_jh_j) are multipliers with the gap Σ ν_j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.numerics import Bounds, Limits, Progress
from stepsize_solvers.programs import Status, Vector

MOST_SPECTRAL_STEPS = 1000
_MOST_STEPS = 100  # to one maximum
_LAST = 1e-10  # Σ ν_j for each dimension: far below any tolerance
_SHRINK = 0.1
# Of Σ ν_j: a step with no more gain than that ends at the maximum up to rounding, because the next is its square.
_CENTRAL = 1e-13
_SHORTEST = 1e-12


@dataclass(frozen=True, eq=False)
class SpectralPoint:
    """δ, and ν/(mh) for each eigenvalue: multipliers of the condition, or 1/h of the metric."""

    delta: Vector
    multiplier: Vector


def solve_spectral(model: SpectralModel, limits: Limits) -> tuple[Status, Progress[SpectralPoint]]:
    """Follow the maxima for falling ν to the last one."""
    progress: Progress[SpectralPoint] = Progress(int(model.counts.sum()), limits, 0.0, MOST_SPECTRAL_STEPS)
    return progress.run(lambda: model.follow(progress)), progress


@dataclass(frozen=True, eq=False)
class SpectralModel:
    """Eigenvalues ℓ with multiplicities m, a and b of 𝒬, and whether the objective is that of the descent metric."""

    values: Vector
    counts: Vector
    a: float
    b: float
    descent: bool

    @property
    def c(self) -> float:
        return 2.0 if self.descent else 1.0

    @property
    def w(self) -> float:
        return 0.0 if self.descent else 1.0

    def follow(self, progress: Progress[SpectralPoint]) -> Status:
        """The status at the last maximum, or of the limit that ended the path before it."""
        delta, share, status = self._start(), 1.0, None
        while status is None:
            mean = share * float(self.counts.mean())
            # Eigenvalues of small multiplicity would let h come near zero at once: they begin with a larger weight.
            nu = np.maximum(self.counts, mean) if self.descent else np.full(len(delta), mean)
            delta, status = self._centre(delta, nu, progress)
            last = np.array_equal(nu, self.counts) if self.descent else share <= _LAST
            if last:
                return status or Status.OPTIMAL
            share *= _SHRINK
        return status

    def _examine(self, delta: Vector, nu: Vector, central: bool, progress: Progress[SpectralPoint]) -> Status | None:
        """Record a point; only maxima of the condition have a bound."""
        h = self._room(delta)
        value = float(self.counts @ np.log(h if self.descent else delta))
        upper = value + float(nu.sum()) if central and not self.descent else math.inf
        multiplier = 1.0 / h if self.descent else nu / (self.counts * h)
        return progress.examine(SpectralPoint(delta, multiplier), Bounds(value, upper))

    def _room(self, delta: Vector) -> Vector:
        """h."""
        energies = self.values * delta * delta
        return np.asarray(self.c * delta - self.a * energies - self.b * float(self.counts @ energies))

    def _start(self) -> Vector:
        """A δ well inside of h > 0: for small δ h/δ is near c."""
        delta = 1.0 / (self.a * self.values + self.b * float(self.counts @ self.values))
        while not (self._room(delta) > 0.1 * delta).all():
            delta = 0.5 * delta
        return np.asarray(delta)

    def _centre(self, delta: Vector, nu: Vector, progress: Progress[SpectralPoint]) -> tuple[Vector, Status | None]:
        """The maximum of Σ (w m log δ + ν log h) from a δ with h > 0, and the status when the solve has to end."""
        m, values, w, c = self.counts, self.values, self.w, self.c
        for _ in range(_MOST_STEPS):
            status = self._examine(delta, nu, False, progress)
            if status is not None:
                return delta, status
            h = self._room(delta)
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
            while length > _SHORTEST and not self._rises(delta, length * step, nu, 0.1 * length * gain):
                length *= 0.5
            if length <= _SHORTEST:
                break
            delta = delta + length * step
            progress.steps += 1
            if gain <= _CENTRAL * float(nu.sum()):
                break
        return delta, self._examine(delta, nu, True, progress)

    def _rises(self, delta: Vector, step: Vector, nu: Vector, least: float) -> bool:
        """Whether the step leads to h > 0 and to a value that is larger by at least so much."""
        old, new = self._room(delta), self._room(delta + step)
        if not new.min() > 0.0:
            return False
        change = float(self.w * self.counts @ np.log1p(step / delta) + nu @ np.log(new / old))
        return change >= least - 1e-15 * float(self.counts.sum())
