"""Laws of many terms, from supports, moments, matrices and layers: the law as given is the one that is certified."""

from __future__ import annotations

import numpy as np

from validation.attack import draws
from validation.attack.protocol import Kind
from validation.attack.referee import Node
from validation.attack.single import Solve


def draw(rng: np.random.Generator) -> Solve:
    d = draws.size(rng, 6)
    # Few laws have thousands of terms, because the exact sum over them takes a second.
    terms = int(10.0 ** rng.uniform(1.0, 4.3 if rng.random() < 0.1 else 2.5))
    return Solve(Node(draws.smoothness(rng, d), draws.sketch(rng, d, terms), draws.algorithm(rng)))


KIND = Kind("laws", "laws of up to 20 000 terms, moments, matrices, nested layers", 2.0, draw)
