"""The largest t with F = aD − 𝒬(DBD) − tE ⪰ 0 for a full D: a primal-dual path with conjugate gradients.

KKT: G′*[Z] = 0, ⟨Z, E⟩ = 1, ZF = 0, F ⪰ 0, Z ⪰ 0.  In the basis C with CᵀBC = I and CᵀRC = Diag(ρ), R = 𝒬*(Z), the
curvature K[X] = BXR + RXB multiplies entry (i, j) by ρᵢ + ρⱼ, so it is inverted exactly; G′ is that of ``Frame``
with D̃ = C⁻¹DC⁻ᵀ in the place of B̃.  Newton's equations with the Nesterov–Todd scaling W of (F, Z),

    K dD − G′*[dZ] = r₁ = G′*[Z],      G′[dD] − E dt + W dZ W = r₂,      ⟨E, dZ⟩ = 1 − ⟨E, Z⟩,

leave (G′K⁻¹G′* + W·W) dZ = r₂ − G′K⁻¹r₁ + E dt: two solves with one map.  Each takes 5 to 20 iterations at first and
about a hundred when the gap is 10⁻⁶ (d = 24 to 100, rand-k).  The bound of ``.point`` holds for every Z:
t* ≤ t + (⟨Z, F⟩ + ½⟨r₁, K⁻¹r₁⟩)/⟨Z, E⟩.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.metric.frame import Frame
from stepsize_solvers.numerics import (
    Array,
    Bounds,
    Progress,
    Scaling,
    cholesky,
    conjugate_gradients,
    eigh,
    largest_step,
    nesterov_todd,
    sym,
    triangular_inverse,
    within_scaled_tolerance,
)
from stepsize_solvers.programs import Matrix, Metric, Pattern, Status, Vector
from stepsize_solvers.single import Gram, effective_beta

# Fraction of the way to the boundary, and the least v² relative to the mean that a new point may have.
_STEP_FRACTION = 0.95
_NEIGHBOURHOOD = 1e-3
_SHORTEST = 1e-4
# Accuracy of the conjugate gradients relative to the target, as in the iteration for one condition.
_ACCURACY = 0.3
_MOST_ITERATIONS = 300
# Centring: less after long steps, more after short ones.
_FIRST_SIGMA = 0.3
_LEAST_SIGMA = 0.15


@dataclass(frozen=True, eq=False)
class PathPoint:
    """(D, t, Z) in the basis above; ``frame.Bt`` is D̃."""

    D: Matrix
    t: float
    Z: Matrix
    frame: Frame
    rho: Vector
    Zt: Matrix
    Ft: Matrix
    Et: Matrix

    @property
    def Y(self) -> Matrix:
        return self.Z

    @cached_property
    def r1(self) -> Matrix:
        """G′*[Z̃]."""
        return self.frame.coslope(self.Zt)

    @cached_property
    def sums(self) -> Matrix:
        """ρᵢ + ρⱼ."""
        return np.asarray(self.rho[:, None] + self.rho)

    @property
    def loss(self) -> float:
        """½⟨r₁, K⁻¹r₁⟩."""
        return 0.5 * float(np.sum(self.r1**2 / self.sums))

    @property
    def bounds(self) -> Bounds:
        """The interval of d·log t."""
        d = len(self.D)
        upper = self.t + (float(np.vdot(self.Zt, self.Ft)) + self.loss) / float(np.vdot(self.Zt, self.Et))
        lower = d * math.log(self.t) if self.t > 0.0 else -math.inf
        return Bounds(lower, d * math.log(upper) if upper > 0.0 else math.inf)


@dataclass(frozen=True, eq=False)
class Complement:
    """Y ↦ Vᵀ G′K⁻¹G′*[VYVᵀ] V + T∘Y, W = V Diag(t) Vᵀ, T_ij = tᵢtⱼ, and its diagonal with 𝒬 replaced by β."""

    p: PathPoint
    V: Matrix
    T: Array
    preconditioner: Array

    @staticmethod
    def of(p: PathPoint, scaling: Scaling, beta: float) -> Complement:
        T, V2, delta = np.multiply.outer(scaling.t, scaling.t), scaling.V**2, p.frame.diagonal
        h = (p.frame.a - beta * (delta[:, None] + delta)) ** 2 / p.sums
        return Complement(p, scaling.V, T, 1.0 / (V2.T @ h @ V2 + T))

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def __call__(self, Y: Array) -> Array:
        X = self.p.frame.coslope(sym(self.V @ Y @ self.V.T)) / self.p.sums
        return np.asarray(self.V.T @ self.p.frame.slope(X) @ self.V + self.T * Y)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))


class Path:
    """One solve."""

    def __init__(self, metric: Metric, progress: Progress[PathPoint]) -> None:
        self.metric, self.progress = metric, progress
        self.beta = effective_beta(metric.left.Q)
        self.sigma = _FIRST_SIGMA
        K = cholesky(np.asarray(metric.left.B))
        self.root = None if K is None else triangular_inverse(K)  # K⁻¹, B = KKᵀ
        self.K = K

    def point(self, D: Matrix, t: float, Z: Matrix) -> PathPoint | None:
        """The point, or None when 𝒬*(Z) is not numerically positive definite."""
        left, floor = self.metric.left, self.metric.floor
        if self.root is None or self.K is None or floor is None:
            return None
        rho, U = eigh(sym(self.root @ left.Q.adjoint(Z) @ self.root.T))
        if not rho[0] > 0.0:
            return None
        C, E = self.root.T @ U, self.K @ U
        Dt = sym(E.T @ D @ E)
        frame = Frame(left.Q, left.a, Pattern.full(len(D)), Gram(C), Gram(E), Dt, math.nan)
        Et = frame.stretched(floor)
        Ft = left.a * Dt - frame.image(Dt @ Dt.T) - t * Et
        return PathPoint(D, t, Z, frame, rho, sym(C.T @ Z @ C), sym(Ft), Et)

    def run(self, D: Matrix) -> Status:
        """From a D with G(D) ≻ 0, t = 0 and the central Z; INACCURATE after a breakdown."""
        left, floor = self.metric.left, self.metric.floor
        assert left.B is not None and floor is not None
        Z = sym(np.linalg.inv(left.a * D - left.Q.apply(D @ left.B @ D)))
        p = self.point(D, 0.0, Z / float(np.vdot(Z, floor)))
        length, iterations = 0.0, 0
        while p is not None:
            details = {"loss": f"{p.loss:.2e}", "step": f"{length:.3f}", "cg": str(iterations)}
            status = self.progress.examine(p, p.bounds, details)
            if status is not None:
                return status
            before = self.progress.counters.cg_iterations
            p, length = self.step(p)
            iterations = self.progress.counters.cg_iterations - before
            self.progress.steps += p is not None
        return Status.INACCURATE

    def step(self, p: PathPoint) -> tuple[PathPoint | None, float]:
        """The next point and the length of the step; None when every length fails."""
        d, scaling = len(p.D), nesterov_todd(p.Ft, p.Zt)
        if scaling is None or not scaling.t[0] > 0.0:
            return None, 0.0
        mu = float(np.vdot(p.Zt, p.Ft)) / d
        # A target below a fifth of the tolerance would be wasted work, and μ must not outrun the dual residual.
        s = max(self.sigma * mu, min(mu, p.loss / d), 0.2 * self.progress.limits.tol * max(p.t, 0.0) / d)
        system = Complement.of(p, scaling, self.beta)
        V, v = scaling.V, scaling.v
        GV = V.T @ scaling.G
        tolerance = _ACCURACY * s / math.sqrt(mu)
        r2 = (GV * (s / v - v)) @ GV.T - V.T @ p.frame.slope(p.r1 / p.sums) @ V
        u = self.solve(system, r2, tolerance)
        Et = V.T @ p.Et @ V
        # It enters times dt, which is about the gap μd.
        w = self.solve(system, Et, tolerance / (mu * d))
        dt = (1.0 - float(np.vdot(p.Et, p.Zt)) - float(np.vdot(Et, u))) / float(np.vdot(Et, w))
        dZ = sym(V @ (u + dt * w) @ V.T)
        X = (p.r1 + p.frame.coslope(dZ)) / p.sums
        first, second = p.frame.slope(X) - dt * p.Et, -p.frame.image(X @ X.T)
        longest = largest_step([[p.Zt, dZ], [p.Ft, first, second]])
        a = longest if longest == 1.0 else _STEP_FRACTION * longest
        while a > _SHORTEST:
            new = self.point(p.D + p.frame.change(a * X), p.t + a * dt, p.Z + p.frame.dual(a * dZ))
            after = None if new is None else nesterov_todd(new.Ft, new.Zt)
            central = after is not None and float(after.v[0]) ** 2 > _NEIGHBOURHOOD * float(after.v @ after.v) / d
            if new is not None and after is not None and (central or a < 0.05):
                self._centre(a)
                return new, a
            a *= 0.8
        return None, 0.0

    def solve(self, system: Complement, rhs: Matrix, tolerance: float) -> Matrix:
        solution = np.zeros_like(rhs)

        def add(step: float, direction: Array) -> None:
            nonlocal solution
            solution += step * direction

        count = conjugate_gradients(
            system, rhs, within_scaled_tolerance(system, system.T, tolerance), _MOST_ITERATIONS, add
        )
        self.progress.counters.cg_iterations += count
        return solution

    def _centre(self, length: float) -> None:
        if length > 0.8:
            self.sigma = max(0.3 * self.sigma, _LEAST_SIGMA)
        elif length > 0.5:
            self.sigma = max(0.6 * self.sigma, _LEAST_SIGMA)
        elif length < 0.3:
            self.sigma = min(2.0 * self.sigma, 0.8)
