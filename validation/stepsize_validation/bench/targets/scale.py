"""Large models: time, growth in d and memory of answers without a d×d matrix, each case in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from joblib.externals.loky import get_reusable_executor
from scipy import sparse
from threadpoolctl import threadpool_limits

from stepsize_opt import (
    Direction,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Matrix, Outcome, Program, Settings
from stepsize_validation.bench.targets.harness import GAP, Found, Study, Target, by_the_clock, shortest, timed
from stepsize_validation.bench.targets.native import synthetic, unit_diagonal

CERTIFIED = Target("scale: certified gap", at_most=GAP)
# The bound is for every D, the D found is a diagonal plus low rank.
OF_THE_FORM = Target("scale: certified gap of a diagonal plus low rank")
MEMORY = Target("scale: peak memory", "GiB", at_most=4.0)
SECONDS = Target("scale: processor time", "s")
# Time ∝ d^growth between the two largest sizes.
GROWTH = Target("scale: growth of the time in d", at_most=1.1)
ONE_ROUND = Target("scale: one round", "s")
FASTER = Target("scale: times faster than with a dense L")
BLOCKS = Target("scale: many blocks, by the clock", "s")
STACKS = Target("scale: times faster in stacks than one by one")
FULL = Target("scale: full D beside a busy process, one thread", "eigh", at_most=200.0)


@dataclass(frozen=True)
class Seen:
    """What one case took; rounds: seconds of what a round does, by name.  gap: None where nothing is proved."""

    seconds: float
    rounds: dict[str, float]
    gibibytes: float
    gap: float | None
    status: str


def one_hot(m: int, d: int, ones: int, rng: np.random.Generator) -> Any:
    """m rows with so many ones each, in columns that fall off like words do."""
    columns = (d * rng.random(m * ones) ** 3).astype(np.int64)
    return sparse.csr_array((np.ones(m * ones), (np.repeat(np.arange(m), ones), columns)), shape=(m, d))


def _low_rank(d: int, rank: int) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(0)
    return LowRankPlusDiagonal(rng.standard_normal((d, rank)) * np.logspace(0.0, -1.0, rank) / np.sqrt(d), 1e-3)


def _sparse(d: int, _: int) -> LowRankPlusDiagonal:
    """Ten entries for each feature, 10⁷ at d = 10⁶."""
    return LowRankPlusDiagonal(one_hot(d, d, 10, np.random.default_rng(0)).T * np.sqrt(0.25 / d), 1e-4)


def _budget(L: Any) -> int:
    return max(1, int(L.shape[0]) // 100)


# The answers, for an L that is dense or not.
ANSWERS: dict[str, Callable[[Any], Any]] = {
    "det-CGD2": lambda L: optimal_stepsize(L, RandK(L.shape[0], _budget(L)), algorithm="det-CGD2"),
    "diagonal": lambda L: optimal_stepsize(L, RandK(L.shape[0], _budget(L)), structure="diagonal"),
    "limit": lambda L: compression_limit(L, _budget(L)),
    "subspace": lambda L: optimal_method(L, _budget(L)),
}
# Those for which a dense L of these sizes takes too long.
DESCENT = "descent metric"
WITHOUT_DENSE: dict[str, Callable[[Any], Any]] = {
    DESCENT: lambda L: optimal_stepsize(L, RandK(L.shape[0], _budget(L)), guarantee="descent"),
    "Gaussian": lambda L: optimal_stepsize(L, Gaussian(L.shape[0], _budget(L))),
    "multiple of 1/diag L": lambda L: optimal_stepsize(
        L, RandK(L.shape[0], _budget(L)), structure=Direction(1.0 / L.diagonal())
    ),
    "multiple of the inverse, det-CGD2": lambda L: optimal_stepsize(
        L,
        RandK(L.shape[0], _budget(L)),
        algorithm="det-CGD2",
        structure=Direction(compression_limit(L, _budget(L)).D),
    ),
}


def _rounds(answer: Any, d: int) -> dict[str, float]:
    """What a round does: encode and decode of a method, or a product D @ g."""
    g = np.random.default_rng(1).standard_normal(d)
    if not hasattr(answer, "encode"):
        return {"D @ g": timed(lambda: answer.D @ g).seconds}
    draw = answer.draw(np.random.default_rng(2))
    encoded = timed(lambda: answer.encode(g, draw))
    return {"encode": encoded.seconds, "decode": timed(lambda: answer.decode(encoded.answer, draw)).seconds}


def _case(kind: str, d: int, rank: int) -> Seen:
    """One answer; rank 0 stands for sparse data."""
    L = (_low_rank if rank else _sparse)(d, rank)
    solved = timed(lambda: (ANSWERS | WITHOUT_DENSE)[kind](L))
    rounds = _rounds(solved.answer, d)
    peak = _peak()
    gap, status = getattr(solved.answer, "gap", None), getattr(solved.answer, "status", "")
    return Seen(solved.seconds, rounds, peak, gap, status)


def _alone(case: Callable[..., Seen], *arguments: str | int) -> Seen:
    """The case in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(case, *arguments).result()


def _name(kind: str, rank: int) -> str:
    return f"{kind}, r = {rank}" if rank else f"{kind}, one-hot data"


def large(quick: bool) -> Found:
    """Every answer for diagonal plus rank r, diagonal D for one-hot data."""
    sizes: Sequence[int] = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    kinds = [(kind, 16) for kind in ANSWERS | WITHOUT_DENSE] + [("diagonal", 0)]
    if not quick:
        kinds += [
            ("det-CGD2", 64),
            ("det-CGD2", 128),
            ("diagonal", 64),
            ("diagonal", 128),
            ("limit", 128),
            ("subspace", 128),
        ]
    for kind, rank in kinds:
        seen: list[Seen] = []
        for d in sizes:
            case = f"{_name(kind, rank)}, d = {d}"
            one = _alone(_case, kind, d, rank)
            seen.append(one)
            yield SECONDS.of(case, one.seconds)
            for what, seconds in one.rounds.items():
                yield ONE_ROUND.of(f"{case}, {what}", seconds)
            if one.gap is not None:
                yield (OF_THE_FORM if kind == DESCENT else CERTIFIED).of(case, one.gap, status=one.status)
            yield MEMORY.of(case, one.gibibytes)
        if not quick:
            yield GROWTH.of(_name(kind, rank), float(np.log10(seen[-1].seconds / seen[-2].seconds)))


def against_dense(quick: bool) -> Found:
    """The same answers with L as an array, r = 16, where that can run."""
    for d in (100,) if quick else (1000, 2000):
        L = _low_rank(d, 16)
        array = L.todense()
        for kind, answer in ANSWERS.items():
            mine = shortest([partial(answer, L)])[0].seconds
            other = timed(partial(answer, array)).seconds
            yield FASTER.of(f"{kind}, d = {d}", other / mine, seconds=mine, dense=other)


def _wishart(count: int, size: int) -> Matrix:
    """Blocks AAᵀ + I/10 with A of twice as many columns."""
    rows = np.random.default_rng(0).standard_normal((count, size, 2 * size)) / np.sqrt(2 * size)
    return np.asarray(rows @ rows.transpose(0, 2, 1) + 0.1 * np.eye(size))


def _blocks_case(count: int, processes: int) -> Seen:
    """Blocks of 20, the full D of det-CGD1; the seconds are those of the clock."""
    L: Any = sparse.bsr_array((_wishart(count, 20), np.arange(count), np.arange(count + 1))).tocsr()
    sketch = IndependentSampling(np.full(20 * count, 0.1))
    solved = by_the_clock(lambda: optimal_stepsize(L, sketch, n_jobs=processes))
    peaks: Any = Parallel(n_jobs=processes)(delayed(_peak)() for _ in range(8 * processes))
    get_reusable_executor().shutdown(wait=True)  # the time of processes counts once they have ended
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    processor = sum(one.ru_utime + one.ru_stime for one in spent)
    answer = solved.answer
    return Seen(solved.seconds, {"processor": processor}, _peak() + processes * max(peaks), answer.gap, answer.status)


def _peak() -> float:
    """The peak memory of this process in GiB (Linux); ru_maxrss would count that of the process which started it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def blocks(quick: bool) -> Found:
    """Blocks of 20 on two processes: the full D of det-CGD1, each block certified; memory of all processes together."""
    count = 20 if quick else 50_000
    seen = _alone(_blocks_case, count, 2)
    case = f"{count} blocks of 20, 2 processes"
    yield BLOCKS.of(case, seen.seconds, processor=seen.rounds["processor"])
    yield CERTIFIED.of(case, float(np.nan if seen.gap is None else seen.gap), status=seen.status)
    yield MEMORY.of(case, seen.gibibytes)


def in_stacks(quick: bool) -> Found:
    """The native solver on equal blocks in stacks, against one by one."""
    native = get_solver("native")
    for size, count in ((3, 16),) if quick else ((5, 256), (10, 256), (20, 64), (30, 64)):
        law = IndependentSampling(np.full(size, 0.1)).map
        programs = [Program.single(unit_diagonal(B), law) for B in _wishart(count, size)]

        def alone(programs: Sequence[Program] = programs) -> list[Outcome]:
            return [native.solve(program, Settings()) for program in programs]

        mine, other = shortest([partial(native.solve_stack, programs, Settings()), alone], 2)
        seconds = {"each": mine.seconds / len(programs), "alone": other.seconds / len(programs)}
        yield STACKS.of(f"{count} blocks of {size}", other.seconds / mine.seconds, **seconds)


@contextmanager
def _busy() -> Iterator[None]:
    """Another process that multiplies matrices on two threads all the time, as long as this one lives."""
    program = "import os, numpy as np; A = np.eye(500); us = os.getppid()\nwhile os.getppid() == us: A @ A"
    threads = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **threads}) as other:
        try:
            yield
        finally:
            other.kill()


def full_stepsize(quick: bool) -> Found:
    """The full dense D on one thread, certificate included, beside a busy process, in units of one eigh."""
    for d in (50,) if quick else (300, 1000, 2000):
        L = synthetic(d, 1e3)
        with _busy(), threadpool_limits(1, user_api="blas"):
            unit = shortest([partial(np.linalg.eigh, L)])[0].seconds
            solved = timed(partial(optimal_stepsize, L, RandK(d, d // 4)))
        case, result = f"d = {d}, k = {d // 4}", solved.answer
        yield FULL.of(case, solved.seconds / unit, seconds=solved.seconds, one=unit)
        yield CERTIFIED.of(f"full D, {case}", result.gap, status=result.status)


STUDIES = (
    Study("scale.large", large),
    Study("scale.dense", against_dense),
    Study("scale.blocks", blocks),
    Study("scale.stacks", in_stacks),
    Study("scale.full", full_stepsize),
)
