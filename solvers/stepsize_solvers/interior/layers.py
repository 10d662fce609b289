"""Several factors for given directions, D = Diag(γ₁W₁, …, γ_mW_m): m unknowns and direct Newton steps.

In a frame of D (``interior.frame``, a = 1) relative changes γ(1 + h) are X = Σ hᵢEᵢ, Eᵢ the identity of block i, and F̃
changes by Σ hᵢAᵢ with Aᵢ = F′[Eᵢ].  With R̃ = Cᵀ𝒬*(C⁻ᵀMC⁻¹)C and S(M) the sums over the blocks of R̃∘B̃,

    ⟨M, Aᵢ⟩ = tr(M_ii) − 2 Σ_j S_ij(M).

The points of the central path maximise Σ dᵢ log γᵢ + ν log det F, with the gradient dᵢ + ν⟨F̃⁻¹, Aᵢ⟩ and the Hessian
−(dᵢδᵢⱼ + ν⟨F̃⁻¹AᵢF̃⁻¹, Aⱼ⟩ + 2νSᵢⱼ(F̃⁻¹)).  Z = C⁻ᵀF̃⁻¹C⁻¹ is a dual for every γ; with it the certificate's bound at the
reference D reads

    d log(ΣS/d) − Σ dᵢ log(qᵢ/dᵢ) + log det D,      qᵢ = −⟨F̃⁻¹, Aᵢ⟩,

and D/λmax(I − F̃) is feasible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.interior.frame import Frame
from stepsize_solvers.numerics import (
    Bounds,
    Gram,
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

# Damped steps far from the path widen the interval before they narrow it, so the steps themselves are the limit.
MOST_FEW_STEPS = 200
_PATIENCE = MOST_FEW_STEPS
# Reduction of ν after a step close to the central path; a decrement below this counts as close.
_SHRINK = 0.08
_CLOSE = 0.5
# The bound exceeds the optimum by about 2ν at a central point; the tolerance is met with this much room.
_MARGIN = 0.5


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

    def frame(self, factors: Vector) -> Frame:
        """The frame of the D with these factors."""
        root = self.spread(np.sqrt(factors))
        C, E = self.K * root, (self.K_inverse / root[:, None]).T
        log_det = log_det_from_cholesky(self.K) + float(self.sizes @ np.log(factors))
        return Frame(self.Q, 1.0, self.pattern, Gram(C), Gram(E), sym(C.T @ self.B @ C), log_det)

    def inside(self, factors: Vector) -> LayeredPoint | None:
        """The point of factors γ with F ≻ 0; None for others."""
        frame = self.frame(factors)
        factor = cholesky(frame.value)
        return None if factor is None else LayeredPoint(factors, self, frame, factor)

    def first_factors(self) -> Vector:
        """The best factors if each block were alone, 1/λmax of its part of C⁻¹𝒬(WBW)C⁻ᵀ."""
        N = self.frame(np.ones(len(self.starts))).quadratic
        return np.array([1.0 / largest_eigenvalue(N[s, s]) for s in self.pattern.slices])

    def largest_multiple(self, factors: Vector) -> float:
        """The largest t with tγ feasible."""
        return 1.0 / largest_eigenvalue(self.frame(factors).quadratic)


@dataclass(frozen=True, eq=False)
class Newton:
    """The Newton step h and its decrement √(gᵀh/ν)."""

    h: Vector
    decrement: float


@dataclass(frozen=True, eq=False)
class LayeredPoint:
    """γ with its frame and the Cholesky factor of F̃."""

    factors: Vector
    problem: LayeredProblem
    frame: Frame
    factor: Matrix

    @property
    def D(self) -> Matrix:
        return np.asarray(self.problem.spread(self.factors)[:, None] * self.problem.pattern.member)

    @property
    def Z(self) -> Matrix:
        return self.frame.dual(self.G)

    @cached_property
    def G(self) -> Matrix:
        """F̃⁻¹."""
        inverse = triangular_inverse(self.factor)
        return sym(inverse.T @ inverse)

    def _block_sums(self, M: Matrix) -> Matrix:
        """S(M)."""
        starts, products = self.problem.starts, self.frame.coimage(M) * self.frame.Bt
        return np.asarray(np.add.reduceat(np.add.reduceat(products, starts, axis=0), starts, axis=1))

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
        d, sizes, log_det = self.frame.d, self.problem.sizes, self.frame.log_det
        scale = 1.0 / (1.0 - smallest_eigenvalue(self.frame.value))
        lower = log_det + d * math.log(scale)
        energy = float(self.sums.sum())
        if not (energy > 0.0 and np.all(self.q > 0.0)):
            return Bounds(lower, math.inf, scale, 1.0)
        upper = d * math.log(energy / d) - float(sizes @ np.log(self.q / sizes)) + log_det
        return Bounds(lower, upper, scale, d / energy)

    def newton(self, nu: float) -> Newton | None:
        """The Newton step towards the point of the path at ν; None when rounding has made its matrix indefinite."""
        H, gradient = nu * self._curvature, self.problem.sizes - nu * self.q
        add_to_diagonal(H, self.problem.sizes)
        K = cholesky(H)
        if K is None:
            return None
        h = np.asarray(lapack.dpotrs(K, gradient, 1)[0])
        return Newton(h, math.sqrt(max(float(gradient.dot(h)), 0.0) / nu))

    @cached_property
    def _curvature(self) -> Matrix:
        """⟨F̃⁻¹AᵢF̃⁻¹, Aⱼ⟩ + 2S_ij(F̃⁻¹)."""
        rows = []
        for s in self.problem.pattern.slices:
            E = np.zeros_like(self.G)
            E[s, s] = np.eye(s.stop - s.start)
            image = sym(self.G @ self.frame.slope(E) @ self.G)
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
    progress: Progress[LayeredPoint] = Progress(d, limits, _MARGIN, _PATIENCE)
    return progress.run(lambda: _follow(problem, factors, nu, progress)), progress


def _follow(problem: LayeredProblem, start: Vector, nu: float, progress: Progress[LayeredPoint]) -> Status:
    p = problem.inside(start)
    length, decrement = 0.0, np.inf
    while p is not None:
        details = None
        if progress.limits.log is not None:
            details = {"nu": f"{nu:.2e}", "decrement": f"{decrement:.2e}", "step": f"{length:.3f}"}
        status = progress.examine(p, p.bounds, details)
        if status is not None:
            return status
        step = p.newton(nu)
        if step is not None and step.decrement < _CLOSE:
            # Aim at the next ν at once when the point is central: the tangent to the path is a free predictor.
            decrement, nu = step.decrement, max(_SHRINK * nu, 0.1 * progress.limits.tol)
            step = p.newton(nu)
        elif step is not None:
            decrement = step.decrement
        if step is None:
            break
        p, length = _moved(problem, p.factors, step.h)
        progress.steps += p is not None
    return Status.INACCURATE


def _moved(problem: LayeredProblem, factors: Vector, h: Vector) -> tuple[LayeredPoint | None, float]:
    """The point at γ(1 + length·h) for the longest length tried that is inside, and that length."""
    lowest = float(h.min())
    length = 1.0 if lowest > -0.9 else 0.9 / -lowest
    cut = False
    while True:
        p = problem.inside(factors * (1.0 + length * h))
        if p is not None or length < 1e-8:
            break
        length *= 0.6
        cut = True
    if p is not None and cut:
        # A step that had to be cut ends too close to the boundary: go back a little (the set is convex).
        length *= 0.9
        p = problem.inside(factors * (1.0 + length * h))
    return p, length
