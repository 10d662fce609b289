"""Large models: time, growth in d and memory of answers without a d×d matrix, each case in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt import LowRankPlusDiagonal, RandK, optimal_stepsize
from stepsize_validation.bench.targets.harness import GAP, Found, Study, Target

CERTIFIED = Target("scale: certified gap", at_most=GAP)
MEMORY = Target("scale: peak memory", "GiB", at_most=4.0)
SECONDS = Target("scale: processor time", "s")
# Time ∝ d^growth between the two largest sizes.
GROWTH = Target("scale: growth of the time in d", at_most=1.1)
APPLY = Target("scale: one product D @ g", "s")


@dataclass(frozen=True)
class Seen:
    """What one case took."""

    seconds: float
    product: float
    gibibytes: float
    gap: float
    status: str


def one_hot(m: int, d: int, ones: int, rng: np.random.Generator) -> Any:
    """m rows with so many ones each, in columns that fall off like words do."""
    columns = (d * rng.random(m * ones) ** 3).astype(np.int64)
    return sparse.csr_array((np.ones(m * ones), (np.repeat(np.arange(m), ones), columns)), shape=(m, d))


def _case(kind: str, d: int, size: int) -> Seen:
    """One answer, with ``size`` the rank of U, or the entries of sparse data."""
    rng = np.random.default_rng(0)
    if kind == "one-hot":
        L = LowRankPlusDiagonal(one_hot(size // 10, d, 10, rng).T * np.sqrt(2.5 / size), 1e-4)
    else:
        L = LowRankPlusDiagonal(rng.standard_normal((d, size)) * np.logspace(0.0, -1.0, size) / np.sqrt(d), 1e-3)
    sketch = RandK(d, max(1, d // 100))
    call: dict[str, Any] = {"algorithm": "det-CGD2"} if kind.startswith("det-") else {"structure": "diagonal"}
    began = time.process_time()
    result = optimal_stepsize(L, sketch, **call)
    seconds = time.process_time() - began
    g = rng.standard_normal(d)
    began = time.process_time()
    _ = result.D @ g
    product = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # kibibytes on Linux
    return Seen(seconds, product, peak, result.gap, result.status)


def _alone(kind: str, d: int, size: int) -> Seen:
    """The case in a new process, whose peak memory is its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_case, kind, d, size).result()


def large(quick: bool) -> Found:
    """det-CGD2 and diagonal D for diagonal plus rank r, diagonal D for one-hot data of up to 10⁷ ones, d = 10³…10⁶."""
    sizes = (10**3, 10**4) if quick else (10**3, 10**4, 10**5, 10**6)
    kinds = [("det-CGD2", 16), ("diagonal", 16), ("one-hot", 0)]
    if not quick:
        kinds += [("det-CGD2", 64), ("det-CGD2", 128), ("diagonal", 64)]
    for kind, rank in kinds:
        seen: list[Seen] = []
        for d in sizes:
            size = rank or 10 * d  # one-hot: ten entries for each feature, 10⁷ at d = 10⁶
            case = f"{kind}, d = {d}, " + (f"r = {rank}" if rank else f"{size} entries")
            one = _alone(kind, d, size)
            seen.append(one)
            yield SECONDS.of(case, one.seconds)
            yield APPLY.of(case, one.product)
            yield CERTIFIED.of(case, one.gap, status=one.status)
            yield MEMORY.of(case, one.gibibytes)
        if not quick:
            yield GROWTH.of(f"{kind}, r = {rank}", float(np.log10(seen[-1].seconds / seen[-2].seconds)))


STUDIES = (Study("scale.large", large),)
