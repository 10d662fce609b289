"""Diagonal sketches S = Diag(s): 𝒫(M) = P ∘ M with P = E[s sᵀ] ⪰ 11ᵀ."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb, isqrt
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepsize_opt.inputs import (
    SLACK,
    check_dense,
    check_unbiased,
    distribution,
    layer_sizes,
    probability_array,
    read_only,
    real_array,
    real_number,
    symmetric_part,
    whole_number,
)
from stepsize_opt.proofs import coefficient_roundings
from stepsize_opt.sketches.base import DiagonalBase, Law, check_listable, independent_law
from stepsize_opt.sketches.text import check_sizes, counted, join, number, numbers, one_or_each, shortest
from stepsize_solvers.programs import DiagonalPlusScaled, Layered, Matrix, PositiveMap, Vector, hadamard

# Products of weights and values from here on keep all their digits; above the smallest normal number, 2.2e-308, because
# sums of smaller ones would be rounded to it.
_LEAST_PRODUCT = 1e-290

DiagonalSampler: TypeAlias = Callable[[np.random.Generator, int], ArrayLike]

# Draws by which two samplers are told apart: laws with the same P that agree in all of them are hard to write down.
_SAMPLER_DRAWS = 256


@dataclass(frozen=True, eq=False)
class Identity(DiagonalBase):
    """No compression, S = I: 𝒫(M) = M.  Raises ValueError unless d is a whole number of at least 1.

    Examples
    --------
    >>> from stepsize_opt import Identity
    >>> Identity(4).omega, str(Identity(4))
    (0.0, 'identity')
    """

    form: ClassVar[str] = "identity"
    unbiased_by_formula: ClassVar[bool] = True

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

    @classmethod
    def parse(cls, argument: str, d: int) -> Identity:
        if argument:
            msg = f"identity takes nothing after it, got {argument!r}"
            raise ValueError(msg)
        return cls(d)

    def support(self) -> Law:
        return np.ones(1), np.ones((1, self.d))


@dataclass(frozen=True, eq=False)
class RandK(DiagonalBase):
    """Rand-k: k of the d coordinates, drawn uniformly without replacement, each multiplied by d/k.

    𝒫(M) = P ∘ M with P_jj = d/k and P_ij = (d/k)² · k(k−1)/(d(d−1)) = d(k−1)/(k(d−1)), and ω = d/k − 1.
    As text ``randk:8``, or ``randk:25%`` for k = max(1, round(d·25/100)).
    Raises ValueError unless k is a whole number from 1 to d.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> sketch = RandK(4, 2)
    >>> sketch.expected_nonzeros, round(sketch.omega, 6), str(sketch)
    (2.0, 1.0, 'randk:2')
    >>> int(np.count_nonzero(sketch.apply(np.ones(4), np.random.default_rng(0))))
    2
    """

    form: ClassVar[str] = "randk:8 or randk:25%"
    unbiased_by_formula: ClassVar[bool] = True
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
        if self.k == 1:
            return self._indicators(rng.integers(self.d, size=(size, 1)))
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

    @classmethod
    def parse(cls, argument: str, d: int) -> RandK:
        if not argument.endswith("%"):
            return cls(d, whole_number("k", number("k", argument), high=d))
        percent = number("the percentage", argument[:-1])
        if not 0.0 < percent <= 100.0:
            msg = f"the percentage must be in (0, 100], got {percent:g}"
            raise ValueError(msg)
        return cls(d, max(1, round(d * percent / 100.0)))

    def support(self) -> Law:
        outcomes = check_listable(self, comb(self.d, self.k))
        subsets = np.array(list(combinations(range(self.d), self.k)), dtype=np.intp)
        return np.full(outcomes, 1.0 / outcomes), self._indicators(subsets)


class _Coins(DiagonalBase):
    """Independent coins: layer i, of sizes[i] coordinates, is kept with probability q[i] and then divided by it."""

    unbiased_by_formula: ClassVar[bool] = True

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
    As text ``bernq:0.5``, ``bernq:0.5@3,4`` for two layers, ``bernq:0.5,0.25@3,4`` for a q of each.
    Raises ValueError unless every qᵢ is in (0, 1] and the sizes are positive whole numbers.

    Examples
    --------
    >>> from stepsize_opt import BernQ
    >>> sketch = BernQ([0.5, 0.25], [3, 4])
    >>> sketch.expected_nonzeros, sketch.omega, str(sketch)
    (2.5, 3.0, 'bernq:0.5,0.25@3,4')
    """

    form: ClassVar[str] = "bernq:0.5 or bernq:0.5,0.25@3,4"
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
        return side_by_side(
            [DiagonalPlusScaled(np.zeros(n), 1.0 / q, int(q < 1.0)) for q, n in zip(self.q, self.sizes, strict=True)]
        )

    @property
    def text(self) -> str:
        layers = "" if len(self.sizes) == 1 else f"@{join(self.sizes)}"
        return f"bernq:{join(shortest(self.q))}{layers}"

    @classmethod
    def parse(cls, argument: str, d: int) -> BernQ:
        q, at, sizes = argument.partition("@")
        if not at:
            return cls(numbers("q", q), d)
        layers = [whole_number("a layer size", n) for n in numbers("a layer size", sizes)]
        check_sizes(layers, d)
        return cls(numbers("q", q), layers)


@dataclass(frozen=True, eq=False, init=False)
class IndependentSampling(_Coins):
    """Independent sampling: coordinate j is sent with probability p_j, divided by p_j, independently of the others.

    ``p`` is the vector of the d probabilities.  𝒫(M) = P ∘ M with P = 11ᵀ + Diag(1/p − 1), and ω = 1/min p − 1.
    As text ``independent:0.2``, or ``independent:0.1,0.2,0.3`` with all d probabilities.
    Raises ValueError unless every p_j is in (0, 1].

    Examples
    --------
    >>> from stepsize_opt import IndependentSampling
    >>> sketch = IndependentSampling([0.5, 0.25, 1.0])
    >>> sketch.expected_nonzeros, sketch.omega
    (1.75, 3.0)
    """

    form: ClassVar[str] = "independent:0.2"
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
        return f"independent:{join(shortest(self.p))}"

    @classmethod
    def parse(cls, argument: str, d: int) -> IndependentSampling:
        return cls(one_or_each("p", argument, d))


class DiagonalSketch(DiagonalBase):
    """Any diagonal sketch S = Diag(s), 𝒫(M) = P ∘ M: from the law of s or from its second moments.

    Examples
    --------
    >>> from stepsize_opt import DiagonalSketch
    >>> sketch = DiagonalSketch.from_support([[2.0, 0.0], [0.0, 2.0]], [0.5, 0.5])  # one of two coordinates
    >>> sketch.expected_nonzeros, sketch.omega
    (1.0, 1.0)
    """

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
        mean = float(self.weights @ np.count_nonzero(self.vectors, axis=1))
        return min(mean, float(self.d))  # the weights are rounded

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, {counted(self.weights.size, 'vector', 'vectors')})"

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
        """What ``stepsize_opt.inputs.digests.digest`` takes: the sampler, a function, by what it draws."""
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
    def expected_rank(self) -> float:
        return float(self.d)  # P says nothing of zeros, and the caller's number is not used in proofs

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, given moments)"


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


def side_by_side(maps: Sequence[PositiveMap]) -> PositiveMap:
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
