"""Diagonal sketches S = Diag(s): 𝒫(M) = P ∘ M with P = E[s sᵀ] ⪰ 11ᵀ."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepsize_opt.inputs.checks import check_dense, generator, layer_sizes, probability_array, read_only, whole_number
from stepsize_opt.proofs import coefficient_roundings
from stepsize_opt.sketches.base import (
    DiagonalBase,
    KFloats,
    Law,
    check_listable,
    check_sizes,
    independent_law,
    join,
    number,
    numbers,
    one_or_each,
    shortest,
)
from stepsize_opt.sketches.draws import CoordinatesDraw, Draw
from stepsize_solvers.programs import DiagonalPlusScaled, Layered, Matrix, PositiveMap, Vector, hadamard

# From this d on, k places are drawn one by one, in O(k): 0.1 ms instead of 55 ms for d = 10⁶ and k = 10⁴.
_LARGE = 10_000


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
class RandK(KFloats, DiagonalBase):
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

    def _map(self) -> PositiveMap:
        d, k = self.d, self.k
        if k == d:  # also d = 1, where the formula below is 0/0
            return DiagonalPlusScaled.identity(d)
        # α = d/k − β, written without the cancellation.
        return DiagonalPlusScaled(np.full(d, d * (d - k) / (k * (d - 1))), d * (k - 1) / (k * (d - 1)))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self._indicators(self._places(rng, size))

    def _draw(self, rng: np.random.Generator) -> Draw:
        return CoordinatesDraw(self.d, np.sort(self._places(rng, 1)[0]), np.full(self.k, self.d / self.k))

    def _places(self, rng: np.random.Generator, size: int) -> NDArray[np.intp]:
        """Uniform subsets of k places, shape (size, k)."""
        if self.k == 1:
            return rng.integers(self.d, size=(size, 1))
        if self.d >= _LARGE:
            rows = [rng.choice(self.d, self.k, replace=False, shuffle=False) for _ in range(size)]
            return np.array(rows, dtype=np.intp).reshape(size, self.k)
        # The places of the k smallest of d independent uniforms are a uniform subset.
        return np.argpartition(rng.random((size, self.d)), self.k - 1, axis=1)[:, : self.k]

    def _indicators(self, chosen: NDArray[np.intp]) -> Matrix:
        out = np.zeros((len(chosen), self.d))
        np.put_along_axis(out, chosen, self.d / self.k, axis=1)
        return out

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
        """Return the probabilities q and the layer sizes."""

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        q, sizes = self._coins()
        return np.repeat((rng.random((size, q.size)) < q) / q, sizes, axis=1)

    @property
    def expected_nonzeros(self) -> float:
        q, sizes = self._coins()
        return float(q @ sizes)

    @property
    def sampling_probabilities(self) -> Vector:
        return self._coins()[0]

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


def side_by_side(maps: Sequence[PositiveMap]) -> PositiveMap:
    """Return the map of independent layers: a Hadamard product if every layer has one."""
    if len(maps) == 1:
        return maps[0]
    layered = Layered(tuple(maps))
    check_dense("E[ssᵀ] of the layers", layered.d)
    P = layered.hadamard_matrix
    if P is None:
        return layered
    # One more for α + β.
    return hadamard(read_only(P), coefficient_roundings(layered) + 1)


def grid_points(d: int) -> int:
    """Return 2^b: the probabilities of d coordinates are multiples of 2^−b, exact floats with sums exact in 63 bits."""
    return 1 << min(53, 62 - d.bit_length())


def rounded_to_budget(h: Vector, k: float) -> Vector:
    """Round h to multiples of 2^−b, none above 1, that add up to k (to the multiple below it), for Σh about k ≤ d.

    Where Σh rounded up exceeds k, h is lowered in proportion: by about d 2^−b/k.  Raises ValueError for a k for which
    that would take h below 0.
    """
    d, N = len(h), grid_points(len(h))
    total = d * N if k >= d else math.floor(k * N)  # k N is exact in float64: N is a power of two
    if total < 4 * (d + 1):
        msg = (
            f"k must be at least {4 * (d + 1) / N:.2g} for d={d}, got {k:g}: probabilities are multiples of {1 / N:.2g}"
        )
        raise ValueError(msg)
    whole = np.minimum(np.ceil(h * N), N).astype(np.int64)
    while (excess := int(whole.sum()) - total) > 0:
        # At least one multiple each, as long as one is left: a factor next to 1 would round to 1 and lower nothing.
        whole -= np.minimum(np.ceil(whole * (excess / (total + excess))).astype(np.int64), whole - 1)
    # What is left, a few multiples for each coordinate, goes to the smallest that have room for it: more never hurts.
    for j in np.argsort(whole):
        added = min(-excess, N - int(whole[j]))
        whole[j] += added
        excess += added
    return np.asarray(whole / N)


@dataclass(frozen=True, eq=False, init=False)
class SystematicSampling(DiagonalBase):
    """Systematic sampling: coordinate j is sent with probability p_j, divided by p_j; ⌊Σp⌋ or ⌈Σp⌉ are sent.

    ``p`` is the vector of the d probabilities, each rounded up to a multiple of 2^−b, b = min(53, 62 − ⌈log₂(d+1)⌉), so
    that draws have exactly these probabilities.  𝒫(M) = P ∘ M with P_ij = P(i and j are sent)/(p_i p_j), and
    ω = 1/min p − 1.  As text ``systematic:0.2``, or ``systematic:0.1,0.2,0.3`` with all d probabilities.
    Raises ValueError unless every p_j is in (0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import SystematicSampling
    >>> sketch = SystematicSampling([0.75, 0.75, 0.5])
    >>> [int(sketch.draw(np.random.default_rng(seed)).size) for seed in range(4)]
    [2, 2, 2, 2]
    """

    form: ClassVar[str] = "systematic:0.2"
    unbiased_by_formula: ClassVar[bool] = True
    d: int = field(init=False, repr=False)
    p: Vector

    def __init__(self, p: ArrayLike) -> None:
        given = probability_array("p", p, dimensions=(1,))
        N = grid_points(given.size)
        self._set(d=given.size, p=read_only(np.minimum(np.ceil(given * N), N) / N))

    @property
    def _whole(self) -> NDArray[np.int64]:
        """p in multiples of 2^−b."""
        return np.asarray((self.p * grid_points(self.d)).astype(np.int64))

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Where the intervals end."""
        return np.cumsum(self._whole)

    def places(self, rng: np.random.Generator) -> NDArray[np.intp]:
        """Draw the coordinates that are sent, ascending, in O(k log d)."""
        # The coordinates whose intervals contain N − x, 2N − x, …: those that _chosen takes.
        N = grid_points(self.d)
        first = N - int(generator(rng).integers(N, size=1)[0])
        return np.searchsorted(self._ends, np.arange(first, self._ends[-1] + 1, N))

    def _draw(self, rng: np.random.Generator) -> Draw:
        chosen = self.places(rng)
        return CoordinatesDraw(self.d, chosen, 1.0 / self.p[chosen])

    def _chosen(self, x: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which coordinates are taken for each x in 0 … 2^b − 1, shape (len(x), d)."""
        N, ends = grid_points(self.d), np.concatenate([[0], self._ends])
        return np.diff((ends + x[:, None]) // N, axis=1) > 0

    def _map(self) -> PositiveMap:
        N, length = grid_points(self.d), self._whole
        start = (self._ends - length) % N
        # How long the arcs of i and j on the circle of length 2^b overlap.
        both = np.zeros((self.d, self.d), dtype=np.int64)
        end = start + length
        for turn in (-N, 0, N):
            overlap = np.minimum(end[:, None], end + turn) - np.maximum(start[:, None], start + turn)
            both += np.maximum(overlap, 0)
        # Each quotient is rounded once; the lower triangle is mirrored, because the two orders round differently.
        P = np.tril((both / length[:, None]) / self.p)
        return hadamard(P + np.tril(P, -1).T, 2)

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self._chosen(rng.integers(grid_points(self.d), size=size)) / self.p

    @property
    def expected_nonzeros(self) -> float:
        return int(self._ends[-1]) / grid_points(self.d)

    @property
    def sampling_probabilities(self) -> Vector:
        return self.p

    @property
    def text(self) -> str:
        return f"systematic:{join(shortest(self.p))}"

    @classmethod
    def parse(cls, argument: str, d: int) -> SystematicSampling:
        return cls(one_or_each("p", argument, d))

    def support(self) -> Law:
        N = grid_points(self.d)
        check_listable(self, self.d)
        steps = np.unique(np.concatenate([[0], -self._ends % N]))
        return np.diff(steps, append=N) / N, self._chosen(steps) / self.p
