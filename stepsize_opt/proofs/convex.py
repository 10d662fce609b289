"""log det D under 𝒬(D) ⪯ L⁻¹, the condition for convex f, proved from both sides for the floats given.

*From below.*  HHᵀ ⪰ L with proof; then I − Hᵀ𝒬̄(D)H ⪰ 0 with 𝒬̄(D) ⪰ 𝒬(D) makes 𝒬(D) ⪯ H⁻ᵀH⁻¹ ⪯ L⁻¹.

*From above.*  For every V, U = LVVᵀL ⪰ 0 and ⟨U, 𝒬(D)⟩ ≤ ⟨U, L⁻¹⟩ = ⟨VVᵀ, L⟩ = e for every feasible D.  So

    log det D ≤ log det D + s(e − ⟨𝒬*(U), D⟩) ≤ se + max { log det X − ⟨s𝒬*(U), X⟩ },

and s = d/e is best: d log(e/d) − log det 𝒬*(U) for a full D (``log_det_conjugate`` has the other patterns).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import dominating_factor, is_proved_definite
from stepsize_opt.proofs.duals import Gram, largest_conjugate, root
from stepsize_opt.proofs.evaluation import Evaluation, shifted_matrix
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.maps import adjoint_below, image_above
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Matrix, Vector

_LARGEST_RETREAT = 0.1  # a proof that takes a larger share of D has failed


class ConvexStep(Evaluation):
    """A stepsize matrix D, near one, with what is proved of log det D under 𝒬(D) ⪯ L⁻¹; L is B of the program."""

    @cached_property
    def whitened_image(self) -> Enclosed | None:
        """An enclosure of Hᵀ𝒬̄(D)H; None when L is not positive definite to rounding."""
        H = dominating_factor(shifted_matrix(self.condition, 1.0))
        return None if H is None else image_above(self.condition.Q, self.exact).congruent(H.T)

    @cached_property
    def top(self) -> float:
        """λmax(L^½𝒬(D)L^½) in plain floats."""
        image = self.whitened_image
        return math.inf if image is None else float(np.linalg.eigvalsh(image.value)[-1])

    @cached_property
    def feasible(self) -> bool:
        """Whether D ≻ 0 has the pattern and 𝒬(D) ⪯ L⁻¹, proved."""
        image = self.whitened_image
        if image is None or not self.belongs or self.log_det is None:
            return False
        return is_proved_definite((-image).plus_diagonal(1.0))

    def repaired(self) -> ConvexStep | None:
        """Return the multiple of D next to the boundary that is proved feasible; None without a proof."""
        near = self.elsewhere(self.program.pattern.nearest(self.D))
        if not 0.0 < near.top < math.inf:
            return None
        return near.first_feasible(1.0 / near.top, 8.0 * self.d * UNIT, _LARGEST_RETREAT, 4.0)

    def bound(self, U: Matrix) -> float:
        """Return an upper bound on log det D over the feasible set, from a U of any quality; +inf without a proof."""
        factor, L = root(0.5 * (U + U.T)), shifted_matrix(self.condition, -1.0)
        if factor is None or not is_proved_definite(L):
            return math.inf
        V = np.asarray(np.linalg.solve(L, factor), dtype=np.float64)
        if not np.isfinite(V).all():
            return math.inf
        gram = Gram.of([Pair.exact(L)], V[None])
        if not 0.0 < gram.energy < math.inf:
            return math.inf
        conjugate = largest_conjugate(self.patterns, adjoint_below(self.condition.Q, gram.Y))
        return (conjugate + self.d * (Interval.exact(gram.energy) / self.d).log()).high

    def certificate(self, dual: Matrix | None, tol: float = 0.0, others: Sequence[Matrix] = ()) -> Certificate:
        """Return feasible or not, margin 1 − λmax(L^½𝒬(D)L^½), log det D, and the bound of U = dual.

        tol, others: the one bound that there is takes no reference.
        """
        upper = math.inf if dual is None else self.bound(dual)
        return Certificate(self.feasible, 1.0 - self.top, self.lower, upper, self.d)


def norm_from_above(D: Matrix, v: Vector, below: float) -> float:
    """Return an upper bound on ‖v‖²_{D⁻¹} for D ⪰ below·I, below > 0 and D near one.

    For any w it is 2vᵀw − wᵀDw + rᵀD⁻¹r, r = v − Dw, and the last term is at most ‖r‖²/below.
    """
    w = Pair.exact(np.asarray(np.linalg.solve(D, v)[:, None], dtype=np.float64))
    given, image = Pair.exact(v[:, None]), Pair.exact(D) @ w
    rest = (given - image).rounded()
    return Interval.total((2.0 * given.inner(w), -w.inner(image), rest.inner(rest) / below)).high
