"""Diagonal stepsizes under Diag(x) M Diag(x) ⪯ Diag(x), that is M ⪯ Diag(1/x), for an M without negative entries.

For u > 0 with x∘(Mu) ≤ u, Diag(x)^½ M Diag(x)^½ maps Diag(x)^{−½}u to no more than itself, so its largest eigenvalue
is at most one (Perron, Frobenius; Collatz): x is feasible.  And for every feasible x and any u,
(Mu)ᵀDiag(x)(Mu) ≤ uᵀMu, hence by the inequality between the means

    Σ log x_j ≤ d log(uᵀMu/d) − 2 Σ log |(Mu)_j|.

Every number comes with a bound on its rounding, and what is proved holds for every M within the stated doubt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.cholesky import log_det_from_below
from stepsize_opt.proofs.evaluation import condition_of
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import twice_gamma
from stepsize_opt.proofs.thin import FAILURE, ProvedDiagonal, bound_of_multiples, in_range, one_rounding
from stepsize_solvers.programs import Program, Vector


@dataclass(frozen=True, eq=False)
class NonnegativeCondition:
    """M ⪰ 0 without negative entries: an array, or products whose longest sum has ``M.terms`` terms.

    It is known up to ±doubt·M entrywise, and up to an error between ∓Diag(slack) if there is one.
    """

    M: Any
    doubt: float = 0.0
    slack: Vector | None = None

    @property
    def d(self) -> int:
        """Size of M."""
        return int(self.M.shape[0])

    @cached_property
    def _rounding(self) -> float:
        """The relative error of a product with a nonnegative vector: doubt, and a rounding for each term."""
        terms = len(self.M) if isinstance(self.M, np.ndarray) else self.M.terms
        return 2.0 * self.doubt + twice_gamma(terms + 2)

    def prove(self, x: Vector, u: Vector) -> ProvedDiagonal | None:
        """Return the certificate of a feasible multiple of x near one, with the test vector u; None without a proof."""
        if not in_range(positive=(x, u)):
            return None
        image = self._product(u)
        factor = float((x * image / u).high.max())
        if not abs(factor - 1.0) <= FAILURE:
            return None
        near = (enclosed(x) / factor).low
        # A Rayleigh quotient for λmax, right to the square of the error of u.
        margin = max(0.0, 1.0 - float(u @ image.value) / float(np.sum(u * u / near)))
        return ProvedDiagonal.of(near, margin, self._bound(u, image), self._descent_log_det(near))

    def prove_multiple(self, u: Vector, w: Vector) -> ProvedDiagonal | None:
        """Return the certificate of γw with γ = 1/max(w∘(Mu)/u), for an u > 0 near the eigenvector; None without."""
        if not in_range(positive=(u, w)):
            return None
        image, around = self._product(u), one_rounding(w)
        factor = (1.0 / Interval.exact(float((around * image / u).high.max()))).low
        norm = (u / around).inner(u)
        x = factor * w
        margin = max(0.0, 1.0 - factor * float(u @ image.value) / norm.high)
        bound = bound_of_multiples(len(u), (image.inner(u) / norm).low, around.log().total().high)
        return ProvedDiagonal.of(x, margin, bound, self._descent_log_det(x))

    def _product(self, u: Vector) -> Enclosed:
        """Return Mu for u ≥ 0."""
        image = np.asarray(self.M @ u)
        found = Enclosed(image, self._rounding * image)
        if self.slack is None:
            return found
        # |E_ij| ≤ √(s_i s_j) for a symmetric E between ∓Diag(s).
        root = enclosed(self.slack).sqrt()
        return found + Enclosed(np.zeros_like(image), (root * root.inner(u)).high)

    def _bound(self, u: Vector, image: Enclosed) -> float:
        if not image.low.min() > 0.0:
            return math.inf
        d = len(u)
        return (d * (image.inner(u) / d).log() - 2.0 * image.log().total()).high

    def _descent_log_det(self, x: Vector) -> float:
        """Return log det(2Diag(x) − Diag(x)MDiag(x)) from below; for products that of Diag(x), which is no larger."""
        if not isinstance(self.M, np.ndarray):
            return -math.inf
        doubt = self.doubt * enclosed(self.M).row_sums()
        slack = doubt if self.slack is None else doubt + self.slack
        A = -self.M
        np.fill_diagonal(A, (2.0 / enclosed(x) - self.M.diagonal() - enclosed(slack) * 2.0).low)
        below = log_det_from_below(A)
        return -math.inf if below is None else (below + 2.0 * sum_of_logs(x)).low


def prove_diagonal(program: Program, x: Vector, multiplier: Vector) -> ProvedDiagonal | None:
    """Return the proof for a program DBD ⪯ D of diagonal D, from a test vector; None when it proves nothing."""
    condition = condition_of(program)
    B = condition.B
    if B is None or not (condition.is_plain and program.pattern.is_diagonal and B.min() >= 0.0):
        return None
    slack = np.zeros(len(B)) if condition.B_slack is None else condition.B_slack
    return NonnegativeCondition(B, slack=slack).prove(x, multiplier)
