"""Large models: time, growth in d and memory of answers without a d×d matrix, each case in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from benchmarks.harness import GAP, Measured, main, timed
from stepsize_opt import (
    Direction,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_validation.bench.worker import peak_megabytes

_GIBIBYTES = 4.0


class Seen(NamedTuple):
    """What one case took; rounds: seconds of what a round does, by name.  gap: None where nothing is proved."""

    seconds: float
    rounds: dict[str, float]
    gibibytes: float
    gap: float | None


def _low_rank(d: int, rank: int) -> LowRankPlusDiagonal:
    """Return diagonal plus rank r; rank 0 stands for one-hot data with ten entries for each feature."""
    rng = np.random.default_rng(0)
    if rank:
        return LowRankPlusDiagonal(rng.standard_normal((d, rank)) * np.logspace(0.0, -1.0, rank) / np.sqrt(d), 1e-3)
    columns = (d * rng.random(10 * d) ** 3).astype(np.int64)  # they fall off like words do
    rows = sparse.csr_array((np.ones(10 * d), (np.repeat(np.arange(d), 10), columns)), shape=(d, d))
    return LowRankPlusDiagonal(rows.T * np.sqrt(0.25 / d), 1e-4)


def _stepsize(L: Any, **options: Any) -> Any:
    return optimal_stepsize(L, RandK(L.shape[0], L.shape[0] // 100), **options)


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "det-CGD2": partial(_stepsize, algorithm="det-CGD2"),
    "diagonal": partial(_stepsize, structure="diagonal"),
    "limit": lambda L: compression_limit(L, L.shape[0] // 100),
    "subspace": lambda L: optimal_method(L, L.shape[0] // 100),
    "multiple of 1/diag L": lambda L: _stepsize(L, structure=Direction(1.0 / L.diagonal())),
}


def _rounds(answer: Any, d: int) -> dict[str, float]:
    """Time what a round does: encode and decode of a method, or a product D @ g."""
    g = np.random.default_rng(1).standard_normal(d)
    if not hasattr(answer, "encode"):
        return {"D @ g": timed(lambda: answer.D @ g).seconds}
    draw = answer.draw(np.random.default_rng(2))
    encoded = timed(lambda: answer.encode(g, draw))
    return {"encode": encoded.seconds, "decode": timed(lambda: answer.decode(encoded.answer, draw)).seconds}


def _case(kind: str, d: int, rank: int) -> Seen:
    ANSWERS[kind](_low_rank(200, min(rank, 8)))  # imports do not count
    L = _low_rank(d, rank)
    solved = timed(lambda: ANSWERS[kind](L))
    rounds = _rounds(solved.answer, d)
    return Seen(solved.seconds, rounds, peak_megabytes() / 1024.0, getattr(solved.answer, "gap", None))


def _alone(case: Callable[..., Seen], *arguments: str | int) -> Seen:
    """Run the case in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(case, *arguments).result()


def large(quick: bool) -> Iterator[Measured]:
    """Every answer for diagonal plus rank r, diagonal D for one-hot data: seconds, growth, gap, memory."""
    sizes = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    kinds = [(kind, 16) for kind in ANSWERS] + [("diagonal", 0)]
    if not quick:
        kinds += [
            ("det-CGD2", 64),
            ("diagonal", 64),
            *((kind, 128) for kind in ("det-CGD2", "diagonal", "limit", "subspace")),
        ]
    for kind, rank in kinds:
        name = f"{kind}, r = {rank}" if rank else f"{kind}, one-hot data"
        seen = {d: _alone(_case, kind, d, rank) for d in sizes}
        for d, one in seen.items():
            case = f"{name}, d = {d}"
            rounds = ", ".join(f"{what} {1e3 * seconds:.2g} ms" for what, seconds in one.rounds.items())
            yield Measured("scale: processor seconds", case, one.seconds, note=rounds)
            yield Measured("scale: GiB", case, one.gibibytes, at_most=_GIBIBYTES)
            if one.gap is not None:
                yield Measured("scale: certified gap", case, one.gap, at_most=GAP)
        exponent = float(np.log10(seen[sizes[-1]].seconds / seen[sizes[-2]].seconds))
        # At d = 10⁴ the overhead of a call still shows.
        yield Measured("scale: growth, exponent of d", name, exponent, at_most=None if quick else 1.1)


if __name__ == "__main__":
    sys.exit(main([large]))
