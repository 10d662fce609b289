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

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, Plain
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_det_from_factor, log_slack, proved_cholesky
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_opt.proofs.thin import (
    FAILURE,
    RANGE,
    ProvedDiagonal,
    bound_of_multiples,
    chunks,
    in_range,
    inverse_from_below,
    sum_below,
    sum_of_logs,
    weighted_gram,
)
from stepsize_solvers.programs import LowRankModel, Matrix, Vector


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

    @staticmethod
    def around(M: Matrix, slack: Vector, model: LowRankModel) -> LowRankCondition:
        """The two sides of a dense M, known up to ∓Diag(slack).

        They are the model with its diagonal moved by the row sums of what is left of M.
        """
        V, d = model.V, len(M)
        rest = M - V @ V.T
        error = gamma(V.shape[1] + 4) * (np.abs(V) @ np.abs(V).T + np.abs(M))
        np.fill_diagonal(rest, rest.diagonal() - model.a)
        apart = ((np.abs(rest) + error).sum(axis=1) + UNIT * model.a) * (1.0 + gamma(d + 4)) + 2.0 * slack
        return LowRankCondition(model.a - apart, model.a + apart * (1.0 + gamma(4)), 1.0, V, 0.0)

    def prove(self, x: Vector, K: Matrix) -> ProvedDiagonal | None:
        """The certificate of a feasible vector next to x, with the bound of Y = KKᵀ; None when nothing is proved."""
        if not (in_range(x, K) and x.min() > 1.0 / RANGE and self.low.min() >= 0.0):
            return None
        found = self._feasible_near(x)
        if found is None:
            return None
        near, margin = found
        return ProvedDiagonal.of(near, margin, self._bound(K), self._descent_log_det(near))

    def _largest(self, gram: Enclosed) -> float:
        """λmax(β UᵀDiag(1/g)U) in plain floating point."""
        return self.beta * float(np.linalg.eigvalsh(gram.value)[-1])

    def _room(self, w: Vector) -> Vector:
        """w − a from below."""
        return np.asarray(w - self.high - 2.0 * UNIT * (w + self.high))

    def _factor(self, gram: Enclosed) -> Matrix | None:
        """A factor G with I − βUᵀDiag(1/g)U ⪰ GGᵀ, or None."""
        beta = self.beta * (1.0 + 2.0 * self.doubt)
        value = np.eye(len(gram.value)) - beta * gram.value
        error = beta * gram.error * (1.0 + gamma(4)) + 4.0 * UNIT * (beta * np.abs(gram.value) + np.abs(value))
        return proved_cholesky(Enclosed(value, error))

    def _feasible_near(self, x: Vector) -> tuple[Vector, float] | None:
        """A feasible vector next to x, and 1 − λmax(Diag(x)^½MDiag(x)^½) from below, in plain floating point."""
        g = self._room(inverse_from_below(x))
        if not g.min() > 0.0:
            g = np.maximum(g, 1e-9 / x)  # the diagonal alone is at its limit
        largest = max(self._largest(weighted_gram(self.U, 1.0 / g)), 1.0)

        def retreated(loss: float) -> tuple[Vector, float] | None:
            near = 1.0 / (self.high + g * (largest * (1.0 + loss)))
            room = self._room(inverse_from_below(near))
            gram = weighted_gram(self.U, 1.0 / room) if room.min() > 0.0 else None
            if gram is None or self._factor(gram) is None:
                return None
            # g − t/x ≥ g·λ for t = (1 − λ) min gx: at least so much of x is left.
            return near, max(0.0, 1.0 - self._largest(gram)) * float((room * near).min())

        return first_proved(self._retreats, retreated)

    @property
    def _retreats(self) -> Iterator[float]:
        return losses(64.0 * UNIT * self.U.shape[1] + 4.0 * self.doubt, FAILURE)

    def _bound(self, K: Matrix) -> float:
        """tr Y − Σ (log(a + g) + g/(a + g)) from above."""
        r = len(K)
        beta, size = self.beta * (1.0 - 2.0 * self.doubt), np.abs(K)
        logs: list[float] = []
        shares: list[float] = []
        slack = 0.0
        for c in chunks(len(self.low)):
            U, a = self.U[c], self.low[c]
            image = U @ K
            lost = gamma(r + 2) * (np.abs(U) @ size)
            below = np.maximum(np.abs(image) * (1.0 - UNIT) - lost, 0.0)
            s = beta * (below * below).sum(axis=1) * (1.0 - gamma(r + 6))
            g = 0.5 * (s + np.sqrt(s * (s + 4.0 * a))) * (1.0 - gamma(8))  # g²/(a + g) grows with g
            total = (a + g) * (1.0 - 2.0 * UNIT)
            if not total.min() > 0.0:
                return math.inf
            part = np.log(total).tolist()
            logs.append(math.fsum(part))
            shares.append(math.fsum((g / total).tolist()))
            slack += log_slack(part) + gamma(8) * shares[-1]
        trace = math.fsum((K * K).ravel().tolist()) * (1.0 + gamma(4))
        parts = (trace, -math.fsum(logs), -math.fsum(shares))
        return math.fsum(parts) + slack + 8.0 * UNIT * math.fsum(map(abs, (*parts, *logs)))

    def _descent_log_det(self, x: Vector) -> float:
        """2 Σ log x + log det(Diag(2/x − a) − βUUᵀ) from below."""
        room = self._room(2.0 * inverse_from_below(x))
        factor = self._factor(weighted_gram(self.U, 1.0 / room)) if room.min() > 0.0 else None
        if factor is None:
            return -math.inf
        return sum_below(2.0 * sum_of_logs(x)[0], sum_of_logs(room)[0], log_det_from_factor(factor))

    def prove_multiple(self, factor: float, z: Vector, w: Vector) -> ProvedDiagonal | None:
        """The certificate of γw for a γ near the given one; zᵀMz/zᵀDiag(1/w)z bounds 1/γ, best for an eigenvector z."""
        if not in_range(z, w):
            return None
        size = np.abs(z)
        # zᵀMz = Σ a z² + β‖Uᵀz‖², from below
        image, lost = np.zeros(self.U.shape[1]), np.zeros(self.U.shape[1])
        for s in chunks(len(z)):
            image += z[s] @ self.U[s]
            lost += size[s] @ np.abs(self.U[s])
        below = np.maximum(np.abs(image) - gamma(len(z) + 2) * lost, 0.0)
        beta = self.beta * (1.0 - 2.0 * self.doubt)
        energy = math.fsum((self.low * z * z).tolist()) + beta * float(below @ below)
        quotient = energy * (1.0 - gamma(len(image) + 10)) / math.fsum((z * z / w).tolist())

        def retreated(loss: float) -> ProvedDiagonal | None:
            x = factor * (1.0 - loss) * w
            room = self._room(inverse_from_below(x))
            if not room.min() > 0.0 or self._factor(weighted_gram(self.U, 1.0 / room)) is None:
                return None
            # x is γw up to a rounding
            bound = bound_of_multiples(len(z), quotient, sum_of_logs(w)[1]) + 4.0 * UNIT * len(z)
            return ProvedDiagonal.of(x, loss, bound, self._descent_log_det(x))

        return first_proved(self._retreats, retreated)

    def certify_inverse(self, p: Vector, C: Matrix) -> Certificate | None:
        """Certify D = P − PU(CCᵀ)⁻¹UᵀP for exactly the floats given; None when D ⪯ M⁻¹ is not proved."""
        if not (in_range(p, self.U) and p.min() > 1.0 / RANGE and np.all(p <= inverse_from_below(self.high))):
            return None
        upper = 1.0 / (self.beta * (1.0 + 2.0 * self.doubt)) * (1.0 - 2.0 * UNIT)  # I/β from below
        bound = self.log_det_from_below()
        if bound is None:
            return None
        found = self._inverse_certificate(p, C, weighted_gram(self.U, p), upper, -bound)
        return None if found is None else found.certificate

    def inverse(self) -> ProvedInverse | None:
        """The full D next to M⁻¹, for β > 0; None when it is not proved."""
        p = inverse_from_below(self.high)
        r, beta = self.U.shape[1], self.beta * (1.0 + 2.0 * self.doubt)
        if not (in_range(p, self.U) and p.min() > 1.0 / RANGE):
            return None
        gram = weighted_gram(self.U, p)
        upper = 1.0 / beta * (1.0 - 2.0 * UNIT)  # I/β from below
        bound = self.log_det_from_below()
        # What rounding may take: of the products, and of the Cholesky factor itself.
        top = float(gram.value.diagonal().max())
        needed = gamma(r + 8) + (4.0 * float(gram.error.max()) / top if top > 0.0 else 0.0)
        if bound is None:
            return None

        def retreated(loss: float) -> ProvedInverse | None:
            lowered = gram.value.copy()
            lowered[np.diag_indices(r)] += upper * (1.0 - loss)
            lowered -= np.diag(2.0 * gram.error.sum(axis=1))
            C, info = lapack.dpotrf(lowered, lower=1, clean=1)
            return None if info != 0 else self._inverse_certificate(p, np.asarray(C), gram, upper, -bound)

        return first_proved(losses(needed, FAILURE), retreated)

    def _inverse_certificate(
        self, p: Vector, C: Matrix, gram: Enclosed, upper: float, bound: float
    ) -> ProvedInverse | None:
        exact, G = Plain.exact, Plain.enclosing(gram.value, gram.error)
        square = exact(C) @ exact(C.T)
        above = G + -square + exact(upper * np.eye(len(C)))
        inner = proved_cholesky((square + -G).rounded().symmetric())
        if inner is None or proved_cholesky(above.rounded().symmetric()) is None:
            return None
        log_det = sum_below(sum_of_logs(p)[0], log_det_from_factor(inner), -2.0 * sum_of_logs(C.diagonal())[1])
        if not math.isfinite(log_det):
            return None
        return ProvedInverse(p, C, Certificate(True, 0.0, log_det, bound, len(p)))

    def log_det_from_below(self) -> float | None:
        """log det M = Σ log a + log det(I + βUᵀDiag(1/a)U) from below."""
        beta = self.beta * (1.0 - 2.0 * self.doubt)
        gram = weighted_gram(self.U, 1.0 / self.low)
        value = np.eye(len(gram.value)) + beta * gram.value
        error = beta * gram.error * (1.0 + gamma(4)) + 4.0 * UNIT * np.abs(value)
        factor = proved_cholesky(Enclosed(value, error))
        return None if factor is None else sum_below(sum_of_logs(self.low)[0], log_det_from_factor(factor))
