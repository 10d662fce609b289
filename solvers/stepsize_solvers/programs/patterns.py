"""The shapes that a matrix variable may have.

A pattern is a list of consecutive diagonal blocks: free ones, X = Diag(X₁, …, X_m) with symmetric Xᵢ, or multiples of
given positive definite blocks, X = Diag(γ₁W₁, …, γ_mW_m).  One free block is a full matrix, free blocks of size 1 are a
diagonal one, and one given block is the direction D = γW of the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsize_solvers.programs.maps import PositiveMap
from stepsize_solvers.programs.types import Indices, Matrix, Vector, block_slices

# γᵢWᵢ is rounded entry by entry, so it matches its direction to a few units in the last place for each row.
_SAME_DIRECTION = 16 * 2.0**-53


@dataclass(frozen=True, eq=False)
class Pattern:
    """X = Diag(X₁, …, X_m) with free symmetric blocks of the given sizes, or X = Diag(γ₁W₁, …, γ_mW_m) if W is given.

    ``W`` is block-diagonal with the same sizes and positive definite.  Raises ValueError for sizes below 1.
    """

    sizes: tuple[int, ...]
    W: Matrix | None = None

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            msg = f"block sizes must be positive whole numbers, got {self.sizes}"
            raise ValueError(msg)

    @staticmethod
    def full(d: int) -> Pattern:
        """All symmetric d×d matrices."""
        return Pattern((d,))

    @cached_property
    def d(self) -> int:
        return sum(self.sizes)

    @cached_property
    def slices(self) -> list[slice]:
        return block_slices(self.sizes)

    @property
    def is_full(self) -> bool:
        """Whether X is any symmetric matrix."""
        return self.W is None and len(self.sizes) == 1

    @property
    def is_diagonal(self) -> bool:
        """Whether X is any diagonal matrix."""
        return self.W is None and max(self.sizes) == 1

    @property
    def direction(self) -> Matrix | None:
        """W when X = γW with one factor γ, otherwise None."""
        return self.W if len(self.sizes) == 1 else None

    @property
    def member(self) -> Matrix:
        """A positive definite matrix with the pattern: the identity, or W."""
        return np.eye(self.d) if self.W is None else self.W

    @cached_property
    def labels(self) -> Indices:
        """The number of the block that each coordinate belongs to."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def blocks(self, M: Matrix) -> Matrix:
        """M with the entries outside the blocks set to zero."""
        if len(self.sizes) == 1:
            return M
        out = np.zeros_like(M)
        for s in self.slices:
            out[s, s] = M[s, s]
        return out

    def projected(self, Y: NDArray[Any]) -> NDArray[Any]:
        """The projection of Y in a basis in which every member is γᵢI in block i, or that keeps free blocks."""
        if self.W is None:
            return self.blocks(Y)
        means = [np.trace(Y[s, s]) / (s.stop - s.start) for s in self.slices]
        return np.diag(np.repeat(means, self.sizes)).astype(Y.dtype)

    def nearest(self, M: Matrix) -> Matrix:
        """M made symmetric and put into the pattern: other entries are dropped, each γᵢ is matched by its trace."""
        M = 0.5 * (M + M.T)
        if self.W is None:
            return self.blocks(M)
        out = np.zeros_like(M)
        for s in self.slices:
            W = self.W[s, s]
            out[s, s] = (np.trace(M[s, s]) / np.trace(W)) * W
        return out

    def contains(self, M: Matrix) -> bool:
        """Whether M is symmetric and has the pattern: exactly, but for the rounding of a product γᵢWᵢ."""
        if not (M == M.T).all() or (len(self.sizes) > 1 and not np.array_equal(M, self.blocks(M))):
            return False
        return self.W is None or self.has_direction(M)

    def has_direction(self, M: Matrix) -> bool:
        """Whether the diagonal blocks of M are positive multiples of those of W, up to rounding of their entries."""
        for s in self.slices:
            W, block = self.member[s, s], M[s, s]
            if np.array_equal(W, block):
                continue
            j = int(np.argmax(W.diagonal()))
            if not block[j, j] > 0.0:
                return False
            # Near one by powers of two, so that no quotient leaves the range of float64.
            W, block = np.ldexp(W, -math.frexp(W[j, j])[1]), np.ldexp(block, -math.frexp(block[j, j])[1])
            if not np.allclose(block * (W[j, j] / block[j, j]), W, rtol=_SAME_DIRECTION * len(W), atol=0.0):
                return False
        return True

    def rescaled(self, scale: Vector) -> Pattern:
        """The pattern of Λ⁻¹XΛ⁻¹ for the diagonal Λ of the given entries."""
        return self if self.W is None else replace(self, W=self.W / scale[:, None] / scale)

    def restrict(self, indices: Indices) -> Pattern:
        """The pattern seen by some of the coordinates, taken in increasing order."""
        if indices.size == self.d and self.W is None:
            return self
        # Of the blocks that are touched alone: there may be as many as coordinates, and as many calls.
        sizes = tuple(np.unique(self.labels[indices], return_counts=True)[1].tolist())
        # One free factor for each 1×1 block is a free diagonal.
        if self.W is None or max(sizes) == 1:
            return Pattern(sizes)
        return Pattern(sizes, self.W[np.ix_(indices, indices)])

    def commutes_with(self, Q: PositiveMap) -> bool:
        """Whether every outcome of the sketch behind 𝒬 commutes with every X of the pattern.

        That is so when a diagonal sketch is constant on each block, or X is diagonal.  Equal rows i, j of P have
        E(s_i − s_j)² = P_ii − 2P_ij + P_jj = 0, so s_i = s_j; for P = Diag(α) + β11ᵀ this is α_i + α_j = 0.
        """
        split = Q.diagonal_plus_scaled
        if split is not None and self.is_full:
            return split.is_multiple or self.d == 1
        if split is not None and self.W is None:
            return all(n == 1 or not split.alpha[s].any() for n, s in zip(self.sizes, self.slices, strict=True))
        P = Q.hadamard_matrix
        if P is None:
            return False
        if self.W is not None and np.array_equal(self.W, np.diag(np.diagonal(self.W))):
            return True
        return all(bool(np.all(P[s] == P[s.start])) for s in self.slices)
