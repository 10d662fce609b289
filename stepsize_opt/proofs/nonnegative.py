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
from scipy import sparse

from stepsize_opt.proofs.cholesky import log_det_from_factor, proved_cholesky
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_opt.proofs.thin import (
    FAILURE,
    RANGE,
    ProvedDiagonal,
    bound_of_multiples,
    in_range,
    inverse_from_below,
    sum_below,
    sum_of_logs,
)
from stepsize_solvers.programs import Vector


@dataclass(frozen=True, eq=False)
class NonnegativeCondition:
    """M without negative entries: an array, a scipy sparse matrix, or products whose longest sum has ``M.terms`` terms.

    It is known up to ±doubt·M entrywise, and up to an error between ∓Diag(slack) if there is one.
    ``positive`` says that M ⪰ 0 is known; without it nothing bounds x from above.
    """

    M: Any
    doubt: float = 0.0
    slack: Vector | None = None
    positive: bool = True

    @property
    def d(self) -> int:
        """Size of M."""
        return int(self.M.shape[0])

    @cached_property
    def _rounding(self) -> float:
        """The relative error of a product with a nonnegative vector: doubt, and a rounding for each term."""
        if isinstance(self.M, np.ndarray):
            terms = len(self.M)
        else:
            terms = int(np.diff(self.M.indptr).max(initial=0)) if sparse.issparse(self.M) else self.M.terms
        return 2.0 * self.doubt + gamma(terms + 2)

    def prove(self, x: Vector, u: Vector) -> ProvedDiagonal | None:
        """The certificate of a feasible multiple of x near one, with the test vector u; None when nothing is proved."""
        if not (in_range(x, u) and min(x.min(), u.min()) > 1.0 / RANGE):
            return None
        image, error = self._product(u)
        factor = float((x * (image + error) / u).max()) * (1.0 + gamma(8))
        if not abs(factor - 1.0) <= FAILURE:
            return None
        near = x / factor
        # A Rayleigh quotient for λmax, right to the square of the error of u.
        margin = max(0.0, 1.0 - float(u @ image) / float(np.sum(u * u / near)))
        return ProvedDiagonal.of(near, margin, self._bound(u, image, error), self._descent_log_det(near))

    def prove_multiple(self, u: Vector, w: Vector) -> ProvedDiagonal | None:
        """The certificate of γw with γ = 1/max(w∘(Mu)/u), for an u > 0 near the eigenvector; None without one."""
        if not (in_range(u, w) and min(u.min(), w.min()) > 1.0 / RANGE):
            return None
        image, error = self._product(u)
        gamma_below = (1.0 - gamma(10)) / float((w * (image + error) / u).max())
        norm = math.fsum((u * u / w).tolist())
        quotient = math.fsum((u * (image - error)).tolist()) * (1.0 - gamma(8)) / norm
        x = gamma_below * w
        margin = max(0.0, 1.0 - gamma_below * float(u @ image) / norm)
        bound = bound_of_multiples(len(u), quotient, sum_of_logs(w)[1]) + 4.0 * UNIT * len(
            u
        )  # x is γw up to a rounding
        return ProvedDiagonal.of(x, margin, bound, self._descent_log_det(x))

    def _product(self, u: Vector) -> tuple[Vector, Vector]:
        """Mu and a bound on its error, for u ≥ 0."""
        image = np.asarray(self.M @ u)
        error = self._rounding * image
        if self.slack is not None:
            # |E_ij| ≤ √(s_i s_j) for a symmetric E between ∓Diag(s).
            error += 2.0 * np.sqrt(self.slack) * float(np.sqrt(self.slack) @ u)
        return image, error

    def _bound(self, u: Vector, image: Vector, error: Vector) -> float:
        d, below = len(u), image - error - UNIT * image
        if not (self.positive and below.min() > 0.0):
            return math.inf
        energy = math.fsum((u * (image + error)).tolist()) * (1.0 + gamma(6))
        term, logs = d * math.log(energy / d), 2.0 * sum_of_logs(below)[0]
        return term - logs + 8.0 * UNIT * (d + abs(term) + abs(logs))

    def _descent_log_det(self, x: Vector) -> float:
        """log det(2Diag(x) − Diag(x)MDiag(x)) from below; for a sparse M that of Diag(x), which is no larger."""
        if not isinstance(self.M, np.ndarray):
            return -math.inf
        w, diagonal = 2.0 * inverse_from_below(x), self.M.diagonal()
        slack = 2.0 * self.doubt * self.M.sum(axis=1) + (0.0 if self.slack is None else 2.0 * self.slack)
        A = -self.M
        np.fill_diagonal(A, w - diagonal - slack - 4.0 * UNIT * (w + diagonal + slack))
        factor = proved_cholesky(A)
        return -math.inf if factor is None else sum_below(log_det_from_factor(factor), 2.0 * sum_of_logs(x)[0])
