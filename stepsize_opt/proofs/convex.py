"""log det D under 𝒬(D) ⪯ L⁻¹, the condition for convex f, proved from both sides for the floats given.

*From below.*  HHᵀ ⪰ L with proof; then I − Hᵀ𝒬̄(D)H ⪰ 0 with 𝒬̄(D) ⪰ 𝒬(D) makes 𝒬(D) ⪯ H⁻ᵀH⁻¹ ⪯ L⁻¹.

*From above.*  For every V, U = LVVᵀL ⪰ 0 and ⟨U, 𝒬(D)⟩ ≤ ⟨U, L⁻¹⟩ = ⟨VVᵀ, L⟩ = e for every feasible D.  So

    log det D ≤ log det D + s(e − ⟨𝒬*(U), D⟩) ≤ se + max { log det X − ⟨s𝒬*(U), X⟩ },

and s = d/e is best: d log(e/d) − log det 𝒬*(U) for a full D (``log_det_conjugate`` has the other patterns).
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_det_from_below, proved_cholesky
from stepsize_opt.proofs.conditions import dominating_factor
from stepsize_opt.proofs.evaluation import condition_of, log_det_conjugate, shifted_matrix
from stepsize_opt.proofs.maps import adjoint_below, image_above
from stepsize_opt.proofs.multipliers import Gram
from stepsize_opt.proofs.roundings import SMALLEST_STEPSIZE, UNIT, gamma
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_solvers.programs import Matrix, Pattern, Program, Vector

_LARGEST_RETREAT = 0.1  # a proof that takes a larger share of D has failed


class ConvexStep:
    """A stepsize matrix D, near one, with what is proved of 𝒬(D) ⪯ L⁻¹.

    The program is one made by ``Program.single``, whose B is L: a rounded one is taken at its upper end for what is
    proved of D and at its lower end for what is proved of the optimum.
    """

    def __init__(self, program: Program, D: Matrix) -> None:
        self.program, self.D = program, D
        self.condition, self.pattern = condition_of(program), program.pattern

    @cached_property
    def image(self) -> Enclosed | None:
        """An enclosure of Hᵀ𝒬̄(D)H; None when L is not positive definite to rounding."""
        H = dominating_factor(shifted_matrix(self.condition, 1.0))
        if H is None:
            return None
        above = image_above(self.condition.Q, Pair.exact(self.D))
        return (above.exact(H.T) @ (above @ above.exact(H))).rounded().symmetric()

    @cached_property
    def top(self) -> float:
        """λmax(L^½𝒬(D)L^½) in plain arithmetic."""
        return math.inf if self.image is None else float(np.linalg.eigvalsh(self.image.value)[-1])

    @cached_property
    def log_det(self) -> float | None:
        """A proved lower bound on log det D, or None."""
        return log_det_from_below(self.D)

    @cached_property
    def feasible(self) -> bool:
        """Whether D ≻ 0 has the pattern and 𝒬(D) ⪯ L⁻¹, proved."""
        small = not self.D.diagonal().min() >= SMALLEST_STEPSIZE
        if small or self.image is None or not self.pattern.contains(self.D) or self.log_det is None:
            return False
        value = np.eye(len(self.D)) - self.image.value
        return proved_cholesky(Enclosed(value, self.image.error + UNIT * np.abs(value))) is not None

    def elsewhere(self, D: Matrix) -> ConvexStep:
        """Another matrix of the same problem."""
        return ConvexStep(self.program, D)

    def repaired(self) -> ConvexStep | None:
        """The multiple of D next to the boundary that is proved feasible; None without a proof."""
        near = self.elsewhere(self.pattern.nearest(self.D))
        if not 0.0 < near.top < math.inf:
            return None

        def retreated(loss: float) -> ConvexStep | None:
            found = near.elsewhere(near.D * ((1.0 - loss) / near.top))
            return found if found.feasible else None

        return first_proved(losses(8.0 * len(self.D) * UNIT, _LARGEST_RETREAT), retreated)

    def bound(self, U: Matrix) -> float:
        """A proved upper bound on log det D over the feasible set, from a U of any quality; +inf without a proof."""
        root, L = _root(U), shifted_matrix(self.condition, -1.0)
        if proved_cholesky(L) is None:
            return math.inf
        V = None if root is None else np.asarray(np.linalg.solve(L, root), dtype=np.float64)
        if V is None or not np.isfinite(V).all():
            return math.inf
        gram = Gram.of([Pair.exact(L)], V[None])
        adjoint = adjoint_below(self.condition.Q, gram.Y)
        patterns = [self.pattern]
        if self.pattern.W is not None:  # whose multiples have rounded entries: over those of D's blocks, too
            patterns.append(Pattern(self.pattern.sizes, self.D))
        found = [log_det_conjugate(pattern, adjoint) for pattern in patterns]
        if None in found or not 0.0 < gram.energy < math.inf:
            return math.inf
        d, conjugate = len(self.D), max(value for value in found if value is not None)
        term = d * math.log(gram.energy / d)
        return conjugate + term + 4.0 * UNIT * (abs(conjugate) + abs(term) + d)  # the quotient's rounding, too

    def certificate(self, U: Matrix | None) -> Certificate:
        """Feasible or not, margin 1 − λmax(L^½𝒬(D)L^½), log det D, and the bound of U."""
        lower = -math.inf if self.log_det is None else self.log_det
        upper = math.inf if U is None else self.bound(U)
        return Certificate(self.feasible, 1.0 - self.top, lower, upper, len(self.D))


def norm_from_above(D: Matrix, v: Vector, below: float) -> float:
    """An upper bound on ‖v‖²_{D⁻¹} for D ⪰ below·I, below > 0 and D near one.

    For any w it is 2vᵀw − wᵀDw + rᵀD⁻¹r, r = v − Dw, and the last term is at most ‖r‖²/below.
    """
    w = Pair.exact(np.asarray(np.linalg.solve(D, v)[:, None], dtype=np.float64))
    given, image = Pair.exact(v[:, None]), Pair.exact(D) @ w
    rest = (given + -image).rounded()
    size = np.abs(rest.value) + rest.error
    terms = (2.0 * given.inner_from_above(w), (-w).inner_from_above(image), float(np.sum(size * size)) / below)
    return math.fsum(terms) + 4.0 * gamma(len(D) + 4) * abs(terms[2]) + 4.0 * UNIT * math.fsum(map(abs, terms))


def _root(U: Matrix) -> Matrix | None:
    """A matrix with root rootᵀ near the positive semidefinite part of U; None when U holds no usable number."""
    if not np.isfinite(U).all():
        return None
    w, V, info = lapack.dsyevd(0.5 * (U + U.T), compute_v=1, lower=1)
    return None if info != 0 or w[-1] <= 0.0 else np.asarray(V * np.sqrt(np.maximum(w, 0.0)))
