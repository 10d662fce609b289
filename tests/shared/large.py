"""A matrix UUᵀ + Diag(a), and stepsizes that are never formed, in rational arithmetic for their very floats."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt import LowRankPlusDiagonal
from stepsize_validation.properties.exact import Rational, combine, inverse, product, rational, transpose


def diagonal(x: Any) -> Rational:
    return rational(np.diag(x))


def exact_smoothness(L: LowRankPlusDiagonal) -> Rational:
    U = rational(L.U.toarray() if sparse.issparse(L.U) else L.U)
    return combine((1, diagonal(L.shift)), (1, product(U, transpose(U))))


def exact_stepsize(D: Any) -> Rational:
    """Diag(x), or P − PU(CCᵀ)⁻¹UᵀP."""
    if hasattr(D, "x"):
        return diagonal(D.x)
    P, C = diagonal(D.p), rational(D.C)
    PU = product(P, rational(D.U))
    middle = inverse(product(C, transpose(C)))
    return combine((1, P), (-1, product(PU, product(middle, transpose(PU)))))
