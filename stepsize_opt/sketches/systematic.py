"""Systematic sampling: given inclusion probabilities, and a number of coordinates that varies by at most one.

Lay intervals of the lengths p₁, …, p_d end to end and take the coordinates whose intervals hold a point of the grid
{x, x + 1, x + 2, …} with x uniform in [0, 1): coordinate j is taken with probability p_j, and ⌊Σp⌋ or ⌈Σp⌉ are taken.
In whole multiples of 2^−b, with x drawn among them, all of this is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepsize_opt.inputs import generator, probability_array, read_only
from stepsize_opt.sketches.base import DiagonalBase, Law, check_listable
from stepsize_opt.sketches.draws import CoordinatesDraw, Draw
from stepsize_opt.sketches.text import join, one_or_each, shortest
from stepsize_solvers.programs import Matrix, PositiveMap, Vector, hadamard


def grid_points(d: int) -> int:
    """2^b: the probabilities of d coordinates are multiples of 2^−b, exact as floats, their sums exact in 63 bits."""
    return 1 << min(53, 62 - d.bit_length())


def rounded_to_budget(h: Vector, k: float) -> Vector:
    """Multiples of 2^−b near h, none above 1, that add up to k (to the multiple below it), for Σh about k ≤ d.

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
        """The coordinates of one draw, ascending, in O(k log d)."""
        # The coordinates whose intervals contain N − x, 2N − x, …: those that _chosen takes.
        N = grid_points(self.d)
        first = N - int(generator(rng).integers(N, size=1)[0])
        return np.searchsorted(self._ends, np.arange(first, self._ends[-1] + 1, N))

    def _draw(self, rng: np.random.Generator) -> Draw:
        chosen = self.places(rng)
        return CoordinatesDraw(self.d, chosen, 1.0 / self.p[chosen])

    def _chosen(self, x: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which coordinates are taken for each x in 0 … 2^b − 1, shape (len(x), d)."""
        N, ends = grid_points(self.d), np.concatenate([[0], np.cumsum(self._whole)])
        return np.diff((ends + x[:, None]) // N, axis=1) > 0

    def _map(self) -> PositiveMap:
        N, length = grid_points(self.d), self._whole
        start = (np.cumsum(length) - length) % N
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
        return int(self._whole.sum()) / grid_points(self.d)

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
        steps = np.unique(np.concatenate([[0], -np.cumsum(self._whole) % N]))
        return np.diff(steps, append=N) / N, self._chosen(steps) / self.p
