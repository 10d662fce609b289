"""Several threads at once: the same answers as one after the other, and nothing of the process changed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from stepsize_opt import StepsizeResult, available_solvers, optimal_stepsize
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind, Verdict, claim
from stepsize_validation.attack.referee import Node, judge_result


@dataclass(frozen=True, eq=False)
class Together:
    nodes: tuple[Node, ...]
    solver: str

    def __str__(self) -> str:
        return f"{len(self.nodes)} problems in 4 threads with {self.solver}; the first: {self.nodes[0]}"

    def attack(self) -> Verdict:
        with threadpool_limits(2, "blas"):  # two even where the environment says one, so that a change shows
            return self._compare()

    def _compare(self) -> Verdict:
        alone = [self._solve(node) for node in self.nodes]
        before, kept = _process_state(), [os.dup(1), os.dup(2)]
        try:
            with ThreadPoolExecutor(4) as pool:
                together = list(pool.map(self._solve, self.nodes))
            after = _process_state()
        finally:
            for descriptor, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, descriptor)
                os.close(copy)
        for name, value in before.items():
            claim(after[name] == value, f"{name} changed from {value} to {after[name]}")
        for node, first, second in zip(self.nodes, alone, together, strict=True):
            if first is None or second is None:
                claim(first is None and second is None, f"{self.solver} gave no answer to {node} in one of two runs")
                continue
            judge_result(node, second, [np.array(first.D)])
            claim(second.status == first.status, f"{first.status} alone is {second.status} in threads: {node}")
            if self.solver == "native":
                same = np.array(first.D).tobytes() == np.array(second.D).tobytes()
                claim(same, f"another D in threads: {node}")
        return Verdict.OK

    def _solve(self, node: Node) -> StepsizeResult | None:
        try:
            return optimal_stepsize(**node.arguments, solver=self.solver)
        except RuntimeError:  # documented: no point
            return None


def _process_state() -> dict[str, Any]:
    """Where standard output and error go, and how many threads each library of linear algebra uses."""
    streams = {f"descriptor {i}": (os.fstat(i).st_dev, os.fstat(i).st_ino) for i in (1, 2)}
    return streams | {f"threads of {info['filepath']}": info["num_threads"] for info in threadpool_info()}


def draw(rng: np.random.Generator) -> Together:
    names = [entry.name for entry in available_solvers() if entry.available]
    nodes = []
    for _ in range(int(rng.integers(4, 9))):
        d = draws.size(rng, 6, 2)
        nodes.append(Node(draws.smoothness(rng, d, 1e3), draws.sketch(rng, d), draws.algorithm(rng)))
    return Together(tuple(nodes), str(rng.choice(names)))


KINDS = (Kind("threads", "several solves at once in threads: the same answers, an unchanged process", 0.2, draw),)
