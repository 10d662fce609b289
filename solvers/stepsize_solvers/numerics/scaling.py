"""Nesterov–Todd scaling of the pair F ≻ 0, Z ≻ 0, and the largest step that keeps matrices positive definite.

There is one W ≻ 0 with W Z W = F, the geometric mean F # Z⁻¹.  With a factor G, GGᵀ = W,

    Gᵀ Z G = G⁻¹ F G⁻ᵀ = Diag(v),      v² the eigenvalues of F Z,

and the centring equation Z F = s I linearises to the symmetric dF + W dZ W = G Diag(s/v − v) Gᵀ.
In the eigenbasis W = V Diag(t) Vᵀ the map dZ ↦ W dZ W multiplies entry (i, j) by tᵢtⱼ: small where the
constraint is active in both directions, large where it is slack in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics.linalg import (
    Array,
    cholesky,
    eigh,
    lower_congruence,
    lower_product,
    sym,
    triangular_inverse,
)

# Bisection ends when the bracket is this narrow; the fraction to the boundary of a step hides what is left.
_RESOLUTION = 0.04
_MOST_TRIALS = 12


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Cholesky factor K of F, the eigenvectors U of KᵀZK, v and G = KU Diag(v)^{−½} of the pair."""

    factor: Array
    U: Array
    v: Array
    G: Array

    def lowered(self) -> Scaling:
        """The scaling in single precision."""
        return Scaling(*(part.astype(np.float32, copy=False) for part in (self.factor, self.U, self.v, self.G)))

    @cached_property
    def mu(self) -> float:
        """⟨F, Z⟩/d, the mean of v²."""
        return float(self.v.dot(self.v)) / len(self.v)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        # Only when asked for: the last point, and those that are refused, need no basis.
        return eigh(self.W)

    @property
    def t(self) -> Array:
        """The eigenvalues of W, ascending."""
        return self._spectrum[0]

    @property
    def V(self) -> Array:
        """The eigenvectors of W."""
        return self._spectrum[1]

    @cached_property
    def G_inverse(self) -> Array:
        """G⁻¹ = Diag(v)^½ UᵀK⁻¹."""
        return np.asarray((self.U * np.sqrt(self.v)).T.dot(triangular_inverse(self.factor)))

    @cached_property
    def W(self) -> Array:
        return sym(self.G @ self.G.T)

    def aim(self, s: float) -> Array:
        """G Diag(s/v − v) Gᵀ, the right-hand side of the centring equation for ZF = sI."""
        return np.asarray((self.G * (s / self.v - self.v)) @ self.G.T)

    def second_order(self, dF: Array, dZ: Array) -> Array:
        """The part of the centring equation that is quadratic in the changes of F and Z.

        In the coordinates of G, where F and Z are Diag(v), it is the symmetric part of the product of both, divided by
        (vᵢ + vⱼ)/2.
        """
        product = (self.G_inverse @ dF) @ (dZ @ self.G)
        product = (product + product.T) / (self.v[:, None] + self.v)
        return np.asarray(self.G @ product @ self.G.T)


def nesterov_todd(F: Array, Z: Array) -> Scaling | None:
    """The scaling of the pair, or None when one of them is not numerically positive definite."""
    K = cholesky(F)
    if K is None:
        return None
    squares, U = eigh(lower_congruence(K, Z))
    if not squares[0] > 0.0:
        return None
    v = np.sqrt(squares)
    return Scaling(K, U, v, lower_product(K, U) / np.sqrt(v))


def largest_step(paths: Sequence[Sequence[Array]]) -> float:
    """The largest a ≤ 1, up to a few per cent from below, with every matrix polynomial Σ_k aᵏM_k positive definite.

    Each path starts from the length that the paths before it allow.  Paths are linear, or concave quadratics, so a
    shorter step cannot leave them.
    """
    a = 1.0
    for path in paths:
        a = _bisected(path, a)
    return a


def _bisected(path: Sequence[Array], longest: float) -> float:
    """The largest tested a ∈ (0, longest] that is inside; 0 when none was."""
    if longest == 0.0 or _is_inside(path, longest):
        return longest
    low, high = 0.0, longest
    for _ in range(_MOST_TRIALS):
        a = 0.5 * (low + high)
        if _is_inside(path, a):
            low = a
        else:
            high = a
        if low > 0.0 and high - low < _RESOLUTION * high:
            break
    return low


def _is_inside(path: Sequence[Array], a: float) -> bool:
    """Whether the polynomial is numerically positive definite at a."""
    M, power = path[0].copy(), 1.0
    for coefficient in path[1:]:
        power *= a
        M += power * coefficient
    return cholesky(M) is not None
