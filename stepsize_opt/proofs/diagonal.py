"""Diagonal stepsizes under Diag(x) M Diag(x) ⪯ Diag(x), that is M ⪯ Diag(1/x), proved without a factorisation of M.

*M without negative entries* (``NonnegativeCondition``).  For u > 0 with x∘(Mu) ≤ u, Diag(x)^½ M Diag(x)^½ maps
Diag(x)^{−½}u to no more than itself, so that its largest eigenvalue is at most one (Perron, Frobenius; Collatz): x is
feasible.  And for every feasible x and any u, (Mu)ᵀDiag(x)(Mu) ≤ uᵀMu, hence by the inequality between the means

    Σ log x_j ≤ d log(uᵀMu/d) − 2 Σ log |(Mu)_j|.

*M = Diag(a) + βUUᵀ* with a thin U (``LowRankCondition``).  M ⪯ Diag(1/x) means g = 1/x − a > 0 and βUᵀDiag(1/g)U ⪯ I,
an r×r matrix.  With w = 1/g, for every feasible x and any K (r×r), Y = KKᵀ and s_j = β‖Kᵀu_j‖²,

    Σ log x_j ≤ tr Y + Σ_j max_w { log(w/(1 + a_jw)) − s_jw } ≤ tr Y − Σ_j ( log(a_j + g_j) + g_j/(a_j + g_j) )

for any g > 0 with g_j²/(a_j + g_j) ≤ s_j: the logarithm lies below its tangent at w = 1/g_j, and s_j is no less than
the slope of that.

Every number comes with a bound on its rounding, and what is proved holds for every M within the stated doubt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.cholesky import log_slack, proved_cholesky
from stepsize_opt.proofs.evaluation import condition_of
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_solvers.programs import LowRankModel, Matrix, Program, ThinMultiplier, Vector

_ROWS_AT_ONCE = 2**15
# A proof that takes a larger share of x has failed.
_FAILURE = 0.01
# Stepsizes and multipliers outside of this range would need bounds on underflow.
_RANGE = 2.0**400


@dataclass(frozen=True, eq=False)
class ProvedDiagonal:
    """x proved feasible, the certificate of Diag(x), and log det of H = 2D − T(D) from below."""

    x: Vector
    certificate: Certificate
    descent_log_det: float

    @staticmethod
    def of(x: Vector, margin: float, bound: float, descent_log_det: float) -> ProvedDiagonal:
        lower = sum_of_logs(x)[0]
        return ProvedDiagonal(x, Certificate(True, margin, lower, bound, len(x)), max(lower, descent_log_det))


def sum_of_logs(x: Vector) -> tuple[float, float]:
    """Σ log x_j from below and from above."""
    logs = np.log(x).tolist()
    total, slack = math.fsum(logs), log_slack(logs)
    return total - slack, total + slack


def chunks(d: int) -> Iterator[slice]:
    """Slices that cover d rows, so few at a time that a product with them needs little memory."""
    for start in range(0, d, _ROWS_AT_ONCE):
        yield slice(start, min(d, start + _ROWS_AT_ONCE))


def _in_range(*arrays: Matrix) -> bool:
    return all(np.isfinite(A).all() and np.abs(A).max(initial=0.0) < _RANGE for A in arrays)


def _inverse_from_below(x: Vector) -> Vector:
    return np.asarray((1.0 - 2.0 * UNIT) / x)


def _log_det_from_factor(factor: Matrix) -> float:
    """log det GGᵀ from below."""
    logs = np.log(factor.diagonal()).tolist()
    return 2.0 * math.fsum(logs) - log_slack(logs)


def _sum_below(*parts: float) -> float:
    return math.fsum(parts) - 4.0 * UNIT * math.fsum(map(abs, parts))


@dataclass(frozen=True, eq=False)
class NonnegativeCondition:
    """M without negative entries, an array or a scipy sparse matrix.

    It is known up to ±doubt·M entrywise, and up to an error between ∓Diag(slack) if there is one.
    """

    M: Any
    doubt: float = 0.0
    slack: Vector | None = None

    @cached_property
    def _rounding(self) -> float:
        """The relative error of a product with a nonnegative vector: doubt, and a rounding for each term."""
        dense = isinstance(self.M, np.ndarray)
        longest = self.M.shape[0] if dense else int(np.diff(self.M.indptr).max(initial=0))
        return 2.0 * self.doubt + gamma(longest + 2)

    def prove(self, x: Vector, u: Vector) -> ProvedDiagonal | None:
        """The certificate of a feasible multiple of x near one, with the test vector u; None when nothing is proved."""
        if not (_in_range(x, u) and min(x.min(), u.min()) > 1.0 / _RANGE):
            return None
        image = self.M @ u
        error = self._rounding * image
        if self.slack is not None:
            # |E_ij| ≤ √(s_i s_j) for a symmetric E between ∓Diag(s).
            error += 2.0 * np.sqrt(self.slack) * float(np.sqrt(self.slack) @ u)
        factor = float((x * (image + error) / u).max()) * (1.0 + gamma(8))
        if not abs(factor - 1.0) <= _FAILURE:
            return None
        near = x / factor
        # A Rayleigh quotient for λmax, right to the square of the error of u.
        margin = max(0.0, 1.0 - float(u @ image) / float(np.sum(u * u / near)))
        return ProvedDiagonal.of(near, margin, self._bound(u, image, error), self._descent_log_det(near))

    def _bound(self, u: Vector, image: Vector, error: Vector) -> float:
        d, below = len(u), image - error - UNIT * image
        if not below.min() > 0.0:
            return math.inf
        energy = math.fsum((u * (image + error)).tolist()) * (1.0 + gamma(6))
        term, logs = d * math.log(energy / d), 2.0 * sum_of_logs(below)[0]
        return term - logs + 8.0 * UNIT * (d + abs(term) + abs(logs))

    def _descent_log_det(self, x: Vector) -> float:
        """log det(2Diag(x) − Diag(x)MDiag(x)) from below; for a sparse M that of Diag(x), which is no larger."""
        if not isinstance(self.M, np.ndarray):
            return -math.inf
        w, diagonal = 2.0 * _inverse_from_below(x), self.M.diagonal()
        slack = 2.0 * self.doubt * self.M.sum(axis=1) + (0.0 if self.slack is None else 2.0 * self.slack)
        A = -self.M
        np.fill_diagonal(A, w - diagonal - slack - 4.0 * UNIT * (w + diagonal + slack))
        factor = proved_cholesky(A)
        return -math.inf if factor is None else _sum_below(_log_det_from_factor(factor), 2.0 * sum_of_logs(x)[0])


@dataclass(frozen=True, eq=False)
class LowRankCondition:
    """M between Diag(low) + β(1 − doubt)UUᵀ and Diag(high) + β(1 + doubt)UUᵀ, with a thin U (d×r)."""

    low: Vector
    high: Vector
    beta: float
    U: Matrix
    doubt: float

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
        if not (_in_range(x, K) and x.min() > 1.0 / _RANGE and self.low.min() >= 0.0):
            return None
        found = self._feasible_near(x)
        if found is None:
            return None
        near, margin = found
        return ProvedDiagonal.of(near, margin, self._bound(K), self._descent_log_det(near))

    def _gram(self, g: Vector) -> Enclosed:
        """Uᵀ Diag(1/g) U.

        Entries of a product WᵀW of chunks are off by at most γ√(G_ii G_jj), and the chunks are added up.
        """
        r = self.U.shape[1]
        G = np.zeros((r, r))
        parts = 0
        for s in chunks(len(g)):
            W = self.U[s] / np.sqrt(g[s])[:, None]
            G += W.T @ W
            parts += 1
        root = np.sqrt(G.diagonal())
        return Enclosed(G, gamma(min(len(g), _ROWS_AT_ONCE) + parts + 8) * np.multiply.outer(root, root)).symmetric()

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
        g = self._room(_inverse_from_below(x))
        if not g.min() > 0.0:
            g = np.maximum(g, 1e-9 / x)  # the diagonal alone is at its limit
        largest = max(self._largest(self._gram(g)), 1.0)
        retreat = 64.0 * UNIT * self.U.shape[1] + 4.0 * self.doubt
        while retreat <= _FAILURE:
            near = 1.0 / (self.high + g * (largest * (1.0 + retreat)))
            room = self._room(_inverse_from_below(near))
            gram = self._gram(room) if room.min() > 0.0 else None
            if gram is not None and self._factor(gram) is not None:
                # g − t/x ≥ g·λ for t = (1 − λ) min gx: at least so much of x is left.
                return near, max(0.0, 1.0 - self._largest(gram)) * float((room * near).min())
            retreat *= 4.0
        return None

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
        room = self._room(2.0 * _inverse_from_below(x))
        factor = self._factor(self._gram(room)) if room.min() > 0.0 else None
        if factor is None:
            return -math.inf
        return _sum_below(2.0 * sum_of_logs(x)[0], sum_of_logs(room)[0], _log_det_from_factor(factor))


def prove_diagonal(program: Program, x: Vector, multiplier: ThinMultiplier) -> ProvedDiagonal | None:
    """The proof for a program DBD ⪯ D of diagonal D, from a thin multiplier; None when it proves nothing."""
    condition = condition_of(program)
    B = condition.B
    if B is None or not (condition.is_plain and program.pattern.is_diagonal):
        return None
    slack = np.zeros(len(B)) if condition.B_slack is None else condition.B_slack
    if isinstance(multiplier, LowRankModel):
        return LowRankCondition.around(B, slack, multiplier).prove(x, multiplier.K)
    return NonnegativeCondition(B, slack=slack).prove(x, multiplier) if B.min() >= 0.0 else None
