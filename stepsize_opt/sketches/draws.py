"""One drawn S, as what travels: encode makes the numbers that are sent, decode makes S x of them.

Sender and receiver draw from equal generators, so that the numbers are all that is sent.  Both maps are linear:
the sum of the messages of n senders with one draw decodes to S times the sum of their vectors, as an all-reduce needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from stepsize_opt.inputs.checks import SLACK, Array
from stepsize_solvers.programs import Indices, Matrix, Vector


def generators(seed: int, count: int) -> tuple[np.random.Generator, ...]:
    """Return the random streams of ``count`` runs with one ``seed``; stream i is the same for every count."""
    children = np.random.SeedSequence(seed).spawn(count)
    return tuple(np.random.Generator(np.random.PCG64(child)) for child in children)


class Draw(ABC):
    """A drawn S = R E: E makes the numbers that are sent, R makes S x of them."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers are sent."""

    @abstractmethod
    def encode(self, x: Array) -> Array:
        """Return the numbers for x, shape (…, d) → (…, size)."""

    @abstractmethod
    def decode(self, numbers: Array) -> Array:
        """Return S x, or S Σxᵢ of the sum of several messages, shape (…, size) → (…, d)."""


@dataclass(frozen=True, eq=False)
class CoordinatesDraw(Draw):
    """S = Diag(s): the products s_j x_j of the coordinates with s_j ≠ 0 are sent."""

    d: int
    chosen: Indices
    factors: Vector

    @staticmethod
    def of(diagonal: Vector) -> CoordinatesDraw:
        chosen = np.flatnonzero(diagonal)
        return CoordinatesDraw(diagonal.size, chosen, diagonal[chosen])

    @property
    def size(self) -> int:
        return self.chosen.size

    def encode(self, x: Array) -> Array:
        return np.asarray(x[..., self.chosen] * self.factors)

    def decode(self, numbers: Array) -> Array:
        out = np.zeros((*numbers.shape[:-1], self.d), dtype=numbers.dtype)
        out[..., self.chosen] = numbers
        return out


@dataclass(frozen=True, eq=False)
class FactorDraw(Draw):
    """S = c F Fᵀ with a factor F of shape (d, size): Fᵀx is sent."""

    factor: Matrix
    scale: float = 1.0

    @staticmethod
    def of(S: Matrix) -> FactorDraw:
        """Factor a positive semidefinite S by its eigenvectors, with as many columns as S has rank."""
        w, V = np.linalg.eigh(S)
        kept = w > SLACK * w[-1]
        return FactorDraw(V[:, kept] * np.sqrt(w[kept]))

    @property
    def size(self) -> int:
        return int(self.factor.shape[1])

    def encode(self, x: Array) -> Array:
        return np.asarray(x @ self.factor)

    def decode(self, numbers: Array) -> Array:
        return np.asarray(numbers @ self.factor.T * self.scale)


@dataclass(frozen=True, eq=False)
class LayersDraw(Draw):
    """S = Diag(S₁, …, S_m): the messages of the layers one after the other."""

    sizes: tuple[int, ...]
    layers: Sequence[Draw]

    @property
    def size(self) -> int:
        return sum(layer.size for layer in self.layers)

    def encode(self, x: Array) -> Array:
        parts = np.split(x, list(accumulate(self.sizes))[:-1], axis=-1)
        return np.concatenate([layer.encode(p) for layer, p in zip(self.layers, parts, strict=True)], axis=-1)

    def decode(self, numbers: Array) -> Array:
        parts = np.split(numbers, list(accumulate(layer.size for layer in self.layers))[:-1], axis=-1)
        return np.concatenate([layer.decode(p) for layer, p in zip(self.layers, parts, strict=True)], axis=-1)
