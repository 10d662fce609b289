"""Large models: time, growth in d and memory of answers without a d×d matrix, each case in a process of its own."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.harness import GAP, Measured, main, timed
from stepsize_opt import Direction, LowRankPlusDiagonal, RandK, compression_limit, optimal_method, optimal_stepsize
from stepsize_validation.bench.worker import peak_megabytes

_GIBIBYTES = 4.0


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


def _case(kind: str, d: int, rank: int) -> tuple[float, float, float | None]:
    """Return the seconds and gibibytes that an answer took, and its gap; None where nothing is proved."""
    ANSWERS[kind](_low_rank(200, min(rank, 8)))  # imports do not count
    L = _low_rank(d, rank)
    solved = timed(lambda: ANSWERS[kind](L))
    return solved.seconds, peak_megabytes() / 1024.0, getattr(solved.answer, "gap", None)


def _alone(kind: str, d: int, rank: int) -> tuple[float, float, float | None]:
    """Run a case in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_case, kind, d, rank).result()


def large(quick: bool) -> Iterator[Measured]:
    """Every answer for diagonal plus rank r, diagonal D for one-hot data: seconds, growth, gap, memory."""
    sizes = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    cases = [*((kind, 16) for kind in ANSWERS), ("diagonal", 0)]
    cases += [] if quick else [("det-CGD2", 64), ("diagonal", 64)]
    cases += [] if quick else [(kind, 128) for kind in ("det-CGD2", "diagonal", "limit", "subspace")]
    for kind, rank in cases:
        name = f"{kind}, r = {rank}" if rank else f"{kind}, one-hot data"
        times = []
        for d in sizes:
            seconds, gibibytes, gap = _alone(kind, d, rank)
            times.append(seconds)
            yield Measured("scale: processor seconds", f"{name}, d = {d}", seconds)
            yield Measured("scale: GiB", f"{name}, d = {d}", gibibytes, at_most=_GIBIBYTES)
            if gap is not None:
                yield Measured("scale: certified gap", f"{name}, d = {d}", gap, at_most=GAP)
        exponent = float(np.log10(times[-1] / times[-2]))
        # At d = 10⁴ the overhead of a call still shows.
        yield Measured("scale: growth, exponent of d", name, exponent, at_most=None if quick else 1.1)


if __name__ == "__main__":
    sys.exit(main([large]))
