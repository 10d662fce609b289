"""Many clients with mixed sketches, singular and zero matrices, any ε², Δ⁰, Δ^inf, and K given or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt import DistributedResult, Identity, IndependentSampling, RandK, Sketch, optimal_distributed_stepsize
from stepsize_validation.attack import draws
from stepsize_validation.attack.nodes import RIVAL_TOL
from stepsize_validation.attack.protocol import Kind, Verdict, ask
from stepsize_validation.attack.referee import Clients, judge_distributed

# ε², Δ⁰ and Δ^inf within 10^±12 must be solved; beyond, a clear error will do.
MUST_SOLVE = 12.0


@dataclass(frozen=True, eq=False)
class Distributed:
    problem: Clients
    may_refuse: bool

    def __str__(self) -> str:
        return str(self.problem)

    def attack(self) -> Verdict:
        arguments = self.problem.arguments
        result = ask(lambda: optimal_distributed_stepsize(**arguments), may_refuse=self.may_refuse)
        return judge_distributed(self.problem, result, self._rivals(result))

    def _rivals(self, result: DistributedResult) -> list[DistributedResult]:
        """The same problem to a smaller gap; for a given K only an answer with the same K is comparable."""
        try:
            rival = optimal_distributed_stepsize(**self.problem.arguments, tol=RIVAL_TOL)
        except (ValueError, RuntimeError):
            return []
        judge_distributed(self.problem, rival)
        return [rival] if self.problem.iterations is None or rival.K == result.K else []


def draw(rng: np.random.Generator) -> Distributed:
    d = draws.size(rng, 5)
    n = int(rng.integers(1, 9)) if rng.random() < 0.85 else int(rng.integers(20, 41))
    laws = [_law(rng, d) for _ in range(int(rng.integers(1, 4)))]
    sketches = tuple(laws[int(i)] for i in rng.integers(0, len(laws), n))
    matrices = [_client(rng, d) for _ in range(n)]
    if rng.random() < 0.2:
        matrices = [matrices[0]] * n
    matrices[0] = draws.smoothness(rng, d, 1e4)  # the mean is positive definite
    mean = _mean(matrices) if rng.random() < 0.2 else None
    if mean is not None and rng.random() < 0.3:
        matrices = [np.zeros((d, d))] * n
    top = 60.0 if rng.random() < 0.05 else 8.0
    exponents = rng.uniform(-top, top, 3)
    if rng.random() < 0.3:  # an easy target, for which D ⪯ L⁻¹ decides
        exponents = np.array([1.0, -1.0, -1.0]) * rng.uniform(3.0, top, 3)
    epsilon2, initial_gap, delta_inf = (float(x) for x in 10.0**exponents)
    problem = Clients(
        tuple(matrices),
        sketches,
        epsilon2,
        0.0 if rng.random() < 0.05 else initial_gap,
        0.0 if rng.random() < 0.2 else delta_inf,
        draws.algorithm(rng),
        draws.structure(rng, d, 1e3) if rng.random() < 0.5 else "full",
        mean,
        int(10.0 ** rng.uniform(0.0, 17.0)) if rng.random() < 0.3 else None,
        str(rng.choice(["condition", "descent"])),
    )
    return Distributed(problem, may_refuse=bool(np.abs(exponents).max() > MUST_SOLVE))


def _mean(matrices: list[Any]) -> Any:
    """A smoothness matrix above the rounded mean."""
    d = len(matrices[0])
    return np.mean(matrices, axis=0) + 1e-3 * np.eye(d)


def _client(rng: np.random.Generator, d: int) -> Any:
    shape = rng.random()
    if shape < 0.1:
        return np.zeros((d, d))
    return draws.singular(rng, d) if shape < 0.4 else draws.smoothness(rng, d, 1e4)


def _law(rng: np.random.Generator, d: int) -> Sketch:
    shape = rng.random()
    if shape < 0.3:
        return RandK(d, int(rng.integers(1, d + 1)))
    if shape < 0.4:
        return Identity(d)
    if shape < 0.55:  # some coordinates are never compressed
        return IndependentSampling(rng.choice([1.0, 0.5, 0.2], d))
    return draws.sketch(rng, d, 12)


KINDS = (Kind("clients", "mixed sketches, singular and zero clients, any targets, both guarantees", 2.0, draw),)
