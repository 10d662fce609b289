"""Products with a sparse matrix whose rows have parts in common, as data of categories have.

Cut the columns into a few groups.  Within a group many rows are equal, so M = Diag(s) A is P C, where C lists the
distinct parts of the rows and P, with one entry sᵢ for each row and group, tells which of them a row consists of.  On
mushrooms P and C together have a sixth of the nonzeros of M, on phishing a third, on a1a half.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_solvers.programs import Indices, Matrix, Vector

# Numbers of groups that are tried; more of them make C smaller and P larger.
_GROUPS = (2, 3, 4, 6, 8)
# Two products cost more than one with as many nonzeros; below this share of them they are faster (measured on a1a).
_WORTH = 0.7


@dataclass(frozen=True, eq=False)
class Rows:
    """M = F₁F₂… (m×d), csr or dense; ``transposed`` holds …F₂ᵀF₁ᵀ, which costs too much to make in every step."""

    factors: tuple[Any, ...]
    transposed: tuple[Any, ...]

    @staticmethod
    def of(A: Any, scales: Vector) -> Rows:
        """Return Diag(scales) A, for a csr A as two factors where these are cheaper."""
        if not sparse.issparse(A):
            return Rows._from(np.asarray(A, dtype=float) * scales[:, None])
        best: tuple[Any, ...] = (sparse.csr_array(sparse.diags_array(scales) @ A),)
        cost = _WORTH * A.nnz
        for count in _GROUPS:
            if count <= A.shape[1]:
                P, C = _shared(A, scales, count)
                if P.nnz + C.nnz < cost:
                    best, cost = (P, C), P.nnz + C.nnz
        return Rows._from(*best)

    @staticmethod
    def _from(*factors: Any) -> Rows:
        return Rows(factors, tuple(factor.T for factor in reversed(factors)))

    @property
    def T(self) -> Rows:
        return Rows(self.transposed, self.factors)

    @property
    def size(self) -> int:
        """Nonzeros of the factors, to which the time of a product is proportional."""
        return sum(int(factor.nnz if sparse.issparse(factor) else factor.size) for factor in self.factors)

    def __matmul__(self, Y: Matrix) -> Matrix:
        """Return M Y, shape (d, s) → (m, s)."""
        for factor in reversed(self.factors):
            Y = factor @ Y
        return np.asarray(Y)


def _shared(A: Any, scales: Vector, count: int) -> tuple[Any, Any]:
    """Return P and C for ``count`` groups of consecutive columns."""
    m, d = A.shape
    choices, parts = [], []
    for start, stop in pairwise(np.linspace(0, d, count + 1).round().astype(int)):
        part = sparse.csr_array(A[:, start:stop])
        first, labels = distinct_rows(part)
        choices.append(sparse.csr_array((scales, (np.arange(m), labels)), shape=(m, len(first))))
        parts.append(part[first])
    return sparse.csr_array(sparse.hstack(choices)), sparse.csr_array(sparse.block_diag(parts))


def distinct_rows(A: Any) -> tuple[Indices, Indices]:
    """Return the first occurrence of each distinct row of A, csr or dense, in order, and which of them each row is."""
    if sparse.issparse(A):
        A.sort_indices()
        bounds = zip(A.indptr[:-1], A.indptr[1:], strict=True)
        keys = [(A.indices[a:b].tobytes(), A.data[a:b].tobytes()) for a, b in bounds]
    else:
        keys = [(row.tobytes(), b"") for row in np.ascontiguousarray(A)]
    seen: dict[tuple[bytes, bytes], int] = {}
    labels = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)
    _, first = np.unique(labels, return_index=True)
    return first.astype(np.intp), labels
