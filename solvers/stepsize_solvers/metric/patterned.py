"""The basis of the path for a D of any pattern: CCᵀ = D with the pattern of D, as for log det.

dZ_i = W_i⁻¹(c_i − G_i′[X])W_i⁻¹ leaves the system of ``.newton`` with W_i⁻¹ in the place of Ỹ,

    (K + Σ G_i′*(W_i⁻¹ G_i′[·] W_i⁻¹)) X = r + Σ G_i′*[W_i⁻¹ c_i W_i⁻¹],

which is factorised for few unknowns.  Its condition grows like 1/μ, so conjugate gradients are for want of memory only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.newton import Curvature, Unknowns, listed
from stepsize_solvers.metric.path import Problem
from stepsize_solvers.metric.point import curvature_loss
from stepsize_solvers.numerics import Array, Counters, Scaling, cholesky, conjugate_gradients, sym
from stepsize_solvers.programs import Matrix, Pattern, Stack
from stepsize_solvers.single import effective_beta

# Up to so many unknowns the system is factorised.
_MOST_UNKNOWNS = 1500
_MOST_ITERATIONS = 500


@dataclass(frozen=True, eq=False)
class PatternBasis:
    """``frame`` is that of D; Rt: R̃; over: the unknowns of the dense system, None for conjugate gradients."""

    problem: Problem
    beta: float
    frame: Frame
    Rt: Matrix
    over: Unknowns | None

    def bend(self, X: Array) -> Array:
        return self.frame.bend(X)

    def cross(self, X: Array, N: Array) -> Array:
        M = self.frame.left(X) @ N
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        over = self.over
        if over is None or self.frame.pattern.is_full:
            return curvature_loss(self.frame, self.Rt, g)
        # Over the pattern alone; over all matrices it is larger, by orders of magnitude where R is nearly singular.
        factor, x = cholesky(over.curvature(self.frame, self.Rt)), over.vector(g)
        return math.inf if factor is None else 0.5 * float(x @ lapack.dpotrs(factor, x, lower=1)[0])

    def system(self, scaling: Scaling, counters: Counters) -> PatternSystem:
        # G⁻¹ of W = GGᵀ, from G⁻¹FG⁻ᵀ = Diag(v) and the Cholesky factor of F.
        root = np.linalg.inv(scaling.G)
        inverse = sym(root.swapaxes(1, 2) @ root)
        factor = None
        if self.over is not None:
            A = self.over.system(Curvature(self.frame, root[0], inverse[0], self.Rt))
            factor = cholesky(A if self.problem.alone else A + self.over.congruences(root[1]))
        return PatternSystem(self, inverse, factor, counters)


class PatternSystem:
    """The system by its Cholesky factor, or by conjugate gradients."""

    def __init__(self, basis: PatternBasis, inverse: Stack, factor: Matrix | None, counters: Counters) -> None:
        self.basis, self.inverse, self.factor, self.counters = basis, inverse, factor, counters
        frame = basis.frame
        b, r, y = frame.diagonal, np.diagonal(basis.Rt), np.diagonal(inverse[0])
        outer = np.multiply.outer(b, r)
        damping = frame.a - basis.beta * (b[:, None] + b)
        self.curvature = outer + outer.T
        diagonal = self.curvature + damping**2 * np.multiply.outer(y, y)
        if not basis.problem.alone:
            last = np.diagonal(inverse[1])
            diagonal = diagonal + np.multiply.outer(last, last)
        self.preconditioner = 1.0 / diagonal

    def precondition(self, Y: Array) -> Array:
        return self.basis.frame.project(self.preconditioner * Y)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def __call__(self, Y: Array) -> Array:
        problem, frame = self.basis.problem, self.basis.frame
        M = frame.left(Y) @ self.basis.Rt
        return problem.coslope(frame, self.scaled(problem.slope(frame, Y))) + frame.project(M + M.T)

    def scaled(self, M: Stack) -> Stack:
        """W_i⁻¹M_iW_i⁻¹."""
        return sym(self.inverse @ M @ self.inverse)

    def solve(self, r: Array, c: Stack, tolerance: float) -> tuple[Array, Stack]:
        problem, frame, over = self.basis.problem, self.basis.frame, self.basis.over
        rhs = r + problem.coslope(frame, self.scaled(c))
        if over is not None and self.factor is not None:
            X: Array = over.matrix(lapack.dpotrs(self.factor, over.vector(rhs), lower=1)[0])
        else:
            X = self._iterated(frame.project(rhs), tolerance)
        return X, self.scaled(c - problem.slope(frame, X))

    def _iterated(self, rhs: Array, tolerance: float) -> Array:
        solution = np.zeros_like(rhs)

        def add(step: float, direction: Array) -> None:
            nonlocal solution
            solution += step * direction

        def finished(residual: Array) -> bool:
            # What is left of r weakens the bound by ½⟨r, K⁻¹r⟩, here with the diagonal of K.
            return not float(np.sum(residual**2 / self.curvature)) > tolerance**2

        self.counters.cg_iterations += conjugate_gradients(self, rhs, finished, _MOST_ITERATIONS, add)
        return solution


class Patterned:
    """D and Z to their basis."""

    def __init__(self, problem: Problem, pattern: Pattern) -> None:
        self.problem, self.pattern = problem, pattern
        self.beta = effective_beta(problem.quadratic.Q)
        self.over = listed(problem.quadratic.Q, pattern, _MOST_UNKNOWNS)

    def __call__(self, D: Matrix, Z: Matrix) -> PatternBasis | None:
        """None when D is not numerically positive definite."""
        rotated = self.over is None or self.pattern.is_full
        frame = Frame.of(self.problem.quadratic, self.pattern, D, rotated)
        if frame is None:
            return None
        Rt = frame.coimage(sym(frame.C.A.T @ Z @ frame.C.A))
        return PatternBasis(self.problem, self.beta, frame, Rt, self.over)
