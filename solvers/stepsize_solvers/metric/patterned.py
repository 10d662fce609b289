"""The basis of the path for a D of any pattern: CCᵀ = D with the pattern of D, as for log det.

dZ = W⁻¹(c − G′[X])W⁻¹ leaves the system of ``.newton`` with W⁻¹ instead of Ỹ,

    (K + G′*(W⁻¹ G′[·] W⁻¹)) X = r + G′*[W⁻¹ c W⁻¹],

which is factorised: its condition grows like 1/μ, and conjugate gradients would not converge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.newton import Curvature, Unknowns
from stepsize_solvers.metric.path import Solution
from stepsize_solvers.metric.point import curvature_loss
from stepsize_solvers.numerics import Array, Counters, Scaling, cholesky, sym
from stepsize_solvers.programs import Family, Matrix, Pattern


@dataclass(frozen=True, eq=False)
class PatternBasis:
    """``frame`` is that of D; Rt: R̃; over: the unknowns of the system."""

    frame: Frame
    Rt: Matrix
    over: Unknowns

    def bend(self, X: Array) -> Array:
        return self.frame.bend(X)

    def cross(self, X: Array, N: Array) -> Array:
        M = self.frame.left(X) @ N
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        if self.frame.pattern.is_full:
            return curvature_loss(self.frame, self.Rt, g)
        # Over the pattern alone; over all matrices it is larger, by orders of magnitude where R is nearly singular.
        factor, x = cholesky(self.over.curvature(self.frame, self.Rt)), self.over.vector(g)
        return math.inf if factor is None else 0.5 * float(x @ lapack.dpotrs(factor, x, lower=1)[0])

    def system(self, scaling: Scaling, E: Matrix, counters: Counters) -> PatternSystem | None:
        # G⁻¹ of W = GGᵀ, from G⁻¹FG⁻ᵀ = Diag(v) and the Cholesky factor of F.
        root = np.linalg.inv(scaling.G)
        inverse = sym(root.T @ root)
        factor = cholesky(self.over.system(Curvature(self.frame, root, inverse, self.Rt)))
        return None if factor is None else PatternSystem(self, inverse, factor, E)


class PatternSystem:
    """The system by its Cholesky factor; the column of dt is solved for once."""

    def __init__(self, basis: PatternBasis, inverse: Matrix, factor: Matrix, E: Matrix) -> None:
        self.basis, self.inverse, self.factor, self.E = basis, inverse, factor, E
        self.column = self._without_dt(np.zeros_like(E), E)

    def scaled(self, M: Matrix) -> Matrix:
        """W⁻¹MW⁻¹."""
        return sym(self.inverse @ M @ self.inverse)

    def _without_dt(self, r: Array, c: Matrix) -> tuple[Array, Matrix]:
        frame, over = self.basis.frame, self.basis.over
        rhs = over.vector(r + frame.coslope(self.scaled(c)))
        X = over.matrix(lapack.dpotrs(self.factor, rhs, lower=1)[0])
        return X, self.scaled(c - frame.slope(X))

    def solve(self, r: Array, c: Matrix, tolerance: float) -> Solution:
        (X, dZ), (X1, dZ1) = self._without_dt(r, c), self.column
        dt = -float(np.vdot(self.E, dZ)) / float(np.vdot(self.E, dZ1))
        return Solution(X + dt * X1, dZ + dt * dZ1, dt)


class Patterned:
    """D and Z to their basis."""

    def __init__(self, metric: Family, pattern: Pattern, over: Unknowns) -> None:
        self.metric, self.pattern, self.over = metric, pattern, over

    def __call__(self, D: Matrix, Z: Matrix) -> PatternBasis | None:
        """None when D is not numerically positive definite."""
        frame = Frame.of(self.metric, self.pattern, D, rotated=self.pattern.is_full)
        if frame is None:
            return None
        Rt = frame.coimage(sym(frame.C.A.T @ Z @ frame.C.A))
        return PatternBasis(frame, Rt, self.over)
