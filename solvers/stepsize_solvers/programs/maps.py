"""Positive linear maps 𝒬 on symmetric matrices: all that a program needs to know of a random sketch.

For a symmetric random matrix S, ``𝒬(M) = E[S M S]`` is linear, self-adjoint in the inner product
``⟨A, B⟩ = tr(AB)`` and maps positive semidefinite matrices to positive semidefinite matrices.  Four
shapes cover every sketch of the library; a fifth puts independent layers side by side.

=====================  ==========================================  ===============================
class                  𝒬(M)                                        sketches
=====================  ==========================================  ===============================
``DiagonalPlusScaled``  Diag(α ∘ diag M) + β M                      identity, rand-k, one-coin
                                                                   Bernoulli, independent sampling
``Hadamard``           P ∘ M                                       every diagonal sketch
``CongruenceSum``      Σ_r w_r S_r M S_rᵀ                          finite support
``ScaledPlusTrace``    a M + b tr(M) I                             Gaussian
``Layered``            diagonal blocks 𝒬ᵢ(Mᵢᵢ), off-diagonal c·M   independent layers
=====================  ==========================================  ===============================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
Stack: TypeAlias = NDArray[np.float64]  # matrices of one shape along the first axis
Indices: TypeAlias = NDArray[np.intp]

_GRADED = 1e10  # see PositiveMap.is_graded


def block_slices(sizes: Sequence[int]) -> list[slice]:
    """Slices of consecutive blocks of the given sizes."""
    return [slice(a, b) for a, b in pairwise(accumulate(sizes, initial=0))]


def exponent_above(M: Matrix) -> int:
    """The e with max|M| in [2^(e−1), 2^e); 0 for a zero or empty matrix."""
    return int(np.frexp(np.abs(M).max(initial=0.0))[1])


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


class PositiveMap(ABC):
    """A linear map 𝒬 on d×d symmetric matrices that sends the PSD cone into itself."""

    @property
    @abstractmethod
    def d(self) -> int:
        """Size of the matrices that the map takes."""

    @abstractmethod
    def apply(self, M: Matrix) -> Matrix:
        """𝒬(M)."""

    def adjoint(self, Z: Matrix) -> Matrix:
        """𝒬*(Z), defined by ⟨𝒬*(Z), M⟩ = ⟨Z, 𝒬(M)⟩.  Equal to 𝒬(Z) unless a subclass says otherwise."""
        return self.apply(Z)

    @abstractmethod
    def magnitude(self, M: Matrix) -> Matrix:
        """Entrywise bound on |𝒬(E)| over all |E| ≤ M, for a nonnegative M: the map with absolute coefficients."""

    @abstractmethod
    def centered(self) -> PositiveMap:
        """The map M ↦ 𝒬(M) − M, which is E[(S − I) M (S − I)] when 𝒬(M) = E[S M S] and E[S] = I."""

    @abstractmethod
    def restrict(self, indices: Indices) -> PositiveMap:
        """The map on matrices supported on ``indices`` (increasing, a union of ``groups``) in rows and columns."""

    @property
    @abstractmethod
    def groups(self) -> Indices:
        """A label per coordinate; 𝒬(ΛMΛ) = Λ𝒬(M)Λ for every diagonal Λ that is constant on equal labels."""

    @property
    @abstractmethod
    def diagonal_action(self) -> Vector:
        """The numbers q_j = 𝒬(e_j e_jᵀ)_jj: the map on a coordinate that stands alone."""

    @cached_property
    def action_range(self) -> tuple[float, float]:
        """min q and max q of ``diagonal_action``."""
        return float(self.diagonal_action.min()), float(self.diagonal_action.max())

    @cached_property
    def action_levels(self) -> Vector:
        """log₂(q_j / min q) of ``diagonal_action``."""
        return np.log2(self.diagonal_action / self.action_range[0])

    @property
    def is_graded(self) -> bool:
        """Whether the q_j differ so much (a coordinate kept with probability 10⁻¹⁰, say) that rotations lose digits.

        The diagonal of a B that is scaled for D near one has the same ratio, and eigenvectors of B, or of a D that is
        so graded, are right to rounding of the largest entries only.
        """
        lowest, highest = self.action_range
        return bool(highest > _GRADED * lowest)

    @cached_property
    def effective_beta(self) -> float:
        """A scalar β with 𝒬(M) ≈ βM on average: the mean of what an entrywise map multiplies by off the diagonal.

        For other maps ⟨M, 𝒬(M)⟩/⟨M, M⟩ at a fixed random M.
        """
        split = self.diagonal_plus_scaled
        if split is not None:
            return split.beta
        P, d = self.hadamard_matrix, self.d
        if P is not None and d > 1:
            return float(P.sum() - np.trace(P)) / (d * (d - 1))
        M = np.random.default_rng(1).standard_normal((d, d))
        M += M.T
        return float(np.vdot(M, self.apply(M)) / np.vdot(M, M))

    @property
    def is_entrywise(self) -> bool:
        """Whether 𝒬(M) = P ∘ M, so that it couples no coordinates."""
        return False

    @property
    def hadamard_matrix(self) -> Matrix | None:
        """P when the map is entrywise, otherwise None; not to be changed."""
        return None

    @property
    def diagonal_plus_scaled(self) -> DiagonalPlusScaled | None:
        """The map itself when it has the cheap form Diag(α ∘ diag M) + β M, otherwise None."""
        return None

    def expression(self, Y: Any) -> Any:
        """𝒬(Y) for a symmetric matrix of cvxpy.  A map that is no entrywise product says what it is."""
        import cvxpy as cp

        P = self.hadamard_matrix
        if P is None:
            msg = f"a map of type {type(self).__name__} has no cvxpy expression; define its method expression(Y)"
            raise TypeError(msg)
        return cp.multiply(P, Y)


class _Entrywise(PositiveMap):
    """𝒬(M) = P ∘ M."""

    @property
    def groups(self) -> Indices:
        return np.arange(self.d)

    @property
    def is_entrywise(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class DiagonalPlusScaled(_Entrywise):
    """𝒬(M) = Diag(α ∘ diag M) + β M, the Hadamard product with P = Diag(α) + β 11ᵀ at the cost of a sum.

    Rand-k has β = d(k−1)/(k(d−1)) and α = d/k − β in every coordinate; independent sampling with
    probabilities p has α = 1/p − 1 and β = 1; the identity has α = 0 and β = 1.
    ``roundings`` as in ``Hadamard``, for the matrix Diag(α) + β 11ᵀ.
    """

    alpha: Vector
    beta: float
    roundings: int = 2

    @staticmethod
    @lru_cache(maxsize=16)
    def identity(d: int) -> DiagonalPlusScaled:
        """M ↦ M."""
        alpha = np.zeros(d)
        alpha.setflags(write=False)
        return DiagonalPlusScaled(alpha, 1.0, 0)

    @property
    def d(self) -> int:
        return int(self.alpha.size)

    @cached_property
    def is_multiple(self) -> bool:
        """Whether 𝒬(M) = β M."""
        return not self.alpha.any()

    def apply(self, M: Matrix) -> Matrix:
        return _diagonal_plus_scaled(self.alpha, self.beta, M)

    def magnitude(self, M: Matrix) -> Matrix:
        return _diagonal_plus_scaled(np.abs(self.alpha), abs(self.beta), M)

    def centered(self) -> DiagonalPlusScaled:
        return DiagonalPlusScaled(self.alpha, self.beta - 1.0, self.roundings)

    def restrict(self, indices: Indices) -> DiagonalPlusScaled:
        return DiagonalPlusScaled(self.alpha[indices], self.beta, self.roundings)

    @property
    def diagonal_action(self) -> Vector:
        return self.alpha + self.beta

    @property
    def hadamard_matrix(self) -> Matrix:
        P = np.full((self.d, self.d), self.beta)
        add_to_diagonal(P, self.alpha)
        return P

    @property
    def diagonal_plus_scaled(self) -> DiagonalPlusScaled:
        return self


def _diagonal_plus_scaled(alpha: Vector, beta: float, M: Matrix) -> Matrix:
    """Diag(α ∘ diag M) + β M."""
    out = np.multiply(beta, M, order="C")
    add_to_diagonal(out, alpha * M.diagonal())
    return out


@dataclass(frozen=True, eq=False)
class Hadamard(_Entrywise):
    """𝒬(M) = P ∘ M with P ⪰ 0 (Schur's product theorem makes it positive).

    Use ``hadamard`` to get the cheaper ``DiagonalPlusScaled`` where P allows it.
    ``roundings`` is how many roundings each entry of P went through: it is within (1 ± 2⁻⁵³)^roundings of the
    exact coefficient.
    """

    P: Matrix
    roundings: int = 2

    @property
    def d(self) -> int:
        return int(self.P.shape[-1])

    def apply(self, M: Matrix) -> Matrix:
        return self.P * M

    def magnitude(self, M: Matrix) -> Matrix:
        return np.abs(self.P) * M

    def centered(self) -> PositiveMap:
        return hadamard(self.P - 1.0, self.roundings)

    def restrict(self, indices: Indices) -> PositiveMap:
        return hadamard(self.P[np.ix_(indices, indices)], self.roundings)

    @property
    def diagonal_action(self) -> Vector:
        return np.diagonal(self.P).copy()

    @property
    def hadamard_matrix(self) -> Matrix:
        return self.P


def hadamard(P: Matrix, roundings: int = 2) -> PositiveMap:
    """The map M ↦ P ∘ M, as ``DiagonalPlusScaled`` when all off-diagonal entries of P are equal."""
    d = P.shape[0]
    if d == 1:
        return DiagonalPlusScaled(np.zeros(1), float(P[0, 0]), roundings)
    off = P[~np.eye(d, dtype=bool)]
    if np.all(off == off[0]):
        return DiagonalPlusScaled(np.diagonal(P) - off[0], float(off[0]), roundings + 1)  # one for the difference
    return Hadamard(P, roundings)


@dataclass(frozen=True, eq=False)
class CongruenceSum(PositiveMap):
    """𝒬(M) = Σ_r w_r S_r M S_rᵀ with weights w_r ≥ 0 and any square matrices S_r, stacked as (R, d, d)."""

    weights: Vector
    matrices: Stack

    @property
    def d(self) -> int:
        return int(self.matrices.shape[1])

    def apply(self, M: Matrix) -> Matrix:
        return np.asarray(np.einsum("r,rij->ij", self.weights, self.matrices @ M @ self.matrices.transpose(0, 2, 1)))

    def adjoint(self, Z: Matrix) -> Matrix:
        return np.asarray(np.einsum("r,rij->ij", self.weights, self.matrices.transpose(0, 2, 1) @ Z @ self.matrices))

    def magnitude(self, M: Matrix) -> Matrix:
        return CongruenceSum(self.weights, np.abs(self.matrices)).apply(M)

    def centered(self) -> CongruenceSum:
        return CongruenceSum(self.weights, self.matrices - np.eye(self.d))

    def restrict(self, indices: Indices) -> CongruenceSum:
        return CongruenceSum(self.weights, self.matrices[np.ix_(np.arange(self.weights.size), indices, indices)])

    @property
    def diagonal_action(self) -> Vector:
        return np.asarray(self.weights @ np.einsum("rii->ri", self.matrices) ** 2)

    @property
    def groups(self) -> Indices:
        return connected_labels(np.any(self.matrices != 0.0, axis=0))

    def expression(self, Y: Any) -> Any:
        return sum(w * (S @ Y @ S.T) for w, S in zip(self.weights, self.matrices, strict=True))


@dataclass(frozen=True, eq=False)
class ScaledPlusTrace(PositiveMap):
    """𝒬(M) = a M + b tr(M) I with a, b ≥ 0: the second moment of the Gaussian sketch (a = 1 + 1/k, b = 1/k)."""

    size: int
    a: float
    b: float

    @property
    def d(self) -> int:
        return self.size

    def apply(self, M: Matrix) -> Matrix:
        out = self.a * M
        add_to_diagonal(out, self.b * np.trace(M))
        return out

    def magnitude(self, M: Matrix) -> Matrix:
        return self.apply(M)

    def centered(self) -> ScaledPlusTrace:
        return ScaledPlusTrace(self.size, self.a - 1.0, self.b)

    def restrict(self, indices: Indices) -> ScaledPlusTrace:
        if indices.size != self.size:
            msg = f"the trace couples all {self.size} coordinates; cannot restrict to {indices.size} of them"
            raise ValueError(msg)
        return self

    @property
    def diagonal_action(self) -> Vector:
        return np.full(self.size, self.a + self.b)

    @property
    def groups(self) -> Indices:
        return np.zeros(self.size, dtype=np.intp)

    def expression(self, Y: Any) -> Any:
        import cvxpy as cp

        return self.a * Y + self.b * cp.trace(Y) * np.eye(self.size)


@dataclass(frozen=True, eq=False)
class Layered(PositiveMap):
    """Independent layers: 𝒬ᵢ on the diagonal blocks, the factor ``between`` on the blocks between layers.

    Independent unbiased layers have E[Sᵢ M_ij S_j] = M_ij, so ``between`` is 1; the centred map has 0.
    """

    layers: tuple[PositiveMap, ...]
    between: float = 1.0

    @property
    def d(self) -> int:
        return sum(layer.d for layer in self.layers)

    def _slices(self) -> list[slice]:
        return block_slices([layer.d for layer in self.layers])

    def _by_layers(self, between: float, M: Matrix, image: Callable[[PositiveMap, Matrix], Matrix]) -> Matrix:
        out = between * M
        for layer, s in zip(self.layers, self._slices(), strict=True):
            out[s, s] = image(layer, M[s, s])
        return out

    def apply(self, M: Matrix) -> Matrix:
        return self._by_layers(self.between, M, lambda layer, block: layer.apply(block))

    def adjoint(self, Z: Matrix) -> Matrix:
        return self._by_layers(self.between, Z, lambda layer, block: layer.adjoint(block))

    def magnitude(self, M: Matrix) -> Matrix:
        return self._by_layers(abs(self.between), M, lambda layer, block: layer.magnitude(block))

    def centered(self) -> Layered:
        return Layered(tuple(layer.centered() for layer in self.layers), self.between - 1.0)

    def restrict(self, indices: Indices) -> PositiveMap:
        parts: list[PositiveMap] = []
        for layer, s in zip(self.layers, self._slices(), strict=True):
            inside = indices[(indices >= s.start) & (indices < s.stop)] - s.start
            if inside.size:
                parts.append(layer.restrict(inside))
        return parts[0] if len(parts) == 1 else Layered(tuple(parts), self.between)

    @property
    def diagonal_action(self) -> Vector:
        return np.concatenate([layer.diagonal_action for layer in self.layers])

    @property
    def groups(self) -> Indices:
        labels: list[Indices] = []
        offset = 0
        for layer in self.layers:
            part = layer.groups + offset
            labels.append(part)
            offset = int(part.max()) + 1
        return np.concatenate(labels)

    @property
    def is_entrywise(self) -> bool:
        return all(layer.is_entrywise for layer in self.layers)

    @property
    def hadamard_matrix(self) -> Matrix | None:
        P = np.full((self.d, self.d), self.between)
        for layer, s in zip(self.layers, self._slices(), strict=True):
            block = layer.hadamard_matrix
            if block is None:
                return None
            P[s, s] = block
        return P

    def expression(self, Y: Any) -> Any:
        import cvxpy as cp

        if self.is_entrywise:
            return super().expression(Y)
        slices = self._slices()
        rows = [
            [layer.expression(Y[s, s]) if r == s else self.between * Y[s, r] for r in slices]
            for layer, s in zip(self.layers, slices, strict=True)
        ]
        return cp.bmat(rows)


def is_identity(Q: PositiveMap) -> bool:
    """Whether 𝒬(M) = M, exactly: coefficients that are 1 and 0 by rounding do not count."""
    return isinstance(Q, DiagonalPlusScaled) and Q.roundings == 0 and Q.beta == 1.0 and Q.is_multiple
