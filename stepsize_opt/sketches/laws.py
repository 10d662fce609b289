"""Sketches: the random matrices S that compress a gradient, and their second moments.

A sketch is a random symmetric positive semidefinite d×d matrix S with E[S] = I (Li, Karagulyan, Richtárik,
"Det-CGD: Compressed Gradient Descent with Matrix Stepsizes for Non-Convex Optimization", 2023, the assumption
on the sketches).  The stepsize conditions of det-CGD see a sketch only through the positive linear map

    𝒫(M) = E[S M S]      and its centred form      𝒞(M) = E[(S − I) M (S − I)] = 𝒫(M) − M.

For a diagonal sketch S = Diag(s), 𝒫(M) = P ∘ M with P = E[s sᵀ] ⪰ 11ᵀ.

=========================  ======================================================  ========================
sketch                     𝒫                                                       numbers sent a round
=========================  ======================================================  ========================
``Identity``               P = 11ᵀ                                                 d
``RandK``                  P_jj = d/k, P_ij = d(k−1) / (k(d−1))                    k
``BernQ``                  P = 1/qᵢ inside layer i, 1 between layers               Σ qᵢ dᵢ
``IndependentSampling``    P = 11ᵀ + Diag(1/p − 1)                                 Σ p_j
``DiagonalSketch``         P = Σ_r w_r s_r s_rᵀ, or P as given                     Σ w_r nnz(s_r), or given
``LayerWise``              𝒫ᵢ on the diagonal blocks, M unchanged between layers   the sum over the layers
``FiniteSketch``           Σ_r w_r S_r M S_r                                       Σ w_r rank(S_r)
``Gaussian``               (1 + 1/k) M + (tr M / k) I                              k
=========================  ======================================================  ========================

Sketches are immutable, compare by value and hold read-only copies of the arrays that they were given.

*The law that certificates speak of.*  A law given by numbers (weights w_r, vectors s_r, matrices S_r, probabilities p,
q, moments P) is exactly what the float64 numbers held by the sketch say, as real numbers: 𝒫(M) = Σ_r w_r S_r M S_r
without rounding, 1/p the real quotient.  RandK and Gaussian have their rational coefficients.  Nothing is normalised:
weights that add up to 1 and matrices that average to I only up to rounding are used as they are (a deviation above 1e-9
is refused).  Between the layers of a LayerWise the factor is 1, as E[Sᵢ] = I says.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb, isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from stepsize_opt.inputs import (
    SLACK,
    Array,
    check_dense,
    check_unbiased,
    distribution,
    items,
    layer_sizes,
    probability_array,
    read_only,
    real_array,
    real_number,
    symmetric_part,
    whole_number,
)
from stepsize_opt.proofs import coefficient_roundings
from stepsize_opt.sketches.base import DiagonalBase, Law, Sketch, check_listable, independent_law
from stepsize_solvers.programs import (
    CongruenceSum,
    DiagonalPlusScaled,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Vector,
    block_slices,
    hadamard,
)

__all__ = [
    "BernQ",
    "DiagonalSketch",
    "FiniteSketch",
    "Gaussian",
    "Identity",
    "IndependentSampling",
    "LayerWise",
    "RandK",
    "Sketch",
]

# Products of weights and values from here on keep all their digits; above the smallest normal number, 2.2e-308, because
# sums of smaller ones would be rounded to it.
_LEAST_PRODUCT = 1e-290

DiagonalSampler: TypeAlias = Callable[[np.random.Generator, int], ArrayLike]

# Draws by which two samplers are told apart: laws with the same P that agree in all of them are hard to write down.
_SAMPLER_DRAWS = 256


@dataclass(frozen=True, eq=False)
class Identity(DiagonalBase):
    """No compression, S = I: 𝒫(M) = M.  Raises ValueError unless d is a whole number of at least 1."""

    def __post_init__(self) -> None:
        self._set(d=whole_number("d", self.d))

    def _map(self) -> PositiveMap:
        return DiagonalPlusScaled.identity(self.d)

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return np.ones((size, self.d))

    @property
    def expected_nonzeros(self) -> float:
        return float(self.d)

    @property
    def text(self) -> str:
        return "identity"

    def support(self) -> Law:
        return np.ones(1), np.ones((1, self.d))


@dataclass(frozen=True, eq=False)
class RandK(DiagonalBase):
    """Rand-k: k of the d coordinates, drawn uniformly without replacement, each multiplied by d/k.

    𝒫(M) = P ∘ M with P_jj = d/k and P_ij = (d/k)² · k(k−1)/(d(d−1)) = d(k−1)/(k(d−1)), and ω = d/k − 1.
    Raises ValueError unless k is a whole number from 1 to d.
    """

    k: int

    def __post_init__(self) -> None:
        d = whole_number("d", self.d)
        self._set(d=d, k=whole_number("k", self.k, high=d))

    def _map(self) -> PositiveMap:
        d, k = self.d, self.k
        if k == d:  # also d = 1, where the formula below is 0/0
            return DiagonalPlusScaled.identity(d)
        # α = d/k − β, written without the cancellation.
        return DiagonalPlusScaled(np.full(d, d * (d - k) / (k * (d - 1))), d * (k - 1) / (k * (d - 1)))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        # The places of the k smallest of d independent uniforms are a uniform subset.
        chosen = np.argpartition(rng.random((size, self.d)), self.k - 1, axis=1)[:, : self.k]
        return self._indicators(chosen)

    def _indicators(self, chosen: NDArray[np.intp]) -> Matrix:
        out = np.zeros((len(chosen), self.d))
        np.put_along_axis(out, chosen, self.d / self.k, axis=1)
        return out

    @property
    def expected_nonzeros(self) -> float:
        return float(self.k)

    @property
    def text(self) -> str:
        return f"randk:{self.k}"

    def support(self) -> Law:
        outcomes = check_listable(self, comb(self.d, self.k))
        subsets = np.array(list(combinations(range(self.d), self.k)), dtype=np.intp)
        return np.full(outcomes, 1.0 / outcomes), self._indicators(subsets)


class _Coins(DiagonalBase):
    """Independent coins: layer i, of sizes[i] coordinates, is kept with probability q[i] and then divided by it."""

    @abstractmethod
    def _coins(self) -> tuple[Vector, tuple[int, ...]]:
        """The probabilities q and the layer sizes."""

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        q, sizes = self._coins()
        return np.repeat((rng.random((size, q.size)) < q) / q, sizes, axis=1)

    @property
    def expected_nonzeros(self) -> float:
        q, sizes = self._coins()
        return float(q @ sizes)

    def support(self) -> Law:
        laws: list[Law] = []
        for q, n in zip(*self._coins(), strict=True):
            kept = np.full((1, n), 1.0 / q)
            laws.append(
                (np.ones(1), kept) if q == 1.0 else (np.array([q, 1.0 - q]), np.vstack([kept, np.zeros((1, n))]))
            )
        return independent_law(self, laws)


@dataclass(frozen=True, eq=False, init=False)
class BernQ(_Coins):
    """Bernoulli sketch: layer i is sent whole with probability qᵢ, divided by qᵢ; otherwise not at all.

    ``sizes`` is the dimension d (one layer, one coin) or the list of layer sizes; ``q`` one number for all layers
    or one for each.  𝒫(M) = P ∘ M with P = 1/qᵢ inside layer i and 1 between layers, and ω = 1/min q − 1.
    Raises ValueError unless every qᵢ is in (0, 1] and the sizes are positive whole numbers.
    """

    d: int = field(init=False, repr=False)
    q: Vector
    sizes: tuple[int, ...]

    def __init__(self, q: ArrayLike, sizes: int | Sequence[int]) -> None:
        layers = layer_sizes(sizes)
        probabilities = probability_array("q", q, dimensions=(0, 1))
        if probabilities.size not in (1, len(layers)):
            msg = f"q must be one number or one for each of the {len(layers)} layers, got {probabilities.size} numbers"
            raise ValueError(msg)
        per_layer = read_only(np.broadcast_to(probabilities.ravel(), len(layers)).copy())
        self._set(d=sum(layers), q=per_layer, sizes=layers)

    def _coins(self) -> tuple[Vector, tuple[int, ...]]:
        return self.q, self.sizes

    def _map(self) -> PositiveMap:
        # 1/q is rounded once, 1/1 is not.
        return _side_by_side(
            [DiagonalPlusScaled(np.zeros(n), 1.0 / q, int(q < 1.0)) for q, n in zip(self.q, self.sizes, strict=True)]
        )

    @property
    def text(self) -> str:
        layers = "" if len(self.sizes) == 1 else f"@{_join(self.sizes)}"
        return f"bernq:{_join(_shortest(self.q))}{layers}"


@dataclass(frozen=True, eq=False, init=False)
class IndependentSampling(_Coins):
    """Independent sampling: coordinate j is sent with probability p_j, divided by p_j, independently of the others.

    ``p`` is the vector of the d probabilities.  𝒫(M) = P ∘ M with P = 11ᵀ + Diag(1/p − 1), and ω = 1/min p − 1.
    Raises ValueError unless every p_j is in (0, 1].
    """

    d: int = field(init=False, repr=False)
    p: Vector

    def __init__(self, p: ArrayLike) -> None:
        probabilities = probability_array("p", p, dimensions=(1,))
        self._set(d=probabilities.size, p=probabilities)

    def _coins(self) -> tuple[Vector, tuple[int, ...]]:
        return self.p, (1,) * self.d

    def _map(self) -> PositiveMap:
        return DiagonalPlusScaled((1.0 - self.p) / self.p, 1.0, 0 if np.all(self.p == 1.0) else 2)

    @property
    def text(self) -> str:
        return f"independent:{_join(_shortest(self.p))}"


class DiagonalSketch(DiagonalBase):
    """Any diagonal sketch S = Diag(s), 𝒫(M) = P ∘ M: from the law of s or from its second moments."""

    @staticmethod
    def from_support(vectors: ArrayLike, weights: ArrayLike) -> DiagonalSketch:
        """s is the row ``vectors[r]`` with probability ``weights[r]``, so P = Σ_r w_r s_r s_rᵀ.

        ``vectors`` has shape (R, d), ``weights`` shape (R,).  Raises ValueError unless the vectors are nonnegative,
        the weights a probability distribution, and Σ_r w_r s_r = 1 in every coordinate.
        """
        return _SupportDiagonal(vectors, weights)

    @staticmethod
    def from_moments(P: ArrayLike, sampler: DiagonalSampler, expected_nonzeros: float | None = None) -> DiagonalSketch:
        """s is what ``sampler(rng, size)`` draws, an array of shape (size, d), and P = E[s sᵀ] is known.

        P says nothing of zeros: give ``expected_nonzeros`` if you know it, otherwise d is used, which is never too
        few.  That the sampler has mean 1 and second moments P is the caller's word; each draw is checked for its
        shape and for negative entries.  Raises ValueError unless P is symmetric with nonnegative entries
        (s ≥ 0) and P ⪰ 11ᵀ (the covariance of s is P − 11ᵀ).
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
        self._set(d=V.shape[1], vectors=read_only(V), weights=w)

    def _map(self) -> PositiveMap:
        # Coordinates with equal columns always have equal factors s_i = s_j; one of them stands for all.
        columns, labels = np.unique(self.vectors, axis=1, return_inverse=True)
        P, roundings = _sum_of_squares(columns, self.weights)
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
        return float(self.weights @ np.count_nonzero(self.vectors, axis=1))

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, {_counted(self.weights.size, 'vector', 'vectors')})"

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
        least, slack = float(np.linalg.eigvalsh(moments - 1.0)[0]), SLACK * float(np.linalg.norm(moments, 2))
        if least < -slack:
            msg = f"P − 11ᵀ must be positive semidefinite, being a covariance; got an eigenvalue {least:g}"
            raise ValueError(msg)
        if not callable(sampler):
            msg = f"sampler must be a function (rng, size) -> array of shape (size, d), got {sampler!r}"
            raise TypeError(msg)
        d = moments.shape[0]
        nonzeros = float(d) if expected_nonzeros is None else real_number("expected_nonzeros", expected_nonzeros)
        if not 0.0 < nonzeros <= d:
            msg = f"expected_nonzeros must be in (0, d={d}], got {nonzeros}"
            raise ValueError(msg)
        self._set(d=d, P=read_only(moments), sampler=sampler, nonzeros=nonzeros)

    def digest_parts(self) -> tuple[object, ...]:
        """What :func:`stepsize_opt.inputs.digests.digest` takes: the sampler, a function, by what it draws."""
        return self.d, self.P, self.nonzeros, self._diagonals(np.random.default_rng(0), _SAMPLER_DRAWS)

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
    def text(self) -> str:
        return f"diagonal(d={self.d}, given moments)"


@dataclass(frozen=True, eq=False, init=False)
class LayerWise(Sketch):
    """S = Diag(S₁, …, S_m) with independent sketches Sᵢ, one for each layer (block of coordinates).

    E[Sᵢ M_ij S_j] = M_ij for i ≠ j, so 𝒫(M) has the blocks 𝒫ᵢ(Mᵢᵢ) on the diagonal and those of M elsewhere.
    A layer that is itself a LayerWise is replaced by its layers, which is the same law.
    Raises ValueError for an empty list, TypeError for a layer that is not a Sketch.
    """

    d: int = field(init=False, repr=False)
    layers: tuple[Sketch, ...]

    def __init__(self, layers: Sequence[Sketch]) -> None:
        flat: list[Sketch] = []
        for i, layer in enumerate(items("layers", layers)):
            if not isinstance(layer, Sketch):
                msg = f"layers[{i}] must be a Sketch, got {layer!r}"
                raise TypeError(msg)
            flat.extend(layer.layers if isinstance(layer, LayerWise) else [layer])
        self._set(d=sum(layer.d for layer in flat), layers=tuple(flat))

    def _map(self) -> PositiveMap:
        return _side_by_side([layer.map for layer in self.layers])

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.concatenate([layer.untouched for layer in self.layers])

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.asarray(block_diag(*(layer._sample(rng) for layer in self.layers)))

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        slices = block_slices([layer.d for layer in self.layers])
        return np.hstack([layer._apply_rows(X[:, s], rng) for layer, s in zip(self.layers, slices, strict=True)])

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return np.hstack([layer._diagonals(rng, size) for layer in self.layers])

    @property
    def is_diagonal(self) -> bool:
        return all(layer.is_diagonal for layer in self.layers)

    @property
    def expected_nonzeros(self) -> float:
        return sum(layer.expected_nonzeros for layer in self.layers)

    @property
    def text(self) -> str:
        return "layers:" + ";".join(f"{layer.d}={layer.text}" for layer in self.layers)

    def support(self) -> Law:
        return independent_law(self, [layer.support() for layer in self.layers])


@dataclass(frozen=True, eq=False, init=False, repr=False)
class FiniteSketch(Sketch):
    """S is ``matrices[r]`` with probability ``weights[r]``: 𝒫(M) = Σ_r w_r S_r M S_r.

    For sketches that are not diagonal; for diagonal ones, :meth:`DiagonalSketch.from_support` is cheaper.
    ``matrices`` has shape (R, d, d), ``weights`` shape (R,).  ``expected_nonzeros`` is Σ_r w_r rank(S_r): both ends
    know the matrices and draw the same r from shared randomness, so that the coefficients of S_r x in a basis of
    the range of S_r are all that has to be sent.
    Raises ValueError unless every S_r is symmetric positive semidefinite, the weights are a probability
    distribution, and Σ_r w_r S_r = I.
    """

    matrices: Array
    weights: Vector

    def __init__(self, matrices: ArrayLike, weights: ArrayLike) -> None:
        given = real_array("matrices", matrices)
        if given.ndim != 3 or given.size == 0 or given.shape[1] != given.shape[2]:
            msg = f"matrices must have shape (R, d, d) with R and d at least 1, got {given.shape}"
            raise ValueError(msg)
        S = np.array([symmetric_part(f"matrices[{r}]", M) for r, M in enumerate(given)])
        for r, eigenvalues in enumerate(np.linalg.eigvalsh(S)):
            if eigenvalues[0] < -SLACK * abs(eigenvalues).max():
                msg = f"matrices[{r}] must be positive semidefinite, got an eigenvalue {eigenvalues[0]:g}"
                raise ValueError(msg)
        w = distribution(weights, len(S), "matrices")
        mean, size = (np.tensordot(w, A, axes=1) for A in (S, np.abs(S)))
        check_unbiased("matrices", mean, np.eye(S.shape[1]), size)
        self._set(d=S.shape[1], matrices=read_only(S), weights=w)

    def _map(self) -> PositiveMap:
        return CongruenceSum(self.weights, self.matrices)

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.asarray((self.matrices == np.eye(self.d)).all(axis=(0, 1)))

    def _draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(self.weights.size, size=size, p=self.weights)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.array(self.matrices[self._draw(rng, 1)[0]])

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        drawn = self._draw(rng, len(X))
        out = np.empty_like(X)
        for r in np.unique(drawn):
            out[drawn == r] = X[drawn == r] @ self.matrices[r]  # rows times a symmetric matrix
        return out

    @property
    def expected_nonzeros(self) -> float:
        eigenvalues = np.linalg.eigvalsh(self.matrices)
        ranks = np.count_nonzero(eigenvalues > SLACK * eigenvalues[:, -1:], axis=1)
        return float(self.weights @ ranks)

    @property
    def text(self) -> str:
        return f"finite(d={self.d}, {_counted(self.weights.size, 'matrix', 'matrices')})"

    def support(self) -> Law:
        check_listable(self, self.weights.size)
        return self.weights, self.matrices


@dataclass(frozen=True, eq=False)
class Gaussian(Sketch):
    """S = (1/k) G Gᵀ with a d×k matrix G of independent standard normal entries.

    𝒫(M) = (1 + 1/k) M + (tr M / k) I (Isserlis' theorem) and ω = (d + 1)/k.  The k numbers of Gᵀx are sent, G comes
    from shared randomness.  Raises ValueError unless k is a whole number from 1 to d.
    """

    k: int

    def __post_init__(self) -> None:
        d = whole_number("d", self.d)
        self._set(d=d, k=whole_number("k", self.k, high=d))

    def _map(self) -> PositiveMap:
        return ScaledPlusTrace(self.d, 1.0 + 1.0 / self.k, 1.0 / self.k)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        G = rng.standard_normal((self.d, self.k))
        return G @ G.T / self.k

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        out = np.empty_like(X)
        for i, x in enumerate(X):  # one G at a time: m of them together may not fit into memory
            G = rng.standard_normal((self.d, self.k))
            out[i] = G @ (x @ G) / self.k
        return out

    @property
    def expected_nonzeros(self) -> float:
        return float(self.k)

    @property
    def text(self) -> str:
        return f"gaussian:{self.k}"


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


def _side_by_side(maps: Sequence[PositiveMap]) -> PositiveMap:
    """The map of independent layers: a Hadamard product if every layer has one."""
    if len(maps) == 1:
        return maps[0]
    layered = Layered(tuple(maps))
    check_dense("E[ssᵀ] of the layers", layered.d)
    P = layered.hadamard_matrix
    if P is None:
        return layered
    # One more for α + β.
    return hadamard(read_only(P), coefficient_roundings(layered) + 1)


def _shortest(values: Vector) -> Vector:
    """One value for all when they are equal."""
    return values[:1] if np.all(values == values[0]) else values


def _join(values: Iterable[float]) -> str:
    """Numbers with commas between them, each with the fewest digits that read back as the same number."""
    return ",".join(repr(float(v)).removesuffix(".0") for v in values)


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"
