"""Starting points: powers of B and of 𝒬(B), scaled to the inside of the feasible set.

For any W ≻ 0 the stepsize γW is feasible exactly for γ ≤ 1/λmax(W^{-½} 𝒬(W B W) W^{-½}).  The candidates are
B^{-p}, p ∈ {0, ¼, ½}, and 𝒬(B)^{-p}, p ∈ {½, ¾, 1}: between them they contain the exact optimum of the identity map
(𝒬(B)⁻¹ up to a factor), of a diagonal B, and the best hand-picked stepsizes of the literature.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.maps import Matrix, PositiveMap, Vector
from solvers.native.linalg import eigh, largest_eigenvalue, sym

# Eigenvalues of B below this fraction of the largest are raised to it: powers of them would only be rounding.
_EIGENVALUE_FLOOR = 1e-14


@dataclass(frozen=True, eq=False)
class Start:
    """A stepsize D on the boundary of the feasible set and its log det."""

    D: Matrix
    log_det: float


def power_start(B: Matrix, Q: PositiveMap) -> Start:
    """The best of the six powers."""
    image = sym(Q.apply(B))
    best: tuple[float, Matrix, Vector] | None = None
    for M, exponents in ((B, (0.0, 0.25, 0.5)), (image, (0.5, 0.75, 1.0))):
        w, U = eigh(M)
        w = np.maximum(w, _EIGENVALUE_FLOOR * w[-1])
        UBU = None if M is B else U.T @ B @ U
        for p in exponents:
            f = w**-p
            # D B D in the basis U, then the map between two changes of basis.
            inner = (U * (f * f * w)) @ U.T if UBU is None else U @ (f[:, None] * UBU * f) @ U.T
            root = 1.0 / np.sqrt(f)
            top = largest_eigenvalue(sym((U.T @ Q.apply(inner) @ U) * np.multiply.outer(root, root)))
            log_det = float(np.sum(np.log(f)) - f.size * np.log(top))
            if best is None or log_det > best[0]:
                best = (log_det, U, f / top)
    assert best is not None
    log_det, U, f = best
    return Start(sym((U * f) @ U.T), log_det)
