"""Layers with their own coins: compression for free, and what unequal probabilities cost."""

import numpy as np
from scipy.linalg import block_diag

from stepsize_opt import BernQ, Identity, LayerWise, RandK, optimal_stepsize

rng = np.random.default_rng(0)


def layer(size: int, scale: float) -> np.ndarray:
    A = rng.standard_normal((4 * size, size))
    return scale * (A.T @ A / (4 * size) + 0.01 * np.eye(size))


sizes = [8, 12, 4]
L = block_diag(*[layer(size, scale) for size, scale in zip(sizes, (1.0, 10.0, 0.1), strict=True)])

sketches = {
    "everything, always": Identity(24),
    "each layer with probability 0.25": BernQ(0.25, sizes),
    "unequal probabilities": BernQ([0.1, 0.25, 0.9], sizes),
    "rand-k in each layer": LayerWise([RandK(8, 2), RandK(12, 3), RandK(4, 1)]),
}
for name, sketch in sketches.items():
    result = optimal_stepsize(L, sketch, algorithm="det-CGD2")
    cost = sketch.expected_nonzeros / result.rate  # numbers sent, in units of 2Δ⁰/ε²
    print(f"{name:<34} sends {sketch.expected_nonzeros:5.2f} a round, {cost:8.4f} in all")
