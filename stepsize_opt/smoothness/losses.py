"""L from data: one function for each loss, by a factor or by a shorter one with a proved bound on what is cut off.

A loss is the mean of ℓ(aᵢᵀx) over the rows aᵢ of X, plus a regulariser, with ℓ″ ≤ c: L = cXᵀX/m + δI.

*Cutting.*  Let A = √c X and AᵀA ⪯ UUᵀ + τI for a U with r columns.  L̂ = UUᵀ + (δ + τ)I ⪰ L is a smoothness matrix,
too. Below also −τI ⪯ AᵀA − UUᵀ, so that L̂ − L ⪯ 2τI ⪯ (2τ/δ)L: a stepsize for L̂ loses at most the factor 1 + 2τ/δ of
the guarantee.

*Dense X.*  For any V (d×r) and B (m×r) let A = BVᵀ + R.  Then AᵀA − VBᵀBVᵀ = RᵀR + VBᵀR + RᵀBVᵀ, and for U = VG with
GGᵀ near BᵀB

    τ = ‖RRᵀ‖_F + 2‖V‖_F‖BᵀR‖_F + rounding.

The leading singular vectors V with B = AV make BᵀR = 0 and ‖RRᵀ‖_F² = Σ λ_i² over the eigenvalues that are cut off.

*More rows than columns.*  A dense A with m > d needs no more than d columns of U: with the eigenvalues of AᵀA, U = V√λ
and τ bounds AᵀA − UUᵀ, evaluated in twice the precision.  τ is about the rounding of U itself, and nothing is cut off.

*Sparse X.*  R would be dense: τ² = ‖AᵀA − UUᵀ‖_F² = ‖AAᵀ‖_F² − 2‖AU‖_F² + ‖UᵀU‖_F² instead, which cancels; its rounding
is bounded by γ(‖A‖_F² + ‖U‖_F²)², so that τ is at least about 10⁻⁶‖A‖_F².
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import block_diag
from scipy.sparse.linalg import svds

from stepsize_opt.inputs.checks import check_memory, check_objective, positive_number, read_rows, whole_number
from stepsize_opt.problems import Federated, Layered, LeastSquares, LogisticRegression, Objective, read_penalty
from stepsize_opt.proofs import UNIT, Pair, chunks, twice_gamma
from stepsize_opt.smoothness.matrices import LowRankPlusDiagonal, read_smoothness
from stepsize_solvers.programs import Matrix, Vector, exponent_above


def logistic(X: Any, reg: float, penalty: str = "nonconvex", **cut: Any) -> LowRankPlusDiagonal:
    """Return L of logistic regression (``LogisticRegression``): XᵀX/(4m) + 2λI, with the ridge XᵀX/(4m) + λI.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (m, d)
        Rows aᵢ.
    reg
        λ > 0.
    penalty
        ``"nonconvex"`` or ``"ridge"``.
    **cut : int, optional
        ``rank``, as in ``gram_plus_diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.logistic(np.ones((3, 5)), 0.1)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, 0.25, read_penalty(penalty).most * positive_number("reg", reg), **cut)


def least_squares(X: Any, reg: float, **cut: Any) -> LowRankPlusDiagonal:
    """Return L = XᵀX/m + λI of (1/2m)‖Xx − b‖² + (λ/2)‖x‖².

    Parameters
    ----------
    X : array-like or sparse matrix of shape (m, d)
        Rows of the data.
    reg
        λ > 0.
    **cut : int, optional
        ``rank``, as in ``gram_plus_diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.least_squares(np.ones((3, 5)), 0.1)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, 1.0, positive_number("reg", reg), **cut)


def poisson(X: Any, reg: float, largest_rate: float, **cut: Any) -> LowRankPlusDiagonal:
    """Return L = (largest_rate/m) XᵀX + λI of Poisson regression, exp(aᵢᵀx) − bᵢaᵢᵀx, plus (λ/2)‖x‖².

    Parameters
    ----------
    X : array-like or sparse matrix of shape (m, d)
        Rows aᵢ.
    reg
        λ > 0.
    largest_rate
        A bound on exp(aᵢᵀx), the second derivative, for all x that the method visits: outside of it f is not L-smooth.
    **cut : int, optional
        ``rank``, as in ``gram_plus_diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.poisson(np.ones((3, 5)), 0.1, largest_rate=2.0)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, positive_number("largest_rate", largest_rate), positive_number("reg", reg), **cut)


def softmax(X: Any, classes: int, reg: float, **cut: Any) -> LowRankPlusDiagonal:
    """Return L of a softmax head on features: ½(I − 11ᵀ/C) ⊗ XᵀX/m + λI, of size C·d, class by class.

    The Hessian of the loss of a row is (Diag(p) − ppᵀ) ⊗ aaᵀ, and Diag(p) − ppᵀ ⪯ ½(I − 11ᵀ/C) for every distribution
    p.  The factor has C − 1 columns for each column of that of XᵀX.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (m, d)
        Rows aᵢ.
    classes
        Number of classes, at least 2.
    reg
        λ > 0.
    **cut : int, optional
        ``rank``, as in ``gram_plus_diagonal``, for the factor of one class.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.softmax(np.ones((3, 5)), 4, 0.1)
    LowRankPlusDiagonal(d=20, rank=9)
    """
    number = whole_number("classes", classes, low=2)
    one, Q = gram_plus_diagonal(X, 0.5, positive_number("reg", reg), **cut), _contrasts(number)
    check_memory("the factor of all classes", 8 * one.U.size * Q.size)
    factor: Any = sparse.kron(Q, one.U, format="csr") if sparse.issparse(one.U) else np.kron(Q, one.U)
    # The entries of Q are off by at most four units each, those of the product by one more.
    return covered(factor, float(reg), one.cut + twice_gamma(16) * number * squares(one.U))


def _contrasts(C: int) -> Matrix:
    """Return Q with QQᵀ = I − 11ᵀ/C up to rounding, C×(C − 1): column j has the mean of j entries less the next one."""
    j = np.arange(1.0, C)
    Q = np.triu(np.ones((C, C - 1)))
    Q[np.arange(1, C), np.arange(C - 1)] = -j
    return np.asarray(Q / np.sqrt(j * (j + 1.0)))


def of(objective: Objective | Federated | Layered) -> Any:
    """Return L of an objective by its factor: logistic, least squares with a ridge, clients and layers of these.

    Parameters
    ----------
    objective
        One node, clients f = (1/n) Σ fᵢ with L = (1/n) Σ Lᵢ, or layers with L = Diag(L₁, …, L_m).

    Returns
    -------
    LowRankPlusDiagonal; for any other objective what its ``smoothness()`` returns.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> from stepsize_opt.problems import LeastSquares
    >>> smoothness.of(LeastSquares(np.ones((3, 5)), np.ones(3), 0.1))
    LowRankPlusDiagonal(d=5, rank=3)
    """
    check_objective("objective", objective)
    if isinstance(objective, LogisticRegression | LeastSquares) and objective.reg > 0.0:
        return gram_plus_diagonal(objective.A, objective.row_curvature, objective.diagonal)
    if isinstance(objective, Federated | Layered):
        objectives = objective.clients if isinstance(objective, Federated) else objective.layers
        parts = [read_smoothness(of(part)) for part in objectives]
        if not any(part.is_formed for part in parts):
            combine = _mean if isinstance(objective, Federated) else _by_layers
            return combine([part.factored() for part in parts])
    return objective.smoothness()


def _by_layers(parts: list[LowRankPlusDiagonal]) -> LowRankPlusDiagonal:
    """Return Diag(L₁, …, L_m), with the factors as blocks; sparse if one of them is."""
    factors = [part.U for part in parts]
    U: Any = sparse.block_diag(factors) if any(map(sparse.issparse, factors)) else block_diag(*factors)
    shift = np.concatenate([part.shift for part in parts])
    return LowRankPlusDiagonal(U, shift, cut=max(part.cut for part in parts))


def _mean(parts: list[LowRankPlusDiagonal]) -> LowRankPlusDiagonal:
    """Return (1/n) Σ Lᵢ, with the columns Uᵢ/√n side by side."""
    n, factors = len(parts), [part.U for part in parts]
    U: Any = (sparse.hstack(factors) if any(map(sparse.issparse, factors)) else np.hstack(factors)) / np.sqrt(n)
    meant, lacking = np.mean([part.shift - part.cut for part in parts], axis=0), np.mean([part.cut for part in parts])
    # The entries of U are rounded by two units each, and means by n: both may have made L smaller.
    rounding = twice_gamma(6) * squares(U) + twice_gamma(n + 2) * float(meant.max() + lacking)
    return covered(U, meant, float(lacking) + rounding)


def gram_plus_diagonal(X: Any, curvature: float, diagonal: float, *, rank: int | None = None) -> LowRankPlusDiagonal:
    """Return L = (curvature/m) XᵀX + diagonal·I for the m rows of X, or a larger matrix of a given rank.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (m, d)
        Data, a row for each example.
    curvature
        An upper bound on the second derivative of the loss of one row.
    diagonal
        What the regulariser adds to the Hessian at most, > 0.
    rank
        Columns of the factor; None cuts nothing off, and leaves m columns, or at most d for a dense X.

    Returns
    -------
    LowRankPlusDiagonal
        ``cut`` is what was added to the diagonal for the part that was cut off and for rounding, and ``loss`` the
        factor that the guarantee loses by it at most.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.smoothness import gram_plus_diagonal
    >>> X = np.outer(np.ones(4), np.arange(6.0))
    >>> L = gram_plus_diagonal(X, 0.25, 0.1, rank=1)
    >>> L.rank, L.loss < 1.001
    (1, True)
    """
    positive_number("curvature", curvature)
    positive_number("diagonal", diagonal)
    A = read_rows("X", X)
    m, d = (int(n) for n in A.shape)
    A = A * math.sqrt(curvature / m)
    most = None if rank is None else whole_number("rank", rank)
    e = _exponent(A)
    # The entries of A are rounded, by three units each: AᵀA is off by less than this.
    rounding = twice_gamma(8) * squares(A)
    if most is None or most >= (m if sparse.issparse(A) else min(m, d)):
        return covered(A.T, diagonal, rounding)
    if most >= d:
        msg = f"rank={most} must be below d = {d} to cut anything off a sparse X; leave it out to keep its {m} rows"
        raise ValueError(msg)
    # A cut forms fourth powers, which only numbers near one leave in the range.
    U, cut = (_sparse_cut if sparse.issparse(A) else _dense_cut)(A * math.ldexp(1.0, -e), most)
    return covered(U * math.ldexp(1.0, e), diagonal, rounding + math.ldexp(cut, 2 * e))


def covered(U: Any, diagonal: float | Vector, lacking: float) -> LowRankPlusDiagonal:
    """Return UUᵀ + Diag(diagonal) + τI, rounded up, for a matrix within ±τ = ``lacking`` of UUᵀ + Diag(diagonal).

    A dense U with more columns than rows is replaced by one with at most as many.
    """
    if not sparse.issparse(U) and U.shape[1] > U.shape[0]:
        U, rounding = _short(U)
        lacking += rounding
    own = (diagonal + lacking) * (1.0 + twice_gamma(4))
    return LowRankPlusDiagonal(U, own, cut=float(np.max(own - diagonal)) * (1.0 + twice_gamma(2)))


def _short(U: Matrix) -> tuple[Matrix, float]:
    """Return W with at most d columns and a proved τ with −τI ⪯ UUᵀ − WWᵀ ⪯ τI, for a dense U (d×r)."""
    if not U.any():
        return U[:, :1], 0.0
    e = exponent_above(U)
    near_one = U * math.ldexp(1.0, -e)
    parts = (Pair.exact(near_one[:, s]) for s in chunks(U.shape[1]))
    gram = reduce(add, (part @ part.T for part in parts))
    values, vectors = np.linalg.eigh(gram.hi)
    kept = values > len(values) * UNIT * values[-1]  # the others are zero up to rounding
    W = vectors[:, kept] * np.sqrt(values[kept])
    exact = Pair.exact(W)
    rest = (gram - exact @ exact.T).rounded()
    # The largest row sum bounds the eigenvalues.
    largest = rest.norm()
    return W * math.ldexp(1.0, e), math.ldexp(largest, 2 * e)


# Squares of entries of this power of two, and what their rounding is bounded by, are far from the ends of the range.
_LARGEST_POWER = 400


def _exponent(A: Any) -> int:
    """Return e with entries of A up to 2ᵉ; raises ValueError where AᵀA would leave the range of float64."""
    e = exponent_above(A.data if sparse.issparse(A) else A)
    if abs(e) > _LARGEST_POWER:
        size = f"1e{e * math.log10(2.0):+.0f}"
        msg = (
            f"X has entries of about {size}, and float64 has no room for products of their squares; choose other units"
        )
        raise ValueError(msg)
    return e


def _leading(A: Any, rank: int) -> tuple[Vector, Matrix]:
    """Return the leading singular values and right singular vectors, in plain floating point."""
    if not (A.count_nonzero() if sparse.issparse(A) else np.any(A)):
        return np.zeros(rank), np.eye(A.shape[1], rank)  # there is nothing for ARPACK to start from
    found: Any = svds(A, k=rank, v0=np.ones(min(A.shape)))
    return found[1], np.asarray(found[2].T)


def _dense_cut(A: Matrix, rank: int) -> tuple[Matrix, float]:
    """Return U and a proved τ with −τI ⪯ AᵀA − UUᵀ ⪯ τI, for a dense A."""
    (m, d), V = A.shape, _leading(A, rank)[1]
    B = A @ V
    values, vectors = np.linalg.eigh(B.T @ B)
    G = vectors * np.sqrt(np.maximum(values, 0.0))
    U = V @ G
    R = A - B @ V.T
    v, b, g, u, r = (math.sqrt(squares(M)) for M in (V, B, G, U, R))
    lost = twice_gamma(rank + 2) * (b * v + math.sqrt(squares(A)))  # of R, by rounding
    rest = (
        math.sqrt(squares(R @ R.T)) * (1.0 + twice_gamma(m * m + d))
        + twice_gamma(d) * r * r
        + 2.0 * r * lost
        + lost * lost
    )
    cross = 2.0 * v * (math.sqrt(squares(B.T @ R)) * (1.0 + twice_gamma(rank * d)) + twice_gamma(m) * b * r + b * lost)
    # BᵀB − GGᵀ as computed, with the rounding of both, and UUᵀ for the rounded U.
    apart = math.sqrt(squares(B.T @ B - G @ G.T)) * (1.0 + twice_gamma(rank * rank)) + twice_gamma(m + rank + 4) * (
        b * b + g * g
    )
    inner = v * v * apart + twice_gamma(rank + 2) * v * g * (u + v * g)
    return U, (rest + cross + inner) * (1.0 + twice_gamma(2 * m * d + 16))


def _sparse_cut(A: Any, rank: int) -> tuple[Matrix, float]:
    """Return U and a proved τ with −τI ⪯ AᵀA − UUᵀ ⪯ τI, for a sparse A."""
    values, V = _leading(A, rank)
    U, m = np.asarray(V * values), int(A.shape[0])
    inner = math.fsum(squares(A[s] @ A.T) for s in chunks(m))
    square = inner - 2.0 * squares(A @ U) + squares(U.T @ U)
    # Sums of up to m², mr and r² products of sums of up to d numbers, rounded in any order.
    terms = m * m + m * rank + int(A.shape[1]) + 16
    return U, math.sqrt(max(square, 0.0) + 4.0 * twice_gamma(terms) * (squares(A) + squares(U)) ** 2) * (
        1.0 + twice_gamma(4)
    )


def squares(A: Any) -> float:
    """Return ‖A‖_F²."""
    return float(A.multiply(A).sum()) if sparse.issparse(A) else float(np.vdot(A, A))
