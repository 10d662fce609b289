"""A small data set for tests of objectives and runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from stepsize_validation.data import Dataset


def small_data(seed: int = 0, m: int = 30, d: int = 6, *, sparse_rows: bool = False) -> Dataset:
    rng = np.random.default_rng(seed)
    A: Any = rng.standard_normal((m, d)) * (rng.random((m, d)) < 0.6)
    b = np.where(A @ rng.standard_normal(d) + 0.3 * rng.standard_normal(m) > 0.0, 1.0, -1.0)
    return Dataset("small", sparse.csr_array(A) if sparse_rows else A, b)


def correlated_data(seed: int = 0, m: int = 60, d: int = 6) -> Dataset:
    """Columns with a strong common part, on which a full D saves much over a diagonal one."""
    data = small_data(seed, m, d)
    return Dataset("correlated", data.A + 2.0 * data.A.mean(axis=1, keepdims=True), data.b)
