"""The basis of the path in which K is inverted: CᵢᵀBᵢᵢCᵢ = I and CᵢᵀRᵢᵢCᵢ = Diag(ρᵢ) for each block of D.

G′ is that of ``Frame`` with M = CᵀBDC⁻ᵀ in the place of B̃.  With X = K⁻¹(r + G′*dZ), what is left of a step is

    (G′K⁻¹G′* + W·W) dZ − E dt = c − G′K⁻¹r,      ⟨E, dZ⟩ = 0,

a system that does not become ill-conditioned as the gap closes, for conjugate gradients within the plane of the last
equation; dt is its multiplier.  If 𝒬 were β times the identity, M and W had the same eigenvectors and all ρᵢ were
near to each other, K⁻¹[X] ≈ ½ Diag(ρ^−½) X Diag(ρ^−½), it would be diagonal in the basis P with PᵀWP = I in which
PᵀDiag(ρ^−θ)P, θ = ½, is diagonal, too.  ``Between.turned`` finds a basis like that whatever holds; the preconditioner
is the diagonal that the system with β has there.  The system of two inequalities is that of ``.coupled``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_solvers.metric.coupled import Coupled, coupled
from stepsize_solvers.metric.frame import Between, Frame
from stepsize_solvers.metric.path import Problem, Solution
from stepsize_solvers.numerics import (
    Array,
    Counters,
    Curvatures,
    PatternCurvature,
    Scaling,
    conjugate_gradients,
    sym,
)
from stepsize_solvers.programs import Matrix, Pattern, Stack
from stepsize_solvers.single import Gram, effective_beta

# A system may take hundreds of iterations for the last digit; large matrices are spared that.
_MOST_ITERATIONS = 1000
_ITERATIONS_AT_ANY_SIZE = 300
_MOST_ROWS = 300_000  # in all iterations together
# Two inequalities in single precision that take more have lost their digits to cancellation.
_MOST_IN_SINGLE = 40
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

    @property
    def problem(self) -> Problem:
        return self.maker.problem

    def bend(self, X: Array) -> Array:
        return -self.frame.image(X @ X.T if self.frame.pattern.is_full else sym(X @ self.K.Bt @ X))

    def cross(self, X: Array, N: Array) -> Array:
        M = X @ N if self.frame.pattern.is_full else self.K.Bt @ (X @ N)
        return np.asarray(M + M.T)

    def loss(self, g: Array) -> float:
        return 0.5 * float(np.vdot(g, self.K.solve(g)))

    def system(self, scaling: Scaling, E: Stack, counters: Counters) -> Complement:
        frame, K, beta = self.frame, self.K, self.maker.beta
        if not self.problem.alone:
            return Complement(self, *coupled(frame, K, beta, scaling), E, counters)
        half = np.linalg.inv(scaling.G[0]).T
        U, G, diagonal = frame.between(None, half, beta).turned(K.rho**-_EXPONENT, K.inverse_sums)
        return Complement(self, (half @ U)[None], Alone(G, K, 1.0 / (1.0 + diagonal)), E, counters)


@dataclass(frozen=True, eq=False)
class Alone:
    """The operator of one inequality, Y ↦ ĜK⁻¹Ĝ*[Y] + Y with Ĝ = PᵀG′P, and p, its diagonal inverted."""

    G: Between
    K: PatternCurvature
    p: Array

    def lowered(self) -> Alone:
        """The same in single precision."""
        return Alone(self.G.lowered(), self.K, self.p.astype(np.float32))

    def __call__(self, Y: Stack) -> Stack:
        return np.asarray(self.G.slope(self.K.solve(self.G.coslope(Y[0]))) + Y)

    def precondition(self, Y: Stack) -> Stack:
        return np.asarray(self.p * Y)

    def reduced(self, b: Stack) -> Stack:
        """The unknowns are Y itself: see ``Coupled``."""
        return b

    unreduced = restored = reduced


class Complement:
    """The system for dZ = PYPᵀ in the plane ⟨E, dZ⟩ = 0, by conjugate gradients."""

    def __init__(self, basis: WhitenedBasis, P: Stack, operator: Alone | Coupled, E: Stack, counters: Counters) -> None:
        self.basis, self.P, self.counters = basis, P, counters
        self.E0 = _congruence(P.swapaxes(1, 2), E)
        E = operator.reduced(self.E0)
        normal = operator.precondition(E)
        normal /= float(np.vdot(normal, E))
        self.exact, self.normal0 = (operator, E, normal), operator.restored(normal)
        # The last solution, in the unknowns of the operator, with its right-hand side and what it leaves of that.
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
        Z = self.operator.precondition(Y)
        return np.asarray(Z - self.inner(self.E, Z) * self.normal)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of E, which is dt's and larger than the rest: rounding would leave the plane by it."""
        return self.residual(self.operator(Y))

    def solve(self, r: Array, c: Stack, tolerance: float) -> Solution:
        """From the last solution on: the predictor's is most of the corrector's."""
        problem, frame, K = self.basis.problem, self.basis.frame, self.basis.K
        (operator, E, normal), P = self.exact, self.P
        first = K.solve(r)
        b = _congruence(P.swapaxes(1, 2), c - problem.slope(frame, first))
        self.left, self.b = self.left + (b - self.b), b
        size = self.size()[0]
        while True:
            self.solution += self.approach(operator.reduced(self.left), tolerance)
            self.solution -= self.inner(E, self.solution) * normal
            Y = operator.restored(self.solution)
            dZ = sym(_congruence(P, Y))
            X = first + K.solve(problem.coslope(frame, dZ))
            self.left = _congruence(P.swapaxes(1, 2), c - problem.slope(frame, X)) - Y
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
        dt = -self.inner(self.normal0, self.left)
        return float(np.linalg.norm(self.left + dt * self.E0)), dt

    def approach(self, b: Stack, tolerance: float) -> Array:
        """The unknowns for the right-hand side b by conjugate gradients."""
        b = self.residual(b.astype(self.E.dtype))
        Y = np.zeros_like(b)

        def add(step: float, direction: Array) -> None:
            nonlocal Y
            Y += step * direction

        def finished(left: Array) -> bool:
            if float(np.linalg.norm(left)) > tolerance:
                return False
            return float(np.linalg.norm(self.operator.unreduced(left))) <= tolerance

        most = min(_MOST_ITERATIONS, max(_ITERATIONS_AT_ANY_SIZE, _MOST_ROWS // self.basis.frame.d))
        if self.single and isinstance(self.operator, Coupled):
            most = _MOST_IN_SINGLE
        self.counters.cg_iterations += conjugate_gradients(self, b, finished, most, add)
        return Y


def _congruence(A: Array, M: Array) -> Array:
    """A M Aᵀ for each matrix of the stacks."""
    return np.asarray(A @ M @ A.swapaxes(1, 2))


class Whitening:
    """D and Z to their basis; single: whether conjugate gradients run in single precision, while that is enough."""

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
        return WhitenedBasis(self, frame, K)
