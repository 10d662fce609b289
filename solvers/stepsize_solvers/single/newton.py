"""The Newton system of a point: right-hand sides in, directions (X, dZ̃) out.

    𝒦 X − F′*dZ = r₁,      F′X + W dZ W = r₂

is reduced to the dual Schur complement (``stepsize_solvers.single.schur``), solved by preconditioned conjugate
gradients; X = p(𝒦)(r₁ + F′*dZ) is summed along the way.  All of it is linear in small quantities, so single
precision is enough: an error of 10⁻⁷ relative to the direction, while the points themselves are kept in double.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepsize_solvers.numerics import Array, Counters, Scaling, conjugate_gradients, sym, within_scaled_tolerance
from stepsize_solvers.programs import PositiveMap
from stepsize_solvers.single.inverse import ChebyshevInverse, Curvature, Interval, chebyshev_inverse
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.schur import Gram, Images, Jacobian, SchurComplement, schur_diagonal

# Directions with tᵢ and tⱼ above this are slack: T_ij = tᵢtⱼ is above 3, the rest of the Schur complement below 1.
_SLACK = 3.0**0.5
# Restricting to active rows only pays when it saves a fifth of the work.
_WORTHWHILE = 0.8
# Floor of the preconditioner's estimate of diag(F′𝒦⁻¹F′*), which vanishes where 1 = β(λᵢ + λⱼ).
DIAGONAL_FLOOR = 0.003


@dataclass(frozen=True, eq=False)
class NewtonStep:
    """X (so that dD = C X Cᵀ) and dZ̃ in the precision of the system, the conjugate gradient iterations they took."""

    X: Array
    dZt: Array
    iterations: int


@dataclass(frozen=True, eq=False)
class NewtonSystem:
    """The linearised optimality conditions at one point, ready to be solved for several right-hand sides."""

    full: Jacobian
    schur: SchurComplement
    slack_diagonal: Array
    dtype: type[np.floating[Any]]
    counters: Counters = field(default_factory=Counters)

    @property
    def inverse(self) -> ChebyshevInverse:
        """p(𝒦)."""
        return self.schur.inverse

    @property
    def rows(self) -> int:
        return self.schur.jacobian.r

    def solve(self, r1: Array, r2: Array, tolerance: float, max_iterations: int) -> NewtonStep:
        """Directions for r₁ in the working basis and r₂ in the basis V."""
        d, r = r1.shape[0], self.rows
        dtype = self.dtype
        first: Array = r1.astype(dtype, copy=False)
        second: Array = r2.astype(dtype, copy=False)
        inverse = self.inverse
        dZt = np.zeros((d, d), dtype)
        rhs = first
        if r < d:
            Y = np.zeros((d, d), dtype)
            Y[r:, r:] = second[r:, r:] / self.slack_diagonal
            image, dZt = self.full.adjoint(Y)
            rhs = first + image
        images = Images(inverse(rhs), dZt)
        b = second[:r] - self.schur.jacobian.forward(images.X)
        schur = replace(self.schur, images=images)
        finished = within_scaled_tolerance(schur, schur.T, tolerance)
        iterations = conjugate_gradients(schur, b, finished, max_iterations, images.add_step)
        rho = r / d
        self.counters.cg_iterations += iterations
        self.counters.products += iterations * (1.0 + 5.0 * rho + inverse.degree - 1.0) + 7.0
        return NewtonStep(sym(images.X), images.Zt, iterations)


def newton_system(
    Q: PositiveMap,
    beta: float,
    p: Point,
    scaling: Scaling,
    dtype: type[np.floating[Any]],
    counters: Counters,
    known: Interval | None = None,
) -> NewtonSystem:
    """Operators, preconditioner and Chebyshev inverse at a point.  ``beta`` is the scalar stand-in for 𝒬."""
    d = p.d
    t = scaling.t
    r = max(1, int(np.searchsorted(t, _SLACK)))
    if r > _WORTHWHILE * d:
        r = d
    V = scaling.V.astype(dtype, copy=False)
    basis, C_inverse, lam = p.basis(dtype)
    C, E = Gram(basis), Gram(C_inverse.T @ V)
    lam2 = lam[:, None] + lam
    curvature = Curvature(lam, p.Rt.astype(dtype, copy=False))
    J = curvature.diagonal()
    inverse = chebyshev_inverse(curvature, J, known=known)
    T = np.multiply.outer(t[:r], t).astype(dtype)
    diagonal = schur_diagonal(lam2, J, V, r, beta) + dtype(DIAGONAL_FLOOR)
    full = Jacobian(Q, C, E, V, lam2, d)
    active = full if r == d else replace(full, r=r)
    schur = SchurComplement(active, inverse, T, 1.0 / (diagonal + T))
    slack = np.multiply.outer(t[r:], t[r:])
    slack += 0.1  # a typical diagonal of F′𝒦⁻¹F′*; T is above 3 here, so a guess is enough
    counters.products += 10.0
    return NewtonSystem(full, schur, slack.astype(dtype), dtype, counters)
