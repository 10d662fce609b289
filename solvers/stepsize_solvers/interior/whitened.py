"""The basis of the path in which K is inverted: CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each block of D.

With M = CᵀBDC⁻ᵀ, dD B D + D B dD = C(XM + MᵀX)Cᵀ for dD = CXCᵀ.  With X = K⁻¹(r + G′*dZ), what is left of a step is

    (G′K⁻¹G′* + W·W) dZ − E dt = c − G′K⁻¹r,      ⟨E, dZ⟩ = 0,

a system that does not become ill-conditioned as the gap closes, for conjugate gradients within the plane of the last
equation; dt is its multiplier.  If 𝒬 were β times the identity, M and W had the same eigenvectors and all ρᵢ were
near to each other, K⁻¹[X] ≈ ½ Diag(ρ^−½) X Diag(ρ^−½), it would be diagonal in the basis P with PᵀWP = I in which
PᵀDiag(ρ^−θ)P, θ = ½, is diagonal, too.  ``SeenFrom.turned`` finds a basis like that whatever holds; the preconditioner
is the diagonal that the system with β has there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepsize_solvers.interior.driver import IterativeSystem, Solution
from stepsize_solvers.interior.floor import FloorPoint
from stepsize_solvers.interior.frame import Basis
from stepsize_solvers.numerics.curvature import Curvatures, PatternCurvature
from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.linalg import Array, congruence_diagonal, eigh, sym, weighted_gram
from stepsize_solvers.numerics.progress import Work
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap

# A system takes up to 43 iterations (d = 60 to 320, condition 10² and 10⁶, tolerance 10⁻⁶ and 10⁻⁹).
_MOST_ITERATIONS = 1000
# θ: 1/(ρᵢ + ρⱼ) varies less than a product does; near this the data sets take the fewest iterations, one tenth fewer
# than with ½, and three blocks of a1a a quarter fewer.
_EXPONENT = 0.35
# What is asked of the residual, in units of what a step aims at.
_ACCURACY = 1.2


@dataclass(frozen=True, eq=False)
class WhitenedBasis(Basis):
    """The basis of the curvature K; M: CᵀBDC⁻ᵀ."""

    K: PatternCurvature
    M: Matrix

    @property
    def basis(self) -> Basis:
        return self

    def twice(self, X: Array) -> Array:
        half = X @ self.M
        return np.asarray(half + half.T)

    def cotwice(self, N: Array) -> Array:
        half = self.M @ N
        return np.asarray(half + half.T)

    def bend(self, X: Array) -> Array:
        return -self.image(X @ X.T if self.pattern.is_full else sym(X @ self.K.Bt @ X))

    def cross(self, X: Array, N: Array) -> Array:
        half = X @ N if self.pattern.is_full else self.K.Bt @ (X @ N)
        return self.project(half + half.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.vdot(g, self.K.solve(g)))

    def system(self, p: FloorPoint, work: Work) -> IterativeSystem:
        half = p.scaling.G_inverse.T
        seen = SeenFrom.of(self, half)
        U, G, diagonal = seen.turned(self.K.rho**-_EXPONENT, self.K.inverse_sums)
        P = half @ U
        plane = Plane(G, self.K, 1.0 / (1.0 + diagonal), sym(P.T @ p.Et @ P))
        return IterativeSystem(p, Complement(self, P, plane, work), _ACCURACY)


@dataclass(frozen=True, eq=False)
class SeenFrom:
    """X ↦ PᵀG′[X]P, G′ of a whitened basis in the basis P, without Π.

    With T = Pᵀ, S = (a/2)T − βTMᵀ, b = CMᵀ and u = C⁻ᵀP,

        PᵀG′[X]P = TXSᵀ + SXTᵀ − uᵀ 𝒬_β(CXbᵀ + bXCᵀ) u,      𝒬_β(M) = 𝒬(M) − βM,

    and the cheap map has 𝒬_β(M) = Diag(α∘diag M), β being its own.
    """

    Q: PositiveMap
    T: Matrix
    S: Matrix
    C: Matrix
    b: Matrix
    u: Matrix

    @staticmethod
    def of(basis: WhitenedBasis, P: Matrix) -> SeenFrom:
        C, T = basis.C, P.T
        S = 0.5 * basis.a * T - basis.Q.effective_beta * (T @ basis.M.T)
        return SeenFrom(basis.Q, T, S, C, C @ basis.M.T, basis.E @ P)

    def turned(self, weights: Array, factors: Matrix) -> tuple[Matrix, SeenFrom, Matrix]:
        """U, the same for PU, and the diagonal of Y ↦ Ĝ(factors∘Ĝ*Y) there, Ĝ[X] = TXSᵀ + SXTᵀ the part of β.

        U is a rotation in which that is almost diagonal: it would be if factors were weights·weightsᵀ and the rows of S
        multiples of those of T, as they are for β = 0.  Then every sum of squares and products of T and S is diagonal
        there; this one is definite, and gives S the sign that most of its rows have.
        """
        root = np.sqrt(weights)
        T, S = self.T * root, self.S * root
        product = T @ S.T
        size = float(np.linalg.norm(T)) * float(np.linalg.norm(S))
        correlation = float(np.trace(product)) / size if size > 0.0 else 0.0
        U = eigh(sym(T @ T.T + S @ S.T + (2.0 * correlation) * product))[1]
        T, S = U.T @ self.T, U.T @ self.S
        # Left out of entry (a, b), a ≠ b, are sums over T_ai T_bi or T_ai S_bi: they have both signs and would cost d⁴.
        half, both = (T * T) @ factors @ (S * S).T, T * S
        diagonal = half + half.T + 2.0 * (both @ factors @ both.T)
        return U, replace(self, T=T, S=S, u=self.u @ U), diagonal

    def slope(self, X: Matrix) -> Matrix:
        """PᵀG′[X]P."""
        half, split, u = self.T @ (X @ self.S.T), self.Q.diagonal_plus_scaled, self.u
        out, CX = half + half.T, self.C @ X
        if split is not None:
            out -= weighted_gram(u, 2.0 * split.alpha * np.einsum("ij,ij->i", CX, self.b))
            return np.asarray(out)
        M = CX @ self.b.T
        M = M + M.T
        return np.asarray(out - sym(u.T @ (self.Q.apply(M) - self.Q.effective_beta * M) @ u))

    def coslope(self, Y: Matrix) -> Matrix:
        """The adjoint: G′*[PYPᵀ], without Π."""
        half, split, u = self.T.T @ (Y @ self.S), self.Q.diagonal_plus_scaled, self.u
        if split is not None:
            half -= (self.C.T * (split.alpha * congruence_diagonal(u, Y))) @ self.b
        else:
            N = sym(u @ Y @ u.T)
            half -= self.C.T @ ((self.Q.adjoint(N) - self.Q.effective_beta * N) @ self.b)
        return np.asarray(half + half.T)


@dataclass(frozen=True, eq=False)
class Complement:
    """The equations for dZ = PYPᵀ in the plane ⟨E, dZ⟩ = 0, by conjugate gradients."""

    basis: WhitenedBasis
    P: Matrix
    plane: Plane
    work: Work

    def solve(self, r: Array, c: Array, tolerance: float) -> Solution:
        basis, K, P, plane = self.basis, self.basis.K, self.P, self.plane
        first = K.solve(r)
        b = P.T @ (c - basis.slope(first)) @ P

        def finished(left: Array, _: float) -> bool:
            return float(np.linalg.norm(left)) <= tolerance

        Y = plane.in_plane(conjugate_gradients(plane, plane.residual(b), finished, _MOST_ITERATIONS, self.work))
        dZ = sym(P @ Y @ P.T)
        X = first + K.solve(basis.coslope(dZ))
        left = P.T @ (c - basis.slope(X)) @ P - Y
        return X, dZ, plane.multiplier(left)


@dataclass(frozen=True, eq=False)
class Plane(Operator):
    """The operator Y ↦ ĜK⁻¹Ĝ*[Y] + Y, Ĝ = PᵀG′P, within the plane ⟨floor, Y⟩ = 0.

    p: its diagonal inverted; normal: p∘floor with ⟨normal, floor⟩ = 1.
    """

    G: SeenFrom
    K: PatternCurvature
    p: Array
    floor: Array

    @cached_property
    def normal(self) -> Array:
        normal = self.p * self.floor
        return np.asarray(normal / float(np.vdot(normal, self.floor)))

    def in_plane(self, Y: Array) -> Array:
        return np.asarray(Y - self.inner(self.floor, Y) * self.normal)

    def multiplier(self, residual: Array) -> float:
        """The dt that leaves the least of a residual."""
        return -self.inner(self.normal, residual)

    def residual(self, Y: Array) -> Array:
        """What the best dt leaves of Y; preconditioned, it lies in the plane."""
        return np.asarray(Y + self.multiplier(Y) * self.floor)

    def precondition(self, Y: Array) -> Array:
        """In the plane, up to the rounding of this difference and not of what made Y."""
        return self.in_plane(self.p * Y)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of the floor, which is dt's and so large that its rounding would leave the plane."""
        return self.residual(self.G.slope(self.K.solve(self.G.coslope(Y))) + Y)


@dataclass(frozen=True, eq=False)
class Whitening:
    """D and Z to their basis."""

    family: Family
    pattern: Pattern

    @cached_property
    def curvatures(self) -> Curvatures:
        return Curvatures(np.asarray(self.family.B), self.pattern)

    def __call__(self, D: Matrix, Z: Matrix) -> WhitenedBasis | None:
        """None when the curvature is not numerically positive definite."""
        family, pattern = self.family, self.pattern
        K = self.curvatures(family.Q.adjoint(Z))
        if K is None:
            return None
        M = sym(K.E.T @ D @ K.E)
        if not pattern.is_full:
            M = K.Bt @ M
        return WhitenedBasis(family.Q, family.a, pattern, K.C, K.E, K, M)
