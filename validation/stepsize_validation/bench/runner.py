"""Speed of the vectorised runner on a1a with 32 seeds, against a loop over seeds and plain numpy loops.

All do the same work and are timed in turn within one process; the ratios of the best times are printed, once in seconds
of one processor with one thread, once by the clock with as many threads as numpy takes.  There are two plain loops: one
forms the sketch matrix S and multiplies D S g as the method is written down, the other multiplies only the coordinates
that are sent.

    python -m stepsize_validation.bench.runner
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import Dataset, LogisticRegression, load_dataset
from stepsize_opt.sketches import RandK
from stepsize_solvers.programs import Matrix
from stepsize_validation.runs import run


def plain_loop(
    data: Dataset, reg: float, D: Matrix, k: int, iterations: int, seed: int, *, sketch_matrix: bool = True
) -> Matrix:
    """det-CGD1 with rand-k for one seed on dense data; with ``sketch_matrix`` the step is D @ S @ g, S a matrix."""
    A = data.A.toarray() if hasattr(data.A, "toarray") else data.A
    b, (m, d) = data.b, A.shape
    rng = np.random.default_rng(seed)
    x = np.zeros(d)
    W = D / np.linalg.det(D) ** (1.0 / d)
    norms = np.empty(iterations)
    for i in range(iterations):
        gradient = A.T @ (-b / (1.0 + np.exp(b * (A @ x)))) / m + reg * 2.0 * x / (1.0 + x**2) ** 2
        norms[i] = gradient @ W @ gradient
        chosen = rng.choice(d, size=k, replace=False)
        if sketch_matrix:
            S = np.zeros((d, d))
            S[chosen, chosen] = d / k
            x = x - D @ S @ gradient
        else:
            x = x - (d / k) * (D[:, chosen] @ gradient[chosen])
    return norms


def measure(
    name: str = "a1a",
    *,
    reg: float = 1e-3,
    k: int = 1,
    seeds: int = 32,
    iterations: int = 1000,
    repeats: int = 3,
    threads: int | None = 1,
) -> dict[str, Any]:
    """Best seconds of each way for the same seeds and steps, and the ratios to the vectorised runner.

    ``threads``: of the numerical libraries, with processor time, so that what other processes take away does not count;
    None leaves them their default and takes the time by the clock.
    """
    from threadpoolctl import threadpool_limits

    data = load_dataset(name)
    objective = LogisticRegression.from_dataset(data, reg)
    sketch = RandK(data.d, k)
    D = optimal_stepsize(objective.smoothness(), sketch).D
    clock = time.perf_counter if threads is None else time.process_time
    ways: dict[str, Callable[[], object]] = {
        "vectorised": lambda: run(objective, D, sketch, iterations=iterations, seeds=seeds),
        "loop over seeds": lambda: [
            run(objective, D, sketch, iterations=iterations, seeds=1, seed=s) for s in range(seeds)
        ],
        "plain numpy": lambda: [plain_loop(data, reg, D, k, iterations, s) for s in range(seeds)],
        "plain, by index": lambda: [
            plain_loop(data, reg, D, k, iterations, s, sketch_matrix=False) for s in range(seeds)
        ],
    }
    best = dict.fromkeys(ways, np.inf)
    with threadpool_limits(limits=threads):
        for _ in range(repeats):
            for way, call in ways.items():
                began = clock()
                call()
                best[way] = min(best[way], clock() - began)
    ratios = {way: seconds / best["vectorised"] for way, seconds in best.items()}
    return {"data": name, "k": k, "seeds": seeds, "iterations": iterations, "seconds": best, "ratios": ratios}


def main() -> None:
    for threads, how in ((1, "one thread, processor time"), (None, "default threads, by the clock")):
        for k in (1, 31):
            result = measure(k=k, threads=threads)
            print(f"{result['data']}, rand-{k}, {result['seeds']} seeds, {result['iterations']} steps, {how}")
            for way, seconds in result["seconds"].items():
                print(f"  {way:<16} {seconds:8.3f} s   {result['ratios'][way]:6.1f}x")


if __name__ == "__main__":
    main()
