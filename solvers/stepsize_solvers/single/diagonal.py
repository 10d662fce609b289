"""Diagonal stepsizes under a Hadamard map: d unknowns and direct Newton steps.

For D = Diag(x) and 𝒬(M) = P∘M the constraint is Diag(x) M Diag(x) ⪯ Diag(x) with M = P∘B, that is N ⪯ I for
N = Diag(x)^½ M Diag(x)^½.  The barrier problem

    maximise Σ log xⱼ + ν log det(I − N)

has, for relative changes x(1 + h) and with V = (I − N)⁻¹ − I, the gradient 1 − ν diag(V) and the Hessian
−(I + ν V∘V).  (The concave form behind it is Diag(x) ⪯ M⁻¹, whose barrier is the same up to a constant.)
W = Diag(x)^{-½} V Diag(x)^{-½} ⪰ 0 is a dual for every x; with it the certificate's bound at the reference D reads

    d log(Σ(Vⱼⱼ − Nⱼⱼ)/d) − Σ log(Vⱼⱼ − 2Nⱼⱼ) + Σ log xⱼ,

and x/λmax(N) is feasible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics import (
    SIZE_FOR_LANCZOS,
    Bounds,
    Limits,
    Progress,
    cholesky,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
)
from stepsize_solvers.programs import Matrix, Status, Vector, add_to_diagonal
from stepsize_solvers.single.barrier import InsidePoint, Newton, follow

_SMALLEST = float(np.finfo(float).tiny)


def _scaled(M: Matrix, x: Vector) -> Matrix:
    root = np.sqrt(x)
    return M * np.multiply.outer(root, root)


@dataclass(frozen=True, eq=False)
class DiagonalPoint(InsidePoint):
    """x with N and the Cholesky factor K of I − N."""

    N: Matrix
    K: Matrix

    @staticmethod
    def inside(M: Matrix, x: Vector) -> DiagonalPoint | None:
        """The point of an x with N ≺ I; None for another."""
        N = _scaled(M, x)
        S = -N
        add_to_diagonal(S, 1.0)
        K = cholesky(S)
        return None if K is None else DiagonalPoint(x, N, K)

    @cached_property
    def V(self) -> Matrix:
        lower, _ = lapack.dpotri(self.K, 1)  # lower; above the diagonal the zeros of K stay
        full = np.asarray(lower + lower.T)
        add_to_diagonal(full, -1.0 - lower.diagonal())
        return full

    @cached_property
    def bounds(self) -> Bounds:
        d = len(self.x)
        v, n = self.V.diagonal(), self.N.diagonal()
        large = d > SIZE_FOR_LANCZOS
        top = 1.0 - smallest_eigenvalue_from_factor(self.K) if large else -smallest_eigenvalue(-self.N)
        log_det = float(np.log(self.x).sum())
        upper, slope = math.inf, v - 2.0 * n
        if slope.min() > 0.0:
            upper = d * math.log(float((v - n).sum()) / d) - float(np.log(slope).sum()) + log_det
        return Bounds(log_det - d * math.log(top), upper, 1.0 / top, d / max(float(v.sum()), _SMALLEST))

    def newton(self, nu: float) -> Newton | None:
        H = nu * (self.V * self.V)
        add_to_diagonal(H, 1.0)
        return Newton.of(1.0 - nu * self.V.diagonal(), H, nu)

    @property
    def D(self) -> Matrix:
        return np.diag(self.x)

    @property
    def Z(self) -> Matrix:
        root = 1.0 / np.sqrt(self.x)
        return np.asarray(self.bounds.dual_scale * self.V * np.multiply.outer(root, root))


def solve_diagonal(
    M: Matrix,
    limits: Limits,
    start: Vector | None = None,
) -> tuple[Status, Progress[DiagonalPoint]]:
    """Follow the central path in ν until the certified gap is within the tolerance."""
    x = 1.0 / np.diagonal(M) if start is None else np.array(start)
    # Half of the largest feasible multiple is well inside; a warm start keeps closer to its solution.
    x *= (0.5 if start is None else 0.95) / -smallest_eigenvalue(-_scaled(M, x))
    nu = 1.0 if start is None else 0.05
    return follow(lambda y: DiagonalPoint.inside(M, y), x, nu, len(M), limits)
