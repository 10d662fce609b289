"""L = UUᵀ + Diag(diagonal) with a thin or sparse U: the smoothness matrix of a large model, at the cost of U."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs import (
    Immutable,
    binary_exponent,
    check_dense,
    dimensions,
    positive_number,
    power_of_four,
    read_only,
    real_array,
    real_number,
    real_sparse,
    scaled_exactly,
)
from stepsize_opt.proofs import UNIT, gamma
from stepsize_solvers.programs import Matrix, Vector


class LowRankPlusDiagonal(Immutable, LinearOperator):  # type: ignore[misc]
    """L = UUᵀ + Diag(diagonal), a d×d smoothness matrix that is never formed.

    Parameters
    ----------
    U
        Factor of the other part, shape (d, r): an array with few columns, or a scipy sparse matrix (Xᵀ of data X, say).
    diagonal
        The other part, all entries positive: a number, or one for each of the d coordinates.
    cut
        How much of ``diagonal`` covers what U lacks of the matrix that was meant: a part that was cut off, and rounding
        (``stepsize_opt.smoothness``).

    Raises
    ------
    ValueError, TypeError
        For shapes that do not fit, entries that are not finite real numbers, or a diagonal entry that is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import LowRankPlusDiagonal, RandK, optimal_stepsize
    >>> L = LowRankPlusDiagonal(np.ones((1000, 1)), 0.5)
    >>> result = optimal_stepsize(L, RandK(1000, 10), algorithm="det-CGD2")
    >>> result.status, result.D.shape, (result.D @ np.ones(1000)).shape
    ('optimal', (1000, 1000), (1000,))
    """

    def __init__(self, U: Any, diagonal: ArrayLike, *, cut: float = 0.0) -> None:
        factor: Any = _sparse_factor(U) if sparse.issparse(U) else read_only(real_array("U", U))
        if factor.ndim != 2 or 0 in factor.shape:
            msg = f"U must have the shape (d, r) with d ≥ 1 and r ≥ 1, got {factor.shape}"
            raise ValueError(msg)
        d = int(factor.shape[0])
        if dimensions(diagonal) == 0:
            values = np.full(d, positive_number("diagonal", diagonal))
        else:
            values = real_array("diagonal", diagonal)
            if values.shape != (d,):
                msg = f"diagonal must be a number or have one entry for each of the {d} rows of U, got {values.shape}"
                raise ValueError(msg)
            if not values.min() > 0.0:
                msg = f"diagonal must be positive, got {values.min():g}; a singular L leaves log det D unbounded"
                raise ValueError(msg)
        super().__init__(np.float64, (d, d))
        self.U: Any = factor
        self.own: Vector = read_only(values)
        self.cut = real_number("cut", cut, "a number of at least 0")
        if not 0.0 <= self.cut < math.inf:
            msg = f"cut must be a finite number of at least 0, got {self.cut:g}"
            raise ValueError(msg)

    @property
    def d(self) -> int:
        """Size of L."""
        return int(self.shape[0])

    @property
    def rank(self) -> int:
        """Columns of U."""
        return int(self.U.shape[1])

    @property
    def loss(self) -> float:
        """The factor that a guarantee loses at most by what was added: L ⪯ loss·(the matrix that was meant)."""
        left = (float(self.own.min()) - self.cut) * (1.0 - UNIT)
        return (1.0 + 2.0 * self.cut / left) * (1.0 + gamma(4)) if left > 0.0 else math.inf

    @property
    def is_shifted(self) -> bool:
        """Whether L = UUᵀ + aI: the eigenvectors of U are those of L."""
        return bool(np.all(self.own == self.own[0]))

    def require_dense_factor(self, what: str) -> None:
        """Raise ValueError if U is sparse."""
        if sparse.issparse(self.U):
            msg = f"{what} needs a dense U, and that of L is sparse: use U.toarray(), or cut L to rank=r"
            raise ValueError(msg)

    def require_eigenvectors(self, what: str) -> None:
        """Raise ValueError unless the eigenvectors of L are those of a dense U."""
        self.require_dense_factor(what)
        if not self.is_shifted:
            msg = (
                f"{what} needs the eigenvectors of L, which are known for a diagonal that is one number: take "
                "LowRankPlusDiagonal(U, diagonal.max()), which is larger than your L, so that its answer is valid"
            )
            raise ValueError(msg)

    @property
    def longest_row(self) -> int:
        """The most entries in a row of U."""
        return int(np.diff(self.U.indptr).max(initial=0)) if sparse.issparse(self.U) else self.rank

    def near_one(self) -> tuple[LowRankPlusDiagonal, int]:
        """Return L′ and n with L = 4ⁿL′ exactly and entries of L′ near one; L itself and 0 if its own are.

        Raises ValueError for an L whose numbers lie too far apart.
        """
        entries = self.U.data if sparse.issparse(self.U) else self.U
        largest = max(entries.max(initial=0.0), -entries.min(initial=0.0))
        top = max(2 * binary_exponent(largest), binary_exponent(self.own.max()))
        n = power_of_four("L", top, binary_exponent(self.own.min()))
        if n == 0:
            return self, 0
        factor = scaled_exactly("U", entries, -n)
        if sparse.issparse(self.U):
            factor = sparse.csr_array((factor, self.U.indices, self.U.indptr), shape=self.U.shape)
        return LowRankPlusDiagonal(factor, scaled_exactly("diagonal", self.own, -2 * n)), n

    def _matvec(self, x: Any) -> Any:
        v = np.asarray(x, dtype=np.float64).reshape(self.d)
        return self.U @ (self.U.T @ v) + self.own * v

    def _matmat(self, X: Any) -> Any:
        return self.U @ (self.U.T @ X) + self.own[:, None] * X

    _rmatvec, _rmatmat = _matvec, _matmat  # L is symmetric

    def diagonal(self) -> Vector:
        """The diagonal of L, shape (d,)."""
        U = self.U
        squares = U.multiply(U).sum(axis=1) if sparse.issparse(U) else np.einsum("ij,ij->i", U, U)
        return np.asarray(squares + self.own)

    def trace(self) -> float:
        """tr L, of the rounded diagonal entries rounded once."""
        return math.fsum(self.diagonal().tolist())

    def todense(self) -> Matrix:
        """L as an array; raises ValueError when there is no memory for it."""
        check_dense("L", self.d)
        L = self.U @ self.U.T
        L = L.toarray() if sparse.issparse(L) else L
        L[np.diag_indices(self.d)] += self.own
        return np.asarray(0.5 * (L + L.T))

    def __repr__(self) -> str:
        return f"LowRankPlusDiagonal(d={self.d}, rank={self.rank})"


def _sparse_factor(U: Any) -> Any:
    out = real_sparse("U", U).copy()
    if max(out.nnz, *out.shape) <= np.iinfo(np.int32).max:
        # Products are as quick as memory is: shorter indices save a quarter of what is read.
        out.indices, out.indptr = out.indices.astype(np.int32), out.indptr.astype(np.int32)
    return out
