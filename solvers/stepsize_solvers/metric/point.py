"""A stepsize D and what the metric G = aD − 𝒬(DBD) ≻ 0 says there.

With Y = G⁻¹ the gradient of log det G is g = Π(aY − (BDR + RDB)), R = 𝒬*(Y).  For every D of the pattern

    ⟨Y, aD − 𝒬(DBD)⟩ ≤ ⟨Y, G⟩ + loss,      loss = max_X ⟨g, X⟩ − ⟨R, XBX⟩ = ½⟨g, K⁻¹g⟩,   K[X] = BXR + RXB,

because the left-hand side is a concave quadratic in D.  With CᵀBC = I and CᵀRC = Diag(ρ) the loss is
Σ g̃_ij²/(2(ρᵢ + ρⱼ)), g̃ = CᵀgC.  So, q = d + loss being the right-hand side,

    log det G(D*) ≤ d log(q/d) + log det G(D).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.numerics import (
    Bounds,
    cholesky,
    eigh,
    log_det_from_cholesky,
    lower_solve,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Family, Matrix, Pattern


@dataclass(frozen=True, eq=False)
class MetricPoint:
    """A point with G ≻ 0, in the basis of its frame."""

    D: Matrix
    frame: Frame
    Gt: Matrix
    root: Matrix  # the inverse of the Cholesky factor of G̃
    log_det: float  # of G

    @staticmethod
    def of(left: Family, pattern: Pattern, D: Matrix, rotated: bool = True) -> MetricPoint | None:
        """The point at D; None unless D and G are numerically positive definite."""
        frame = Frame.of(left, pattern, D, rotated)
        if frame is None:
            return None
        Gt = frame.value
        K = cholesky(Gt)
        if K is None:
            return None
        return MetricPoint(D, frame, Gt, triangular_inverse(K), frame.log_det + log_det_from_cholesky(K))

    @property
    def d(self) -> int:
        return len(self.D)

    @cached_property
    def Yt(self) -> Matrix:
        """Ỹ = G̃⁻¹."""
        return np.asarray(self.root.T @ self.root)

    @property
    def Y(self) -> Matrix:
        """G⁻¹."""
        return self.frame.dual(self.Yt)

    @cached_property
    def Rt(self) -> Matrix:
        """R̃."""
        return self.frame.coimage(self.Yt)

    @cached_property
    def gradient(self) -> Matrix:
        """g in the basis, G′*[Ỹ]."""
        return self.frame.project(self.frame.a * self.Yt - self.frame.twice(self.Rt))

    @property
    def rough_loss(self) -> float:
        """The loss with R̃ and B̃ replaced by their diagonals: its size at the cost of a sum."""
        outer = np.multiply.outer(self.frame.diagonal, np.diagonal(self.Rt))
        return 0.5 * float(np.sum(self.gradient**2 / (outer + outer.T)))

    @cached_property
    def loss(self) -> float:
        """½⟨g, K⁻¹g⟩."""
        return curvature_loss(self.frame, self.Rt, self.gradient)

    def bounds(self, loss: float) -> Bounds:
        """The interval of log det G; ``loss`` is the one above, or larger."""
        return Bounds(self.log_det, self.log_det + self.d * math.log1p(loss / self.d))


def curvature_loss(frame: Frame, Rt: Matrix, g: Matrix) -> float:
    """½⟨g, K⁻¹g⟩; infinite when B or R is not numerically positive definite."""
    Bt = frame.Bt
    if Bt.ndim == 1:
        root = 1.0 / np.sqrt(Bt)
        scale = np.multiply.outer(root, root)
        R, g = Rt * scale, g * scale
    else:
        K = cholesky(Bt)
        if K is None:
            return math.inf
        R, g = (lower_solve(K, lower_solve(K, M).T) for M in (Rt, g))
    rho, U = eigh(sym(R))
    if not rho[0] > 0.0:
        return math.inf
    g = U.T @ g @ U
    with np.errstate(over="ignore"):  # infinite is what it is then
        return 0.5 * float(np.sum(g * g / (rho[:, None] + rho)))
