"""The program with one constraint 𝒬(D B D) ⪯ D and a block-diagonal D, in the working basis, without shortcuts.

C is block-diagonal with CCᵀ = D.  With Π the projection onto the blocks, B̃ = CᵀBC, Z̃ = CᵀZC, R̃ = Cᵀ𝒬*(Z)C and
F̃ = I − C⁻¹𝒬(CB̃Cᵀ)C⁻ᵀ,

    F′[X]  = X − C⁻¹ 𝒬(C (XB̃ + B̃X) Cᵀ) C⁻ᵀ
    F′*[Z] = Π( Z − (B̃N + NB̃) ),   N = Cᵀ 𝒬*(C⁻ᵀZC⁻¹) C
    r₁     = I + F′*[Z̃]
    K[X]   = X + Π(B̃XR̃ + R̃XB̃).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsize_solvers.numerics import (
    Array,
    Bounds,
    Counters,
    Scaling,
    cholesky,
    cholesky_of_each,
    conjugate_gradients,
    eigh,
    inner,
    log_dets_from_cholesky,
    smallest_eigenvalue,
    sym,
    transposed,
    triangular_inverse,
    within_scaled_tolerance,
)
from stepsize_solvers.programs import Hadamard, Matrix, Pattern, PositiveMap
from stepsize_solvers.single.inverse import ChebyshevInverse, Interval, chebyshev_inverse
from stepsize_solvers.single.newton import DIAGONAL_FLOOR, NewtonStep
from stepsize_solvers.single.schur import effective_beta

# Eigenvalues of a block of B below this fraction of the largest are raised to it: powers of them are only rounding.
_EIGENVALUE_FLOOR = 1e-14


@dataclass(frozen=True, eq=False)
class BlockPoint:
    """(D, Z) in the working basis, or a stack of such pairs."""

    C: Matrix
    C_inverse: Matrix
    log_det: Any
    Bt: Matrix
    Zt: Matrix
    Rt: Matrix
    Ft: Matrix

    @property
    def d(self) -> int:
        return int(self.C.shape[-1])

    @property
    def D(self) -> Matrix:
        return sym(self.C @ transposed(self.C))

    @property
    def Z(self) -> Matrix:
        return sym(transposed(self.C_inverse) @ self.Zt @ self.C_inverse)

    def members(self, which: Any) -> BlockPoint:
        """Some of the pairs of a stack, or one of them."""
        return BlockPoint(*(getattr(self, name)[which] for name in _FIELDS))

    @staticmethod
    def joined(stacks: Sequence[BlockPoint]) -> BlockPoint:
        """The pairs of several stacks in one."""
        return BlockPoint(*(np.concatenate([getattr(p, name) for p in stacks]) for name in _FIELDS))


_FIELDS = tuple(one.name for one in fields(BlockPoint))


class BlockModel:
    """maximise log det D subject to 𝒬(D B D) ⪯ D, D block-diagonal; B is one matrix, or a stack with a map for each."""

    def __init__(self, B: Matrix, Q: PositiveMap, pattern: Pattern) -> None:
        self.B = B
        self.Q = Q
        self.pattern = pattern
        self.mask = pattern.blocks(np.ones(B.shape[-2:]))
        self.beta = effective_beta(Q)

    def members(self, which: Any) -> BlockModel:
        """Some of the problems of a stack; their maps are Hadamard products."""
        P = self.Q.hadamard_matrix
        assert P is not None
        return BlockModel(self.B[which], Hadamard(P[which]), self.pattern)

    @property
    def d(self) -> int:
        return int(self.B.shape[-1])

    @property
    def single_precision(self) -> bool:
        """Directions are computed in float64: blocks are small and gain little."""
        return False

    # ---------------------------------------------------------------- points

    def _basis(self, K: Matrix) -> Matrix:
        """A block-diagonal rotation that diagonalises the diagonal blocks of KᵀBK."""
        U = np.zeros_like(K) + np.eye(self.d)
        for s in self.pattern.slices:
            if s.stop - s.start > 1:
                block = K[..., s, s]
                U[..., s, s] = eigh(sym(transposed(block) @ self.B[..., s, s] @ block))[1]
        return U

    def point(self, D: Matrix, Z: Matrix) -> BlockPoint | None:
        """The point (D, Z), or None when D (one of a stack) is not numerically positive definite."""
        K = cholesky(self.mask * D)
        if K is None:
            return None
        U = self._basis(K)
        C = K @ U
        C_inverse = transposed(U) @ triangular_inverse(K)
        return self._assemble(C, C_inverse, log_dets_from_cholesky(K), sym(transposed(C) @ Z @ C))

    def lowered(self, p: BlockPoint) -> BlockPoint | None:
        """None: points are kept in double precision."""
        del p
        return None

    def advance(self, p: BlockPoint, X: Matrix, dZt: Matrix, to_double: bool = False) -> BlockPoint | None:
        """The point (C(I + X)Cᵀ, Z + dZ); None when I + X (one of a stack) is not positive definite."""
        del to_double
        K = cholesky(np.eye(self.d) + X)
        if K is None:
            return None
        U = self._basis(p.C @ K)
        KU = K @ U
        C_inverse = (transposed(U) @ triangular_inverse(K)) @ p.C_inverse
        Zt = sym(transposed(KU) @ (p.Zt + dZt) @ KU)
        return self._assemble(p.C @ KU, C_inverse, p.log_det + log_dets_from_cholesky(K), Zt)

    def _assemble(self, C: Matrix, C_inverse: Matrix, log_det: Any, Zt: Matrix) -> BlockPoint:
        Bt = sym(transposed(C) @ self.B @ C)
        Rt = sym(transposed(C) @ self.Q.adjoint(transposed(C_inverse) @ Zt @ C_inverse) @ C)
        Ft = sym(np.eye(self.d) - C_inverse @ self.Q.apply(C @ Bt @ transposed(C)) @ transposed(C_inverse))
        return BlockPoint(C, C_inverse, log_det, Bt, Zt, Rt, Ft)

    # ---------------------------------------------------------------- derivatives

    def slope(self, p: BlockPoint, X: Matrix) -> Matrix:
        """F₁ = F′[X]."""
        M = X @ p.Bt
        image = self.Q.apply(p.C @ (M + transposed(M)) @ transposed(p.C))
        return sym(X - p.C_inverse @ image @ transposed(p.C_inverse))

    def adjoint(self, p: BlockPoint, Zt: Matrix) -> Matrix:
        """F′*[Z], a matrix with the pattern."""
        R = transposed(p.C) @ self.Q.adjoint(transposed(p.C_inverse) @ Zt @ p.C_inverse) @ p.C
        M = p.Bt @ R
        return np.asarray(self.mask * sym(Zt - (M + transposed(M))))

    def dual_residual(self, p: BlockPoint) -> Matrix:
        """r₁ = I + F′*[Z̃]."""
        return np.asarray(np.eye(self.d) + self.adjoint(p, p.Zt))

    def curvature(self, p: BlockPoint, X: Matrix) -> Matrix:
        """K[X]."""
        M = p.Bt @ X @ p.Rt
        return np.asarray(self.mask * (X + M + transposed(M)))

    def bend(self, p: BlockPoint, X: Matrix) -> Matrix:
        """F₂ with F̃(I + aX) = F̃ + aF′[X] + a²F₂."""
        image = self.Q.apply(p.C @ (X @ p.Bt @ X) @ transposed(p.C))
        return -sym(p.C_inverse @ image @ transposed(p.C_inverse))

    def curvature_of_residual(self, p: BlockPoint, X: Matrix, dZt: Matrix) -> Matrix:
        """Second-order part of r₁ along (aX, a dZ)."""
        dR = transposed(p.C) @ self.Q.adjoint(transposed(p.C_inverse) @ dZt @ p.C_inverse) @ p.C
        M = p.Bt @ X @ dR
        return np.asarray(self.mask * sym(X @ X - (M + transposed(M))))

    # ---------------------------------------------------------------- bounds

    def bounds(self, p: BlockPoint, factor: Matrix | None, near: bool = True) -> Bounds:
        """The certified interval at D, or at its repaired multiple when ``near``."""
        del factor  # only large full problems profit from a known factor
        return self.bounds_of_each(p.members(None), np.array([near]))[0]

    def bounds_of_each(self, p: BlockPoint, near: NDArray[np.bool_]) -> list[Bounds]:
        """The same for the members of a stack."""
        d, t = self.d, np.ones(len(near))
        if near.any():
            t[near] = 1.0 / (1.0 - smallest_eigenvalue(p.Ft[near]))
        M = p.Bt @ p.Rt
        energy = t * t * inner(p.Rt, p.Bt)[:, 0, 0]
        lower = p.log_det + d * np.log(t)
        K, found = cholesky_of_each(self.mask * (t[:, None, None] * (M + transposed(M)) - p.Zt))
        found = found & (energy > 0.0)
        energy = np.where(found, energy, float(d))
        upper = np.where(found, d * np.log(energy / d) - log_dets_from_cholesky(K) + p.log_det, np.inf)
        ends = (lower.tolist(), upper.tolist(), t.tolist(), (d / energy).tolist())
        return [Bounds(*numbers) for numbers in zip(*ends, strict=True)]

    def confirmed(self, p: BlockPoint) -> Bounds | None:
        """The bounds computed from D and Z themselves, free of the rounding that the updates of C gathered."""
        fresh = self.point(p.D, p.Z)
        return None if fresh is None else self.bounds(fresh, None)

    # ---------------------------------------------------------------- Newton system

    def system(
        self,
        p: BlockPoint,
        scaling: Scaling,
        dtype: type[np.floating[Any]],
        counters: Counters,
        known: Interval | None = None,
    ) -> BlockSystem:
        """The Schur complement; always in double precision."""
        del dtype
        b = p.Bt.diagonal(0, -2, -1)
        outer = _outer(b, p.Rt.diagonal(0, -2, -1))
        J = 1.0 + outer + transposed(outer)
        inverse = chebyshev_inverse(lambda X: self.curvature(p, X), J, mask=self.mask, known=known)
        V2 = scaling.V * scaling.V
        h = self.mask * (1.0 - self.beta * (b[..., :, None] + b[..., None, :])) ** 2 / J
        T = _outer(scaling.t, scaling.t)
        preconditioner = 1.0 / (transposed(V2) @ h @ V2 + DIAGONAL_FLOOR + T)
        return BlockSystem(self, p, scaling, inverse, T, preconditioner, counters)


@dataclass(frozen=True, eq=False)
class BlockSystem:
    """Y ↦ Vᵀ F′ p(K) F′* [V Y Vᵀ] V + T∘Y, and the solution of the Newton system with it."""

    model: BlockModel
    p: BlockPoint
    scaling: Scaling
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array
    counters: Counters

    def __call__(self, Y: Array) -> Array:
        V = self.scaling.V
        X = self.inverse(self.model.adjoint(self.p, V @ Y @ transposed(V)))
        return np.asarray(transposed(V) @ self.model.slope(self.p, X) @ V + self.T * Y)

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def inner(self, Y: Array, Y2: Array) -> Any:
        return inner(Y, Y2)

    def solve(self, r1: Matrix, r2: Matrix, tolerance: Any, max_iterations: int) -> NewtonStep:
        """Directions for r₁ in the working basis and r₂ in the basis V."""
        V = self.scaling.V
        b = r2 - transposed(V) @ self.model.slope(self.p, self.inverse(r1)) @ V
        solution = np.zeros_like(b)

        def add(step: Any, direction: Array) -> None:
            nonlocal solution
            solution += step * direction

        finished = within_scaled_tolerance(self, self.T, tolerance)
        iterations = conjugate_gradients(self, b, finished, max_iterations, add)
        dZt = sym(V @ solution @ transposed(V))
        X = sym(self.inverse(r1 + self.model.adjoint(self.p, dZt)))
        self.counters.cg_iterations += iterations
        self.counters.products += iterations * (14.0 + 2.0 * self.inverse.degree) + 30.0
        return NewtonStep(X, dZt, iterations)


def _outer(a: Array, b: Array) -> Array:
    """abᵀ, for two vectors or stacks of them."""
    return np.asarray(a[..., :, None] * b[..., None, :])


def block_start(model: BlockModel, fraction: float) -> BlockPoint | None:
    """The best of three block-diagonal powers of B, scaled inside, with the dual Z = μF⁻¹, ⟨Z, 𝒬(DBD)⟩ = d."""
    best: tuple[float, Matrix] | None = None
    for exponent in (0.0, 0.5, 1.0):
        W = np.zeros_like(model.B)
        log_det = 0.0
        for s in model.pattern.slices:
            w, U = eigh(sym(model.B[s, s]))
            w = np.maximum(w, _EIGENVALUE_FLOOR * w[-1]) ** -exponent
            # Exactly I for the exponent 0: rounding errors of UUᵀ are too much for a map with coefficients of 10³⁰.
            W[s, s] = (U * w) @ U.T if exponent else np.eye(len(w))
            log_det += float(np.sum(np.log(w)))
        t = largest_multiple(model, W)
        if t is not None and (best is None or log_det + model.d * np.log(t) > best[0]):
            best = (log_det + model.d * float(np.log(t)), (fraction * t) * W)
    return None if best is None else central_point(model, best[1])


def central_point(model: BlockModel, D: Matrix) -> BlockPoint | None:
    """D with the dual Z = μF⁻¹, ⟨Z, 𝒬(DBD)⟩ = d; None unless D (each of a stack) is strictly feasible."""
    p = model.point(D, np.zeros_like(D))
    K = None if p is None else cholesky(p.Ft)
    if p is None or K is None:
        return None
    half = triangular_inverse(K)
    Zt = transposed(half) @ half
    Zt = Zt * (model.d / inner(Zt, np.eye(model.d) - p.Ft))
    return model.point(D, sym(transposed(p.C_inverse) @ Zt @ p.C_inverse))


def largest_multiple(model: BlockModel, W: Matrix) -> float | None:
    """The largest t with 𝒬(tW B tW) ⪯ tW; None when W is not numerically positive definite."""
    p = model.point(W, np.zeros_like(W))
    top = math.nan if p is None else 1.0 - smallest_eigenvalue(p.Ft)
    return 1.0 / top if top > 0.0 else None
