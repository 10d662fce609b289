"""Problems for the tests of the native solver: second moments of every kind, spectra of any condition."""

from __future__ import annotations

import numpy as np

from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs import Pattern
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
)
from stepsize_validation.data import random_smoothness


def rand_k(d: int, k: int) -> DiagonalPlusScaled:
    """The second moment of rand-k."""
    beta = d * (k - 1) / (k * (d - 1)) if d > 1 else 1.0
    return DiagonalPlusScaled(np.full(d, d / k - beta), beta)


def spectrum(d: int, condition: float, seed: int = 0) -> Matrix:
    """A random matrix with a log-spaced spectrum, scaled to a unit diagonal."""
    B = random_smoothness(np.random.default_rng(seed), d, condition)
    s = 1.0 / np.sqrt(np.diagonal(B))
    return sym(B * np.multiply.outer(s, s))


def all_maps(d: int) -> dict[str, PositiveMap]:
    """One map of each kind."""
    rng = np.random.default_rng(3)
    draws = rng.uniform(0.1, 2.0, (d + 1, d))
    return {
        "rand-1": rand_k(d, 1),
        "rand-k": rand_k(d, max(1, d // 2)),
        "independent": DiagonalPlusScaled(1.0 / rng.uniform(0.1, 0.9, d) - 1.0, 1.0),
        "hadamard": Hadamard(draws.T @ draws / (d + 1)),
        "congruence": CongruenceSum(np.full(3, 1.0 / 3.0), 0.4 * rng.standard_normal((3, d, d)) + np.eye(d)),
        "gaussian": ScaledPlusTrace(d, 1.5, 0.5),
        "diagonal layers": Layered((rand_k(2, 1), rand_k(d - 2, 1))),
        "layered": Layered((rand_k(2, 1), ScaledPlusTrace(d - 2, 1.5, 0.5))),
    }


def all_patterns(d: int) -> dict[str, Pattern]:
    """One pattern of each kind."""
    W = np.diag(1.0 / np.arange(1.0, d + 1.0))
    return {
        "full": Pattern.full(d),
        "diagonal": Pattern((1,) * d),
        "blocks": Pattern((2, d - 2)),
        "direction": Pattern((d,), W),
        "directions": Pattern((1, d - 1), W),
    }
