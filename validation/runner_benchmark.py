"""Speed of the vectorised runner on a1a with 32 seeds, against a loop over seeds and a plain numpy loop.

The three do the same work and are timed in turn within one process, in seconds of one processor; the ratios of the best
times are printed.

    python -m validation.runner_benchmark
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from solvers.maps import Matrix
from stepsize_opt.api import optimal_stepsize
from stepsize_opt.sketches import RandK
from validation.datasets import Dataset, load_dataset
from validation.objectives import LogisticRegression
from validation.runner import run


def plain_loop(data: Dataset, reg: float, D: Matrix, k: int, iterations: int, seed: int) -> Matrix:
    """det-CGD1 with rand-k as one writes it first: dense data, one seed, a sketch matrix in every step."""
    A = data.A.toarray() if hasattr(data.A, "toarray") else data.A
    b, (m, d) = data.b, A.shape
    rng = np.random.default_rng(seed)
    x = np.zeros(d)
    W = D / np.linalg.det(D) ** (1.0 / d)
    norms = np.empty(iterations)
    for i in range(iterations):
        gradient = A.T @ (-b / (1.0 + np.exp(b * (A @ x)))) / m + reg * 2.0 * x / (1.0 + x**2) ** 2
        norms[i] = gradient @ W @ gradient
        S = np.zeros((d, d))
        chosen = rng.choice(d, size=k, replace=False)
        S[chosen, chosen] = d / k
        x = x - D @ S @ gradient
    return norms


def measure(
    name: str = "a1a", *, reg: float = 1e-3, k: int = 1, seeds: int = 32, iterations: int = 1000, repeats: int = 3
) -> dict[str, Any]:
    """Best processor seconds of each way for the same seeds and steps, and the ratios to the vectorised runner."""
    from threadpoolctl import threadpool_limits

    data = load_dataset(name)
    objective = LogisticRegression.from_dataset(data, reg)
    sketch = RandK(data.d, k)
    D = optimal_stepsize(objective.smoothness(), sketch).D
    ways: dict[str, Callable[[], object]] = {
        "vectorised": lambda: run(objective, D, sketch, iterations=iterations, seeds=seeds),
        "loop over seeds": lambda: [
            run(objective, D, sketch, iterations=iterations, seeds=1, seed=s) for s in range(seeds)
        ],
        "plain numpy": lambda: [plain_loop(data, reg, D, k, iterations, s) for s in range(seeds)],
    }
    best = dict.fromkeys(ways, np.inf)
    # Processor time of one thread: what other processes take away does not count.
    with threadpool_limits(limits=1):
        for _ in range(repeats):
            for way, call in ways.items():
                began = time.process_time()
                call()
                best[way] = min(best[way], time.process_time() - began)
    ratios = {way: seconds / best["vectorised"] for way, seconds in best.items()}
    return {"data": name, "k": k, "seeds": seeds, "iterations": iterations, "seconds": best, "ratios": ratios}


def main() -> None:
    for k in (1, 31):
        result = measure(k=k)
        print(f"{result['data']}, rand-{k}, {result['seeds']} seeds, {result['iterations']} steps, one thread")
        for way, seconds in result["seconds"].items():
            print(f"  {way:<16} {seconds:8.3f} s   {result['ratios'][way]:6.1f}x")


if __name__ == "__main__":
    main()
