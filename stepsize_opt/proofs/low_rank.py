"""Stepsizes under DMD ⪯ D, that is D ⪯ M⁻¹, for M = Diag(a) + βUUᵀ with a thin U (d×r): statements about r×r matrices.

*D = Diag(x).*  M ⪯ Diag(1/x) means g = 1/x − a > 0 and βUᵀDiag(1/g)U ⪯ I.  With w = 1/g, for every feasible x and any K
(r×r), Y = KKᵀ and s_j = β‖Kᵀu_j‖²,

    Σ log x_j ≤ tr Y + Σ_j max_w { log(w/(1 + a_jw)) − s_jw } ≤ tr Y − Σ_j ( log(a_j + g_j) + g_j/(a_j + g_j) )

for any g > 0 with g_j²/(a_j + g_j) ≤ s_j: the logarithm lies below its tangent at w = 1/g_j, and s_j is no less than
the slope of that.

*Full D.*  The best is M⁻¹, with −log det M as the bound.  Let p ≤ 1/a, P = Diag(p), G = UᵀPU, C lower triangular.
D = P − PU(CCᵀ)⁻¹UᵀP, for the floats of p, U and C, is at most (P⁻¹ + βUUᵀ)⁻¹ ⪯ M⁻¹ when CCᵀ ⪯ I/β + G, and positive
definite when CCᵀ ≻ G; log det D = Σ log p + log det(CCᵀ − G) − log det CCᵀ.

Every number comes with a bound on its rounding, and what is proved holds for every M within the stated doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.certificate import Certificate, first_proved, losses
from stepsize_opt.proofs.cholesky import is_proved_definite, log_det_from_below
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import UNIT
from stepsize_opt.proofs.thin import (
    FAILURE,
    ProvedDiagonal,
    bound_of_multiples,
    chunks,
    in_range,
    one_rounding,
    weighted_gram,
)
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class ProvedInverse:
    """p and C of D = P − PU(CCᵀ)⁻¹UᵀP, and the certificate of D."""

    p: Vector
    C: Matrix
    certificate: Certificate


@dataclass(frozen=True, eq=False)
class LowRankCondition:
    """M between Diag(low) + β(1 − doubt)UUᵀ and Diag(high) + β(1 + doubt)UUᵀ, with a thin U (d×r)."""

    low: Vector
    high: Vector
    beta: float
    U: Matrix
    doubt: float

    @property
    def d(self) -> int:
        """Size of M."""
        return len(self.low)

    @cached_property
    def _beta(self) -> Interval:
        """The numbers between β(1 − doubt) and β(1 + doubt)."""
        return self.beta * (1.0 + Interval(-self.doubt, self.doubt))

    def prove(self, x: Vector, K: Matrix) -> ProvedDiagonal | None:
        """Return the certificate of a feasible vector next to x, with the bound of Y = KKᵀ; None without a proof."""
        if not (in_range(K, positive=(x,)) and self.low.min() >= 0.0):
            return None
        found = self._feasible_near(x)
        if found is None:
            return None
        near, margin = found
        return ProvedDiagonal.of(near, margin, self._bound(K), self._descent_log_det(near))

    def _room(self, x: Vector, c: float = 1.0) -> Vector:
        """Return c/x − a from below."""
        return (c / enclosed(x) - self.high).low

    def _gap(self, room: Vector) -> Enclosed | None:
        """Return I − βUᵀDiag(1/g)U for the largest β, proved to be ≻ 0, so that Diag(a + g) ⪰ M; or None."""
        if not room.min() > 0.0:
            return None
        gap = (-self._beta.high * weighted_gram(self.U, 1.0 / room)).plus_diagonal(1.0)
        return gap if is_proved_definite(gap) else None

    def _feasible_near(self, x: Vector) -> tuple[Vector, float] | None:
        """Return a feasible vector next to x, and 1 − λmax(Diag(x)^½MDiag(x)^½) from below, in plain floats."""
        g = self._room(x)
        if not g.min() > 0.0:
            g = np.maximum(g, 1e-9 / x)  # the diagonal alone is at its limit
        # λmax(β UᵀDiag(1/g)U) in plain floating point
        largest = max(self.beta * float(np.linalg.eigvalsh(weighted_gram(self.U, 1.0 / g).value)[-1]), 1.0)

        def retreated(loss: float) -> tuple[Vector, float] | None:
            near = 1.0 / (self.high + g * (largest * (1.0 + loss)))
            room = self._room(near)
            gap = self._gap(room)
            if gap is None:
                return None
            # g − t/x ≥ g·λ for t = (1 − λ) min gx: at least so much of x is left.
            return near, max(0.0, float(np.linalg.eigvalsh(gap.value)[0])) * float((room * near).min())

        return first_proved(self._retreats, retreated)

    @property
    def _retreats(self) -> Iterator[float]:
        return losses(64.0 * UNIT * self.U.shape[1] + 4.0 * self.doubt, FAILURE)

    def _bound(self, K: Matrix) -> float:
        """Return tr Y − Σ (log(a + g) + g/(a + g)) from above."""
        taken: list[Interval] = []
        for c in chunks(self.d):
            a, image = self.low[c], enclosed(self.U[c]) @ K
            s = enclosed(np.maximum((self._beta.low * image.row_products(image)).low, 0.0))
            g = np.maximum((0.5 * (s + (s * (s + 4.0 * a)).sqrt())).low, 0.0)  # g²/(a + g) grows with g
            total = a + enclosed(g)
            if not total.low.min() > 0.0:
                return math.inf
            taken.append((total.log() + g / total).total())
        return (enclosed(K).inner(K) - Interval.total(taken)).high

    def _descent_log_det(self, x: Vector) -> float:
        """Return 2 Σ log x + log det(Diag(2/x − a) − βUUᵀ) from below."""
        room = self._room(x, 2.0)
        gap = self._gap(room)
        below = None if gap is None else log_det_from_below(gap)
        return -math.inf if below is None else (2.0 * sum_of_logs(x) + sum_of_logs(room) + below).low

    def prove_multiple(self, factor: float, z: Vector, w: Vector) -> ProvedDiagonal | None:
        """Return the certificate of γw for a γ near the given one; zᵀMz/zᵀDiag(1/w)z, z an eigenvector, bounds 1/γ."""
        if not in_range(z, w):
            return None
        exact, around = enclosed(z), one_rounding(w)
        image = sum((exact[s] @ self.U[s] for s in chunks(len(z))), enclosed(np.zeros(self.U.shape[1])))
        energy = (self.low * exact).inner(exact) + self._beta * image.inner(image)  # zᵀMz
        quotient = (energy / (exact / around).inner(exact)).low
        bound = bound_of_multiples(len(z), quotient, around.log().total().high)

        def retreated(loss: float) -> ProvedDiagonal | None:
            x = factor * (1.0 - loss) * w
            if self._gap(self._room(x)) is None:
                return None
            return ProvedDiagonal.of(x, loss, bound, self._descent_log_det(x))

        return first_proved(self._retreats, retreated)

    def certify_inverse(self, p: Vector, C: Matrix) -> Certificate | None:
        """Certify D = P − PU(CCᵀ)⁻¹UᵀP for exactly the floats given; None when D ⪯ M⁻¹ is not proved."""
        if not (in_range(self.U, positive=(p,)) and np.all(p <= self._inverse_diagonal)):
            return None
        bound = self.log_det_from_below()
        found = None if bound is None else self._inverse_certificate(p, C, weighted_gram(self.U, p), -bound)
        return None if found is None else found.certificate

    @property
    def _inverse_diagonal(self) -> Vector:
        """1/a from below."""
        return (1.0 / enclosed(self.high)).low

    @property
    def _inverse_beta(self) -> float:
        """1/β from below."""
        return (1.0 / self._beta).low

    def inverse(self) -> ProvedInverse | None:
        """Return the full D next to M⁻¹, for β > 0; None when it is not proved."""
        p, r = self._inverse_diagonal, self.U.shape[1]
        if not in_range(self.U, positive=(p,)):
            return None
        gram, bound = weighted_gram(self.U, p), self.log_det_from_below()
        if bound is None:
            return None
        # What rounding may take: of the products, and of the Cholesky factor itself.
        top = float(gram.value.diagonal().max())
        needed = 2.0 * (r + 8) * UNIT + (4.0 * float(gram.error.max()) / top if top > 0.0 else 0.0)

        def retreated(loss: float) -> ProvedInverse | None:
            lowered = gram.value.copy()
            lowered[np.diag_indices(r)] += self._inverse_beta * (1.0 - loss)
            lowered -= np.diag(2.0 * gram.error.sum(axis=1))
            C, info = lapack.dpotrf(lowered, lower=1, clean=1)
            return None if info != 0 else self._inverse_certificate(p, np.asarray(C), gram, -bound)

        return first_proved(losses(needed, FAILURE), retreated)

    def _inverse_certificate(self, p: Vector, C: Matrix, gram: Enclosed, bound: float) -> ProvedInverse | None:
        square = enclosed(C) @ C.T
        inner = log_det_from_below((square - gram).symmetric())
        if inner is None or not is_proved_definite((gram - square).plus_diagonal(self._inverse_beta).symmetric()):
            return None
        log_det = (sum_of_logs(p) + inner - 2.0 * sum_of_logs(C.diagonal())).low
        return ProvedInverse(p, C, Certificate(True, 0.0, log_det, bound, len(p))) if math.isfinite(log_det) else None

    def log_det_from_below(self) -> float | None:
        """Return log det M = Σ log a + log det(I + βUᵀDiag(1/a)U) from below."""
        gram = self._beta.low * weighted_gram(self.U, 1.0 / self.low)
        below = log_det_from_below(gram.plus_diagonal(1.0))
        return None if below is None else (sum_of_logs(self.low) + below).low
