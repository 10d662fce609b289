"""Every structure of D with every law and both algorithms: the structure is kept and its own optimum bounded."""

from __future__ import annotations

import numpy as np

from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind
from stepsize_validation.attack.referee import Node
from stepsize_validation.attack.single import Solve


def draw(rng: np.random.Generator) -> Solve:
    d = draws.size(rng, 8)
    L, law = draws.smoothness(rng, d), draws.sketch(rng, d)
    return Solve(Node(L, law, draws.algorithm(rng), draws.structure(rng, d)))


KIND = Kind("structures", "diagonal, scalar, blocks, directions with every law and both algorithms", 3.0, draw)
