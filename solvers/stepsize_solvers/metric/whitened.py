"""The basis of the path in which K is inverted: CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each block of D.

G′ is that of ``Frame`` with M = CᵀBDC⁻ᵀ in the place of B̃.  With X = K⁻¹(r + G′*dZ), what is left of a step is

    (G′K⁻¹G′* + W·W) dZ − E dt = c − G′K⁻¹r,      ⟨E, dZ⟩ = 0,

a system that does not become ill-conditioned as the gap closes, for conjugate gradients within the plane of the last
equation; dt is its multiplier.  With 𝒬 replaced by β, G′[X] ≈ JXJᵀ, J = √a(I − (β/a)Mᵀ).  If all ρᵢ were near to each
other, K⁻¹[X] ≈ ½ Diag(ρ^−½) X Diag(ρ^−½), and the system would be almost diagonal in the basis P with PᵀWP = I in which
J Diag(ρ^−θ) Jᵀ, θ = ½, is diagonal, too.  It is preconditioned by its diagonal there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.metric.path import Problem, Solution
from stepsize_solvers.numerics import (
    Array,
    Counters,
    Curvatures,
    PatternCurvature,
    Scaling,
    conjugate_gradients,
    eigh,
    sym,
)
from stepsize_solvers.programs import Matrix, Pattern, Stack
from stepsize_solvers.single import Gram, effective_beta

# Two coupled inequalities may take a thousand iterations for the last digit; large matrices are spared that.
_MOST_ITERATIONS = 1000
_ITERATIONS_AT_ANY_SIZE = 300
_MOST_ROWS = 300_000  # in all iterations together
# θ: 1/(ρᵢ + ρⱼ) varies less than a product does; between ¼ and ½ the data sets take the fewest iterations.
_EXPONENT = 0.35
# A true residual up to this many times what was asked for is as good; a refinement in single precision that leaves more
# than this part of it is the last one.
_GOOD_ENOUGH = 2.0
_REFINED = 0.3


@dataclass(frozen=True, eq=False)
class WhitenedBasis:
    """``frame.Bt`` is M = CᵀBDC⁻ᵀ; K: the curvature; single: whether conjugate gradients run in single precision."""

    problem: Problem
    beta: float
    frame: Frame
    K: PatternCurvature
    single: bool

    def bend(self, X: Array) -> Array:
        return -self.frame.image(X @ X.T if self.frame.pattern.is_full else sym(X @ self.K.Bt @ X))

    def cross(self, X: Array, N: Array) -> Array:
        M = X @ N if self.frame.pattern.is_full else self.K.Bt @ (X @ N)
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.vdot(g, self.K.solve(g)))

    def system(self, scaling: Scaling, E: Stack, counters: Counters) -> Complement:
        frame = self.frame
        roots, diagonals = [], []
        for i, G in enumerate(scaling.G):
            half = np.linalg.inv(G).T
            # The second inequality has G′[X] = X.
            Q = half if i else math.sqrt(frame.a) * (half - (self.beta / frame.a) * (frame.Bt @ half))
            U = eigh(sym((Q.T * self.K.rho**-_EXPONENT) @ Q))[1]
            Q2 = (Q @ U) ** 2
            roots.append(half @ U)
            diagonals.append(Q2.T @ self.K.inverse_sums @ Q2)
        return Complement(self, np.stack(roots), 1.0 / (1.0 + np.stack(diagonals)), E, counters)


class Complement:
    """Y ↦ Pᵀ G′K⁻¹G′*[PYPᵀ] P + Y, preconditioned by its diagonal with 𝒬 replaced by β, in the plane ⟨E, PYPᵀ⟩ = 0."""

    def __init__(self, basis: WhitenedBasis, P: Stack, preconditioner: Stack, E: Stack, counters: Counters) -> None:
        self.basis, self.counters = basis, counters
        E = _congruence(P.swapaxes(1, 2), E)
        normal = preconditioner * E
        self.exact = (P, preconditioner, E, normal / float(np.vdot(normal, E)))
        self.set_precision(basis.single)

    def set_precision(self, single: bool) -> None:
        """That of conjugate gradients."""
        dtype: Any = np.float32 if single else np.float64
        self.single, self.frame = single, self.basis.frame.lowered() if single else self.basis.frame
        # Of K⁻¹: more digits than conjugate gradients have to gain, and no more than there are.
        self.accuracy = 1e-6 if single else 1e-8
        self.P, self.preconditioner, self.E, self.normal = (M.astype(dtype) for M in self.exact)

    def precondition(self, Y: Array) -> Array:
        return np.asarray(self.preconditioner * Y)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def residual(self, Y: Array) -> Array:
        """What the best dt leaves of Y; preconditioned, it lies in the plane."""
        return np.asarray(Y - self.inner(self.normal, Y) * self.E)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of E, which is dt's and larger than the rest: rounding would leave the plane by it."""
        problem, frame = self.basis.problem, self.frame
        X = self.basis.K.solve(problem.coslope(frame, sym(_congruence(self.P, Y))), self.accuracy)
        image = _congruence(self.P.swapaxes(1, 2), problem.slope(frame, X.astype(Y.dtype)))
        return self.residual(image + Y)

    def solve(self, r: Array, c: Stack, tolerance: float) -> Solution:
        problem, frame, K = self.basis.problem, self.basis.frame, self.basis.K
        P, _, E, normal = self.exact
        first = X = K.solve(r)
        left = _congruence(P.swapaxes(1, 2), c - problem.slope(frame, X))
        Y, size = np.zeros_like(left), math.inf
        while True:
            Y += self.approach(left, tolerance)
            Y -= self.inner(E, Y) * normal
            dZ = sym(_congruence(P, Y))
            X = first + K.solve(problem.coslope(frame, dZ))
            left = _congruence(P.swapaxes(1, 2), c - problem.slope(frame, X)) - Y
            dt, before = -self.inner(normal, left), size
            size = float(np.linalg.norm(left + dt * E))
            # The residual that conjugate gradients add up in single precision may be far from the true one.
            if not self.single or size <= _GOOD_ENOUGH * tolerance:
                return Solution(X, dZ, dt)
            if not size < _REFINED * before:
                self.set_precision(single=False)

    def approach(self, b: Stack, tolerance: float) -> Array:
        """Y for the right-hand side b by conjugate gradients."""
        b = self.residual(b.astype(self.P.dtype))
        Y = np.zeros_like(b)

        def add(step: float, direction: Array) -> None:
            nonlocal Y
            Y += step * direction

        def finished(left: Array) -> bool:
            return not float(np.linalg.norm(left)) > tolerance

        most = min(_MOST_ITERATIONS, max(_ITERATIONS_AT_ANY_SIZE, _MOST_ROWS // self.basis.frame.d))
        self.counters.cg_iterations += conjugate_gradients(self, b, finished, most, add)
        return Y


def _congruence(A: Array, M: Array) -> Array:
    """A M Aᵀ for each matrix of the stacks."""
    return np.asarray(A @ M @ A.swapaxes(1, 2))


class Whitening:
    """D and Z to their basis."""

    def __init__(self, problem: Problem, pattern: Pattern, single: bool) -> None:
        self.problem, self.pattern, self.single = problem, pattern, single
        self.beta = effective_beta(problem.quadratic.Q)
        self.curvatures = Curvatures(np.asarray(problem.quadratic.B), pattern)

    def __call__(self, D: Matrix, Z: Matrix) -> WhitenedBasis | None:
        """None when the curvature is not numerically positive definite."""
        q = self.problem.quadratic
        K = self.curvatures(q.Q.adjoint(Z))
        if K is None:
            return None
        M = sym(K.E.T @ D @ K.E)
        M = M if self.pattern.is_full else K.Bt @ M
        frame = Frame(q.Q, q.a, self.pattern, Gram(K.C), Gram(K.E), M, math.nan)
        return WhitenedBasis(self.problem, self.beta, frame, K, self.single)
