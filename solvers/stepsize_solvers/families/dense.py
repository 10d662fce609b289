"""The Newton system as a dense matrix, for programs with up to a few thousand unknowns.

Where many directions are active the system is far from an entrywise multiplication, and no cheap preconditioner helps;
a factorisation does.  The unknowns are the entries (a ≤ b) of Y inside the blocks of the pattern, off-diagonal ones
scaled by √2, in a frame T: X⁺ = X + T Y Tᵀ.  A term Y ↦ Σ_j A_j Y B_jᵀ has the entries Σ_j (A_j)_ac (B_j)_be, so the
columns of the matrix for one row of Y are one product.

For F_j′(Y) = −H_jᵀ(ΛY + YΛ)H_j (𝒬 = identity) the term is, with P_j = Tᵀ H_j G_j H_jᵀ T and M_j = ΛP_j,

    (M_j Λ) Y P_j + P_j Y (M_j Λ) + M_j Y M_j + M_jᵀ Y M_jᵀ,

P_j Y P_j for a linear family, and an entrywise scaling E∘(P_j (E∘Y) P_j) with E_ab = λ_a + λ_b where Λ is diagonal.  A
Hadamard map is an entrywise scaling too, in the frame T = I.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack, solve_triangular

from stepsize_solvers.families.point import FamilyState, Model, Point, trace
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs import Indices, Matrix, Pattern, Program, Stack, Vector

# Λ counts as diagonal, as the basis C makes it for a single B, up to this fraction of its largest entry.
_DIAGONAL = 1e-12


def _applies(program: Program) -> bool:
    """Whether the system can be formed: for plain families, or linear ones with entrywise maps and a full X."""
    linear = program.pattern.is_full and all(f.B is None for f in program.families)
    fits = all(f.is_plain or (linear and f.Q.is_entrywise) for f in program.families)
    return program.pattern.W is None and fits


def dense_solver(model: Model, p: Point) -> Callable[[Matrix], Matrix] | None:
    """rhs ↦ Y with 𝓗(Y) = rhs in the basis C, by a Cholesky factorisation; None for other families or by rounding."""
    if not _applies(model.program):
        return None
    plain = all(f.is_plain for f in model.program.families)
    identity = np.eye(model.program.d)
    T, first = (p.C, identity) if plain else (identity, np.asarray(np.linalg.inv(p.X), dtype=np.float64))
    system = _System.empty(model.program.pattern)
    system.add([(first[None], first[None])])
    for state in p.states:
        _add_products(system, state, T)
        if state.Lam is not None:
            system.add([(state.Lam[None], state.Rt[None]), (state.Rt[None], state.Lam[None])])
        if state.slope:
            _add_determinant(system, state, T, first, model.program.root)
    factor, info = lapack.dpotrf(system.matrix, lower=1, overwrite_a=1)
    if info != 0:
        return None
    if plain:
        return lambda rhs: system.solve(factor, rhs)
    C_inverse = solve_triangular(p.C, identity, lower=True)
    return lambda rhs: sym(C_inverse @ system.solve(factor, C_inverse.T @ rhs @ C_inverse) @ C_inverse.T)


@dataclass(frozen=True, eq=False)
class _System:
    """The lower triangle of a matrix of the unknowns: entries (rows, cols) of Y, times ``scale``."""

    d: int
    rows: Indices
    cols: Indices
    scale: Vector
    matrix: Matrix

    @staticmethod
    def empty(pattern: Pattern) -> _System:
        parts = [np.array(np.triu_indices(s.stop - s.start)) + s.start for s in pattern.slices]
        rows, cols = np.concatenate(parts, axis=1)
        scale = np.where(rows == cols, 1.0, np.sqrt(2.0))
        return _System(pattern.d, rows, cols, scale, np.zeros((rows.size, rows.size), order="F"))

    def vector(self, Y: Matrix) -> Vector:
        """The unknowns of a symmetric matrix."""
        return np.asarray(self.scale * Y[self.rows, self.cols])

    def add(self, terms: list[tuple[Stack, Stack]], weights: Matrix | None = None) -> None:
        """Add Y ↦ W∘Σ A (W∘Y) Bᵀ over the pairs of A and B of all terms."""
        rows, cols = self.rows, self.cols
        left = np.concatenate([A for A, _ in terms]).transpose(1, 2, 0).copy()
        right = np.concatenate([B for _, B in terms]).transpose(0, 2, 1)
        factor = self.scale if weights is None else self.scale * weights[rows, cols]
        # The unknowns of one row of Y follow each other: their columns of the matrix are one product.
        for a, first in zip(*np.unique(rows, return_index=True), strict=True):
            of_row = slice(first, first + np.count_nonzero(rows == a))
            b, c, e = cols[of_row], rows[first:], cols[first:]
            products = np.tensordot(left[a], right[:, :, b], 1)  # (c, e, b)
            entries = products[c, e] + products[e, c]
            self.matrix[first:, of_row] += (0.5 * factor[of_row]) * factor[first:, None] * entries

    def solve(self, factor: Matrix, rhs: Matrix) -> Matrix:
        """Y from the Cholesky factor of the matrix."""
        y = lapack.dpotrs(factor, self.vector(rhs), lower=1)[0] / self.scale
        Y = np.zeros((self.d, self.d))
        Y[self.rows, self.cols] = y
        Y[self.cols, self.rows] = y
        return Y


def _add_products(system: _System, state: FamilyState, T: Matrix) -> None:
    """The last term of 𝓗 for one family."""
    P, family = T.T @ state.P @ T, state.family
    if state.Lam is None:
        system.add([(P, P)], None if family.is_plain else family.Q.hadamard_matrix)
        return
    lam = np.diagonal(state.Lam)
    if np.max(np.abs(state.Lam - np.diag(lam))) <= _DIAGONAL * np.max(lam):
        system.add([(P, P)], lam[:, None] + lam)
        return
    M = state.Lam @ P
    N = M @ state.Lam
    system.add([(N, P), (P, N), (M, M.mT), (M.mT, M)])


def _add_determinant(system: _System, state: FamilyState, T: Matrix, metric: Matrix, root: float) -> None:
    """The terms of c′ tr(Y): with t = the functional tr and w = that of ⟨P₂, ·⟩ in the frame T,

    c′² tr(G²) t tᵀ − c′(t wᵀ + w tᵀ) + c′ tr(Z) (metric ⊗ metric − t tᵀ/root).
    """
    t, w = system.vector(metric), system.vector(state.twice(sym(T.T @ state.family.Q.adjoint(state.P2) @ T)))
    total = state.slope * trace(state.Z)
    coefficient = state.slope**2 * float(np.sum(state.G**2)) - total / root
    matrix = system.matrix
    matrix += coefficient * np.outer(t, t) - state.slope * (np.outer(t, w) + np.outer(w, t))
    system.add([(total * metric[None], metric[None])])
