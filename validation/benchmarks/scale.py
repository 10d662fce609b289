"""Large models: time, growth in d and memory of answers without a d×d matrix, each case in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.harness import GAP, Measured, main, shortest, timed
from benchmarks.native import synthetic
from stepsize_opt import (
    Direction,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_solvers.programs import Matrix
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


# The answers, for an L that is dense or not.
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "det-CGD2": partial(_stepsize, algorithm="det-CGD2"),
    "diagonal": partial(_stepsize, structure="diagonal"),
    "limit": lambda L: compression_limit(L, L.shape[0] // 100),
    "subspace": lambda L: optimal_method(L, L.shape[0] // 100),
}
# Those for which a dense L of these sizes takes too long.
WITHOUT_DENSE: dict[str, Callable[[Any], Any]] = {
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
    (ANSWERS | WITHOUT_DENSE)[kind](_low_rank(200, min(rank, 8)))  # imports do not count
    L = _low_rank(d, rank)
    solved = timed(lambda: (ANSWERS | WITHOUT_DENSE)[kind](L))
    rounds = _rounds(solved.answer, d)
    return Seen(solved.seconds, rounds, peak_megabytes() / 1024.0, getattr(solved.answer, "gap", None))


def _alone(case: Callable[..., Seen], *arguments: str | int) -> Seen:
    """Run the case in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(case, *arguments).result()


def large(quick: bool) -> Iterator[Measured]:
    """Every answer for diagonal plus rank r, diagonal D for one-hot data: seconds, growth, gap, memory."""
    sizes = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    kinds = [(kind, 16) for kind in ANSWERS | WITHOUT_DENSE] + [("diagonal", 0)]
    if not quick:
        kinds += [("det-CGD2", 64), ("diagonal", 64), *((kind, 128) for kind in ANSWERS)]
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


def dense(quick: bool) -> Iterator[Measured]:
    """The same answers with L as an array, r = 16, where that can run."""
    for d in (100,) if quick else (1000, 2000):
        L = _low_rank(d, 16)
        array = L.todense()
        for kind, answer in ANSWERS.items():
            mine = shortest([partial(answer, L)])[0].seconds
            other = timed(partial(answer, array)).seconds
            note = f"{1e3 * mine:.3g} ms, dense {other:.3g} s"
            yield Measured("scale: times faster than with a dense L", f"{kind}, d = {d}", other / mine, note=note)


def _wishart(count: int, size: int) -> Matrix:
    """Return blocks AAᵀ + I/10 with A of twice as many columns."""
    rows = np.random.default_rng(0).standard_normal((count, size, 2 * size)) / np.sqrt(2 * size)
    return np.asarray(rows @ rows.transpose(0, 2, 1) + 0.1 * np.eye(size))


def _blocks_case(count: int, processes: int) -> Seen:
    """Solve for blocks of 20, the full D of det-CGD1; the seconds are wall time."""
    L: Any = sparse.bsr_array((_wishart(count, 20), np.arange(count), np.arange(count + 1))).tocsr()
    sketch = IndependentSampling(np.full(20 * count, 0.1))
    solved = timed(lambda: optimal_stepsize(L, sketch, n_jobs=processes), time.perf_counter)
    peaks: Any = Parallel(n_jobs=processes)(delayed(peak_megabytes)() for _ in range(8 * processes))
    get_reusable_executor().shutdown(wait=True)  # the time of processes counts once they have ended
    memory = (peak_megabytes() + processes * max(peaks)) / 1024.0
    return Seen(solved.seconds, {"processor": sum(os.times()[:4])}, memory, solved.answer.gap)


def blocks(quick: bool) -> Iterator[Measured]:
    """Blocks of 20 on two processes: the full D of det-CGD1, each block certified; memory of all processes together."""
    count = 20 if quick else 50_000
    seen = _alone(_blocks_case, count, 2)
    case = f"{count} blocks of 20, 2 processes"
    note = f"processor {seen.rounds['processor']:.3g} s"
    yield Measured("scale: wall seconds of many blocks", case, seen.seconds, note=note)
    yield Measured("scale: certified gap", case, float("nan") if seen.gap is None else seen.gap, at_most=GAP)
    yield Measured("scale: GiB", case, seen.gibibytes, at_most=_GIBIBYTES)


@contextmanager
def _busy() -> Iterator[None]:
    """Run another process that multiplies matrices on two threads all the time, as long as this one lives."""
    program = "import os, numpy as np; A = np.eye(500); us = os.getppid()\nwhile os.getppid() == us: A @ A"
    threads = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **threads}) as other:
        try:
            yield
        finally:
            other.kill()


def full(quick: bool) -> Iterator[Measured]:
    """The full dense D on one thread next to a busy process, certificate included, in units of one eigh."""
    for d in (50,) if quick else (300, 1000, 2000):
        L = synthetic(d, 1e3)
        with _busy(), threadpool_limits(1, user_api="blas"):
            unit = shortest([partial(np.linalg.eigh, L)])[0].seconds
            solved = timed(partial(optimal_stepsize, L, RandK(d, d // 4)))
        case, cost = f"full D, d = {d}, k = {d // 4}", solved.seconds / unit
        note = f"{solved.seconds:.3g} s, one eigh {unit:.3g} s"
        # At d = 50 the overhead of a call still shows.
        yield Measured("scale: eigh next to a busy process", case, cost, at_most=None if quick else 200.0, note=note)
        yield Measured("scale: certified gap", case, solved.answer.gap, at_most=GAP)


STUDIES = (large, dense, blocks, full)

if __name__ == "__main__":
    sys.exit(main(STUDIES))
