"""Diagonal stepsizes for M = Diag(a) + VVᵀ with a thin V (d×r): a convex program in an r×r matrix.

With x = 1/(a + 1/w) the condition M ⪯ Diag(1/x) says Diag(1/w) ⪰ VVᵀ, that is S(w) = Σ w_j v_jv_jᵀ ⪯ I, and log x_j is
concave in w_j.  For every Y ⪰ 0, with s_j = v_jᵀYv_j,

    Σ log x_j ≤ φ(Y) = tr Y + Σ ψ_j(s_j),      ψ_j(s) = max_w { log(w/(1 + a_jw)) − sw },

where the maximum is at 1/w = g = (s + √(s² + 4a_js))/2.  Points of the central path minimise φ(Y) − ν log det Y; there
I − S(w) = νY⁻¹, so that w is feasible and the gap is ⟨Y, I − S⟩ = νr.  For Y = KKᵀ, Ṽ = VK and changes
Y = K(I + Z)Kᵀ the gradient is KᵀK − ṼᵀDiag(w)Ṽ − νI and the Hessian

    Z ↦ Ṽᵀ Diag(ψ″∘diag(ṼZṼᵀ)) Ṽ + νZ,

applied by products with some of the rows where there are many more than unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.linalg import eigh, sym
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress, Work
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Matrix, Status, Vector, add_to_diagonal

_PATIENCE = 30  # the first damped steps may widen the interval
_MARGIN = 0.3  # of the tolerance: what the proof loses by rounding needs room
_SHRINK = 0.1
_LEAST_SHARE = 1e-6  # of the largest eigenvalue: what is below is taken for none
# A decrement √(gradient · step/ν) below this is close to the path.
_CLOSE = 0.5
_MOST_PRODUCTS = 100  # of one Newton step; preconditioned, it takes two to ten


@dataclass(frozen=True, eq=False)
class _Problem:
    """a ≥ 0, V, and the rows by which the Hessian is known."""

    a: Vector
    V: Matrix
    rows: slice

    @property
    def weight(self) -> float:
        """Rows that each of the chosen ones stands for."""
        return len(self.a) / len(range(*self.rows.indices(len(self.a))))

    def chunks(self) -> Iterator[slice]:
        for start in range(0, len(self.a), Sizes.ROWS_AT_ONCE):
            yield slice(start, start + Sizes.ROWS_AT_ONCE)


def _inverse_weights(a: Vector, s: Vector) -> Vector:
    """g = 1/w."""
    return np.asarray(0.5 * (s + np.sqrt(s * (s + 4.0 * a))))


@dataclass(frozen=True, eq=False)
class LowRankPoint:
    """Y = KKᵀ with s, g and S̃ = ṼᵀDiag(w)Ṽ."""

    problem: _Problem
    K: Matrix
    s: Vector
    g: Vector
    St: Matrix

    @staticmethod
    def at(problem: _Problem, K: Matrix) -> LowRankPoint:
        r = len(K)
        s, g, St = np.empty_like(problem.a), np.empty_like(problem.a), np.zeros((r, r))
        for part in problem.chunks():
            Vt = problem.V[part] @ K
            s[part] = np.einsum("ij,ij->i", Vt, Vt)
            g[part] = _inverse_weights(problem.a[part], s[part])
            # A row of zeros has g = 0: its x = 1/a is free of the condition.
            Vt /= np.sqrt(np.where(g[part] > 0.0, g[part], 1.0))[:, None]
            St += Vt.T @ Vt
        # In the eigenvectors of S̃ the Hessian is nearly diagonal but for the diagonal entries of Z among themselves.
        values, rotation = eigh(sym(St))
        return LowRankPoint(problem, K @ rotation, s, g, np.diag(values))

    @cached_property
    def spread(self) -> Matrix:
        """KᵀK, the identity of the condition in the basis K."""
        return sym(self.K.T @ self.K)

    @cached_property
    def value(self) -> float:
        """φ(Y)."""
        # s/g = s w, which tends to zero with s
        share = np.divide(self.s, self.g, out=np.zeros_like(self.s), where=self.g > 0.0)
        return float(np.trace(self.spread) - np.log(self.problem.a + self.g).sum() - share.sum())

    @cached_property
    def largest(self) -> float:
        """λmax(S(w))."""
        inverse = np.linalg.inv(self.K)
        return float(eigh(sym(inverse.T @ self.St @ inverse))[0][-1])

    @cached_property
    def bounds(self) -> Bounds:
        lower = -float(np.log(self.problem.a + self.g * self.largest).sum())
        return Bounds(lower, self.value)

    def gradient(self, nu: float) -> Matrix:
        return self.spread - self.St - nu * np.eye(len(self.K))

    @cached_property
    def sampled(self) -> tuple[Matrix, Vector]:
        """Rows of Ṽ and their ψ″, times what they stand for."""
        rows = self.problem.rows
        s, g, a = self.s[rows], self.g[rows], self.problem.a[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = 0.5 * (1.0 + (s + 2.0 * a) / np.sqrt(s * (s + 4.0 * a)))
            curvature = np.where(g > 0.0, slope / (g * g), 0.0)
        return self.problem.V[rows] @ self.K, self.problem.weight * curvature

    def step(self, nu: float, work: Work) -> tuple[Matrix, float]:
        """The Newton direction Z at ν by preconditioned conjugate gradients, and its decrement √(−⟨gradient, Z⟩/ν)."""
        hessian, gradient = _Hessian(*self.sampled, nu), self.gradient(nu)
        enough = 1e-4 * hessian.inner(gradient, hessian.precondition(gradient))
        Z = conjugate_gradients(hessian, -gradient, lambda _, product: not product > enough, _MOST_PRODUCTS, work)
        return sym(Z), math.sqrt(max(-float(np.vdot(gradient, Z)), 0.0) / nu)

    @property
    def x(self) -> Vector:
        """That of w/λmax(S(w)), which is feasible."""
        return np.asarray(1.0 / (self.problem.a + self.g * self.largest))


@dataclass(frozen=True, eq=False)
class _Hessian(Operator):
    """Z ↦ ṼᵀDiag(ψ″∘diag(ṼZṼᵀ))Ṽ + νZ, and its inverse on diagonal Z, that of its diagonal elsewhere."""

    Vt: Matrix
    curvature: Vector
    nu: float

    @cached_property
    def _parts(self) -> tuple[Matrix, Matrix]:
        squares = self.Vt * self.Vt
        fourth = (squares * self.curvature[:, None]).T @ squares
        scale = 2.0 * fourth + self.nu
        add_to_diagonal(fourth, self.nu)
        return scale, np.asarray(np.linalg.inv(fourth), dtype=np.float64)

    def __call__(self, Z: Matrix) -> Matrix:
        rows = np.einsum("ij,ij->i", self.Vt @ Z, self.Vt)
        return np.asarray((self.Vt * (self.curvature * rows)[:, None]).T @ self.Vt + self.nu * Z)

    def precondition(self, Z: Matrix) -> Matrix:
        scale, inverse = self._parts
        out = Z / scale
        np.fill_diagonal(out, inverse @ Z.diagonal())
        return out


@dataclass
class _Path:
    """Newton steps at a falling ν; decrement: of the last one."""

    progress: Progress[LowRankPoint]
    nu: float
    decrement: float = math.inf

    def details(self, p: LowRankPoint) -> dict[str, str]:
        return {"nu": f"{self.nu * len(p.K) / len(p.s):.1e}", "decrement": f"{self.decrement:.1e}"}

    def next(self, p: LowRankPoint) -> LowRankPoint | None:
        """The point after one step, None when none goes down; ν falls where the path is close."""
        last = 0.1 * self.progress.limits.tol * len(p.s) / len(p.K)
        Z, self.decrement = p.step(self.nu, self.progress.work)
        if self.decrement < _CLOSE and self.nu > last:
            self.nu = max(_SHRINK * self.nu, last)
            Z, self.decrement = p.step(self.nu, self.progress.work)
        return _moved(p, Z, self.nu)


def solve_low_rank(a: Vector, V: Matrix, limits: Limits) -> tuple[Status, Progress[LowRankPoint]]:
    """Follow the central path until the gap is within the tolerance, for a ≥ 0 with M ≻ 0."""
    d, r = V.shape
    wanted = Sizes.ROWS_FOR_UNKNOWN * r * (r + 1) // 2
    problem = _Problem(a, V, slice(0, d, max(1, d // wanted)))
    progress: Progress[LowRankPoint] = Progress(d, limits, _MARGIN, _PATIENCE)
    # At a central point the gap is νr; at ν = d/r it is one for each coordinate.
    path = _Path(progress, d / r)
    first = _first_point(problem, path.nu)
    return progress.run(lambda: progress.follow(first, lambda p: p.bounds, path.details, path.next)), progress


def _first_point(problem: _Problem, nu: float) -> LowRankPoint:
    """Y⁻¹ in proportion to S(1/(a + ‖v‖²)), with the factor c that minimises φ(cY) − νr log c."""
    V, r = problem.V, problem.V.shape[1]
    S = np.zeros((r, r))
    for part in problem.chunks():
        rows = V[part]
        S += (rows / (problem.a[part] + np.einsum("ij,ij->i", rows, rows))[:, None]).T @ rows
    values, vectors = eigh(sym(S))
    # Along columns of V that depend on others Y counts for nothing: a larger one would make the rest small beside it.
    p = LowRankPoint.at(problem, np.asarray(vectors / np.sqrt(np.maximum(values, _LEAST_SHARE * values[-1]))))
    trace = float(np.trace(p.spread))

    def slope(log_c: float) -> float:
        """The derivative in log c, which grows with c."""
        s = math.exp(log_c) * p.s
        share = np.divide(s, _inverse_weights(problem.a, s), out=np.zeros_like(s), where=s > 0.0)
        return float(math.exp(log_c) * trace - share.sum() - nu * r)

    # Σ sw lies between 0 and d: the root lies between those of both.
    low, high = (math.log(top / trace) for top in (nu * r, nu * r + len(V)))
    while high - low > 0.02:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
    return LowRankPoint.at(problem, math.exp(0.25 * (low + high)) * p.K)


def _moved(p: LowRankPoint, Z: Matrix, nu: float) -> LowRankPoint | None:
    """The point after a step along Z that lowers φ − ν log det; None when no step does."""
    values, vectors = eigh(Z)
    slope = float(np.vdot(p.gradient(nu), Z))
    length = min(1.0, 0.9 / max(-float(values[0]), 1e-300))
    while length > 1e-6:
        grown = 1.0 + length * values
        new = LowRankPoint.at(p.problem, p.K @ (vectors * np.sqrt(grown)))
        change = new.value - p.value - nu * float(np.log(grown).sum())
        # rounding of the sums of d logarithms
        if change <= 0.1 * length * slope + 1e-14 * len(p.s) * (1.0 + abs(p.value) / len(p.s)):
            return new
        length *= 0.5
    return None
