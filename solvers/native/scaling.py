"""Nesterov–Todd scaling of the pair F ≻ 0, Z ≻ 0.

There is one W ≻ 0 with W Z W = F, the geometric mean F # Z⁻¹.  With a factor G, GGᵀ = W,

    Gᵀ Z G = G⁻¹ F G⁻ᵀ = Diag(v),      v² the eigenvalues of F Z,

and the centring equation Z F = s I linearises to the symmetric dF + W dZ W = G Diag(s/v − v) Gᵀ.
In the eigenbasis W = V Diag(t) Vᵀ the map dZ ↦ W dZ W multiplies entry (i, j) by tᵢtⱼ: small where the
constraint is active in both directions, large where it is slack in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solvers.maps import Matrix, Vector
from solvers.native.linalg import cholesky, eigh, lower_congruence, lower_product, sym


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Cholesky factor of F, G and v of the pair; V and t of W = GGᵀ, t ascending.  One matrix or a stack."""

    factor: Matrix
    G: Matrix
    v: Vector
    V: Matrix
    t: Vector


def nesterov_todd(F: Matrix, Z: Matrix) -> Scaling | None:
    """The scaling of the pair, or None when one of them is not numerically positive definite."""
    K = cholesky(F)
    if K is None:
        return None
    v2, U = eigh(lower_congruence(K, Z))
    if not np.all(v2 > 0.0):
        return None
    root = v2**0.25
    G = lower_product(K, U) / root[..., None, :]
    v = root * root
    t, V = eigh(sym(G @ G.swapaxes(-1, -2)))
    if not np.all(t > 0.0):
        return None
    return Scaling(K, G, v, V, t)
