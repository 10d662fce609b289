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
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, reduce
from itertools import combinations
from math import comb, isfinite, prod
from numbers import Real
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from solvers.maps import (
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

Array: TypeAlias = NDArray[np.float64]
DiagonalSampler: TypeAlias = Callable[[np.random.Generator, int], ArrayLike]
Law: TypeAlias = tuple[Vector, Array]

# Relative slack of the checks E[S] = I, S ⪰ 0, Sᵀ = S and P ⪰ 11ᵀ.  Arrays computed in double precision (a
# projection from a QR factorisation, an average of 10⁵ terms) miss these by 1e-11 or less; a value typed with a
# few digits (0.333 for 1/3) or stored in single precision misses them by 1e-8 or more.  1e-9 tells them apart.
_SLACK = 1e-9

# support() lists at most this many outcomes.
_MAX_OUTCOMES = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(ABC):
    """A random symmetric positive semidefinite d×d matrix S with E[S] = I.

    Every random number comes from the ``numpy.random.Generator`` passed in: equal generators give equal draws,
    and ``apply(x, rng)`` on a vector equals ``sample(rng) @ x`` for a generator in the same state.
    """

    d: int

    @cached_property
    def map(self) -> PositiveMap:
        """𝒫(M) = E[S M S] as an exact positive map, in its cheapest form."""
        return self._map()

    def second_moment(self, M: ArrayLike) -> Matrix:
        """E[S M S] for a symmetric d×d matrix M.

        Raises ValueError if M is not a symmetric d×d matrix of finite numbers.
        """
        return self.map.apply(self._square("M", M))

    def centered_second_moment(self, M: ArrayLike) -> Matrix:
        """E[(S − I) M (S − I)] = E[S M S] − M for a symmetric d×d matrix M; raises as :meth:`second_moment`."""
        return self.map.centered().apply(self._square("M", M))

    def adjoint(self, Z: ArrayLike) -> Matrix:
        """𝒫*(Z), defined by ⟨𝒫*(Z), M⟩ = ⟨Z, 𝒫(M)⟩; it is E[S Z S] again, because S is symmetric."""
        return self.map.adjoint(self._square("Z", Z))

    def sample(self, rng: np.random.Generator) -> Matrix:
        """One draw of S as a dense d×d matrix, for tests and small d; use :meth:`apply` to compress vectors."""
        return self._sample(_generator(rng))

    def apply(self, x: ArrayLike, rng: np.random.Generator) -> Array:
        """S x for a vector x of shape (d,); for rows of shape (m, d), each row with its own independent S.

        No d×d matrix is formed.  Raises ValueError if x has another shape.
        """
        X = _numbers("x", x, finite=False)
        if X.ndim not in (1, 2) or X.shape[-1] != self.d:
            msg = f"x must have shape ({self.d},) or (m, {self.d}), got {X.shape}"
            raise ValueError(msg)
        return self._apply_rows(np.atleast_2d(X), _generator(rng)).reshape(X.shape)

    @property
    @abstractmethod
    def expected_nonzeros(self) -> float:
        """Numbers sent per round, on average: for a diagonal sketch the expected nonzeros of S x."""

    @property
    def omega(self) -> float:
        """The smallest ω with E‖Sx − x‖² ≤ ω‖x‖² for every x, which is λmax(E[S²]) − 1."""
        variance = self.map.centered().apply(np.eye(self.d))
        largest = np.diagonal(variance).max() if self.is_diagonal else np.linalg.eigvalsh(variance)[-1]
        return max(0.0, float(largest))

    @property
    @abstractmethod
    def text(self) -> str:
        """The form that ``parse_sketch`` reads, such as ``randk:8``; a description in brackets where none exists."""

    def support(self) -> Law:
        """The law of S, outcome by outcome: weights (R,), and diagonals (R, d) or matrices (R, d, d).

        Raises ValueError if the law is not finite, not known, or has more than 100 000 outcomes.
        """
        msg = f"{self} has no finite support to list"
        raise ValueError(msg)

    @property
    def is_diagonal(self) -> bool:
        """True when every outcome of S is a diagonal matrix."""
        return False

    @property
    def second_moment_matrix(self) -> Matrix:
        """P = E[s sᵀ] of a diagonal sketch S = Diag(s), dense; raises ValueError if the sketch is not diagonal."""
        P = self.map.hadamard_matrix
        if P is None:
            raise self._not_diagonal()
        return _read_only(P)

    def sample_diagonal(self, rng: np.random.Generator, size: int) -> Matrix:
        """``size`` independent diagonals of S, shape (size, d); raises ValueError if the sketch is not diagonal."""
        return self._diagonals(_generator(rng), whole_number("size", size, low=0))

    @abstractmethod
    def _map(self) -> PositiveMap: ...

    @abstractmethod
    def _sample(self, rng: np.random.Generator) -> Matrix: ...

    @abstractmethod
    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix: ...

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        raise self._not_diagonal()

    def _not_diagonal(self) -> ValueError:
        return ValueError(f"{self} is not diagonal: it has neither a matrix P nor diagonals to sample")

    def _square(self, name: str, value: ArrayLike) -> Matrix:
        M = _numbers(name, value)
        if M.shape != (self.d, self.d):
            msg = f"{name} must have shape ({self.d}, {self.d}), as {self} has d={self.d}; got {M.shape}"
            raise ValueError(msg)
        return _symmetric(name, M)

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _key(self) -> tuple[object, ...]:
        values = (getattr(self, f.name) for f in fields(self))
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and type(other) is type(self) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.text}>"


class _Diagonal(Sketch):
    """What all diagonal sketches share: S x is an entrywise product with a sampled diagonal."""

    @property
    def is_diagonal(self) -> bool:
        return True

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.diag(self._diagonals(rng, 1)[0])

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        return X * self._diagonals(rng, len(X))

    @abstractmethod
    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix: ...


@dataclass(frozen=True, eq=False)
class Identity(_Diagonal):
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
class RandK(_Diagonal):
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
        outcomes = _listable(self, comb(self.d, self.k))
        subsets = np.array(list(combinations(range(self.d), self.k)), dtype=np.intp)
        return np.full(outcomes, 1.0 / outcomes), self._indicators(subsets)


class _Coins(_Diagonal):
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
        return _independent(self, laws)


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
        layers = _layer_sizes(sizes)
        probabilities = _probabilities("q", q, dimensions=(0, 1))
        if probabilities.size not in (1, len(layers)):
            msg = f"q must be one number or one for each of the {len(layers)} layers, got {probabilities.size} numbers"
            raise ValueError(msg)
        per_layer = _read_only(np.broadcast_to(probabilities.ravel(), len(layers)).copy())
        self._set(d=sum(layers), q=per_layer, sizes=layers)

    def _coins(self) -> tuple[Vector, tuple[int, ...]]:
        return self.q, self.sizes

    def _map(self) -> PositiveMap:
        return _side_by_side(
            [DiagonalPlusScaled(np.zeros(n), 1.0 / q) for q, n in zip(self.q, self.sizes, strict=True)]
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
        probabilities = _probabilities("p", p, dimensions=(1,))
        self._set(d=probabilities.size, p=probabilities)

    def _coins(self) -> tuple[Vector, tuple[int, ...]]:
        return self.p, (1,) * self.d

    def _map(self) -> PositiveMap:
        return DiagonalPlusScaled((1.0 - self.p) / self.p, 1.0)

    @property
    def text(self) -> str:
        return f"independent:{_join(_shortest(self.p))}"


class DiagonalSketch(_Diagonal):
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
        V = _numbers("vectors", vectors)
        if V.ndim != 2 or V.size == 0:
            msg = f"vectors must have shape (R, d) with R and d at least 1, got {V.shape}"
            raise ValueError(msg)
        if np.any(V < 0.0):
            msg = f"vectors must be nonnegative, because S = Diag(s) ⪰ 0; got an entry {V.min():g}"
            raise ValueError(msg)
        w = _distribution(weights, len(V), "vectors")
        _check_unbiased("vectors", w @ V, np.ones(V.shape[1]), w @ V)
        self._set(d=V.shape[1], vectors=_read_only(V), weights=w)

    def _map(self) -> PositiveMap:
        P = (self.vectors * self.weights[:, None]).T @ self.vectors
        return hadamard(_read_only((P + P.T) / 2.0))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.vectors[rng.choice(self.weights.size, size=size, p=self.weights)]

    @property
    def expected_nonzeros(self) -> float:
        return float(self.weights @ np.count_nonzero(self.vectors, axis=1))

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, {_counted(self.weights.size, 'vector', 'vectors')})"

    def support(self) -> Law:
        _listable(self, self.weights.size)
        return self.weights, self.vectors


@dataclass(frozen=True, eq=False, init=False, repr=False)
class _MomentDiagonal(DiagonalSketch):
    P: Matrix
    sampler: DiagonalSampler
    nonzeros: float

    def __init__(self, P: ArrayLike, sampler: DiagonalSampler, expected_nonzeros: float | None) -> None:
        moments = _numbers("P", P)
        if moments.ndim != 2 or moments.size == 0 or moments.shape[0] != moments.shape[1]:
            msg = f"P must be a square matrix, got shape {moments.shape}"
            raise ValueError(msg)
        moments = _symmetric("P", moments)
        if np.any(moments < 0.0):
            msg = f"P must have nonnegative entries, because P = E[s sᵀ] with s ≥ 0; got an entry {moments.min():g}"
            raise ValueError(msg)
        least, slack = float(np.linalg.eigvalsh(moments - 1.0)[0]), _SLACK * float(np.linalg.norm(moments, 2))
        if least < -slack:
            msg = f"P − 11ᵀ must be positive semidefinite, being a covariance; got an eigenvalue {least:g}"
            raise ValueError(msg)
        if not callable(sampler):
            msg = f"sampler must be a function (rng, size) -> array of shape (size, d), got {sampler!r}"
            raise TypeError(msg)
        d = moments.shape[0]
        nonzeros = float(d) if expected_nonzeros is None else _number("expected_nonzeros", expected_nonzeros)
        if not 0.0 < nonzeros <= d:
            msg = f"expected_nonzeros must be in (0, d={d}], got {nonzeros}"
            raise ValueError(msg)
        self._set(d=d, P=_read_only(moments), sampler=sampler, nonzeros=nonzeros)

    def _map(self) -> PositiveMap:
        return hadamard(self.P)

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        drawn = _numbers("sampler(rng, size)", self.sampler(rng, size))
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
        for i, layer in enumerate(_items("layers", layers)):
            if not isinstance(layer, Sketch):
                msg = f"layers[{i}] must be a Sketch, got {layer!r}"
                raise TypeError(msg)
            flat.extend(layer.layers if isinstance(layer, LayerWise) else [layer])
        self._set(d=sum(layer.d for layer in flat), layers=tuple(flat))

    def _map(self) -> PositiveMap:
        return _side_by_side([layer.map for layer in self.layers])

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
        return _independent(self, [layer.support() for layer in self.layers])


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
        given = _numbers("matrices", matrices)
        if given.ndim != 3 or given.size == 0 or given.shape[1] != given.shape[2]:
            msg = f"matrices must have shape (R, d, d) with R and d at least 1, got {given.shape}"
            raise ValueError(msg)
        S = np.array([_symmetric(f"matrices[{r}]", M) for r, M in enumerate(given)])
        for r, eigenvalues in enumerate(np.linalg.eigvalsh(S)):
            if eigenvalues[0] < -_SLACK * abs(eigenvalues).max():
                msg = f"matrices[{r}] must be positive semidefinite, got an eigenvalue {eigenvalues[0]:g}"
                raise ValueError(msg)
        w = _distribution(weights, len(S), "matrices")
        mean, size = (np.tensordot(w, A, axes=1) for A in (S, np.abs(S)))
        _check_unbiased("matrices", mean, np.eye(S.shape[1]), size)
        self._set(d=S.shape[1], matrices=_read_only(S), weights=w)

    def _map(self) -> PositiveMap:
        return CongruenceSum(self.weights, self.matrices)

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
        ranks = np.count_nonzero(eigenvalues > _SLACK * eigenvalues[:, -1:], axis=1)
        return float(self.weights @ ranks)

    @property
    def text(self) -> str:
        return f"finite(d={self.d}, {_counted(self.weights.size, 'matrix', 'matrices')})"

    def support(self) -> Law:
        _listable(self, self.weights.size)
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


def _side_by_side(maps: Sequence[PositiveMap]) -> PositiveMap:
    """The map of independent layers: a Hadamard product if every layer has one."""
    if len(maps) == 1:
        return maps[0]
    layered = Layered(tuple(maps))
    P = layered.hadamard_matrix
    return layered if P is None else hadamard(_read_only(P))


def _listable(sketch: Sketch, outcomes: int) -> int:
    if outcomes > _MAX_OUTCOMES:
        msg = f"the law of {sketch} with d={sketch.d} has more than the {_MAX_OUTCOMES} outcomes that support() lists"
        raise ValueError(msg)
    return outcomes


def _independent(sketch: Sketch, laws: Sequence[Law]) -> Law:
    """The law of independent layers: all combinations of their outcomes, the first layer varying slowest."""
    _listable(sketch, prod(weights.size for weights, _ in laws))
    if any(values.ndim == 3 for _, values in laws):
        laws = [(w, V if V.ndim == 3 else V[:, :, None] * np.eye(V.shape[1])) for w, V in laws]
    return reduce(_combine, laws)


def _combine(first: Law, second: Law) -> Law:
    (v, A), (w, B) = first, second
    A, B = np.repeat(A, w.size, axis=0), np.tile(B, (v.size,) + (1,) * (B.ndim - 1))
    weights = np.outer(v, w).ravel()
    if A.ndim == 2:
        return weights, np.hstack([A, B])
    a, b = A.shape[1], B.shape[1]
    out = np.zeros((weights.size, a + b, a + b))
    out[:, :a, :a], out[:, a:, a:] = A, B
    return weights, out


def _shortest(values: Vector) -> Vector:
    """One value for all when they are equal."""
    return values[:1] if np.all(values == values[0]) else values


def _join(values: Iterable[float]) -> str:
    """Numbers with commas between them, each with the fewest digits that read back as the same number."""
    return ",".join(repr(float(v)).removesuffix(".0") for v in values)


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def _read_only(array: Array) -> Array:
    array.setflags(write=False)
    return array


def _generator(rng: np.random.Generator) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        msg = f"rng must be a numpy Generator, such as np.random.default_rng(0), got {rng!r}"
        raise TypeError(msg)
    return rng


def _number(name: str, value: object, expected: str = "a number") -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"{name} must be {expected}, got {value!r}"
        raise TypeError(msg)
    return float(value)


def whole_number(name: str, value: object, low: int = 1, high: int | None = None) -> int:
    """``value`` as an int; a whole float counts, a bool does not.  Raises ValueError, or TypeError if not a number.

    ``high`` is the dimension d, if there is an upper limit.
    """
    expected = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to d={high}"
    number = _number(name, value, expected)
    if not isfinite(number) or not number.is_integer() or number < low or (high is not None and number > high):
        msg = f"{name} must be {expected}, got {value}"
        raise ValueError(msg)
    return int(number)


def _items(name: str, values: object) -> list[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        msg = f"{name} must be a list, got {values!r}"
        raise TypeError(msg)
    items = list(values)
    if not items:
        msg = f"{name} must not be empty"
        raise ValueError(msg)
    return items


def _layer_sizes(sizes: object) -> tuple[int, ...]:
    if isinstance(sizes, Iterable) and not isinstance(sizes, str):
        return tuple(whole_number(f"sizes[{i}]", n) for i, n in enumerate(_items("sizes", sizes)))
    return (whole_number("sizes", sizes),)


def _numbers(name: str, value: ArrayLike, *, finite: bool = True) -> Array:
    """A float64 copy of an array of real numbers."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        msg = f"{name} must be an array of numbers: {error}"
        raise ValueError(msg) from None
    if array.dtype.kind not in "iuf":
        msg = f"{name} must hold real numbers, got an array of {array.dtype}"
        raise TypeError(msg)
    if finite and not np.all(np.isfinite(array)):
        msg = f"{name} must be finite, got NaN or infinity"
        raise ValueError(msg)
    return np.array(array, dtype=np.float64)


def _symmetric(name: str, M: Matrix) -> Matrix:
    """The symmetric part of a matrix that is symmetric up to rounding."""
    difference = np.abs(M - M.T).max()
    if difference > _SLACK * np.abs(M).max():
        msg = f"{name} must be symmetric, got entries that differ from their mirror images by {difference:g}"
        raise ValueError(msg)
    return (M + M.T) / 2.0


def _probabilities(name: str, value: ArrayLike, dimensions: tuple[int, ...]) -> Vector:
    p = _numbers(name, value)
    if p.ndim not in dimensions or p.size == 0:
        wanted = "a list of numbers" if 0 not in dimensions else "a number or a list of numbers"
        msg = f"{name} must be {wanted} in (0, 1], got shape {p.shape}"
        raise ValueError(msg)
    for i, v in enumerate(p.flat):
        if not 0.0 < v <= 1.0:
            msg = f"{name if p.ndim == 0 else f'{name}[{i}]'} must be in (0, 1], got {v:g}"
            raise ValueError(msg)
    return _read_only(p)


def _distribution(weights: ArrayLike, count: int, plural: str) -> Vector:
    w = _numbers("weights", weights)
    if w.shape != (count,):
        msg = f"weights must have one entry for each of the {count} {plural}, got shape {w.shape}"
        raise ValueError(msg)
    if np.any(w < 0.0):
        msg = f"weights must be nonnegative, got {w.min():g}"
        raise ValueError(msg)
    if abs(w.sum() - 1.0) > _SLACK:
        msg = f"weights must add up to 1, got {w.sum():.12g}"
        raise ValueError(msg)
    return _read_only(w)


def _check_unbiased(name: str, mean: Array, target: Array, size: Array) -> None:
    """E[S] = I, up to the rounding of numbers as large as ``size`` = E|S|."""
    error = np.abs(mean - target)
    if np.any(error > _SLACK * (1.0 + size)):
        msg = f"{name} must average to the identity (E[S] = I); their weighted mean is off by {error.max():g}"
        raise ValueError(msg)
