"""Runs with every kind of sketch, on one node and on clients; as a program it kills them again and again.

    cd tests; python -m shared.resumed_runs FOLDER KILLS

runs each case in child processes that get SIGKILL at random moments, KILLS times, then to its end, and prints for each
case whether the numbers are those of the run that was never interrupted, and how many kills met a running child.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shared.small_data import small_data
from shared.strategies import LayeredCoins
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import LogisticRegression
from stepsize_opt.problems.splits import split
from stepsize_opt.sketches import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_validation.runs.record import Run
from stepsize_validation.runs.runner import run

# More than a chunk of diagonal draws, which is 256 steps.
STEPS = 290
FIELDS = ("squared_norms", "euclidean", "descent", "metric_norms", "decrease", "sent", "values", "final_points")


def finite(d: int, angle: float) -> FiniteSketch:
    """d/2 times the projections onto pairs of coordinates, each pair after the same rotation of the space."""
    rotation = np.eye(d)
    rotation[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    pairs = np.eye(d).reshape(d // 2, 2, d)
    projections = np.array([rotation @ pair.T @ pair @ rotation.T for pair in pairs])
    return FiniteSketch(d / 2 * projections, np.full(d // 2, 2 / d))


COINS = BernQ([0.5, 0.8], [2, 4])
KINDS: dict[str, Sketch] = {
    "Identity": Identity(6),
    "rand-1": RandK(6, 1),
    "rand-2": RandK(6, 2),
    "BernQ": COINS,
    "IndependentSampling": IndependentSampling([0.3, 0.5, 0.7, 0.9, 1.0, 0.4]),
    "SystematicSampling": SystematicSampling([0.3, 0.5, 0.7, 0.9, 1.0, 0.4]),
    "from_support": DiagonalSketch.from_support([[2.0, 0, 2, 0, 2, 0], [0.0, 2, 0, 2, 0, 2]], [0.5, 0.5]),
    "from_moments": DiagonalSketch.from_moments(COINS.second_moment_matrix, LayeredCoins(COINS)),
    "FiniteSketch": finite(6, 0.3),
    "Gaussian": Gaussian(6, 2),
    "layers, diagonal": LayerWise([RandK(4, 2), BernQ(0.5, 2)]),
    "layers, not diagonal": LayerWise([Gaussian(2, 1), RandK(2, 1), finite(2, 0.1)]),
}
NODE = LogisticRegression.from_dataset(small_data(), 0.1)
CLIENTS = Federated.logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)


@dataclass(frozen=True)
class Case:
    """A run to be continued; clients: on three of them, the last with rand-2 whatever the kind."""

    kind: str
    clients: bool
    algorithm: str

    def run(self, checkpoint: Path | None = None, every: int = 1000) -> Run:
        sketch = KINDS[self.kind]
        objective: Any = CLIENTS if self.clients else NODE
        sketches = [sketch, sketch, RandK(6, 2)] if self.clients else sketch
        D = 0.02 * np.linalg.inv(objective.smoothness())
        return run(
            objective,
            D,
            sketches,
            algorithm=self.algorithm,
            iterations=STEPS,
            seeds=3,
            start=np.linspace(-1.0, 1.0, 6),
            checkpoint=checkpoint,
            checkpoint_every=every,
        )


# The methods differ only in where D stands: one of them on a node, the other on clients.
CASES = [
    Case(kind, clients, algorithm) for clients, algorithm in ((False, "det-CGD1"), (True, "det-CGD2")) for kind in KINDS
]


def same_bits(one: Run, other: Run) -> bool:
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in FIELDS)


def kill_and_resume(case: Case, folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    path = folder / f"{case.kind}-{case.clients}-{case.algorithm}" / "run.npz"
    began = time.perf_counter()
    whole = case.run(path.with_name("whole.npz"), every=40)
    seconds = time.perf_counter() - began
    met = 0
    for _ in range(kills):
        child = os.fork()
        if child == 0:
            case.run(path, every=40)
            os._exit(0)
        # Together about one run, so that the last kills still meet one.
        time.sleep(rng.uniform(0.0, 2.0 * seconds / kills))
        os.kill(child, signal.SIGKILL)
        met += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    resumed = case.run(path, every=40)
    left = sorted(file.name for file in path.parent.iterdir())
    return {"case": str(case), "same": same_bits(resumed, whole), "met": met, "left": left}


if __name__ == "__main__":
    chance = random.Random(0)
    for one in CASES:
        print(json.dumps(kill_and_resume(one, Path(sys.argv[1]), int(sys.argv[2]), chance)), flush=True)
