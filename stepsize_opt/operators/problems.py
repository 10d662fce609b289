"""From an L that is not dense and a law with 𝒫(M) = Diag(α∘diag M) + βM to the M = 𝒫(L) of the condition DMD ⪯ D."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from stepsize_opt.inputs import LARGE, SMOOTHNESS_REMEDY, binary_exponent, power_of_four, scaled_exactly
from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.proofs import LowRankCondition, NonnegativeCondition, coefficient_roundings, gamma
from stepsize_solvers.programs import Matrix, PositiveMap, ScaledPlusTrace, Vector

ANSWERS = (
    "answers without a dense matrix: for LowRankPlusDiagonal structure='diagonal', 'scalar' and Direction(w), w a "
    "vector, with det-CGD1 and det-CGD2; for a dense U also Direction(W), W a diagonal plus low rank, the full D of "
    "det-CGD2, and of det-CGD1 with goal='descent'; for a sparse U or L without negative entries 'diagonal', "
    "'scalar' and Direction(w); where 'diagonal' has one, goal='euclidean' or 'linear' (a number) as well; "
    "with the sketches RandK, IndependentSampling, BernQ and Identity.  Gaussian: 'scalar'; all of det-CGD2; for a "
    "dense U and a diagonal that is one number the full D of det-CGD1"
)


@dataclass(frozen=True, eq=False)
class LargeProblem:
    """DMD ⪯ D with M = 𝒫(L) in one of the two forms, for an L in units in which it is near one; words: how it came.

    power: n, where 4ⁿL is the matrix that was given; log_det: of L, from below; remark: what is not proved and why.
    """

    L: Any
    power: int
    condition: LowRankCondition | NonnegativeCondition
    words: str
    log_det: float
    remark: str = ""


@dataclass(frozen=True, eq=False)
class _GramProducts:
    """M = Diag(a) + βUUᵀ with a sparse U without negative entries, by its products with vectors."""

    a: Vector
    beta: float
    U: Any

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.a), len(self.a)

    @property
    def terms(self) -> int:
        """The most numbers that are added up for an entry of a product."""
        return int(np.diff(self.U.indptr).max(initial=0) + np.bincount(self.U.indices).max(initial=0)) + 2

    def diagonal(self) -> Vector:
        return np.asarray(self.a + self.beta * self.U.multiply(self.U).sum(axis=1))

    def __matmul__(self, v: Vector) -> Vector:
        return np.asarray(self.a * v + self.beta * (self.U @ (self.U.T @ v)))


def large_problem(L: Any, law: PositiveMap) -> LargeProblem | None:
    """The problem of an L that is not to be made dense; None for an L that is.

    Raises ValueError for a LowRankPlusDiagonal with a law or a sign that has no such form, or an L whose numbers lie
    too far apart.
    """
    split = law.diagonal_plus_scaled
    if isinstance(L, LowRankPlusDiagonal):
        L, n = L.near_one()
        if isinstance(law, ScaledPlusTrace):
            return _factored(L, n, law.a * L.own + law.b * L.trace(), law.a, coefficient_roundings(law))
        if split is None or split.alpha.min() < 0.0 or split.beta < 0.0:
            msg = f"this sketch takes a dense L only (L.todense() gives it); {ANSWERS}"
            raise ValueError(msg)
        own = split.alpha * L.diagonal() + split.beta * L.own
        return _factored(L, n, own, split.beta, coefficient_roundings(split))
    if not sparse.issparse(L) or L.shape[0] <= LARGE or split is None or split.beta < 0.0:
        return None
    S: Any = L
    if S.data.min(initial=0.0) < 0.0 or _largest_component(S) <= LARGE:
        return None
    S, n = _near_one(S)
    # Entries of 𝒫(L) are products and one sum of nonnegative numbers.
    M = sparse.csr_array(split.beta * S + sparse.diags_array(split.alpha * S.diagonal()))
    condition = NonnegativeCondition(M, gamma(coefficient_roundings(split) + 3), positive=False)
    words = "L is sparse without negative entries: no dense matrix is formed"
    remark = (
        f"D is feasible by proof, and the best if L ⪰ 0, which is not proved for a sparse L of size {S.shape[0]}; "
        "LowRankPlusDiagonal(X.T, diagonal) with the X of L = XᵀX + Diag(diagonal) needs no such proof"
    )
    return LargeProblem(S, n, condition, words, -math.inf, remark)


def _near_one(S: Any) -> tuple[Any, int]:
    """S′ and n with S = 4ⁿS′ for a sparse S without negative entries, and entries of S′ near one."""
    diagonal = S.diagonal()
    if not diagonal.min() > 0.0:
        msg = f"L is singular or indefinite: a diagonal entry is {diagonal.min():g}; {SMOOTHNESS_REMEDY}"
        raise ValueError(msg)
    n = power_of_four("L", binary_exponent(S.data.max()), binary_exponent(diagonal.min()))
    if n == 0:
        return S, 0
    return sparse.csr_array((scaled_exactly("L", S.data, -2 * n), S.indices, S.indptr), shape=S.shape), n


def _factored(L: LowRankPlusDiagonal, n: int, a: Vector, beta: float, roundings: int) -> LargeProblem:
    """𝒫(L) = Diag(a) + βUUᵀ; a is a sum of two products, with coefficients that went through so many roundings."""
    rounding = roundings + 4
    if sparse.issparse(L.U):
        if L.U.data.min(initial=0.0) < 0.0:
            msg = f"a sparse U must not have negative entries, U.toarray() may have them; {ANSWERS}"
            raise ValueError(msg)
        products = _GramProducts(a, beta, L.U)
        words = f"L = UUᵀ + Diag with a sparse U of {L.U.nnz} entries, none negative: UUᵀ is not formed"
        condition = NonnegativeCondition(products, gamma(L.longest_row + rounding))
        # L ⪰ Diag(diagonal) would bound log det L, but so far from it that nobody could use it.
        return LargeProblem(L, n, condition, words, -math.inf)
    V, apart = _shortened(L.U)
    error = gamma(L.rank + rounding) * a + beta * apart * (1.0 + gamma(4))
    low_rank = LowRankCondition(a - error, a + error, beta, V, gamma(rounding))
    log_det = LowRankCondition(L.own - apart, L.own, 1.0, V, 0.0).log_det_from_below()
    words = f"L is diagonal plus rank {L.rank}: nothing of size d×d is formed"
    return LargeProblem(L, n, low_rank, words, -math.inf if log_det is None else log_det)


def _shortened(U: Matrix) -> tuple[Matrix, Vector]:
    """U, or a factor V with d columns for one that has more, and e with −Diag(e) ⪯ UUᵀ − VVᵀ ⪯ Diag(e)."""
    d, r = U.shape
    if r <= d:
        return U, np.zeros(d)
    upper: Any = np.linalg.qr(U.T, mode="r")
    V = np.ascontiguousarray(upper.T)
    size, rest = np.abs(U) @ np.abs(U).T + np.abs(V) @ np.abs(V).T, np.abs(U @ U.T - V @ V.T)
    return V, np.asarray((rest + gamma(r + 4) * size).sum(axis=1) * (1.0 + gamma(d + 4)))


def _largest_component(L: Any) -> int:
    labels = connected_components(L, directed=False)[1]
    return int(np.bincount(labels).max())
