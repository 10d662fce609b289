"""Any diagonal sketch: from the distribution of its diagonal, or from its second moments.

The theorems, and the limit with them, hold for E[S] = I, which a list of floats has up to rounding only.  So the
distribution is defined by the floats such that E[S] = I holds exactly:

*Support.*  s is s_r/m with probability w_r/Σw, with the exact mean m = Σ_r w_r s_r/Σw, entry by entry.

*Moments.*  P ⪰ 11ᵀ is proved for the floats of P, so that P is the second moment of a vector with mean 1, such as the
normal one with covariance P − 11ᵀ.  A P that rounding has made indefinite is raised on its diagonal first.  For M ⪰ 0
that only adds to P ∘ M, so that every stepsize that is feasible for the raised P is feasible for the given one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, isqrt
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepsize_opt.inputs import (
    SLACK,
    check_unbiased,
    distribution,
    read_only,
    real_array,
    real_number,
    symmetric_part,
)
from stepsize_opt.proofs import UNIT, Enclosed, is_proved_definite
from stepsize_opt.sketches.base import DiagonalBase, Law, check_listable
from stepsize_opt.sketches.text import counted
from stepsize_solvers.programs import Matrix, PositiveMap, Vector, add_to_diagonal, hadamard

# Products of weights and values from here on keep all their digits; above the smallest normal number, 2.2e-308, because
# sums of smaller ones would be rounded to it.
_LEAST_PRODUCT = 1e-290

DiagonalSampler: TypeAlias = Callable[[np.random.Generator, int], ArrayLike]


class DiagonalSketch(DiagonalBase):
    """Any diagonal sketch S = Diag(s), 𝒫(M) = P ∘ M: from the law of s or from its second moments.

    Examples
    --------
    >>> from stepsize_opt import DiagonalSketch
    >>> sketch = DiagonalSketch.from_support([[2.0, 0.0], [0.0, 2.0]], [0.5, 0.5])  # one of two coordinates
    >>> sketch.expected_nonzeros, sketch.omega
    (1.0, 1.0)
    """

    unbiased_by_formula: ClassVar[bool] = True

    @staticmethod
    def from_support(vectors: ArrayLike, weights: ArrayLike) -> DiagonalSketch:
        """s is the row ``vectors[r]`` with probability ``weights[r]``, so P = Σ_r w_r s_r s_rᵀ.

        ``vectors`` has shape (R, d), ``weights`` shape (R,).  Raises ValueError unless the vectors are nonnegative,
        the weights a probability distribution, and Σ_r w_r s_r = 1 in every coordinate.  Both sums may be off by
        rounding: the vectors are divided by their mean.
        """
        return _SupportDiagonal(vectors, weights)

    @staticmethod
    def from_moments(P: ArrayLike, sampler: DiagonalSampler, expected_nonzeros: float | None = None) -> DiagonalSketch:
        """s is what ``sampler(rng, size)`` draws, an array of shape (size, d), and P = E[s sᵀ] is known.

        P says nothing of zeros: give ``expected_nonzeros`` if you know it, otherwise d is used, which is never too
        few.  That the sampler has mean 1 and second moments P is the caller's word; each draw is checked for its
        shape and for negative entries.  Raises ValueError unless P is symmetric with nonnegative entries
        (s ≥ 0) and P ⪰ 11ᵀ (the covariance of s is P − 11ᵀ).  Where rounding leaves P − 11ᵀ indefinite, the diagonal
        of P is raised by a share of at most 1e-9.
        """
        return _MomentDiagonal(P, sampler, expected_nonzeros)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class _SupportDiagonal(DiagonalSketch):
    vectors: Matrix
    weights: Vector

    def __init__(self, vectors: ArrayLike, weights: ArrayLike) -> None:
        V = real_array("vectors", vectors)
        if V.ndim != 2 or V.size == 0:
            msg = f"vectors must have shape (R, d) with R and d at least 1, got {V.shape}"
            raise ValueError(msg)
        if np.any(V < 0.0):
            msg = f"vectors must be nonnegative, because S = Diag(s) ⪰ 0; got an entry {V.min():g}"
            raise ValueError(msg)
        w = distribution(weights, len(V), "vectors")
        check_unbiased("vectors", w @ V, np.ones(V.shape[1]), w @ V)
        least = np.min(V, axis=1, where=V > 0.0, initial=1.0)
        if np.any((w > 0.0) & (w * least < _LEAST_PRODUCT / least)):
            msg = (
                f"vectors hold positive numbers so small that w_r s_i s_j falls below {_LEAST_PRODUCT:g}; use 0 instead"
            )
            raise ValueError(msg)
        sums, total = _sums(V, w)
        self._set(d=V.shape[1], vectors=read_only(V / (sums / total)), weights=w)

    def _map(self) -> PositiveMap:
        # Coordinates with equal columns always have equal factors s_i = s_j; one of them stands for all.
        columns, labels = np.unique(self.vectors, axis=1, return_inverse=True)
        P, roundings = _sum_of_squares(columns, self.weights)
        sums, total = _sums(columns, self.weights)
        P *= total / (sums[:, None] * sums)
        roundings += 8  # two in each of the sums, one in the total, three in what is made of them
        if len(np.unique(P, axis=0)) < len(P):
            # Rows of P that are equal by rounding alone must not say s_i = s_j (see reductions.commutes).
            np.einsum("ii->i", P)[:] *= 1.0 + 2.0**-52
            roundings += 4
        labels = labels.ravel()
        return hadamard(read_only(P[np.ix_(labels, labels)]), roundings)

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.asarray((self.vectors == 1.0).all(axis=0))  # P may round to 1

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.vectors[rng.choice(self.weights.size, size=size, p=self.weights)]

    @property
    def expected_nonzeros(self) -> float:
        sent, total = _sums(np.count_nonzero(self.vectors, axis=1)[:, None], self.weights)
        return min(float(sent[0]) / total, float(self.d))

    @property
    def sampling_probabilities(self) -> Vector:
        """The probability of each value above 1 of each coordinate; every coordinate that varies has one."""
        drawn = self.weights > 0.0
        found = []
        for column in np.unique(self.vectors[drawn], axis=1).T:
            values, places = np.unique(column, return_inverse=True)
            found.append(np.bincount(places.ravel(), self.weights[drawn])[values > 1.0])
        return np.minimum(1.0, np.concatenate(found))

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, {counted(self.weights.size, 'vector', 'vectors')})"

    def support(self) -> Law:
        check_listable(self, self.weights.size)
        return self.weights, self.vectors


@dataclass(frozen=True, eq=False, init=False, repr=False)
class _MomentDiagonal(DiagonalSketch):
    P: Matrix
    sampler: DiagonalSampler
    nonzeros: float

    def __init__(self, P: ArrayLike, sampler: DiagonalSampler, expected_nonzeros: float | None) -> None:
        moments = real_array("P", P)
        if moments.ndim != 2 or moments.size == 0 or moments.shape[0] != moments.shape[1]:
            msg = f"P must be a square matrix, got shape {moments.shape}"
            raise ValueError(msg)
        moments = symmetric_part("P", moments)
        if np.any(moments < 0.0):
            msg = f"P must have nonnegative entries, because P = E[s sᵀ] with s ≥ 0; got an entry {moments.min():g}"
            raise ValueError(msg)
        moments = _raised_to_covariance(moments)
        if not callable(sampler):
            msg = f"sampler must be a function (rng, size) -> array of shape (size, d), got {sampler!r}"
            raise TypeError(msg)
        d = moments.shape[0]
        nonzeros = float(d) if expected_nonzeros is None else real_number("expected_nonzeros", expected_nonzeros)
        if not 0.0 < nonzeros <= d:
            msg = f"expected_nonzeros must be in (0, d={d}], got {nonzeros}"
            raise ValueError(msg)
        self._set(d=d, P=read_only(moments), sampler=sampler, nonzeros=nonzeros)

    def _map(self) -> PositiveMap:
        return hadamard(self.P, 0)

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        drawn = real_array("sampler(rng, size)", self.sampler(rng, size))
        if drawn.shape != (size, self.d) or np.any(drawn < 0.0):
            what = f"shape {drawn.shape}" if drawn.shape != (size, self.d) else f"an entry {drawn.min():g}"
            msg = f"sampler(rng, size) must return nonnegative numbers of shape ({size}, {self.d}), got {what}"
            raise ValueError(msg)
        return drawn

    @property
    def expected_nonzeros(self) -> float:
        return self.nonzeros

    @property
    def expected_rank(self) -> float:
        return float(self.d)  # P says nothing of zeros, and the caller's number is not used in proofs

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, given moments)"


def _raised_to_covariance(P: Matrix) -> Matrix:
    """Return P with its diagonal raised by the smallest share tried for which P ⪰ 11ᵀ is proved.

    Equal rows stay equal, because they belong to equal coordinates, and rows of ones stay ones, because their
    coordinates are constant.  Raises ValueError where a share of 1e-9 is not enough.
    """
    rows, first, labels = np.unique(P, axis=0, return_index=True, return_inverse=True)
    labels = labels.ravel()
    varied = np.any(rows != 1.0, axis=1)
    varying = first[varied]
    among = P[np.ix_(varying, varying)]
    share = 0.0
    while True:
        raised = among.copy()
        add_to_diagonal(raised, share * among.diagonal())
        covariance = raised - 1.0
        # The difference has no rounding error for entries from ½ to 2⁵³.
        error = np.where((raised < 0.5) | (raised > 2.0**53), UNIT * np.abs(covariance), 0.0)
        if not varying.size or is_proved_definite(Enclosed(covariance, error)):
            distinct = np.ones((len(rows), len(rows)))
            distinct[np.ix_(varied, varied)] = raised
            return distinct[np.ix_(labels, labels)]
        if share == SLACK:
            break
        share = min(max(2.0 * share, len(among) * 4.0 * UNIT), SLACK)
    least = float(np.linalg.eigvalsh(P - 1.0)[0])
    msg = (
        f"P − 11ᵀ must be positive semidefinite, being the covariance of s, got an eigenvalue {least:g}; "
        "give the second moments E[s sᵀ] of an s with mean 1"
    )
    raise ValueError(msg)


def _sums(V: Matrix, weights: Vector) -> tuple[Vector, float]:
    """Return Σ_r w_r s_r over the rows s_r of V, whose products and sums are rounded once each, and Σ_r w_r."""
    return np.array([fsum((weights * column).tolist()) for column in V.T]), fsum(weights.tolist())


def _sum_of_squares(V: Matrix, weights: Vector) -> tuple[Matrix, int]:
    """Σ_r w_r s_r s_rᵀ over the rows s_r of V, symmetric, and how many roundings an entry went through.

    All terms are nonnegative, so the error is relative to the sum; √R sums of √R terms keep it small.
    """
    step = isqrt(len(V) - 1) + 1
    P = np.zeros((V.shape[1], V.shape[1]))
    for first in range(0, len(V), step):
        part = V[first : first + step]
        P += (part * weights[first : first + step, None]).T @ part
    # In each sum a product with w_r, one with s_j, step − 1 additions; then as many additions of sums, and the mean.
    return (P + P.T) / 2.0, 2 * step + 2
