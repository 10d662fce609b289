"""The basis of the path in which K is inverted: CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each block of D.

G′ is that of ``Frame`` with M = CᵀBDC⁻ᵀ in the place of B̃.  With X = K⁻¹(r + G′*dZ), what is left of a step is

    (G′K⁻¹G′* + W·W) dZ − E dt = c − G′K⁻¹r,      ⟨E, dZ⟩ = 0,

a system that does not become ill-conditioned as the gap closes, for conjugate gradients within the plane of the last
equation; dt is its multiplier.  If 𝒬 were β times the identity, M and W had the same eigenvectors and all ρᵢ were
near to each other, K⁻¹[X] ≈ ½ Diag(ρ^−½) X Diag(ρ^−½), it would be diagonal in the basis P with PᵀWP = I in which
PᵀDiag(ρ^−θ)P, θ = ½, is diagonal, too.  ``SeenFrom.turned`` finds a basis like that whatever holds; the preconditioner
is the diagonal that the system with β has there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_solvers.metric.frame import Frame, SeenFrom
from stepsize_solvers.metric.path import Solution
from stepsize_solvers.numerics import (
    Array,
    Counters,
    Curvatures,
    PatternCurvature,
    Scaling,
    conjugate_gradients,
    sym,
)
from stepsize_solvers.programs import Family, Matrix, Pattern
from stepsize_solvers.single import Gram, effective_beta

# A system may take hundreds of iterations for the last digit; large matrices are spared that.
_MOST_ITERATIONS = 1000
_ITERATIONS_AT_ANY_SIZE = 300
_MOST_ROWS = 300_000  # in all iterations together
# θ: 1/(ρᵢ + ρⱼ) varies less than a product does; near this the data sets take the fewest iterations, one tenth fewer
# than with ½, and three blocks of a1a a quarter fewer.
_EXPONENT = 0.35
# A true residual up to this many times what was asked for is as good; a refinement in single precision that leaves more
# than this part of it is the last one.
_GOOD_ENOUGH = 2.0
_REFINED = 0.3


@dataclass(frozen=True, eq=False)
class WhitenedBasis:
    """``frame.Bt`` is M = CᵀBDC⁻ᵀ; K: the curvature."""

    maker: Whitening
    frame: Frame
    K: PatternCurvature

    def bend(self, X: Array) -> Array:
        return -self.frame.image(X @ X.T if self.frame.pattern.is_full else sym(X @ self.K.Bt @ X))

    def cross(self, X: Array, N: Array) -> Array:
        M = X @ N if self.frame.pattern.is_full else self.K.Bt @ (X @ N)
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.vdot(g, self.K.solve(g)))

    def system(self, scaling: Scaling, E: Matrix, counters: Counters) -> Complement:
        half = np.linalg.inv(scaling.G).T
        seen = self.frame.seen_from(half, self.maker.beta)
        U, G, diagonal = seen.turned(self.K.rho**-_EXPONENT, self.K.inverse_sums)
        return Complement(self, half @ U, Schur(G, self.K, 1.0 / (1.0 + diagonal)), E, counters)


@dataclass(frozen=True, eq=False)
class Schur:
    """The operator Y ↦ ĜK⁻¹Ĝ*[Y] + Y with Ĝ = PᵀG′P, and p, its diagonal inverted."""

    G: SeenFrom
    K: PatternCurvature
    p: Array

    def lowered(self) -> Schur:
        """The same in single precision."""
        return Schur(self.G.lowered(), self.K, self.p.astype(np.float32))

    def __call__(self, Y: Array) -> Array:
        return np.asarray(self.G.slope(self.K.solve(self.G.coslope(Y))) + Y)


class Complement:
    """The system for dZ = PYPᵀ in the plane ⟨E, dZ⟩ = 0, by conjugate gradients."""

    def __init__(self, basis: WhitenedBasis, P: Matrix, operator: Schur, E: Matrix, counters: Counters) -> None:
        self.basis, self.P, self.counters = basis, P, counters
        E = P.T @ E @ P
        normal = operator.p * E
        normal /= float(np.vdot(normal, E))
        self.exact = (operator, E, normal)
        # The last solution with its right-hand side and what it leaves of that.
        self.solution, self.b, self.left = np.zeros_like(E), np.zeros_like(E), np.zeros_like(E)
        self.set_precision(basis.maker.single)

    def set_precision(self, single: bool) -> None:
        """That of conjugate gradients."""
        dtype: Any = np.float32 if single else np.float64
        operator, E, normal = self.exact
        self.single, self.operator = single, operator.lowered() if single else operator
        self.E, self.normal = E.astype(dtype), normal.astype(dtype)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def residual(self, Y: Array) -> Array:
        """What the best dt leaves of Y; preconditioned, it lies in the plane."""
        return np.asarray(Y - self.inner(self.normal, Y) * self.E)

    def precondition(self, Y: Array) -> Array:
        """In the plane, up to the rounding of this difference and not of what made Y."""
        Z = self.operator.p * Y
        return np.asarray(Z - self.inner(self.E, Z) * self.normal)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of E, which is dt's and larger than the rest: rounding would leave the plane by it."""
        return self.residual(self.operator(Y))

    def solve(self, r: Array, c: Matrix, tolerance: float) -> Solution:
        """From the last solution on: the predictor's is most of the corrector's."""
        frame, K, P = self.basis.frame, self.basis.K, self.P
        _, E, normal = self.exact
        first = K.solve(r)
        b = P.T @ (c - frame.slope(first)) @ P
        self.left, self.b = self.left + (b - self.b), b
        size = self.size()[0]
        while True:
            self.solution += self.approach(self.left, tolerance)
            self.solution -= self.inner(E, self.solution) * normal
            dZ = sym(P @ self.solution @ P.T)
            X = first + K.solve(frame.coslope(dZ))
            self.left = P.T @ (c - frame.slope(X)) @ P - self.solution
            before, (size, dt) = size, self.size()
            # The residual that conjugate gradients add up in single precision may be far from the true one.
            if not self.single or size <= _GOOD_ENOUGH * tolerance:
                return Solution(X, dZ, dt)
            if not size < _REFINED * before:
                self.set_precision(single=False)
                self.basis.maker.single = False  # the systems to come are no easier
                self.solution, self.left = np.zeros_like(b), b

    def size(self) -> tuple[float, float]:
        """The norm of what is left, with the best dt, and that dt."""
        _, E, normal = self.exact
        dt = -self.inner(normal, self.left)
        return float(np.linalg.norm(self.left + dt * E)), dt

    def approach(self, b: Matrix, tolerance: float) -> Array:
        """The unknowns for the right-hand side b by conjugate gradients."""
        b = self.residual(b.astype(self.E.dtype))
        Y = np.zeros_like(b)

        def add(step: float, direction: Array) -> None:
            nonlocal Y
            Y += step * direction

        def finished(left: Array) -> bool:
            return float(np.linalg.norm(left)) <= tolerance

        most = min(_MOST_ITERATIONS, max(_ITERATIONS_AT_ANY_SIZE, _MOST_ROWS // self.basis.frame.d))
        self.counters.cg_iterations += conjugate_gradients(self, b, finished, most, add)
        return Y


class Whitening:
    """D and Z to their basis; single: whether conjugate gradients run in single precision, while that is enough."""

    def __init__(self, metric: Family, pattern: Pattern, single: bool) -> None:
        self.metric, self.pattern, self.single = metric, pattern, single
        self.beta = effective_beta(metric.Q)
        self.curvatures = Curvatures(np.asarray(metric.B), pattern)

    def __call__(self, D: Matrix, Z: Matrix) -> WhitenedBasis | None:
        """None when the curvature is not numerically positive definite."""
        q = self.metric
        K = self.curvatures(q.Q.adjoint(Z))
        if K is None:
            return None
        M = sym(K.E.T @ D @ K.E)
        M = M if self.pattern.is_full else K.Bt @ M
        frame = Frame(q.Q, q.a, self.pattern, Gram(K.C), Gram(K.E), M, math.nan)
        return WhitenedBasis(self, frame, K)
