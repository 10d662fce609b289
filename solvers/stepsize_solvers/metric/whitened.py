"""The basis of the path for a full D: CᵀBC = I and CᵀRC = Diag(ρ), in which K multiplies entry (i, j) by ρᵢ + ρⱼ.

G′ is that of ``Frame`` with D̃ = C⁻¹DC⁻ᵀ in the place of B̃.  With K inverted exactly, what is left of a step is

    (G′K⁻¹G′* + W·W) dZ = c − G′K⁻¹r,

solved by conjugate gradients in the eigenbasis of W = V Diag(t) Vᵀ, in which W·W multiplies by tᵢtⱼ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.path import Problem
from stepsize_solvers.numerics import (
    Array,
    Counters,
    Scaling,
    cholesky,
    conjugate_gradients,
    eigh,
    sym,
    triangular_inverse,
    within_scaled_tolerance,
)
from stepsize_solvers.programs import Matrix, Pattern, Stack, Vector
from stepsize_solvers.single import Gram, effective_beta

_MOST_ITERATIONS = 300


@dataclass(frozen=True, eq=False)
class WhitenedBasis:
    """``frame.Bt`` is D̃; rho: ρ."""

    problem: Problem
    beta: float
    frame: Frame
    rho: Vector

    @property
    def sums(self) -> Matrix:
        """ρᵢ + ρⱼ."""
        return np.asarray(self.rho[:, None] + self.rho)

    def bend(self, X: Array) -> Array:
        return -self.frame.image(X @ X.T)

    def cross(self, X: Array, N: Array) -> Array:
        M = X @ N
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.sum(g**2 / self.sums))

    def system(self, scaling: Scaling, counters: Counters) -> Complement:
        T, V2 = scaling.t[:, :, None] * scaling.t[:, None, :], scaling.V**2
        delta = self.frame.diagonal
        h = (self.frame.a - self.beta * (delta[:, None] + delta)) ** 2 / self.sums
        parts = [V2[0].T @ h @ V2[0]]
        if not self.problem.alone:
            parts.append(V2[1].T @ (1.0 / self.sums) @ V2[1])
        return Complement(self, scaling.V, T, 1.0 / (np.stack(parts) + T), self.sums, counters)


@dataclass(frozen=True, eq=False)
class Complement:
    """Y ↦ Vᵀ G′K⁻¹G′*[VYVᵀ] V + T∘Y, T_ij = tᵢtⱼ, preconditioned by its diagonal with 𝒬 replaced by β."""

    basis: WhitenedBasis
    V: Stack
    T: Stack
    preconditioner: Stack
    sums: Matrix
    counters: Counters

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def __call__(self, Y: Array) -> Array:
        problem, frame = self.basis.problem, self.basis.frame
        X = problem.coslope(frame, self.outside(Y)) / self.sums
        return self.inside(problem.slope(frame, X)) + self.T * Y

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def inside(self, M: Stack) -> Stack:
        return np.asarray(self.V.swapaxes(1, 2) @ M @ self.V)

    def outside(self, Y: Stack) -> Stack:
        return sym(self.V @ Y @ self.V.swapaxes(1, 2))

    def solve(self, r: Array, c: Stack, tolerance: float) -> tuple[Array, Stack]:
        problem, frame = self.basis.problem, self.basis.frame
        rhs = self.inside(c - problem.slope(frame, r / self.sums))
        solution = np.zeros_like(rhs)

        def add(step: float, direction: Array) -> None:
            nonlocal solution
            solution += step * direction

        finished = within_scaled_tolerance(self, self.T, tolerance)
        self.counters.cg_iterations += conjugate_gradients(self, rhs, finished, _MOST_ITERATIONS, add)
        dZ = self.outside(solution)
        return (r + problem.coslope(frame, dZ)) / self.sums, dZ


class Whitening:
    """D and Z to their basis; B is factorised once."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.beta = problem, effective_beta(problem.quadratic.Q)
        K = cholesky(np.asarray(problem.quadratic.B))
        self.root = None if K is None else triangular_inverse(K)  # K⁻¹, B = KKᵀ
        self.K = K

    def __call__(self, D: Matrix, Z: Matrix) -> WhitenedBasis | None:
        """None when B or 𝒬*(Z) is not numerically positive definite."""
        q = self.problem.quadratic
        if self.root is None or self.K is None:
            return None
        rho, U = eigh(sym(self.root @ q.Q.adjoint(Z) @ self.root.T))
        if not rho[0] > 0.0:
            return None
        C, E = self.root.T @ U, self.K @ U
        frame = Frame(q.Q, q.a, Pattern.full(len(D)), Gram(C), Gram(E), sym(E.T @ D @ E), math.nan)
        return WhitenedBasis(self.problem, self.beta, frame, rho)
