"""Laws of many terms, from supports, moments, matrices and layers: the law as given is the one that is certified."""

from __future__ import annotations

import numpy as np

from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind
from stepsize_validation.attack.referee import Node
from stepsize_validation.attack.single import Solve


def draw(rng: np.random.Generator) -> Solve:
    d = draws.size(rng, 6)
    if rng.random() < 0.7:
        law = draws.sketch(rng, d, 100)
    else:  # so many terms that the rounding of their sum counts
        d = min(d, 3)
        law = draws.long_law(rng, d, int(10.0 ** rng.uniform(3.0, 4.3)))
    return Solve(Node(draws.smoothness(rng, d), law, draws.algorithm(rng)))


KIND = Kind("laws", "laws of up to 20 000 terms, moments, matrices, nested layers", 3.0, draw)
