"""One coin for each layer: compression for free, and what unequal probabilities cost."""

import numpy as np
from scipy.linalg import block_diag

from stepsize_opt import BernQ, Identity, LayerWise, RandK, optimal_stepsize

rng = np.random.default_rng(0)


def layer(size: int, scale: float) -> np.ndarray:
    A = rng.standard_normal((4 * size, size))
    return scale * (A.T @ A / (4 * size) + 0.01 * np.eye(size))


def corollary_2(q: np.ndarray) -> float:
    """Return the printed communication complexity of Bern-q in units of 2Δ⁰/ε²."""
    return float(q @ sizes * np.prod((1.0 / q) ** (sizes / 24)) * np.linalg.det(L) ** (1 / 24))


sizes = np.array([8, 12, 4])
L = block_diag(*[layer(size, scale) for size, scale in zip(sizes, (1.0, 10.0, 0.1), strict=True)])
unequal = np.array([0.1, 0.25, 0.9])

for name, sketch, formula in (
    ("everything, always", Identity(24), corollary_2(np.ones(3))),
    ("each layer with probability 0.25", BernQ(0.25, sizes), corollary_2(np.full(3, 0.25))),
    ("unequal probabilities", BernQ(unequal, sizes), corollary_2(unequal)),
    ("rand-k in each layer", LayerWise([RandK(8, 2), RandK(12, 3), RandK(4, 1)]), None),
):
    result = optimal_stepsize(L, sketch, algorithm="det-CGD2")
    cost = sketch.expected_nonzeros / result.rate  # floats sent, in units of 2Δ⁰/ε²
    printed = "      –" if formula is None else f"{formula:.4f}"
    print(f"{name:<32} {sketch.expected_nonzeros:5.2f} floats a round, {cost:.4f} in all, formula {printed}")
