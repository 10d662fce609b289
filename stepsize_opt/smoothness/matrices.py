"""The kinds of a smoothness matrix L, each read and proved once.

A kind answers what the library asks of L, log det, bounds, spectrum, inverse, blocks, or raises ``NeedsDense`` where
only a dense matrix has the answer.  ``MatrixSmoothness`` holds the entries, dense or sparse; ``LowRankPlusDiagonal`` is
never formed, at the cost of its factor.  An estimate is a label on either.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from stepsize_opt.inputs.checks import (
    check_dense,
    dimensions,
    nonnegative_number,
    positive_number,
    read_only,
    real_array,
    real_sparse,
)
from stepsize_opt.inputs.matrices import (
    SMOOTHNESS_REMEDY,
    EstimatedSmoothness,
    Scaling,
    Symmetric,
    binary_exponent,
    check_positive_definite,
    dense,
    estimate_refused,
    power_of_four,
    read_matrix,
    scaled_exactly,
)
from stepsize_opt.proofs import UNIT, LowRankCondition, twice_gamma
from stepsize_opt.smoothness.spectrum import LimitBounds, ProvedDirections, Spectrum, proved_directions
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Indices, Matrix, Vector

T = TypeVar("T")
_BY_FACTOR = "; give L = XᵀX + Diag(a) by its factor, LowRankPlusDiagonal(X.T, a), and nothing is made dense"


class NeedsDense(ValueError):
    """Raised for a question about an L that is not formed which only a dense matrix answers."""


class Smoothness(ABC):
    """A smoothness matrix L that was read: functions take it as L, and neither read nor prove it again.

    estimated: what results note of an L that is not proved, empty for one that is; is_formed: whether matrices of L's
    size may be formed.
    """

    estimated: str = ""
    is_formed: ClassVar[bool] = True

    @property
    @abstractmethod
    def d(self) -> int:
        """Size of L."""

    @abstractmethod
    def todense(self) -> Matrix:
        """Return L as an array; raises ValueError when there is no memory for it."""

    @abstractmethod
    def orthonormal_directions(self, basis: str) -> Any:
        """Return A with AᵀLA ⪯ I proved, an array or an operator: the eigenvectors of L (``"eigenvectors"``) or a root.

        Raises ValueError for an L that is not proved positive definite, Unproved where float64 does not suffice.
        """

    def formed(self) -> MatrixSmoothness:
        """Return L by its entries; raises NeedsDense for one that is not formed."""
        msg = "this function takes a dense L: give it L.todense(); optimal_stepsize and plan take a LowRankPlusDiagonal"
        raise NeedsDense(msg)

    def factored(self) -> LowRankPlusDiagonal:
        """Return L by its factor; raises TypeError for one that is formed."""
        msg = f"{self!r} has no factor"
        raise TypeError(msg)

    def multiplications(self, k: float) -> float:
        """Return the multiplications of a product with k columns of a matrix like L or its inverse."""
        return self.d * k


class MatrixSmoothness(Smoothness):
    """L by its entries, an array or a csr_array that ``read_matrix`` returned; what is proved of it is proved once."""

    def __init__(self, matrix: Symmetric, estimated: str = "") -> None:
        self.matrix = read_only(matrix) if isinstance(matrix, np.ndarray) else matrix
        self.estimated = estimated
        self._known: dict[Any, Any] = {}

    @property
    def d(self) -> int:
        return int(self.matrix.shape[0])

    def formed(self) -> MatrixSmoothness:
        return self

    def todense(self) -> Matrix:
        return self._once("dense", lambda: read_only(dense(self.matrix)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Matrix:
        """Return L as a new array, for functions that read matrices; raises TypeError for an estimate."""
        return np.array(proved_smoothness(self).todense(), dtype=dtype)

    def block(self, indices: Indices) -> Matrix:
        """Return the rows and columns of some of the coordinates, in increasing order; the array itself for all."""
        L = self.matrix
        if isinstance(L, np.ndarray):
            return L if indices.size == len(L) else np.asarray(L[np.ix_(indices, indices)])
        # From the arrays of the rows themselves: indexing columns costs scipy O(d) for each block.
        check_dense("a connected part of the sparse L", indices.size, _BY_FACTOR)
        first = L.indptr[indices]
        lengths = L.indptr[indices + 1] - first
        entries = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        columns = L.indices[entries]
        places = np.minimum(np.searchsorted(indices, columns), indices.size - 1)
        inside = indices[places] == columns
        out = np.zeros((indices.size, indices.size))
        out[np.repeat(np.arange(indices.size), lengths)[inside], places[inside]] = L.data[entries][inside]
        return out

    def log_det(self, indices: Indices | None = None) -> float:
        """Return log det of L, or of a block, from below; raises ValueError unless it is proved positive definite."""
        key = "log det", self._key(indices)
        return self._once(key, lambda: check_positive_definite("L", self._part(indices), SMOOTHNESS_REMEDY))

    def bounds(
        self, M: Matrix | float | None, indices: Indices | None = None, *, momentum: bool = False
    ) -> LimitBounds:
        """Return what the limit takes from L, or from a block; M, of the block, as in ``LimitBounds.of``."""
        log_det = self.log_det(indices)
        if M is None:
            return LimitBounds(self.d if indices is None else indices.size, log_det)
        key = "bounds", momentum, _token(M), self._key(indices)
        return self._once(key, lambda: LimitBounds.of(self._part(indices), log_det, M, momentum=momentum))

    def spectrum(self, M: Matrix | float = 1.0) -> Spectrum:
        """Return eigenvalues and eigenvectors of L relative to M, in plain floating point."""
        return self._once(("spectrum", _token(M)), lambda: Spectrum.of(self.todense(), M))

    def directions(self, basis: str, M: Matrix | float = 1.0) -> tuple[Matrix, float]:
        """Return A with AᵀLA ⪯ I proved, and a bound on ‖AᵀLA − I‖: the eigenvectors of L relative to M, or L^{−½}.

        Raises Unproved where float64 does not suffice.
        """

        def make() -> tuple[Matrix, float]:
            spectrum = self.spectrum(M)
            A = spectrum.directions if basis == "eigenvectors" else spectrum.directions @ spectrum.vectors.T
            L = self.todense()
            scaling = Scaling.of(L.diagonal())
            rows = scaling.factors[:, None]
            X, defect = proved_directions(scaling.times(L), A / rows)
            return read_only(rows * X), defect

        return self._once(("directions", basis, _token(M)), make)

    def orthonormal_directions(self, basis: str) -> Matrix:
        with blas_threads(self.d):
            self.log_det()
            return self.directions(basis)[0]

    def inverse(self) -> Matrix:
        """Return L⁻¹, symmetric, in plain floating point."""
        return self._once("inverse", lambda: read_only(inverse_of(self.todense())))

    def _part(self, indices: Indices | None) -> Matrix:
        return self.todense() if indices is None else self.block(indices)

    def _key(self, indices: Indices | None) -> bytes:
        """Return a key for some of the coordinates, the same one for all of them."""
        return b"" if indices is None or indices.size == self.d else indices.tobytes()

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        return cast(T, self._known[key])

    def __repr__(self) -> str:
        kind = "dense" if isinstance(self.matrix, np.ndarray) else "sparse"
        return f"MatrixSmoothness(d={self.d}, {kind}{', certified=False' if self.estimated else ''})"


def _token(M: Matrix | float) -> Any:
    """Return a key by which M is found again."""
    return M if isinstance(M, float) else hashlib.sha256(M.tobytes()).digest()


def inverse_of(A: Matrix) -> Matrix:
    """Return A⁻¹ of a positive definite A, symmetric, in plain floats; scaled first so that no entry overflows."""
    scaling = Scaling.of(A.diagonal())
    factor, _ = lapack.dpotrf(scaling.times(A), 1, 1)  # lower, clean
    root = lapack.dtrtri(factor, 1)[0]
    return scaling.times(root.T @ root)


def read_smoothness(L: Any, name: str = "L") -> Smoothness:
    """Return L as one of the kinds; one that was read before is returned as it is.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d), EstimatedSmoothness or Smoothness
        Smoothness matrix, symmetric.
    name
        What errors call it.

    Raises
    ------
    ValueError, TypeError
        For what is no smoothness matrix.
    """
    if isinstance(L, Smoothness):
        return L
    if isinstance(L, EstimatedSmoothness):
        if isinstance(L.curvature, LowRankPlusDiagonal):
            return L.curvature.scaled(L.margin, L.note)
        return MatrixSmoothness(read_matrix(name, L.matrix), L.note)
    if isinstance(L, LinearOperator):
        msg = (
            f"{name} is a LinearOperator: matrix–vector products alone cannot prove an upper bound on its largest "
            f"eigenvalue.  Write {name} as LowRankPlusDiagonal(U, diagonal), which may be larger than your L, or give "
            "a scipy sparse matrix"
        )
        raise TypeError(msg)
    return MatrixSmoothness(read_matrix(name, L))


def proved_smoothness(L: Any, name: str = "L") -> Smoothness:
    """Return L as ``read_smoothness`` does, for a function without a label for estimates; raises TypeError for one."""
    smoothness = read_smoothness(L, name)
    if smoothness.estimated:
        raise estimate_refused(name)
    return smoothness


class LowRankPlusDiagonal(Smoothness, LinearOperator):  # type: ignore[misc]
    """L = UUᵀ + Diag(diagonal), a d×d smoothness matrix that is never formed.

    Parameters
    ----------
    U : array-like or sparse matrix of shape (d, r)
        Factor of the other part: dense with few columns, or a scipy sparse matrix (Xᵀ of data X, say).
    diagonal : float or array-like of shape (d,)
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

    is_formed = False

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
        self.shift: Vector = read_only(values)
        self.cut = nonnegative_number("cut", cut)

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
        left = (float(self.shift.min()) - self.cut) * (1.0 - UNIT)
        return (1.0 + 2.0 * self.cut / left) * (1.0 + twice_gamma(4)) if left > 0.0 else math.inf

    @property
    def has_constant_shift(self) -> bool:
        """Whether L = UUᵀ + aI: the eigenvectors of U are those of L."""
        return bool(np.all(self.shift == self.shift[0]))

    def scaled(self, factor: float, estimated: str = "") -> LowRankPlusDiagonal:
        """Return factor·L, with what results note of it where it is an estimate."""
        out = LowRankPlusDiagonal(self.U * math.sqrt(factor), factor * self.shift, cut=factor * self.cut)
        out.estimated = estimated
        return out

    def require_dense_factor(self, what: str) -> None:
        """Raise NeedsDense if U is sparse."""
        if sparse.issparse(self.U):
            msg = f"{what} needs a dense U, and that of L is sparse: use U.toarray(), or cut L to rank=r"
            raise NeedsDense(msg)

    def require_eigenvectors(self, what: str) -> None:
        """Raise NeedsDense unless the eigenvectors of L are those of a dense U."""
        self.require_dense_factor(what)
        if not self.has_constant_shift:
            msg = (
                f"{what} needs the eigenvectors of L, which are known for a diagonal that is one number: take "
                "LowRankPlusDiagonal(U, diagonal.max()), which is larger than your L, so that its answer is valid"
            )
            raise NeedsDense(msg)

    @property
    def longest_row(self) -> int:
        """The most entries in a row of U."""
        return int(np.diff(self.U.indptr).max(initial=0)) if sparse.issparse(self.U) else self.rank

    @cached_property
    def power(self) -> int:
        """n with entries of 4⁻ⁿL near one, 0 if those of L are; raises ValueError for numbers too far apart."""
        entries = self.U.data if sparse.issparse(self.U) else self.U
        largest = max(entries.max(initial=0.0), -entries.min(initial=0.0))
        top = max(2 * binary_exponent(largest), binary_exponent(self.shift.max()))
        return power_of_four("L", top, binary_exponent(self.shift.min()))

    @cached_property
    def near_one(self) -> LowRankPlusDiagonal:
        """4⁻ⁿL for n = ``power``, exactly."""
        if self.power == 0:
            return self
        factor = scaled_exactly("U", self.U.data if sparse.issparse(self.U) else self.U, -self.power)
        if sparse.issparse(self.U):
            factor = sparse.csr_array((factor, self.U.indices, self.U.indptr), shape=self.U.shape)
        return LowRankPlusDiagonal(factor, scaled_exactly("diagonal", self.shift, -2 * self.power))

    @cached_property
    def short_factor(self) -> tuple[Matrix, Vector]:
        """U, or a factor V with d columns for one that has more, and e with −Diag(e) ⪯ UUᵀ − VVᵀ ⪯ Diag(e)."""
        U, d, r = self.U, self.d, self.rank
        if r <= d:
            return U, read_only(np.zeros(d))
        upper: Any = np.linalg.qr(U.T, mode="r")
        V = np.ascontiguousarray(upper.T)
        size, rest = np.abs(U) @ np.abs(U).T + np.abs(V) @ np.abs(V).T, np.abs(U @ U.T - V @ V.T)
        apart = np.asarray((rest + twice_gamma(r + 4) * size).sum(axis=1) * (1.0 + twice_gamma(d + 4)))
        return read_only(V), read_only(apart)

    def log_det(self) -> float:
        """Return log det L from below, of an L near one; −∞ without a proof, which a sparse U never has."""
        return self._log_det

    @cached_property
    def _log_det(self) -> float:
        if sparse.issparse(self.U):  # L ⪰ Diag(diagonal) bounds log det L, but too far from it to be of use
            return -math.inf
        V, apart = self.short_factor
        found = LowRankCondition(self.shift - apart, self.shift, 1.0, V, 0.0).log_det_from_below()
        return -math.inf if found is None else found

    def directions(self, basis: str) -> ProvedDirections:
        """Return L-orthonormal directions, of the eigenvectors or a root of L; raises Unproved without a proof."""
        return ProvedDirections.of(self.U, self.shift, basis)

    def orthonormal_directions(self, basis: str) -> Any:
        self.require_dense_factor("an orthonormal basis")
        if basis == "root" or self.has_constant_shift:
            return self.near_one.directions(basis).A.scaled(-self.power)
        # L = Diag(a)^½ (VVᵀ + I) Diag(a)^½: the eigenvectors in coordinates in which the diagonal part is the identity.
        roots = np.sqrt(self.shift)
        inner = LowRankPlusDiagonal(self.U / roots[:, None], 1.0).orthonormal_directions(basis)
        return aslinearoperator(sparse.diags_array(1.0 / roots)) @ inner

    def factored(self) -> LowRankPlusDiagonal:
        return self

    def multiplications(self, k: float) -> float:
        return 2.0 * self.d * self.rank

    def _matmat(self, X: Any) -> Any:
        return self.U @ (self.U.T @ X) + self.shift[:, None] * X

    def _adjoint(self) -> LowRankPlusDiagonal:
        return self

    def diagonal(self) -> Vector:
        """Return the diagonal of L, shape (d,)."""
        U = self.U
        squares = U.multiply(U).sum(axis=1) if sparse.issparse(U) else np.einsum("ij,ij->i", U, U)
        return np.asarray(squares + self.shift)

    def trace(self) -> float:
        """Return tr L, of the rounded diagonal entries rounded once."""
        return math.fsum(self.diagonal().tolist())

    def todense(self) -> Matrix:
        """Return L as an array; raises ValueError when there is no memory for it."""
        check_dense("L", self.d)
        L = self.U @ self.U.T
        L = L.toarray() if sparse.issparse(L) else L
        L[np.diag_indices(self.d)] += self.shift
        return np.asarray(0.5 * (L + L.T))

    def __repr__(self) -> str:
        return f"LowRankPlusDiagonal(d={self.d}, rank={self.rank})"


def _sparse_factor(U: Any) -> Any:
    out = real_sparse("U", U).copy()
    if max(out.nnz, *out.shape) <= np.iinfo(np.int32).max:
        # Products are as quick as memory is: shorter indices save a quarter of what is read.
        out.indices, out.indptr = out.indices.astype(np.int32), out.indptr.astype(np.int32)
    return out
