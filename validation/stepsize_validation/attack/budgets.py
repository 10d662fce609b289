"""Limits of time and iterations: the best answer so far with a true certificate, in time, from every solver."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from stepsize_opt import available_solvers
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind, Verdict, claim
from stepsize_validation.attack.referee import Node, judge_result
from stepsize_validation.attack.single import Solve

# Reading the model, the repair and the certificate come on top of a limit.
ON_TOP = 5.0


@dataclass(frozen=True, eq=False)
class Limited(Solve):
    def attack(self) -> Verdict:
        began = time.process_time()  # of this process, because the machine may be busy with others
        result = self.solve()
        took = time.process_time() - began
        limit = self.options.get("time_limit")
        claim(limit is None or took <= limit + ON_TOP, f"{took:.1f} s with a limit of {limit} s")
        return judge_result(self.node, result)


def draw(rng: np.random.Generator) -> Limited:
    names = [entry.name for entry in available_solvers() if entry.available]
    d = int(rng.integers(2, 21))
    node = Node(draws.smoothness(rng, d, 1e6), draws.sketch(rng, d, 8), structure=draws.structure(rng, d, 1e3))
    options = {"solver": str(rng.choice(names))}
    if rng.random() < 0.5:
        return Limited(node, options={**options, "time_limit": float(10.0 ** rng.uniform(-3.0, 0.0))})
    return Limited(node, options={**options, "max_iters": int(rng.integers(1, 20))})


KIND = Kind("budgets", "limits of time and iterations: an honest answer in time from every solver", 0.15, draw)
