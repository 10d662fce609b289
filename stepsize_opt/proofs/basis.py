"""Proofs in the basis of D, for answers that are wanted to the last digits.

A proof by Cholesky factorisation pays for its rounding with nφ times the *diagonal* of a matrix.  For D and F(D), whose
eigenvalues reach over κ orders, that is nφκ relative to the smallest one.  After a congruence all numbers are near one:
with floats G that are an approximate inverse of the Cholesky factor of D,

    G F(D) Gᵀ ⪰ 0,     G D Gᵀ = I + E,     Kᵀ Q K ≈ I/t   (K ≈ G⁻¹, Q the matrix of the upper bound).

The congruences are evaluated in twice the working precision and rounded once, at the end.  Any square G serves:
G A Gᵀ ≻ 0 proves A ≻ 0 (and that G is nonsingular), and log det A = log det(G A Gᵀ) − 2 Σ log G_jj for a triangular G.

*Definiteness.*  A symmetric matrix is positive definite if each diagonal entry exceeds the absolute sum of the rest of
its row.  With the eigenvectors as a basis those sums are rounding errors.

*log det.*  For ‖E‖_F ≤ f < 1, log(1 + x) = x − x²/2 + … gives
tr E − f²/2 − f³/(3(1 − f)) ≤ log det(I + E) ≤ tr E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, eigh, lapack

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, enclosed, sum_of_logs
from stepsize_opt.proofs.cholesky import is_proved_definite
from stepsize_opt.proofs.evaluation import Evaluation, inverse_root
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.maps import image_above
from stepsize_solvers.programs import Matrix, Vector

# ‖E‖_F above which the basis is improved: the square of it is far below rounding.
_NEAR_IDENTITY = 2.0**-30


@dataclass(frozen=True, eq=False)
class Basis:
    """A lower triangular matrix G of floats with G A Gᵀ close to I for a symmetric A, and an enclosure of G A Gᵀ."""

    G: Matrix
    gram: Enclosed

    @staticmethod
    def of(A: Approximate) -> Basis | None:
        """Return None when A is not numerically positive definite."""
        G = inverse_root(A.rounded().value)
        best: Basis | None = None
        while G is not None and np.isfinite(G).all():
            found = Basis(G, A.congruent(G))
            if best is not None and not found.distance < 0.5 * best.distance:
                break
            best = found
            if best.distance < _NEAR_IDENTITY:
                break
            # The factor of an ill-conditioned A has few right digits: correct it by the factor of G A Gᵀ.
            again = inverse_root(found.gram.value)
            G = None if again is None else np.tril(again.dot(G))
        return best

    @cached_property
    def deviation(self) -> Enclosed:
        """E = G A Gᵀ − I."""
        return self.gram.plus_diagonal(-1.0)

    @cached_property
    def distance(self) -> float:
        """An upper bound on ‖E‖_F."""
        return self.deviation.frobenius_norm()

    @property
    def log_det(self) -> Interval | None:
        """An enclosure of log det A; None when A is not proved positive definite."""
        diagonal = np.abs(self.G.diagonal())
        if not (self.distance < 0.5 and diagonal.min() > 0.0):
            return None
        f = Interval.exact(self.distance)
        second = f * f / 2.0 + f * f * f / (3.0 * (1.0 - f))
        first = self.deviation.diagonal().total() - 2.0 * sum_of_logs(diagonal)
        return Interval((first - second).low, first.high)


def log_det_bounds(A: Approximate) -> Interval | None:
    """Return an enclosure of log det of a symmetric A; None when it is not proved positive definite."""
    basis = Basis.of(A)
    return None if basis is None else basis.log_det


def surplus(A: Enclosed) -> Vector:
    """Return what each diagonal entry leaves after the absolute sum of the rest of its row, from below."""
    rest = Enclosed(A.value.copy(), A.slack)
    np.fill_diagonal(rest.value, 0.0)  # its error counts
    return (enclosed(A.value.diagonal()) - rest.row_sums()).low


def proved_definite(A: Enclosed) -> bool:
    """Return whether A ≻ 0 is proved, by dominance, by dominance in the basis of eigenvectors, or by Cholesky."""
    if not np.isfinite(A.value).all():
        return False
    if surplus(A).min() > 0.0:
        return True
    rotated = _rotated(A)
    return (rotated is not None and bool(surplus(rotated).min() > 0.0)) or is_proved_definite(A)


def _rotated(A: Enclosed) -> Enclosed | None:
    """Return Uᵀ(A − Diag(h))U for the eigenvectors U of A, where h ≥ 0 covers the error of A: A ⪰ A − Diag(h)."""
    lowered = A.value.copy()
    np.fill_diagonal(lowered, (A.value.diagonal() - enclosed(Enclosed(A.error).row_sums())).low)
    _, U, info = lapack.dsyevd(lowered.T, compute_v=1, lower=1)
    return Pair.exact(lowered).congruent(np.ascontiguousarray(U.T)) if info == 0 else None


class InBasis(Evaluation):
    """A stepsize matrix in twice the working precision, with proofs in the basis of D."""

    @cached_property
    def basis(self) -> Basis | None:
        return Basis.of(Pair.exact(self.D)) if np.isfinite(self.D).all() else None

    @cached_property
    def whitened(self) -> Enclosed:
        """An enclosure of G F̲(D) Gᵀ, where F̲(D) = D − 𝒬̄(D B D) ⪯ F(D)."""
        assert self.basis is not None
        return (self.exact - image_above(self.condition.Q, self.square)).congruent(self.basis.G)

    @cached_property
    def satisfies_condition(self) -> bool:
        return self.belongs and self.log_det is not None and proved_definite(self.whitened)

    @cached_property
    def log_det(self) -> float | None:
        bounds = None if self.basis is None else self.basis.log_det
        return None if bounds is None else bounds.low

    @cached_property
    def margin(self) -> float:
        if self.basis is None or not np.isfinite(self.whitened.value).all():
            return -math.inf
        return float(eigh(self.whitened.value, eigvals_only=True, driver="evd")[0])

    @cached_property
    def boundary(self) -> float:
        """The largest t with tD feasible, from the middle of the enclosures; infinite when there is none."""
        if self.basis is None:
            return math.inf
        try:
            # G 𝒬̄ Gᵀ = G D Gᵀ − G F̲ Gᵀ
            gram = self.basis.gram.value
            top = float(eigh(gram - self.whitened.value, gram, eigvals_only=True)[-1])
        except (LinAlgError, ValueError):
            return math.inf
        return 1.0 / top if top > 0.0 else math.inf

    @cached_property
    def loss(self) -> float:
        """What the proof of feasibility takes from the margin: row sums of errors, of the congruence and of U."""
        rotated = _rotated(self.whitened)
        if rotated is None:
            return math.inf
        return float((rotated.value.diagonal() - surplus(rotated)).max() + 2.0 * self.whitened.error.sum(axis=1).max())

    def block_log_det(self, Q: Approximate, s: slice) -> float | None:
        K, info = lapack.dpotrf(self.D[s, s].T, 1, 1)  # lower, clean
        bounds = log_det_bounds(Q.exact(K.T) @ (Q @ Q.exact(K))) if info == 0 else None
        return None if bounds is None else (bounds - 2.0 * sum_of_logs(K.diagonal())).low

    def log_det_below(self, A: Matrix) -> float | None:
        bounds = log_det_bounds(Pair.exact(A))
        return None if bounds is None else bounds.low

    def log_det_above(self, W: Matrix) -> float | None:
        bounds = log_det_bounds(Pair.exact(W))
        return None if bounds is None else bounds.high
