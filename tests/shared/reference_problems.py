"""Problems with known answers, shared by the tests."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

from stepsize_validation import data
from stepsize_validation.data import DATA_VARIABLE, load_dataset, logistic_regression

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

needs_data = pytest.mark.skipif(
    not os.environ.get(DATA_VARIABLE), reason=f"{DATA_VARIABLE} names no folder with the LibSVM files"
)


def smoothness_of(name: str, reg: float) -> NDArray[np.float64]:
    """L of logistic regression on a data set."""
    return logistic_regression(load_dataset(name), reg).smoothness()


def random_smoothness(d: int, condition: float, seed: int) -> NDArray[np.float64]:
    """A random L with a log-spaced spectrum of the given condition number."""
    return data.random_smoothness(np.random.default_rng(seed), d, condition)
