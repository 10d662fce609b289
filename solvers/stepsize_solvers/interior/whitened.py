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
from functools import cached_property

import numpy as np

from stepsize_solvers.interior.driver import IterativeSystem
from stepsize_solvers.interior.floor import FloorPoint
from stepsize_solvers.interior.frame import Frame, SeenFrom, effective_beta
from stepsize_solvers.interior.problem import Solution
from stepsize_solvers.numerics import (
    Array,
    Curvatures,
    Gram,
    PatternCurvature,
    Work,
    conjugate_gradients,
    sym,
)
from stepsize_solvers.programs import Family, Matrix, Pattern

# A system may take hundreds of iterations for the last digit; large matrices are spared that.
_MOST_ITERATIONS = 1000
_ITERATIONS_AT_ANY_SIZE = 300
_MOST_ROWS = 300_000  # in all iterations together
# θ: 1/(ρᵢ + ρⱼ) varies less than a product does; near this the data sets take the fewest iterations, one tenth fewer
# than with ½, and three blocks of a1a a quarter fewer.
_EXPONENT = 0.35
# What is asked of the residual, in units of what a step aims at.
_ACCURACY = 1.2


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
        return self.frame.project(M + M.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.vdot(g, self.K.solve(g)))

    def system(self, p: FloorPoint, work: Work) -> IterativeSystem:
        half = p.scaling.G_inverse.T
        seen = self.frame.seen_from(half, self.maker.beta)
        U, G, diagonal = seen.turned(self.K.rho**-_EXPONENT, self.K.inverse_sums)
        schur, P = Schur(G, self.K, 1.0 / (1.0 + diagonal)), half @ U
        return IterativeSystem(p, Complement(self, P, Plane.of(schur, sym(P.T @ p.Et @ P)), work), _ACCURACY)


@dataclass(frozen=True, eq=False)
class Schur:
    """The operator Y ↦ ĜK⁻¹Ĝ*[Y] + Y with Ĝ = PᵀG′P, and p, its diagonal inverted."""

    G: SeenFrom
    K: PatternCurvature
    p: Array

    def __call__(self, Y: Array) -> Array:
        return np.asarray(self.G.slope(self.K.solve(self.G.coslope(Y))) + Y)


@dataclass(frozen=True, eq=False)
class Complement:
    """The equations for dZ = PYPᵀ in the plane ⟨E, dZ⟩ = 0, by conjugate gradients."""

    basis: WhitenedBasis
    P: Matrix
    plane: Plane
    work: Work

    def solve(self, r: Array, c: Array, tolerance: float) -> Solution:
        frame, K, P, plane = self.basis.frame, self.basis.K, self.P, self.plane
        first = K.solve(r)
        b = P.T @ (c - frame.slope(first)) @ P
        most = min(_MOST_ITERATIONS, max(_ITERATIONS_AT_ANY_SIZE, _MOST_ROWS // frame.d))

        def finished(left: Array, _: float) -> bool:
            return float(np.linalg.norm(left)) <= tolerance

        Y = plane.in_plane(conjugate_gradients(plane, plane.residual(b), finished, most, self.work))
        dZ = sym(P @ Y @ P.T)
        X = first + K.solve(frame.coslope(dZ))
        left = P.T @ (c - frame.slope(X)) @ P - Y
        return Solution(X, dZ, plane.multiplier(left))


@dataclass(frozen=True, eq=False)
class Plane:
    """The operator within the plane ⟨E, Y⟩ = 0; normal: p∘E with ⟨normal, E⟩ = 1."""

    operator: Schur
    E: Array
    normal: Array

    @staticmethod
    def of(operator: Schur, E: Matrix) -> Plane:
        normal = operator.p * E
        return Plane(operator, E, normal / float(np.vdot(normal, E)))

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def in_plane(self, Y: Array) -> Array:
        return np.asarray(Y - self.inner(self.E, Y) * self.normal)

    def multiplier(self, left: Array) -> float:
        """The dt that leaves the least of a residual."""
        return -self.inner(self.normal, left)

    def residual(self, Y: Array) -> Array:
        """What the best dt leaves of Y; preconditioned, it lies in the plane."""
        return np.asarray(Y + self.multiplier(Y) * self.E)

    def precondition(self, Y: Array) -> Array:
        """In the plane, up to the rounding of this difference and not of what made Y."""
        return self.in_plane(self.operator.p * Y)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of E, which is dt's and larger than the rest: rounding would leave the plane by it."""
        return self.residual(self.operator(Y))


@dataclass(frozen=True, eq=False)
class Whitening:
    """D and Z to their basis."""

    family: Family
    pattern: Pattern

    @cached_property
    def beta(self) -> float:
        return effective_beta(self.family.Q)

    @cached_property
    def curvatures(self) -> Curvatures:
        return Curvatures(np.asarray(self.family.B), self.pattern)

    def __call__(self, D: Matrix, Z: Matrix) -> WhitenedBasis | None:
        """None when the curvature is not numerically positive definite."""
        q = self.family
        K = self.curvatures(q.Q.adjoint(Z))
        if K is None:
            return None
        M = sym(K.E.T @ D @ K.E)
        M = M if self.pattern.is_full else K.Bt @ M
        frame = Frame(q.Q, q.a, self.pattern, Gram(K.C), Gram(K.E), M, math.nan)
        return WhitenedBasis(self, frame, K)
