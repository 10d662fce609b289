"""Names of array types, and small helpers on index sets, that every room uses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
Stack: TypeAlias = NDArray[np.float64]  # matrices of one shape along the first axis
Indices: TypeAlias = NDArray[np.intp]


def block_slices(sizes: Sequence[int]) -> list[slice]:
    """Slices of consecutive blocks of the given sizes."""
    return [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]


def add_to_diagonal(M: NDArray[Any], values: NDArray[Any] | float) -> None:
    """diag(M) += values, in place."""
    diagonal = M.diagonal()
    diagonal.setflags(write=True)  # a view of M, which numpy hands out read-only
    diagonal += values


def connected_labels(pattern: NDArray[np.bool_]) -> Indices:
    """Labels 0, 1, … of the connected components of the graph whose edges are the True entries."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(csr_array(pattern), directed=False)
    return np.asarray(labels, dtype=np.intp)
