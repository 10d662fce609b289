"""Stepsize matrices that are applied, not formed: scipy's LinearOperator with a diagonal, dense only when asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs.checks import check_dense, check_memory, read_only
from stepsize_opt.inputs.matrices import scaled_exactly
from stepsize_opt.proofs import SMALLEST_NORMAL
from stepsize_solvers.programs import Indices, Matrix, Vector


class StepsizeOperator(LinearOperator):  # type: ignore[misc]
    """A symmetric stepsize matrix D by its products: ``D @ g``, ``D.diagonal()``, ``D.todense()`` when asked."""

    def __init__(self, d: int) -> None:
        super().__init__(np.float64, (d, d))

    @abstractmethod
    def diagonal(self) -> Vector:
        """Return the diagonal of D, shape (d,)."""

    @abstractmethod
    def arrays(self) -> dict[str, Matrix]:
        """Return the numbers that determine D, by name, for a file."""

    @abstractmethod
    def _matmat(self, X: Any) -> Any: ...

    def _matvec(self, x: Any) -> Any:
        return self._matmat(np.asarray(x, dtype=np.float64).reshape(-1, 1))[:, 0]

    def _rmatvec(self, x: Any) -> Any:
        return self._matvec(x)

    def _rmatmat(self, X: Any) -> Any:
        return self._matmat(X)

    def todense(self) -> Matrix:
        """Return D as an array; raises ValueError when there is no memory for it."""
        d = int(self.shape[0])
        check_dense("D", d)
        D = np.asarray(self._matmat(np.eye(d)))
        return np.asarray(0.5 * (D + D.T))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(d={self.shape[0]})"


class BlockStepsize(StepsizeOperator):
    """A block-diagonal D: part i, a matrix or the vector of a diagonal, on the coordinates ``indices[i]``, read-only.

    One part on all coordinates is a dense D.  A multiplier, which is symmetric as well, has the same form.
    """

    def __init__(self, indices: Sequence[Indices], parts: Sequence[Matrix]) -> None:
        super().__init__(sum(len(place) for place in indices))
        self.indices = tuple(read_only(place) for place in indices)
        self.parts = tuple(read_only(part) for part in parts)

    @cached_property
    def array(self) -> Matrix:
        """The matrix, d×d, read-only; raises ValueError when there is no memory for it."""
        d = int(self.shape[0])
        remedy = "; blocks holds it in parts, and tosparse() is D as a sparse matrix"
        check_memory(f"the dense {d}×{d} matrix", 8 * d**2, remedy)
        out = np.zeros((d, d))
        for place, part in zip(self.indices, self.parts, strict=True):
            if part.ndim == 1:
                out[place, place] = part
            else:
                out[np.ix_(place, place)] = part
        return read_only(out)

    def todense(self) -> Matrix:
        return self.array.copy()

    def tosparse(self) -> Any:
        """Return the matrix as a ``scipy.sparse.csr_array`` with the entries of its parts."""
        rows, columns, values = [], [], []
        for i, part in zip(self.indices, self.parts, strict=True):
            rows.append(i if part.ndim == 1 else np.repeat(i, len(i)))
            columns.append(i if part.ndim == 1 else np.tile(i, len(i)))
            values.append(part.ravel())
        entries = (np.concatenate(rows), np.concatenate(columns))
        out = sparse.csr_array((np.concatenate(values), entries), shape=self.shape)
        out.eliminate_zeros()
        return out

    def diagonal(self) -> Vector:
        out = np.empty(self.shape[0])
        for place, part in zip(self.indices, self.parts, strict=True):
            out[place] = part if part.ndim == 1 else part.diagonal()
        return out

    def arrays(self) -> dict[str, Matrix]:
        named: dict[str, Any] = {f"indices_{i}": place for i, place in enumerate(self.indices)}
        return named | {f"part_{i}": part for i, part in enumerate(self.parts)}

    def _matmat(self, X: Any) -> Any:
        out = np.empty((self.shape[0], X.shape[1]))
        for place, part in zip(self.indices, self.parts, strict=True):
            out[place] = part[:, None] * X[place] if part.ndim == 1 else part @ X[place]
        return out


class DiagonalStepsize(StepsizeOperator):
    """D = Diag(x)."""

    def __init__(self, x: Vector) -> None:
        super().__init__(len(x))
        self.x = read_only(x)

    def diagonal(self) -> Vector:
        return self.x

    def scaled(self, n: int) -> DiagonalStepsize:
        """Return 4ⁿD exactly; raises ValueError where float64 does not hold it."""
        return DiagonalStepsize(scaled_exactly("D", self.x, 2 * n))

    def arrays(self) -> dict[str, Matrix]:
        return {"x": self.x}

    def _matmat(self, X: Any) -> Any:
        return self.x[:, None] * X


class InverseStepsize(StepsizeOperator):
    """D = P − PU(CCᵀ)⁻¹UᵀP with P = Diag(p), U (d×r) and a lower triangular C (r×r): Woodbury's form of an inverse.

    For CCᵀ = I/β + UᵀPU it is (P⁻¹ + βUUᵀ)⁻¹.
    """

    def __init__(self, p: Vector, U: Matrix, C: Matrix) -> None:
        super().__init__(len(p))
        self.p, self.U, self.C = read_only(p), U, read_only(C)

    def diagonal(self) -> Vector:
        half = solve_triangular(self.C, self.U.T, lower=True)
        return np.asarray(self.p - self.p * np.einsum("ij,ij->j", half, half) * self.p)

    def scaled(self, n: int) -> InverseStepsize:
        """Return 4ⁿD exactly; raises ValueError where float64 does not hold it."""
        return InverseStepsize(scaled_exactly("D", self.p, 2 * n), scaled_exactly("U", self.U, -n), self.C)

    def arrays(self) -> dict[str, Matrix]:
        return {"p": self.p, "U": self.U, "C": self.C}

    def _matmat(self, X: Any) -> Any:
        Y = self.p[:, None] * X
        inner = solve_triangular(self.C, self.U.T @ Y, lower=True)
        return Y - self.p[:, None] * (self.U @ solve_triangular(self.C, inner, lower=True, trans=1))


def stepsize_from_arrays(arrays: dict[str, Matrix]) -> StepsizeOperator:
    """Return the stepsize whose ``arrays`` these are."""
    if "part_0" in arrays:
        places = range(len(arrays) // 2)
        indices: list[Any] = [arrays[f"indices_{i}"] for i in places]
        return BlockStepsize(indices, [arrays[f"part_{i}"] for i in places])
    if "x" in arrays:
        return DiagonalStepsize(arrays["x"])
    return InverseStepsize(arrays["p"], arrays["U"], arrays["C"])


def check_stepsize(D: Any, d: int, *others: Any) -> None:
    """Raise ArithmeticError for a D that is not d×d, finite and with a positive diagonal: the last gate of a result.

    others: arrays that belong to the result and must be finite, too.
    """
    parts = [*(D.arrays().values() if isinstance(D, StepsizeOperator) else [D]), *others]
    if not all(isinstance(part, np.ndarray) and part.dtype.kind in "fi" for part in parts) or D.shape != (d, d):
        msg = f"a stepsize must be a {d}×{d} matrix of real numbers"
        raise ArithmeticError(msg)
    if not (all(np.isfinite(part).all() for part in parts) and D.diagonal().min() >= SMALLEST_NORMAL):
        msg = "a stepsize that is not finite or has a diagonal entry below 2.3e-308 cannot be certified"
        raise ArithmeticError(msg)
