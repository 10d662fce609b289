"""Random sketches for many seeds, clients and steps, with one stream of random numbers for each seed.

Seed i has its own generator, so its samples do not depend on how many other seeds run, and a run over 32 seeds
contains the run over the first 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stepsize_opt import Sketch
from stepsize_opt.inputs.checks import whole_number
from stepsize_opt.methods import Compress
from stepsize_opt.sketches.draws import Draw, generators
from stepsize_solvers.programs import Matrix, Vector

# Numbers drawn for a seed in one chunk of several steps: enough that the calls cost little, few enough for the chunk of
# 32 seeds to stay within 16 MB.
_CHUNK_NUMBERS = 2**16
_CHUNK_STEPS = 256


class Sample(NamedTuple):
    """The sketches Sᵢ of one step, for s seeds and n clients.

    mean: (V, B) ↦ (1/n) Σᵢ Sᵢ B Vᵢ for V of shape (s, n, d) and a d×d array B, None for the identity; shape (s, d).
    sent: the floats that all clients together send, shape (s,).
    """

    mean: Compress
    sent: Vector


def samples(sketches: Sequence[Sketch], seeds: int, seed: int) -> Iterator[Sample]:
    """Yield the sketches of one step after the other, without end; ``sketches`` has one for each client."""
    rngs = generators(seed, whole_number("seeds", seeds))
    diagonal = all(sketch.is_diagonal for sketch in sketches)
    while diagonal:
        for S in _diagonals(sketches, rngs):
            yield Sample(partial(_mean_of_diagonals, S), np.count_nonzero(S, axis=(1, 2)).astype(np.float64))
    while True:
        draws = [[sketch.draw(rng) for sketch in sketches] for rng in rngs]
        sent = np.array([float(sum(draw.size for draw in row)) for row in draws])
        yield Sample(partial(_mean_of_draws, draws), sent)


def _diagonals(sketches: Sequence[Sketch], rngs: Sequence[np.random.Generator]) -> Matrix:
    """Return the diagonals of several steps, shape (steps, s, n, d)."""
    n, d = len(sketches), sketches[0].d
    steps = max(1, min(_CHUNK_STEPS, _CHUNK_NUMBERS // (n * d)))
    out = np.empty((steps, len(rngs), n, d))
    equal = all(sketch == sketches[0] for sketch in sketches)
    for i, rng in enumerate(rngs):
        if equal:
            out[:, i] = sketches[0].sample_diagonal(rng, steps * n).reshape(steps, n, d)
        else:
            for j, sketch in enumerate(sketches):
                out[:, i, j] = sketch.sample_diagonal(rng, steps)
    return out


def _mean_of_diagonals(S: Matrix, V: Matrix, B: Matrix | None) -> Matrix:
    return np.asarray(np.einsum("snd,snd->sd", S, _times(V, B)) / V.shape[1])


def _mean_of_draws(draws: list[list[Draw]], V: Matrix, B: Matrix | None) -> Matrix:
    """Sketch vector by vector: no d×d matrix is made."""

    def sketched(row: list[Draw], vectors: Matrix) -> Any:
        return np.mean([draw.decode(draw.encode(v)) for draw, v in zip(row, vectors, strict=True)], axis=0)

    return np.array([sketched(row, vectors) for row, vectors in zip(draws, _times(V, B), strict=True)])


def _times(V: Matrix, B: Matrix | None) -> Matrix:
    return V if B is None else np.asarray(V @ B.T)
