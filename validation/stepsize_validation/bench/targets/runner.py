"""Speed of the vectorised runner with 32 seeds, against a loop over seeds and plain numpy loops."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import Dataset, LogisticRegression, load_dataset
from stepsize_opt.sketches import RandK
from stepsize_solvers.programs import Matrix
from stepsize_validation.bench.targets.harness import Found, Study, Target, at_hand, shortest
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


def speed(quick: bool) -> Found:
    """λ = 10⁻³, rand-1 and rand-31, one thread in processor time and default threads by the clock.

    All do the same work and take turns.  There are two plain loops: one forms the sketch matrix S and multiplies D S g
    as the method is written down, the other multiplies only the coordinates that are sent.
    """
    from threadpoolctl import threadpool_limits

    names, missing = at_hand(("breast_cancer",) if quick else ("a1a",))
    yield from missing
    seeds, iterations, repeats = (8, 20, 1) if quick else (32, 1000, 3)
    for name in names:
        data, reg = load_dataset(name), 1e-3
        objective = LogisticRegression.from_dataset(data, reg)
        for threads, clock in ((1, time.process_time), (None, time.perf_counter)):
            for k in (1, min(31, data.d)):
                sketch = RandK(data.d, k)
                D = optimal_stepsize(objective.smoothness(), sketch).D
                ways = _ways(data, objective, D, sketch, iterations, seeds)
                with threadpool_limits(limits=threads):
                    times = [one.seconds for one in shortest(list(ways.values()), repeats, clock=clock)]
                how = "default threads, by the clock" if threads is None else "one thread, processor time"
                case = f"{name}, rand-{k}, {seeds} seeds, {iterations} steps, {how}"
                for way, seconds in zip(ways, times, strict=True):
                    if way != "vectorised":
                        yield Target(f"runner: times faster than {way}").of(
                            case, seconds / times[0], seconds=seconds, runner=times[0]
                        )


def _ways(
    data: Dataset, objective: LogisticRegression, D: Matrix, sketch: RandK, iterations: int, seeds: int
) -> dict[str, Callable[[], Any]]:
    """The runner first, then what it is compared with."""

    def plain(**how: bool) -> list[Matrix]:
        return [plain_loop(data, objective.reg, D, sketch.k, iterations, seed, **how) for seed in range(seeds)]

    def one_by_one() -> list[Any]:
        return [run(objective, D, sketch, iterations=iterations, seeds=1, seed=seed) for seed in range(seeds)]

    return {
        "vectorised": lambda: run(objective, D, sketch, iterations=iterations, seeds=seeds),
        "its own loop over seeds": one_by_one,
        "plain numpy": plain,
        "plain numpy by index": lambda: plain(sketch_matrix=False),
    }


STUDIES = (Study("runner.speed", speed),)
