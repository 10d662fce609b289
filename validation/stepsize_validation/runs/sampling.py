"""Random sketches for many seeds, clients and steps: drawn in chunks, one stream of random numbers for each seed.

Seed i has its own generator, so its samples do not depend on how many other seeds run, and a run over 32 seeds
contains the run over the first 8.  A chunk holds the draws of several steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from stepsize_opt.inputs import whole_number
from stepsize_opt.sketches import RandK, Sketch, generators
from stepsize_solvers.programs import Indices, Matrix, Vector

# Numbers drawn for a seed in one chunk: enough that the calls cost little, few enough for the
# chunk of 32 seeds to stay within 16 MB.
_CHUNK_NUMBERS = 2**16
_CHUNK_STEPS = 256


class Draws(Protocol):
    """The sketches Sᵢ of ``steps`` steps for s seeds and n clients; V below has shape (s, n, d)."""

    @property
    def steps(self) -> int: ...

    def mean(self, t: int, V: Matrix, B: Matrix | None = None) -> Matrix:
        """Return (1/n) Σᵢ Sᵢ B Vᵢ at step t for a d×d array B (None: the identity), shape (s, d)."""
        ...

    def sent(self, t: int) -> Vector:
        """Return numbers sent by all clients together at step t, for each seed, shape (s,)."""
        ...


def _times(V: Matrix, B: Matrix | None) -> Matrix:
    """Return B v for the vectors v of V; None stands for the identity."""
    return V if B is None else np.asarray(V @ B.T)


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Diagonal sketches, entry by entry: ``diagonals`` has shape (steps, s, n, d)."""

    diagonals: Matrix

    @property
    def steps(self) -> int:
        return len(self.diagonals)

    def mean(self, t: int, V: Matrix, B: Matrix | None = None) -> Matrix:
        return np.asarray(np.einsum("snd,snd->sd", self.diagonals[t], _times(V, B)) / V.shape[1])

    def sent(self, t: int) -> Vector:
        return np.asarray(np.count_nonzero(self.diagonals[t], axis=(1, 2)), dtype=float)


@dataclass(frozen=True, eq=False)
class SingleCoordinates:
    """Rand-1: the coordinate that each client sends, shape (steps, s, n); S = d e_j e_jᵀ."""

    chosen: Indices
    d: int

    @property
    def steps(self) -> int:
        return len(self.chosen)

    @property
    def diagonals(self) -> Matrix:
        """The same draws as diagonals of S, shape (steps, s, n, d)."""
        out = np.zeros((*self.chosen.shape, self.d))
        np.put_along_axis(out, self.chosen[..., None], float(self.d), axis=-1)
        return out

    def mean(self, t: int, V: Matrix, B: Matrix | None = None) -> Matrix:
        entries = self.entries(t, V, B)
        s, n = entries.shape
        places = self.chosen[t] + self.d * np.arange(s)[:, None]
        sums = np.bincount(places.ravel(), weights=entries.ravel(), minlength=s * self.d)
        return np.asarray(sums.reshape(s, self.d) * (self.d / n))

    def entries(self, t: int, V: Matrix, B: Matrix | None) -> Matrix:
        """Return the entry of B Vᵢ that each client sends, row j of B times Vᵢ, shape (s, n)."""
        if B is not None:
            return np.asarray(np.einsum("snd,snd->sn", B[self.chosen[t]], V))
        return np.asarray(np.take_along_axis(V, self.chosen[t][..., None], axis=2)[..., 0])

    def sent(self, t: int) -> Vector:
        _, s, n = self.chosen.shape
        return np.full(s, float(n))


@dataclass(frozen=True, eq=False)
class Applied:
    """Sketches without a diagonal form: applied vector by vector, straight from the generators.

    A chunk is one step, because the generators move when it is used.
    """

    sketches: tuple[Sketch, ...]
    rngs: tuple[np.random.Generator, ...]

    @property
    def steps(self) -> int:
        return 1

    def mean(self, t: int, V: Matrix, B: Matrix | None = None) -> Matrix:
        out = [
            np.mean([sketch.apply(v, rng) for sketch, v in zip(self.sketches, row, strict=True)], axis=0)
            for row, rng in zip(_times(V, B), self.rngs, strict=True)
        ]
        return np.array(out)

    def sent(self, t: int) -> Vector:
        return np.full(len(self.rngs), sum(sketch.expected_nonzeros for sketch in self.sketches))


class SketchStream:
    """An endless sequence of draws for s seeds and the sketches of n clients.

    sketches: one for each client (a single node is one client).  ``seed`` and the index of a seed determine its draws.
    """

    def __init__(self, sketches: Sequence[Sketch], seeds: int, seed: int) -> None:
        self.sketches = tuple(sketches)
        self.d = self.sketches[0].d
        self._rngs = generators(seed, whole_number("seeds", seeds))
        self._single = all(isinstance(sketch, RandK) and sketch.k == 1 for sketch in self.sketches)
        self._equal = all(sketch == self.sketches[0] for sketch in self.sketches)
        self._diagonal = all(sketch.is_diagonal for sketch in self.sketches)
        per_step = len(self.sketches) * (1 if self._single else self.d)
        self._steps = max(1, min(_CHUNK_STEPS, _CHUNK_NUMBERS // per_step)) if self._diagonal else 1
        self._chunk: Draws | None = None
        self._used = 0

    def next_step(self) -> tuple[Draws, int]:
        """Return the chunk of the next step and the step's index in it; to be used before the stream is asked again."""
        if self._chunk is None or self._used == self._chunk.steps:
            self._chunk, self._used = self.draw(), 0
        self._used += 1
        return self._chunk, self._used - 1

    def draw(self) -> Draws:
        """Return the next chunk."""
        n, T = len(self.sketches), self._steps
        if self._single:
            chosen = [rng.integers(self.d, size=(T, n)) for rng in self._rngs]
            return SingleCoordinates(np.stack(chosen, axis=1), self.d)
        if not self._diagonal:
            return Applied(self.sketches, self._rngs)
        out = np.empty((T, len(self._rngs), n, self.d))
        for i, rng in enumerate(self._rngs):
            if self._equal:
                out[:, i] = self.sketches[0].sample_diagonal(rng, T * n).reshape(T, n, self.d)
            else:
                for j, sketch in enumerate(self.sketches):
                    out[:, i, j] = sketch.sample_diagonal(rng, T)
        return Diagonals(out)
