"""Runs of the methods for the attacks on checkpoints: everything that determines a run, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import Sketch
from stepsize_opt.problems import Federated, LogisticRegression, Quadratic
from stepsize_validation.attack import draws
from stepsize_validation.runs import Run, run


@dataclass(frozen=True, eq=False)
class RunPlan:
    """The arguments of a run."""

    objective: Any
    D: Any
    sketches: tuple[Sketch, ...]
    algorithm: str
    iterations: int
    seeds: int
    seed: int
    start: Any
    checkpoint_every: int

    def __str__(self) -> str:
        laws = ", ".join(map(str, self.sketches))
        return (
            f"{self.algorithm}, {type(self.objective).__name__}, d = {len(self.D)}, {laws}, K = {self.iterations}, "
            f"{self.seeds} seeds, a checkpoint every {self.checkpoint_every}"
        )

    def run(self, checkpoint: Path | None = None) -> Run:
        return run(
            self.objective,
            self.D,
            self.sketches if isinstance(self.objective, Federated) else self.sketches[0],
            algorithm=self.algorithm,
            iterations=self.iterations,
            seeds=self.seeds,
            seed=self.seed,
            start=self.start,
            checkpoint=checkpoint,
            checkpoint_every=self.checkpoint_every,
            on_divergence="stop",
        )


def differences(first: Run, second: Run) -> list[str]:
    """The fields in which two records differ by a bit."""
    names = [f.name for f in fields(Run)]
    return [name for name in names if not _same_bits(getattr(first, name), getattr(second, name))]


def _same_bits(a: Any, b: Any) -> bool:
    return np.shape(a) == np.shape(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def draw_plan(rng: np.random.Generator) -> RunPlan:
    d, n = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    parts = [_objective(rng, d) for _ in range(n)]
    objective = Federated(tuple(parts)) if n > 1 else parts[0]
    laws = [draws.named_sketch(rng, d) for _ in range(int(rng.integers(1, 4)))]
    G = rng.standard_normal((d, d))
    # Small enough for most runs to converge; one that diverges must be resumed to the same step as well.
    D = np.eye(d) + 0.1 * (G @ G.T) / d
    return RunPlan(
        objective=objective,
        D=D / (20.0 * d * float(np.linalg.norm(objective.smoothness(), 2))),
        sketches=tuple(laws[int(i)] for i in rng.integers(0, len(laws), n)),
        algorithm=draws.algorithm(rng),
        # Random numbers are drawn in chunks of 256 steps: most runs end inside the first.
        iterations=int(rng.integers(2, 60)) if rng.random() < 0.85 else int(rng.integers(250, 600)),
        seeds=int(rng.integers(1, 4)),
        seed=int(rng.integers(0, 100)),
        start=rng.standard_normal(d) if rng.random() < 0.5 else None,
        checkpoint_every=int(rng.integers(1, 40)),
    )


def _objective(rng: np.random.Generator, d: int) -> Any:
    if rng.random() < 0.5:
        return Quadratic.with_spectrum(rng.uniform(0.1, 1.0, d), rng)
    rows = int(rng.integers(2, 12))
    return LogisticRegression(rng.standard_normal((rows, d)), rng.choice([-1.0, 1.0], rows), 0.1)
