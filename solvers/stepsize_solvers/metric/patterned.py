"""The basis of the path for a D of any pattern: CCᵀ = D with the pattern of D, as for log det.

dZ_i = W_i⁻¹(c_i − G_i′[X])W_i⁻¹ leaves the system of ``.newton`` with W_i⁻¹ in the place of Ỹ,

    (K + Σ G_i′*(W_i⁻¹ G_i′[·] W_i⁻¹)) X = r + Σ G_i′*[W_i⁻¹ c_i W_i⁻¹],

which is factorised: its condition grows like 1/μ, and conjugate gradients would not converge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.newton import Curvature, Unknowns
from stepsize_solvers.metric.path import Problem, Solution
from stepsize_solvers.metric.point import curvature_loss
from stepsize_solvers.numerics import Array, Counters, Scaling, cholesky, sym
from stepsize_solvers.programs import Matrix, Pattern, Stack


@dataclass(frozen=True, eq=False)
class PatternBasis:
    """``frame`` is that of D; Rt: R̃; over: the unknowns of the system."""

    problem: Problem
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

    def system(self, scaling: Scaling, E: Stack, counters: Counters) -> PatternSystem | None:
        # G⁻¹ of W = GGᵀ, from G⁻¹FG⁻ᵀ = Diag(v) and the Cholesky factor of F.
        root = np.linalg.inv(scaling.G)
        inverse = sym(root.swapaxes(1, 2) @ root)
        A = self.over.system(Curvature(self.frame, root[0], inverse[0], self.Rt))
        factor = cholesky(A if self.problem.alone else A + self.over.congruences(root[1]))
        return None if factor is None else PatternSystem(self, inverse, factor, E)


class PatternSystem:
    """The system by its Cholesky factor; the column of dt is solved for once."""

    def __init__(self, basis: PatternBasis, inverse: Stack, factor: Matrix, E: Stack) -> None:
        self.basis, self.inverse, self.factor, self.E = basis, inverse, factor, E
        self.column = self._without_dt(np.zeros_like(E[0]), E)

    def scaled(self, M: Stack) -> Stack:
        """W_i⁻¹M_iW_i⁻¹."""
        return sym(self.inverse @ M @ self.inverse)

    def _without_dt(self, r: Array, c: Stack) -> tuple[Array, Stack]:
        problem, frame, over = self.basis.problem, self.basis.frame, self.basis.over
        rhs = over.vector(r + problem.coslope(frame, self.scaled(c)))
        X = over.matrix(lapack.dpotrs(self.factor, rhs, lower=1)[0])
        return X, self.scaled(c - problem.slope(frame, X))

    def solve(self, r: Array, c: Stack, tolerance: float) -> Solution:
        (X, dZ), (X1, dZ1) = self._without_dt(r, c), self.column
        dt = -float(np.vdot(self.E, dZ)) / float(np.vdot(self.E, dZ1))
        return Solution(X + dt * X1, dZ + dt * dZ1, dt)


class Patterned:
    """D and Z to their basis."""

    def __init__(self, problem: Problem, pattern: Pattern, over: Unknowns) -> None:
        self.problem, self.pattern, self.over = problem, pattern, over

    def __call__(self, D: Matrix, Z: Matrix) -> PatternBasis | None:
        """None when D is not numerically positive definite."""
        frame = Frame.of(self.problem.quadratic, self.pattern, D, rotated=self.pattern.is_full)
        if frame is None:
            return None
        Rt = frame.coimage(sym(frame.C.A.T @ Z @ frame.C.A))
        return PatternBasis(self.problem, frame, Rt, self.over)
