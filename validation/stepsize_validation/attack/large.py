"""Larger and worse conditioned problems: d up to 60, condition numbers up to 1e14."""

from __future__ import annotations

import numpy as np

from stepsize_opt.problems import random_smoothness
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind
from stepsize_validation.attack.referee import Node
from stepsize_validation.attack.single import Solve
from stepsize_validation.referee import KINDS, random_sketch


def draw(rng: np.random.Generator) -> Solve:
    d = int(rng.integers(10, 61)) if rng.random() < 0.3 else int(rng.integers(10, 26))
    condition = float(10.0 ** rng.uniform(0.0, 14.0))
    law = random_sketch(rng, str(rng.choice(KINDS)), d)
    node = Node(random_smoothness(rng, d, condition), law, draws.algorithm(rng))
    # A rounded L of condition 1e12 and more may be singular to working precision, which the library says.
    return Solve(node, may_refuse=condition > 1e12, note=f"condition {condition:.1e}")


KIND = Kind("large", "d up to 60, condition numbers up to 1e14", 0.3, draw)
