"""The descent metric H(D) = 2D − 𝒬(DBD), proved from both sides for the floats given.

E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_H holds for every D (no condition), so what counts is log det H, or the largest t with
H ⪰ tM⁻¹ for a given M ≻ 0.

*From below.*  log det of the enclosure of H; H ⪰ tM⁻¹ as in ``.inverses``.

*From above.*  For every Y ≻ 0, log det H ≤ ⟨Y, H⟩ − d − log det Y, and t ≤ ⟨Y, H⟩/⟨Y, M⁻¹⟩.  ⟨Y, H(D)⟩ =
⟨2Y, D⟩ − ⟨𝒬*(Y), DBD⟩ is bounded over the pattern as in ``.quadratics``.  With q this bound, over all multiples of Y,

    log det H* ≤ d log(q/d) − log det Y.

Y is any matrix near H⁻¹ (or a multiple of it): a poor one makes the bound weak, never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_det_from_below
from stepsize_opt.proofs.duals import Multiplier
from stepsize_opt.proofs.evaluation import Evaluation
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.inverses import largest_floor, weight_from_below
from stepsize_opt.proofs.quadratics import largest_quadratic
from stepsize_solvers.programs import Matrix

# How much of H⁻¹ a multiplier of low rank gets when it proves too little, in units of the tolerance.
_SHARES = (0.25, 4.0, 64.0, 1024.0)


class Descent(Evaluation):
    """A stepsize matrix D with what is proved of its descent metric H(D) = 2D − 𝒬(DBD): log det H, and t."""

    @cached_property
    def lower(self) -> float:
        """A proved lower bound on log det H, −inf when H ≻ 0 is not proved; H ≻ 0 makes D ≻ 0."""
        return self.descent().log_det if self.belongs else -math.inf

    @cached_property
    def feasible(self) -> bool:
        """Whether D has the pattern and H ≻ 0, proved."""
        return self.lower > -math.inf

    def certificate(self, dual: Matrix | None, tol: float = 0.0, others: Sequence[Matrix] = ()) -> Certificate:
        """Return the certificate of log det H: that of D from below, the bound of Y from above.

        dual: a Y near H(D)⁻¹ up to a factor; H(D)⁻¹ itself is tried when it is not given, or leaves more than tol for
        each of the d dimensions.  For 𝒬 = identity, H = B⁻¹ − (D − B⁻¹)B(D − B⁻¹) ⪯ B⁻¹ bounds it without any Y.
        others: no reference but D is taken.
        """
        upper = self.inverse_bound()
        if dual is not None and not upper - self.lower <= tol * self.d:
            upper = min(upper, self.log_det_bound(dual))
        inverse = self.inverse if not upper - self.lower <= tol * self.d else None
        if inverse is not None:
            upper = min(upper, self.log_det_bound(inverse))
        return Certificate(self.feasible, 1.0 + self.margin, self.lower, upper, self.d)

    def floor_certificate(self, dual: Matrix | None, M: Matrix | float, tol: float = 0.0) -> Certificate:
        """Return the certificate of the largest t with H ⪰ tM⁻¹, log t = log det(tI)/d; its bound is that of Y.

        A little of H(D)⁻¹ is added to a Y that leaves a relative gap of more than a tol > 0.
        """
        lower, upper = self.largest(M), math.inf if dual is None else self.floor_bound(dual, M)
        if dual is not None and tol > 0.0:
            for mixed in self._mixtures(dual, tol):
                if upper <= lower * (1.0 + tol):
                    break
                upper = min(upper, self.floor_bound(mixed, M))
        t = Interval(lower, upper).log()
        return Certificate.of_rate(1.0 + self.margin, t.low, t.high, self.d)

    def _mixtures(self, Y: Matrix, tol: float) -> Iterator[Matrix]:
        """Yield Y with a little, then more, of H⁻¹.

        A multiplier of low rank makes 𝒬*(Y) nearly singular, which costs much where the pattern is not full.  With
        ⟨Y, H⟩ = t, a share δt/d of H⁻¹ costs at most δ.
        """
        energy, inverse = float(np.vdot(Y, self.metric.value)), self.inverse
        if inverse is not None and 0.0 < energy < math.inf:
            for share in _SHARES:
                mixed = Y + (share * tol * energy / self.d) * inverse
                yield 0.5 * (mixed + mixed.T)

    @property
    def inverse(self) -> Matrix | None:
        """H⁻¹ in plain floats, the natural Y for log det; None when H is not numerically positive definite."""
        K, info = lapack.dpotrf(self.metric.value, 1, 1)  # lower, clean
        if info != 0:
            return None
        root = lapack.dtrtri(K, 1)[0]
        return np.asarray(root.T @ root)

    def largest(self, M: Matrix | float) -> float:
        """Return a t with H ⪰ tM⁻¹ proved, within a few roundings of the largest; 0 without a proof for a t > 0."""
        return largest_floor(self.metric, M) if self.belongs else 0.0

    # ---------------------------------------------------------------- from above

    def log_det_bound(self, Y: Matrix) -> float:
        """Return an upper bound on log det H over the pattern; +inf when this Y proves nothing."""
        found = Multiplier.near(self.condition.Q, Y, self.arithmetic)
        below = None if found is None else log_det_from_below(found.Z.rounded().symmetric())
        q = math.inf if found is None or below is None else self._largest_energy(found)
        if below is None or not 0.0 < q < math.inf:
            return math.inf
        return (self.d * (Interval.exact(q) / self.d).log() - below).high

    def floor_bound(self, Y: Matrix, M: Matrix | float) -> float:
        """Return an upper bound on the largest t with H(D) ⪰ tM⁻¹ for a D of the pattern; +inf without a proof."""
        found = Multiplier.near(self.condition.Q, Y, self.arithmetic)
        if found is None:
            return math.inf
        weight, q = weight_from_below(found.Z.rounded(), M), self._largest_energy(found)
        return (Interval.exact(q) / weight).high if weight > 0.0 and 0.0 < q < math.inf else math.inf

    def _largest_energy(self, found: Multiplier) -> float:
        """Return an upper bound on ⟨Y, H(D)⟩ over the pattern."""
        return largest_quadratic(self, found.Z * 2.0, found.R)
