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

from stepsize_solvers.metric.coupled import Coupled, coupled, turned
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
# Two inequalities that take more are coupled: the preconditioner of ``.coupled`` is worth the price of an iteration,
# which is nearly twice as high.
_MANY = 25
# Two inequalities in single precision that take more have lost their digits to cancellation.
_MOST_IN_SINGLE = 60
# θ: 1/(ρᵢ + ρⱼ) varies less than a product does; between ¼ and ½ the data sets take the fewest iterations.
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
        if self.maker.is_coupled:
            return Complement(self, *coupled(frame, K, beta, scaling), E, counters)
        roots, diagonals = [], []
        for i, G in enumerate(scaling.G):
            half = np.linalg.inv(G).T
            J = half if i else turned(frame, beta, half)  # the second inequality has G′[X] = X
            U = eigh(sym((J.T * K.rho**-_EXPONENT) @ J))[1]
            squares = (J @ U) ** 2
            roots.append(half @ U)
            diagonals.append(squares.T @ K.inverse_sums @ squares)
        return Complement(self, np.stack(roots), Diagonal(1.0 / (1.0 + np.stack(diagonals))), E, counters)


@dataclass(frozen=True, eq=False)
class Diagonal:
    """Multiplies by the entries of p."""

    p: Stack

    def lowered(self) -> Diagonal:
        """The same in single precision."""
        return Diagonal(self.p.astype(np.float32))

    def __call__(self, Y: Stack) -> Stack:
        return np.asarray(self.p * Y)


class Complement:
    """Y ↦ Pᵀ G′K⁻¹G′*[PYPᵀ] P + Y, preconditioned by its diagonal with 𝒬 replaced by β, in the plane ⟨E, PYPᵀ⟩ = 0."""

    def __init__(
        self, basis: WhitenedBasis, P: Stack, preconditioner: Diagonal | Coupled, E: Stack, counters: Counters
    ) -> None:
        self.basis, self.counters, self.preconditioner = basis, counters, preconditioner
        E = _congruence(P.swapaxes(1, 2), E)
        normal = preconditioner(E)
        self.exact = (P, E, normal / float(np.vdot(normal, E)))
        self.Y = np.zeros_like(E)
        self.G = basis.frame.between(np.eye(basis.frame.d), P[0])
        self.set_precision(basis.maker.single)

    def set_precision(self, single: bool) -> None:
        """That of conjugate gradients."""
        dtype: Any = np.float32 if single else np.float64
        self.single = single
        self.slopes, self.precondition = (
            (self.G.lowered(), self.preconditioner.lowered()) if single else (self.G, self.preconditioner)
        )
        # Of K⁻¹: more digits than conjugate gradients have to gain, and no more than there are.
        self.accuracy = 1e-6 if single else 1e-8
        self.P, self.E, self.normal = (M.astype(dtype) for M in self.exact)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def residual(self, Y: Array) -> Array:
        """What the best dt leaves of Y; preconditioned, it lies in the plane."""
        return np.asarray(Y - self.inner(self.normal, Y) * self.E)

    def __call__(self, Y: Array) -> Array:
        """Without its multiple of E, which is dt's and larger than the rest: rounding would leave the plane by it."""
        others = self.P[1:]  # with G′[X] = X
        image = self.slopes.coslope(Y[0]) + sym(_congruence(others, Y[1:]).sum(axis=0))
        X = self.basis.K.solve(image, self.accuracy).astype(Y.dtype)
        out = np.concatenate([self.slopes.slope(X)[None], _congruence(others.swapaxes(1, 2), X)])
        return self.residual(out + Y)

    def solve(self, r: Array, c: Stack, tolerance: float) -> Solution:
        """From the last solution on: the predictor's is most of the corrector's."""
        problem, frame, K = self.basis.problem, self.basis.frame, self.basis.K
        P, E, normal = self.exact
        first, size, tried = K.solve(r), math.inf, False
        while True:
            dZ = sym(_congruence(P, self.Y))
            X = first + K.solve(problem.coslope(frame, dZ))
            left = _congruence(P.swapaxes(1, 2), c - problem.slope(frame, X)) - self.Y
            dt, before = -self.inner(normal, left), size
            size = float(np.linalg.norm(left + dt * E))
            # The residual that conjugate gradients add up in single precision may be far from the true one.
            if size <= (_GOOD_ENOUGH if tried else 1.0) * tolerance or (tried and not self.single):
                return Solution(X, dZ, dt)
            if tried and not size < _REFINED * before:
                self.set_precision(single=False)
                self.basis.maker.single = False  # the systems to come are no easier
            self.Y += self.approach(left, tolerance)
            self.Y -= self.inner(E, self.Y) * normal
            tried = True

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
        if self.single and isinstance(self.preconditioner, Coupled):
            most = _MOST_IN_SINGLE
        iterations = conjugate_gradients(self, b, finished, most, add)
        self.counters.cg_iterations += iterations
        if len(b) > 1 and iterations > _MANY:
            self.basis.maker.is_coupled = True
        return Y


def _congruence(A: Array, M: Array) -> Array:
    """A M Aᵀ for each matrix of the stacks."""
    return np.asarray(A @ M @ A.swapaxes(1, 2))


class Whitening:
    """D and Z to their basis.

    single: whether conjugate gradients run in single precision, while that is enough; is_coupled: whether systems of
    two inequalities have taken many iterations.
    """

    def __init__(self, problem: Problem, pattern: Pattern, single: bool) -> None:
        self.problem, self.pattern, self.single, self.is_coupled = problem, pattern, single, False
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
