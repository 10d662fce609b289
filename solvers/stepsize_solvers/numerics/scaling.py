"""Nesterov–Todd scaling of the pair F ≻ 0, Z ≻ 0.

There is one W ≻ 0 with W Z W = F, the geometric mean F # Z⁻¹.  With a factor G, GGᵀ = W,

    Gᵀ Z G = G⁻¹ F G⁻ᵀ = Diag(v),      v² the eigenvalues of F Z,

and the centring equation Z F = s I linearises to the symmetric dF + W dZ W = G Diag(s/v − v) Gᵀ.
In the eigenbasis W = V Diag(t) Vᵀ the map dZ ↦ W dZ W multiplies entry (i, j) by tᵢtⱼ: small where the
constraint is active in both directions, large where it is slack in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics.linalg import Array, cholesky, eigh, lower_congruence, lower_product, sym


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Cholesky factor of F, G and v of the pair; V and t of W = GGᵀ, t ascending.  One matrix or a stack."""

    factor: Array
    G: Array
    v: Array

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        # Only when asked for: the last point, and those that are refused, need no basis.
        return eigh(sym(self.G @ self.G.swapaxes(-1, -2)))

    @property
    def t(self) -> Array:
        return self._spectrum[0]

    @property
    def V(self) -> Array:
        return self._spectrum[1]


# Eigenvalues of a matrix of at most this condition are right to four digits in single precision, which a scaling needs
# no better; below this size the conversion costs what the faster decomposition saves.
_MODERATE = 1e3
_SIZE_FOR_SINGLE = 48


def _moderate_eigh(M: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a matrix that is a multiple of the identity on the central path.

    An error of M relative to its eigenvalues is one of W in the metric of F and Z, whatever *their* condition numbers.
    """
    if M.ndim == 2 and M.shape[0] >= _SIZE_FOR_SINGLE and M.dtype == np.float64:
        scale = float(np.trace(M)) / M.shape[0]
        if scale > 0.0:
            w, U = eigh((M / scale).astype(np.float32))
            if w[-1] < _MODERATE * w[0]:
                return w.astype(np.float64) * scale, U.astype(np.float64)
    return eigh(M)


def nesterov_todd(F: Array, Z: Array) -> Scaling | None:
    """The scaling of the pair, or None when one of them is not numerically positive definite."""
    K = cholesky(F)
    if K is None:
        return None
    v2, U = _moderate_eigh(lower_congruence(K, Z))
    if not np.all(v2 > 0.0):
        return None
    root = v2**0.25
    G = lower_product(K, U) / root[..., None, :]
    return Scaling(K, G, root * root)
