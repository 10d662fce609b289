"""A stepsize D, a number t, and what the metric G = aD − tE − 𝒬(DBD) ≻ 0 says there.

With Y = G⁻¹ the gradient of log det G is g = Π(aY − (BDR + RDB)), R = 𝒬*(Y).  For every D of the pattern

    ⟨Y, aD − 𝒬(DBD)⟩ ≤ ⟨Y, G + tE⟩ + loss,      loss = max_X ⟨g, X⟩ − ⟨R, XBX⟩ = ½⟨g, K⁻¹g⟩,   K[X] = BXR + RXB,

because the left-hand side is a concave quadratic in D.  With CᵀBC = I and CᵀRC = Diag(ρ) the loss is
Σ g̃_ij²/(2(ρᵢ + ρⱼ)), g̃ = CᵀgC.  So, q = d + t⟨Y, E⟩ + loss being the right-hand side,

    log det G(D*) ≤ d log(q/d) + log det G(D)   for t = 0,          t* ≤ q/⟨Y, E⟩.
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
from stepsize_solvers.programs import Matrix, Metric, Pattern


@dataclass(frozen=True, eq=False)
class MetricPoint:
    """A point with G ≻ 0, in the basis of its frame.  Et: Ẽ, None for the objective log det G."""

    D: Matrix
    t: float
    frame: Frame
    Et: Matrix | None
    Gt: Matrix
    root: Matrix  # the inverse of the Cholesky factor of G̃
    log_det: float  # of G

    @staticmethod
    def of(metric: Metric, pattern: Pattern, D: Matrix, t: float = 0.0, rotated: bool = True) -> MetricPoint | None:
        """The point at D and t; None unless D and G are numerically positive definite."""
        frame = Frame.of(metric, pattern, D, rotated)
        if frame is None:
            return None
        Et = None if metric.floor is None else frame.stretched(metric.floor)
        Gt = frame.value(Et, t)
        K = cholesky(Gt)
        if K is None:
            return None
        return MetricPoint(D, t, frame, Et, Gt, triangular_inverse(K), frame.log_det + log_det_from_cholesky(K))

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

    @cached_property
    def weight(self) -> float:
        """⟨Y, E⟩."""
        return 0.0 if self.Et is None else float(np.vdot(self.Yt, self.Et))

    @property
    def rough_loss(self) -> float:
        """The loss with R̃ and B̃ replaced by their diagonals: its size at the cost of a sum."""
        outer = np.multiply.outer(self.frame.diagonal, np.diagonal(self.Rt))
        return 0.5 * float(np.sum(self.gradient**2 / (outer + outer.T)))

    @cached_property
    def loss(self) -> float:
        """½⟨g, K⁻¹g⟩; infinite when B or R is not numerically positive definite."""
        Bt = self.frame.Bt
        if Bt.ndim == 1:
            root = 1.0 / np.sqrt(Bt)
            scale = np.multiply.outer(root, root)
            R, g = self.Rt * scale, self.gradient * scale
        else:
            K = cholesky(Bt)
            if K is None:
                return math.inf
            R, g = (lower_solve(K, lower_solve(K, M).T) for M in (self.Rt, self.gradient))
        rho, U = eigh(sym(R))
        if not rho[0] > 0.0:
            return math.inf
        g = U.T @ g @ U
        return 0.5 * float(np.sum(g * g / (rho[:, None] + rho)))

    def bounds(self, loss: float) -> Bounds:
        """The interval of log det G, or of d·log t; ``loss`` is the one above, or larger."""
        if self.Et is None:
            return Bounds(self.log_det, self.log_det + self.d * math.log1p(loss / self.d))
        lower = self.d * math.log(self.t) if self.t > 0.0 else -math.inf
        upper = self.t + (self.d + loss) / self.weight
        return Bounds(lower, self.d * math.log(upper) if upper > 0.0 else math.inf)
