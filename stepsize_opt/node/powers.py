"""The powers of L that the paper takes for directions."""

from __future__ import annotations

import numpy as np

from stepsize_solvers.numerics import sym
from stepsize_solvers.programs import Matrix


def inverse_of(L: Matrix) -> Matrix:
    """L⁻¹, symmetric to the last bit."""
    return sym(np.linalg.inv(L))


def power_of(L: Matrix, exponent: float) -> Matrix:
    """L^exponent, symmetric to the last bit."""
    w, V = np.linalg.eigh(L)
    return sym((V * w**exponent) @ V.T)
