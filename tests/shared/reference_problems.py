"""Problems with known answers, shared by the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stepsize_validation import data

# AᵀA of the LibSVM data sets by its lower triangle, with their numbers of rows, and the smoothness of a small network.
_STORED = Path(__file__).parents[1] / "data" / "gram_matrices.npz"
DATASETS = ("heart_scale", "australian_scale", "ionosphere_scale", "phishing", "mushrooms", "a1a", "a9a", "w1a")

# log det(D*)/d of L = AᵀA/(4m) + 2λI under rand-k, certified to 1e-8 by an independent prototype.
REFERENCE_OPTIMA = [
    ("heart_scale", 0.1, 1, -1.503796605),
    ("heart_scale", 0.1, 3, -0.550866213),
    ("heart_scale", 0.001, 1, -0.484177302),
    ("heart_scale", 0.001, 3, 0.347528800),
    ("australian_scale", 0.001, 3, 0.431465119),
    ("ionosphere_scale", 0.1, 1, -2.307328493),
    ("ionosphere_scale", 0.1, 8, -0.546281220),
    ("ionosphere_scale", 0.001, 8, 0.676204165),
]


def stored(name: str) -> NDArray[np.float64]:
    """Return a symmetric matrix by its stored lower triangle."""
    lower = np.load(_STORED)[name].astype(np.float64)
    d = round((2.0 * len(lower)) ** 0.5 - 0.5)
    matrix = np.zeros((d, d))
    matrix[np.tril_indices(d)] = lower
    return matrix + np.tril(matrix, -1).T


def smoothness_of(name: str, reg: float) -> NDArray[np.float64]:
    """Return L = AᵀA/(4m) + 2λI of logistic regression on a data set."""
    gram = stored(name)
    return gram / (4.0 * float(np.load(_STORED)[f"{name}_rows"])) + 2.0 * reg * np.eye(len(gram))


def random_smoothness(d: int, condition: float, seed: int) -> NDArray[np.float64]:
    """A random L with a log-spaced spectrum of the given condition number."""
    return data.random_smoothness(np.random.default_rng(seed), d, condition)
