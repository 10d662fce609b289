"""The limit of methods with momentum, and the weights of the subspace method that attains it (docs/momentum.md).

t is attained if some D has D ⪯ L⁻¹, tr(LD) ≤ k and DLD ⪰ t²M⁻¹.  The update of z takes A_J Diag(w_J) A_Jᵀ∇f(y) with
t²w ≤ h and A Diag(hw) Aᵀ ⪰ M⁻¹, M = I for the goal ``convex``; for the eigenvalues ℓ of LM⁻¹ w = ℓ/h, h ≥ t√ℓ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_opt.limit.formed import LARGEST_LOSS, FormedLimit, proved_mean
from stepsize_opt.limit.problem import Subspace, floor_probabilities
from stepsize_opt.limit.thin import ThinLimit
from stepsize_opt.operators import StepsizeOperator
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Interval,
    Pair,
    eigenvalue_bounds,
    largest_floor,
    power_of_two_scaling,
    sandwich,
    weighted_gram,
)
from stepsize_opt.sketches import SystematicSampling, rounded_to_budget
from stepsize_opt.smoothness import LimitBounds, Spectrum
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class FormedMomentum(FormedLimit):
    """The limit of momentum for an L by its entries."""

    @property
    def upper_bound(self) -> float:
        with blas_threads(self.L.d):
            return 0.5 * self.L.bounds(self.M, momentum=True).log_bound(self.k)

    @property
    def _spectrum(self) -> Spectrum:
        return self.L.spectrum(1.0 if self.M is None else self.M)

    def _rough(self) -> tuple[Vector, Matrix]:
        spectrum = self._spectrum
        h = floor_probabilities(np.sqrt(spectrum.values), self.k)
        return h, spectrum.matrix(h)

    def _certificate(self, D: Matrix) -> Certificate:
        scale, scaled = self._scaled(D)
        square = sandwich(scaled, scale[:, None] * self.L.todense() * scale, scaled).symmetric()
        t = math.sqrt(largest_floor(square, self._curvature(scale))) * (1.0 - 2.0 * UNIT)
        return certificate_of_rate(t, self.upper_bound, len(D))

    def subspace(self, basis: str) -> Subspace:
        with blas_threads(self.L.d):
            values = self._spectrum.values
            A, defect = self.L.directions(basis, 1.0 if self.M is None else self.M)
            sketch = SystematicSampling(rounded_to_budget(floor_probabilities(np.sqrt(values), self.k), self.k))
            scale = power_of_two_scaling(self.L.todense().diagonal())
            X = A / scale[:, None]
            exact = Pair.exact(X)
            mean = (exact * values[None, :] @ exact.T).rounded().symmetric()
            weights, t = weights_of_share(sketch.p, values, largest_floor(mean, self._curvature(scale)))
            certificate = self.near_limit(certificate_of_rate(t, self.upper_bound, self.L.d))
            D = scale[:, None] * proved_mean(X, sketch.p) * scale
            return Subspace(A, sketch, D, certificate, defect, weights)


@dataclass(frozen=True, eq=False)
class ThinMomentum(ThinLimit):
    """The limit of momentum for L = UUᵀ + aI that is never formed: its eigenvalues are those of UᵀU + aI, and a."""

    @property
    def upper_bound(self) -> float:
        return self._ends[1]

    def best(self) -> tuple[StepsizeOperator, Vector, Certificate]:
        """A multiple of I below the best D, which is a multiple of L^{−½} unless budget is left."""
        lower, upper = self._ends
        low, high = self._eigenvalues
        h = floor_probabilities(np.sqrt(low), self.k)
        D, _ = self._multiple_of_identity(float((h / high).min()) * (1.0 - 8.0 * UNIT))  # D has eigenvalues h/ℓ
        return D.scaled(-self.L.power), h, Certificate(True, 0.0, lower, upper, self.L.d)

    def subspace(self, basis: str) -> Subspace:
        L, n = self.L.near_one, self.L.power
        L.require_eigenvectors("momentum")
        found, a = L.directions(basis), float(L.shift[0])
        values = np.ones(L.d)
        values[: len(found.basis.values)] += found.basis.values
        sketch = SystematicSampling(rounded_to_budget(floor_probabilities(np.sqrt(values), self.k), self.k))
        h = sketch.p
        # A Diag(values) Aᵀ ⪰ share/a; the weights are in the units of the L that was given.
        share = found.mean_from_below(values, 1.0) * a * (1.0 - 8.0 * UNIT)
        weights, t = weights_of_share(h, values * (math.ldexp(a, 2 * n) / self._mu), share)
        certificate = certificate_of_rate(t, self.upper_bound, L.d)
        if not certificate.gap <= LARGEST_LOSS:
            msg = "the eigenvalues of L lie too far apart for momentum in float64; use L.todense()"
            raise self.unproved(msg)
        D, _ = self._multiple_of_identity(found.mean_from_below(h, float((h / values).min())))
        return Subspace(found.A.scaled(-n), sketch, D.scaled(-n), certificate, found.defect, weights)

    @property
    def _mu(self) -> float:
        return self.goal.M if isinstance(self.goal.M, float) else 1.0

    @cached_property
    def _eigenvalues(self) -> tuple[Vector, Vector]:
        """Bounds from below and above on the eigenvalues of L near one, ascending.

        Raises NeedsDense for an L whose eigenvectors are not known.
        """
        L = self.L.near_one
        L.require_eigenvectors("momentum")
        a = float(L.shift[0])
        ends = (end[-L.d :] for end in eigenvalue_bounds(weighted_gram(L.U, None)))
        low, high = (a + np.concatenate([np.zeros(L.d - len(end)), end]) for end in ends)
        return low * (1.0 - 2.0 * UNIT), high * (1.0 + 2.0 * UNIT)

    @cached_property
    def _ends(self) -> tuple[float, float]:
        """d log of the limit, from below and from above, in the units of the L that was given."""
        d = self.L.d
        low, high = (np.sqrt(end) for end in self._eigenvalues)
        trace, top = (root * (1.0 - 4.0 * UNIT) for root in (math.fsum(low), float(low[-1])))
        t = min(self.k / math.fsum(high), 1.0 / float(high[-1])) * (1.0 - 8.0 * UNIT)
        upper = LimitBounds(d, -math.inf, trace, top, momentum=True).log_bound(self.k)
        near = Certificate(True, 0.0, 2.0 * d * math.log(t) - 8.0 * UNIT * d, upper, d)
        given = near.moved(-2 * self.L.power * d).shifted(d * Interval.exact(self._mu).log())
        return 0.5 * given.log_det, 0.5 * given.upper_bound


def weights_of_share(h: Vector, values: Vector, share: float) -> tuple[Vector, float]:
    """Return w next to ℓ/(h share) with hw ≥ ℓ/share, and t with t²w ≤ h, 0 without a share.

    share: what is proved of A Diag(ℓ) Aᵀ ⪰ share M⁻¹, so that A Diag(hw) Aᵀ ⪰ M⁻¹.
    """
    if not share > 0.0:
        return np.ones_like(h), 0.0
    w = values / (h * share) * (1.0 + 8.0 * UNIT)
    return w, math.sqrt(float((h / w).min())) * (1.0 - 4.0 * UNIT)


def certificate_of_rate(t: float, upper_bound: float, d: int) -> Certificate:
    """Return the certificate of a proved t, as d log t."""
    if not t > 0.0:
        return Certificate(False, 0.0, -math.inf, upper_bound, d)
    lower = d * math.log(t)
    return Certificate(True, 0.0, lower - 4.0 * UNIT * (d + abs(lower)), upper_bound, d)
