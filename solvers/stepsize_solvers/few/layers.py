"""Several factors for given directions, D = Diag(γ₁W₁, …, γ_mW_m): m unknowns and direct Newton steps.

C = Diag(√γᵢ Kᵢ) with KᵢKᵢᵀ = Wᵢ has CCᵀ = D.  Let B̃ = CᵀBC, F̃ = I − C⁻¹𝒬(DBD)C⁻ᵀ and Eᵢ the identity of block i.  For
relative changes γ(1 + h), Σ hᵢEᵢ = C⁻¹ dD C⁻ᵀ, and F̃ changes by Σ hᵢAᵢ with

    Aᵢ = Eᵢ − C⁻¹ 𝒬(C (EᵢB̃ + B̃Eᵢ) Cᵀ) C⁻ᵀ,      ⟨M, Aᵢ⟩ = tr(M_ii) − 2 Σ_j S_ij(M),

where S(M) holds the sums over the blocks of R̃∘B̃, R̃ = Cᵀ 𝒬*(C⁻ᵀMC⁻¹) C.  So Σ dᵢ log γᵢ + ν log det F, with F = CF̃Cᵀ
concave in γ, has the gradient dᵢ + ν⟨F̃⁻¹, Aᵢ⟩ and the Hessian −(dᵢδᵢⱼ + ν⟨F̃⁻¹AᵢF̃⁻¹, Aⱼ⟩ + 2νSᵢⱼ(F̃⁻¹)).
Z = C⁻ᵀF̃⁻¹C⁻¹ is a dual for every γ; with it the certificate's bound at the reference D reads

    d log(ΣS/d) − Σ dᵢ log(qᵢ/dᵢ) + log det D,      qᵢ = −⟨F̃⁻¹, Aᵢ⟩,

and D/λmax(I − F̃) is feasible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.few.barrier import InsidePoint, Newton, follow
from stepsize_solvers.numerics import (
    Bounds,
    Limits,
    Progress,
    cholesky,
    largest_eigenvalue,
    log_det_from_cholesky,
    smallest_eigenvalue,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Matrix, Pattern, PositiveMap, Status, Vector, add_to_diagonal


@dataclass(frozen=True, eq=False)
class LayeredProblem:
    """maximise Σ dᵢ log γᵢ subject to 𝒬(DBD) ⪯ D; K is the Cholesky factor of W, block by block."""

    B: Matrix
    Q: PositiveMap
    pattern: Pattern
    K: Matrix
    K_inverse: Matrix

    @staticmethod
    def of(B: Matrix, Q: PositiveMap, pattern: Pattern) -> LayeredProblem | None:
        """None when W is not numerically positive definite."""
        K = cholesky(sym(pattern.member))
        return None if K is None else LayeredProblem(B, Q, pattern, K, triangular_inverse(K))

    @cached_property
    def sizes(self) -> Vector:
        return np.array(self.pattern.sizes, dtype=float)

    @cached_property
    def starts(self) -> list[int]:
        return [s.start for s in self.pattern.slices]

    def spread(self, values: Vector) -> Vector:
        """One value for each block, repeated for its coordinates."""
        return np.repeat(values, self.pattern.sizes)

    def in_blocks(self, values: Vector) -> Vector:
        """The sums of a value for each coordinate over the blocks."""
        return np.asarray(np.add.reduceat(values, self.starts))

    def inside(self, factors: Vector) -> LayeredPoint | None:
        """The point of factors γ with F ≻ 0; None for others."""
        basis = self._basis(factors)
        F = np.eye(self.pattern.d) - self._quadratic(basis)
        factor = cholesky(F)
        return None if factor is None else LayeredPoint(factors, self, *basis, F, factor)

    def _basis(self, factors: Vector) -> tuple[Matrix, Matrix, Matrix]:
        """C, C⁻¹ and B̃."""
        root = self.spread(np.sqrt(factors))
        C = self.K * root
        return C, self.K_inverse / root[:, None], sym(C.T @ self.B @ C)

    def _quadratic(self, basis: tuple[Matrix, Matrix, Matrix]) -> Matrix:
        """C⁻¹ 𝒬(DBD) C⁻ᵀ."""
        C, C_inverse, Bt = basis
        return sym(C_inverse @ self.Q.apply(C @ Bt @ C.T) @ C_inverse.T)

    def first_factors(self) -> Vector:
        """The best factors if each block were alone, 1/λmax of its part of K⁻¹𝒬(WBW)K⁻ᵀ."""
        N = self._quadratic(self._basis(np.ones(len(self.starts))))
        return np.array([1.0 / largest_eigenvalue(N[s, s]) for s in self.pattern.slices])

    def largest_multiple(self, factors: Vector) -> float:
        """The largest t with tγ feasible."""
        return 1.0 / largest_eigenvalue(self._quadratic(self._basis(factors)))


@dataclass(frozen=True, eq=False)
class LayeredPoint(InsidePoint):
    """x = γ with C, C⁻¹, B̃, F̃ and the Cholesky factor of F̃."""

    problem: LayeredProblem
    C: Matrix
    C_inverse: Matrix
    Bt: Matrix
    F: Matrix
    factor: Matrix

    @property
    def D(self) -> Matrix:
        return np.asarray(self.problem.spread(self.x)[:, None] * self.problem.pattern.member)

    @property
    def Z(self) -> Matrix:
        return sym(self.C_inverse.T @ self.G @ self.C_inverse)

    @cached_property
    def G(self) -> Matrix:
        """F̃⁻¹."""
        inverse = triangular_inverse(self.factor)
        return sym(inverse.T @ inverse)

    def _block_sums(self, M: Matrix) -> Matrix:
        """S(M)."""
        R = self.C.T @ self.problem.Q.adjoint(self.C_inverse.T @ M @ self.C_inverse) @ self.C
        starts = self.problem.starts
        return np.asarray(np.add.reduceat(np.add.reduceat(R * self.Bt, starts, axis=0), starts, axis=1))

    def _inner(self, M: Matrix, sums: Matrix) -> Vector:
        """⟨M, Aᵢ⟩ for every i."""
        return np.asarray(self.problem.in_blocks(np.diagonal(M)) - 2.0 * sums.sum(axis=1))

    @cached_property
    def sums(self) -> Matrix:
        """S(F̃⁻¹)."""
        return self._block_sums(self.G)

    @cached_property
    def q(self) -> Vector:
        return -self._inner(self.G, self.sums)

    @cached_property
    def bounds(self) -> Bounds:
        d, sizes = len(self.F), self.problem.sizes
        log_det = log_det_from_cholesky(self.problem.K) + float(sizes @ np.log(self.x))
        scale = 1.0 / (1.0 - smallest_eigenvalue(self.F))
        lower = log_det + d * float(np.log(scale))
        energy = float(self.sums.sum())
        if not (energy > 0.0 and np.all(self.q > 0.0)):
            return Bounds(lower, np.inf, scale, 1.0)
        upper = d * float(np.log(energy / d)) - float(sizes @ np.log(self.q / sizes)) + log_det
        return Bounds(lower, upper, scale, d / energy)

    def newton(self, nu: float) -> Newton | None:
        H = nu * self._curvature
        add_to_diagonal(H, self.problem.sizes)
        return Newton.of(self.problem.sizes - nu * self.q, H, nu)

    @cached_property
    def _curvature(self) -> Matrix:
        """⟨F̃⁻¹AᵢF̃⁻¹, Aⱼ⟩ + 2S_ij(F̃⁻¹)."""
        rows = []
        for s in self.problem.pattern.slices:
            M = np.zeros_like(self.Bt)
            M[s] = self.Bt[s]
            A = -self.C_inverse @ self.problem.Q.apply(self.C @ (M + M.T) @ self.C.T) @ self.C_inverse.T
            A[s, s] += np.eye(s.stop - s.start)
            image = sym(self.G @ A @ self.G)
            rows.append(self._inner(image, self._block_sums(image)))
        return sym(np.array(rows)) + 2.0 * sym(self.sums)


def solve_layers(
    problem: LayeredProblem,
    limits: Limits,
    start: Matrix | None = None,
) -> tuple[Status, Progress[LayeredPoint]]:
    """Follow the central path in ν until the gap is within the tolerance; ``start`` is D of a nearby problem."""
    W, d = problem.pattern.member, problem.pattern.d
    # Half of the largest feasible multiple is well inside; a warm start keeps closer to its solution.
    factors, fraction, nu = problem.first_factors(), 0.5, 1.0
    if start is not None and start.shape == W.shape:
        near = problem.in_blocks(np.diagonal(start)) / problem.in_blocks(np.diagonal(W))
        if np.all(near > 0.0):
            factors, fraction, nu = near, 0.95, 0.05
    factors = fraction * problem.largest_multiple(factors) * factors
    return follow(problem.inside, factors, nu, d, limits)
