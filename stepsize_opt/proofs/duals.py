"""Multipliers of any quality: made positive semidefinite by proof, mapped by 𝒬*, and the bounds that they give.

*Tangent.*  For R ⪰ 0 and B ⪰ 0 the convex ⟨R, DBD⟩ lies above its tangent at any D̂, ⟨RD̂B + BD̂R, D⟩ − ⟨R, D̂BD̂⟩.

*log det.*  From ⟨Q, D⟩ ≤ s for every feasible D follows log det D ≤ log det D + t(s − ⟨Q, D⟩) for every t ≥ 0; with the
best t = d/s that is d log(s/d) + max_X { log det X − ⟨Q, X⟩ } + d, and for a full D d log(s/d) − log det Q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Pair
from stepsize_opt.proofs.certificate import first_proved, losses
from stepsize_opt.proofs.cholesky import is_proved_definite, log_det_from_above, log_det_from_below
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.maps import adjoint_below, lowers_to_positive
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Matrix, Pattern, PositiveMap

# By how much of its diagonal a multiplier is raised, at most, to make its image positive semidefinite: a law that is
# unbiased up to 1e-9 only may need d times as much.
_LARGEST_LIFT = 1e-5


def semidefinite(Z: Matrix, arithmetic: type[Approximate] = Pair) -> Approximate | None:
    """Return a positive semidefinite matrix next to Z, in the given precision; None when Z holds no usable number.

    Z itself when that is proved positive definite, otherwise the product A Aᵀ with the floats of its ``root``:
    positive semidefinite by construction, also when Z has a low rank.
    """
    if Z.ndim != 2 or not np.isfinite(Z).all():
        return None
    symmetric = np.asarray(0.5 * (Z + Z.T))
    if is_proved_definite(symmetric):
        return arithmetic.exact(symmetric)
    found = root(symmetric)
    if found is None:
        return None
    A = arithmetic.exact(found)
    return A @ A.T


def root(Z: Matrix) -> Matrix | None:
    """Return V Diag(w₊)^½ from the eigenvalues of a symmetric Z, in plain floats; None when Z has no positive part."""
    if not np.isfinite(Z).all():
        return None
    w, V, info = lapack.dsyevd(Z.T, compute_v=1, lower=1)
    return None if info != 0 or w[-1] <= 0.0 else np.asarray(V * np.sqrt(np.maximum(w, 0.0)))


@dataclass(frozen=True, eq=False)
class Multiplier:
    """A multiplier Z ⪰ 0 and R = 𝒬̲*(Z) ⪰ 0."""

    Z: Approximate
    R: Approximate

    @staticmethod
    def near(Q: PositiveMap, dual: Matrix, arithmetic: type[Approximate]) -> Multiplier | None:
        """Return one next to the given matrix, raised until its image is proved as the tangent needs it; or None."""
        Z = semidefinite(dual, arithmetic)
        if Z is None:
            return None
        d, positive, diagonal = len(dual), lowers_to_positive(Q), np.maximum(np.diagonal(dual), 0.0)

        def lifted(lift: float) -> Multiplier | None:
            # A diagonal entry of 𝒬*(Z) has at least the weight that 𝒬 gives to that of Z, which may be zero.
            raised = Z + arithmetic.exact(np.diag(lift * (diagonal + float(diagonal.mean())))) if lift > 0.0 else Z
            R = adjoint_below(Q, raised)
            proved = positive or is_proved_definite(R.rounded().symmetric())
            return Multiplier(raised, R) if proved else None

        return first_proved((0.0, *losses(16.0 * d * (d + 2) * UNIT, _LARGEST_LIFT, 16.0)), lifted)


def block_log_det(Q: Approximate, s: slice) -> float | None:
    """Return a lower bound on log det of a diagonal block of a symmetric Q; None without a proof.

    Cholesky reads one triangle of the enclosure, with the larger error of both.
    """
    return log_det_from_below(Q.rounded())


def log_det_conjugate(
    pattern: Pattern,
    Q: Approximate,
    below: Callable[[Approximate, slice], float | None] = block_log_det,
    above: Callable[[Matrix], float | None] = log_det_from_above,
) -> float | None:
    """Return an upper bound on max { log det D − ⟨Q, D⟩ } + d over the pattern, or None when it is not proved finite.

    ``below`` bounds log det of a diagonal block of Q, ``above`` that of a matrix of floats.
    """
    if pattern.is_diagonal:
        diagonal = Q.rounded().diagonal()
        return -diagonal.log().total().low if diagonal.low.min() > 0.0 else None
    total: list[Interval | float] = []
    for s in pattern.slices:
        block = Q.block(s)
        if pattern.W is None:
            bound = below(block, s)
            if bound is None:
                return None
            total.append(-bound)
        else:
            W = pattern.W[s, s]
            bound = above(W)
            inner = block.inner(Q.exact(W))
            if bound is None or not inner.low > 0.0:
                return None
            total.append(bound + len(W) * (len(W) / inner).log())
    return Interval.total(total).high


@dataclass(frozen=True, eq=False)
class Tangent:
    """⟨R, DBD⟩ ≥ ⟨linear, D⟩ − constant for every D."""

    linear: Approximate
    constant: Interval

    @staticmethod
    def of(R: Approximate, half: Approximate, square: Approximate) -> Tangent:
        """Return the tangent at a D̂ with half = D̂B; a square that is larger than D̂BD̂ gives a weaker bound."""
        image = R @ half
        return Tangent(image + image.T, R.inner(square))
