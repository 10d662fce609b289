"""Block patterns and several constraints: the general program in the working basis, without shortcuts.

    G_j(D) = C_j + a_j D + c_j τ E_j − 𝒬_j(D B_j D) ⪰ 0,   τ = det(D)^{1/d},   D block-diagonal (projection Π).

C is block-diagonal with CCᵀ = D.  With B̃_j = CᵀB_jC, Z̃_j = CᵀZ_jC, R̃_j = Cᵀ𝒬_j*(Z_j)C, G̃_j = C⁻¹G_jC⁻ᵀ and
Ẽ_j = C⁻¹E_jC⁻ᵀ,

    G′_j[X]  = a_j X + c_j (τ/d) tr(X) Ẽ_j − C⁻¹ 𝒬_j(C (XB̃_j + B̃_jX) Cᵀ) C⁻ᵀ
    G′_j*[Z] = Π( a_j Z + c_j (τ/d) ⟨Ẽ_j, Z⟩ I − (B̃_jN + NB̃_j) ),   N = Cᵀ 𝒬_j*(C⁻ᵀZC⁻¹) C
    r₁       = I + Σ_j G′_j*[Z̃_j]
    K[X]     = (1 + w) X − (w/d) tr(X) I + Σ_j Π(B̃_jXR̃_j + R̃_jXB̃_j),   w = Σ_j c_j (τ/d) ⟨Ẽ_j, Z̃_j⟩.

Duals and constraints are stacks of shape (m, d, d).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    Scaling,
    add_to_diagonal,
    cholesky,
    conjugate_gradients,
    eigh,
    log_det_from_cholesky,
    smallest_eigenvalue,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Constraint, LogDetProgram, Matrix, block_slices
from stepsize_solvers.single.inverse import ChebyshevInverse, Interval, chebyshev_inverse
from stepsize_solvers.single.newton import DIAGONAL_FLOOR, Counters, Direction
from stepsize_solvers.single.point import Bounds
from stepsize_solvers.single.schur import effective_beta


@dataclass(frozen=True, eq=False)
class GeneralPoint:
    """(D, Z_1, …, Z_m) in the working basis."""

    C: Matrix
    C_inverse: Matrix
    log_det: float
    Bt: Matrix  # (m, d, d), zero where a constraint has no quadratic term
    Et: Matrix  # (m, d, d), zero where a constraint has no determinant term
    constant: Matrix  # C̃_j, zero where missing
    Zt: Matrix
    Rt: Matrix
    Ft: Matrix

    @property
    def d(self) -> int:
        return int(self.C.shape[0])

    @property
    def D(self) -> Matrix:
        return sym(self.C @ self.C.T)

    @property
    def Z(self) -> Matrix:
        return sym(self.C_inverse.T @ self.Zt @ self.C_inverse)


class GeneralModel:
    """The program of :mod:`stepsize_solvers.programs.program` for block patterns and any number of constraints."""

    def __init__(self, program: LogDetProgram) -> None:
        self.constraints: tuple[Constraint, ...] = program.constraints
        self.slices = block_slices(program.pattern.sizes)
        self._d = program.d
        self.mask = np.zeros((self.d, self.d))
        for s in self.slices:
            self.mask[s, s] = 1.0
        self.betas = [0.0 if con.Q is None else effective_beta(con.Q) for con in self.constraints]
        self.root_det = any(con.c != 0.0 for con in self.constraints)
        first = self.constraints[0]
        # Only then does a multiple of D have a feasible scale in closed form.
        self.homogeneous = len(self.constraints) == 1 and first.C is None and first.c == 0.0 and first.a == 1.0

    @property
    def d(self) -> int:
        return self._d

    @property
    def m(self) -> int:
        """Number of constraints."""
        return len(self.constraints)

    @property
    def single_precision(self) -> bool:
        """Directions are computed in float64: blocks are small, and the stacks of duals gain little."""
        return False

    # ---------------------------------------------------------------- points

    def _basis(self, K: Matrix) -> Matrix:
        """A block-diagonal rotation that diagonalises the diagonal blocks of Σ_j KᵀB_jK."""
        total = np.zeros((self.d, self.d))
        for con in self.constraints:
            if con.B is not None:
                total += con.B
        U = np.eye(self.d)
        for s in self.slices:
            if s.stop - s.start > 1:
                U[s, s] = eigh(sym(K[s, s].T @ total[s, s] @ K[s, s]))[1]
        return U

    def point(self, D: Matrix, Z: Matrix) -> GeneralPoint | None:
        """The point (D, Z), Z a stack, or None when D is not numerically positive definite."""
        K = cholesky(self.mask * D)
        if K is None:
            return None
        U = self._basis(K)
        C = K @ U
        C_inverse = U.T @ triangular_inverse(K)
        return self._assemble(C, C_inverse, log_det_from_cholesky(K), sym(C.T @ Z @ C))

    def lowered(self, p: GeneralPoint) -> GeneralPoint | None:
        """None: several constraints of different scales are kept in double precision."""
        del p
        return None

    def advance(self, p: GeneralPoint, X: Matrix, dZt: Matrix, to_double: bool = False) -> GeneralPoint | None:
        """The point (C(I + X)Cᵀ, Z + dZ); None when I + X is not positive definite."""
        del to_double
        K = cholesky(np.eye(self.d) + X)
        if K is None:
            return None
        U = self._basis(p.C @ K)
        KU = K @ U
        C_inverse = (U.T @ triangular_inverse(K)) @ p.C_inverse
        Zt = sym(KU.T @ (p.Zt + dZt) @ KU)
        return self._assemble(p.C @ KU, C_inverse, p.log_det + log_det_from_cholesky(K), Zt)

    def _assemble(self, C: Matrix, C_inverse: Matrix, log_det: float, Zt: Matrix) -> GeneralPoint:
        shape = (self.m, self.d, self.d)
        Bt, Et, constant, Rt, Ft = (np.zeros(shape) for _ in range(5))
        tau = float(np.exp(log_det / self.d))
        for j, con in enumerate(self.constraints):
            F = con.a * np.eye(self.d)
            if con.C is not None:
                constant[j] = C_inverse @ con.C @ C_inverse.T
                F = F + constant[j]
            if con.E is not None and con.c != 0.0:
                Et[j] = C_inverse @ con.E @ C_inverse.T
                F = F + (con.c * tau) * Et[j]
            if con.Q is not None and con.B is not None:
                Bt[j] = C.T @ con.B @ C
                Rt[j] = C.T @ con.Q.adjoint(C_inverse.T @ Zt[j] @ C_inverse) @ C
                F = F - C_inverse @ con.Q.apply(C @ Bt[j] @ C.T) @ C_inverse.T
            Ft[j] = F
        return GeneralPoint(C, C_inverse, log_det, sym(Bt), sym(Et), sym(constant), Zt, sym(Rt), sym(Ft))

    # ---------------------------------------------------------------- derivatives

    def _tau(self, p: GeneralPoint) -> float:
        return float(np.exp(p.log_det / self.d))

    def forward(self, p: GeneralPoint, X: Matrix) -> Matrix:
        """G′[X] as a stack."""
        out = np.empty((self.m, self.d, self.d))
        per = self._tau(p) / self.d * float(np.trace(X))
        for j, con in enumerate(self.constraints):
            out[j] = con.a * X
            if con.c != 0.0:
                out[j] += (con.c * per) * p.Et[j]
            if con.Q is not None:
                M = X @ p.Bt[j]
                out[j] -= p.C_inverse @ con.Q.apply(p.C @ (M + M.T) @ p.C.T) @ p.C_inverse.T
        return sym(out)

    def adjoint(self, p: GeneralPoint, Zt: Matrix) -> Matrix:
        """Σ_j G′_j*[Z_j], a matrix with the pattern."""
        out = np.zeros((self.d, self.d))
        per = self._tau(p) / self.d
        for j, con in enumerate(self.constraints):
            if con.a != 0.0:
                out += con.a * Zt[j]
            if con.c != 0.0:
                add_to_diagonal(out, con.c * per * float(np.vdot(p.Et[j], Zt[j])))
            if con.Q is not None:
                N = p.C.T @ con.Q.adjoint(p.C_inverse.T @ Zt[j] @ p.C_inverse) @ p.C
                M = p.Bt[j] @ N
                out -= M + M.T
        return np.asarray(self.mask * sym(out))

    def dual_residual(self, p: GeneralPoint) -> Matrix:
        """r₁ = I + Σ_j G′_j*[Z̃_j]."""
        return np.asarray(np.eye(self.d) + self.adjoint(p, p.Zt))

    def _weight(self, p: GeneralPoint) -> float:
        per = self._tau(p) / self.d
        return sum(con.c * per * float(np.vdot(p.Et[j], p.Zt[j])) for j, con in enumerate(self.constraints))

    def curvature(self, p: GeneralPoint, X: Matrix, Rt: Matrix | None = None) -> Matrix:
        """K[X]."""
        R = p.Rt if Rt is None else Rt
        out = X.copy()
        for j, con in enumerate(self.constraints):
            if con.Q is not None:
                M = p.Bt[j] @ X @ R[j]
                out += M + M.T
        if self.root_det:
            w = self._weight(p)
            out += w * X
            add_to_diagonal(out, -(w / self.d * float(np.trace(X))))
        return np.asarray(self.mask * out)

    def slope(self, p: GeneralPoint, X: Matrix) -> Matrix:
        """F₁ = G′[X]."""
        return self.forward(p, X)

    def bend(self, p: GeneralPoint, X: Matrix) -> Matrix:
        """F₂ with G̃(I + aX) = G̃ + aG′[X] + a²F₂, up to third order in the determinant term."""
        second = np.zeros((self.m, self.d, self.d))
        trace = float(np.trace(X))
        bend = 0.5 * self._tau(p) / self.d * (trace * trace / self.d - float(np.vdot(X, X)))
        for j, con in enumerate(self.constraints):
            if con.c != 0.0:
                second[j] += (con.c * bend) * p.Et[j]
            if con.Q is not None:
                second[j] -= p.C_inverse @ con.Q.apply(p.C @ (X @ p.Bt[j] @ X) @ p.C.T) @ p.C_inverse.T
        return sym(second)

    def curvature_of_residual(self, p: GeneralPoint, X: Matrix, dZt: Matrix) -> Matrix:
        """Second-order part of r₁ along (aX, a dZ) without the third derivative of det(D)^{1/d}."""
        out = X @ X
        for j, con in enumerate(self.constraints):
            if con.Q is not None:
                dR = p.C.T @ con.Q.adjoint(p.C_inverse.T @ dZt[j] @ p.C_inverse) @ p.C
                M = p.Bt[j] @ X @ dR
                out -= M + M.T
        return np.asarray(self.mask * sym(out))

    # ---------------------------------------------------------------- bounds

    def bounds(self, p: GeneralPoint, factor: Matrix | None, near: bool = True) -> Bounds:
        """The certified interval at D, or at its repaired multiple when the program is homogeneous and ``near``."""
        del factor  # only large full problems profit from a known factor
        d = self.d
        if self.homogeneous:
            t = 1.0 / (1.0 - smallest_eigenvalue(p.Ft[0])) if near else 1.0
            M = p.Bt[0] @ p.Rt[0]
            Q = self.mask * (t * (M + M.T) - p.Zt[0])
        else:
            t = 1.0
            Q = np.eye(d) - self.dual_residual(p)
        energy = t * t * float(np.vdot(p.Rt, p.Bt)) + float(np.vdot(p.Zt, p.constant))
        lower = p.log_det + d * float(np.log(t))
        K = cholesky(Q)
        if K is None or not energy > 0.0:
            return Bounds(lower, np.inf, t, 1.0)
        upper = d * float(np.log(energy / d)) - log_det_from_cholesky(K) + p.log_det
        return Bounds(lower, upper, t, d / energy)

    def confirmed(self, p: GeneralPoint) -> Bounds | None:
        """The bounds computed from D and Z themselves, free of the rounding that the updates of C gathered."""
        fresh = self.point(p.D, p.Z)
        return None if fresh is None else self.bounds(fresh, None)

    # ---------------------------------------------------------------- Newton system

    def system(
        self,
        p: GeneralPoint,
        scaling: Scaling,
        dtype: type[np.floating[Any]],
        counters: Counters,
        known: Interval | None = None,
    ) -> GeneralSystem:
        """The Schur complement over all constraints; always in double precision."""
        del dtype
        J = np.full((self.d, self.d), 1.0 + (self._weight(p) if self.root_det else 0.0))
        b = np.diagonal(p.Bt, axis1=1, axis2=2)
        r = np.diagonal(p.Rt, axis1=1, axis2=2)
        outer = np.einsum("ji,jk->ik", b, r)
        J += outer + outer.T
        inverse = chebyshev_inverse(lambda X: self.curvature(p, X), J, mask=self.mask, known=known)
        V2 = scaling.V * scaling.V
        diagonal = np.empty_like(p.Zt)
        for j, con in enumerate(self.constraints):
            h = self.mask * (con.a - self.betas[j] * (b[j][:, None] + b[j])) ** 2 / J
            diagonal[j] = V2[j].T @ h @ V2[j] + DIAGONAL_FLOOR
        T = scaling.t[:, :, None] * scaling.t[:, None, :]
        return GeneralSystem(self, p, scaling, inverse, T, 1.0 / (diagonal + T), counters)


@dataclass(frozen=True, eq=False)
class GeneralSystem:
    """Y ↦ Vᵀ G′ p(K) G′* [V Y Vᵀ] V + T∘Y on stacks, and the solution of the Newton system with it."""

    model: GeneralModel
    p: GeneralPoint
    scaling: Scaling
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array
    counters: Counters

    def __call__(self, Y: Array) -> Array:
        V = self.scaling.V
        Vt = V.swapaxes(-1, -2)
        X = self.inverse(self.model.adjoint(self.p, V @ Y @ Vt))
        return np.asarray(Vt @ self.model.forward(self.p, X) @ V + self.T * Y)

    def inner(self, Y: Array, Y2: Array) -> float:
        return float(np.vdot(Y, Y2))

    def solve(self, r1: Matrix, r2: Matrix, tolerance: float, max_iterations: int) -> Direction:
        """Directions for r₁ in the working basis and the stack r₂ in the bases V_j."""
        V = self.scaling.V
        Vt = V.swapaxes(-1, -2)
        b = r2 - Vt @ self.model.forward(self.p, self.inverse(r1)) @ V
        solution = np.zeros_like(b)

        def add(step: float, direction: Array) -> None:
            nonlocal solution
            solution += step * direction

        iterations = conjugate_gradients(self, b, tolerance, max_iterations, add)
        dZt = sym(V @ solution @ Vt)
        X = sym(self.inverse(r1 + self.model.adjoint(self.p, dZt)))
        self.counters.cg_iterations += iterations
        per_iteration = 14.0 + 2.0 * self.inverse.degree
        self.counters.products += self.model.m * (iterations * per_iteration + 30.0)
        return Direction(X, dZt, iterations)


def feasible_scale(model: GeneralModel, W: Matrix) -> float | None:
    """A t with G_j(tW) ≻ 0 for every j, within a factor 1.1 of the largest; None when no t down to 10⁻¹² works."""

    def inside(t: float) -> bool:
        return all(cholesky(con.evaluate(t * W)) is not None for con in model.constraints)

    t = 1.0
    while not inside(t):
        t *= 0.25
        if t < 1e-12:
            return None
    while t < 1e12 and inside(4.0 * t):
        t *= 4.0
    high = 4.0 * t
    while high > 1.1 * t:
        middle = (t * high) ** 0.5
        t, high = (middle, high) if inside(middle) else (t, middle)
    return t


def general_start(model: GeneralModel, fraction: float) -> GeneralPoint | None:
    """Block-diagonal powers of the mean of the B_j, scaled inside, with Z_j = μ G_j⁻¹ and ⟨Z, …⟩ normalised."""
    total = sum((con.B for con in model.constraints if con.B is not None), np.zeros((model.d, model.d)))
    if not np.any(total):
        total = np.eye(model.d)
    best: tuple[float, Matrix] | None = None
    for exponent in (0.0, 0.5, 1.0):
        W = np.zeros((model.d, model.d))
        log_det = 0.0
        for s in model.slices:
            w, U = eigh(sym(total[s, s]))
            w = np.maximum(w, 1e-14 * w[-1]) ** -exponent
            # Exactly I for the exponent 0: rounding errors of UUᵀ are too much for a map with coefficients of 10³⁰.
            W[s, s] = (U * w) @ U.T if exponent else np.eye(len(w))
            log_det += float(np.sum(np.log(w)))
        t = feasible_scale(model, W)
        if t is not None and (best is None or log_det + model.d * np.log(t) > best[0]):
            best = (log_det + model.d * float(np.log(t)), (fraction * t) * W)
    if best is None:
        return None
    D = best[1]
    p = model.point(D, np.zeros((model.m, model.d, model.d)))
    if p is None:
        return None
    Zt = sym(np.linalg.inv(p.Ft))
    trial = model.point(D, sym(p.C_inverse.T @ Zt @ p.C_inverse))
    if trial is None:
        return None
    energy = float(np.vdot(trial.Rt, trial.Bt)) + float(np.vdot(trial.Zt, trial.constant))
    return model.point(D, (model.d / energy) * trial.Z)
