"""The Newton system as a dense matrix, for programs with up to a few thousand unknowns.

Where many directions are active the system is far from an entrywise multiplication, and no cheap preconditioner helps;
a factorisation does.  The unknowns are the entries (a ≤ b) of Y inside the blocks of the pattern, off-diagonal ones
scaled by √2, in a frame T: X⁺ = X + T Y Tᵀ.  A term Y ↦ Σ_j A_j Y B_jᵀ has the entries Σ_j (A_j)_ac (B_j)_bd, so a row
of the matrix is one product (d×n)(n×d).

For F_j′(Y) = −H_jᵀ(ΛY + YΛ)H_j (𝒬 = identity) the term is, with P_j = Tᵀ H_j G_j H_jᵀ T and M_j = ΛP_j,

    (M_j Λ) Y P_j + P_j Y (M_j Λ) + M_j Y M_j + M_jᵀ Y M_jᵀ,

P_j Y P_j for a linear family, and an entrywise scaling E∘(P_j (E∘Y) P_j) with E_ab = λ_a + λ_b where Λ is diagonal.  A
Hadamard map is an entrywise scaling too, in the frame T = I.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack, solve_triangular

from stepsize_solvers.families.point import FamilyState, Model, Point, trace, twice_symmetric
from stepsize_solvers.numerics import sym
from stepsize_solvers.programs import Family, Matrix, Stack


def unknowns(model: Model) -> int:
    """How many numbers describe a direction; 0 when the dense form does not apply."""
    program = model.program
    if program.pattern.W is not None:
        return 0
    linear = all(f.B is None for f in program.families)
    full = program.pattern.is_full
    if not all(f.is_plain or (linear and full and f.Q.is_entrywise) for f in program.families):
        return 0
    return sum(size * (size + 1) // 2 for size in program.pattern.sizes)


def dense_solver(model: Model, p: Point) -> Callable[[Matrix], Matrix] | None:
    """rhs ↦ Y with 𝓗(Y) = rhs in the basis C, by a Cholesky factorisation; None when rounding prevents it."""
    program = model.program
    d = program.d
    rows, cols = _pairs(model)
    plain = all(f.is_plain for f in program.families)
    T = p.C if plain else np.eye(d)
    scale = np.where(rows == cols, 1.0, np.sqrt(2.0))
    size = rows.size
    H = np.zeros((size, size), order="F")
    first: Matrix = np.eye(d) if plain else np.asarray(np.linalg.inv(p.X), dtype=np.float64)
    groups: list[tuple[Matrix | None, list[tuple[Stack, Stack]]]] = [(None, [(first[None], first[None])])]
    groups += [_terms(f, s, T) for f, s in zip(program.families, p.states, strict=True)]
    for state in p.states:
        if state.Lam is not None:
            groups.append((None, [(state.Lam[None], state.Rt[None]), (state.Rt[None], state.Lam[None])]))
    for weights, terms in groups:
        _add(H, rows, cols, scale, weights, terms)
    for family, state in zip(program.families, p.states, strict=True):
        if state.slope:
            _add_determinant(H, rows, cols, scale, model, family, state, p, T, first)
    factor, info = lapack.dpotrf(H, lower=1, overwrite_a=1)
    if info != 0:
        return None
    C_inverse = None if plain else solve_triangular(p.C, np.eye(d), lower=True)

    def solve(rhs: Matrix) -> Matrix:
        goal = rhs if C_inverse is None else C_inverse.T @ rhs @ C_inverse
        y, _ = lapack.dpotrs(factor, scale * goal[rows, cols], lower=1)
        Y = np.zeros((d, d))
        Y[rows, cols] = y / scale
        Y[cols, rows] = y / scale
        return Y if C_inverse is None else sym(C_inverse @ Y @ C_inverse.T)

    return solve


def _pairs(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Row and column indices a ≤ b of the unknowns."""
    rows, cols = [], []
    for s in model.program.pattern.slices:
        i, j = np.triu_indices(s.stop - s.start)
        rows.append(i + s.start)
        cols.append(j + s.start)
    return np.concatenate(rows), np.concatenate(cols)


def _terms(family: Family, state: FamilyState, T: Matrix) -> tuple[Matrix | None, list[tuple[Stack, Stack]]]:
    """An entrywise weight and the products of the last term of 𝓗 for one family."""
    P = T.T @ state.P @ T
    if state.Lam is None:
        return (None if family.is_plain else family.Q.hadamard_matrix), [(P, P)]
    lam = np.diagonal(state.Lam)
    if np.max(np.abs(state.Lam - np.diag(lam))) <= 1e-12 * np.max(lam):  # the basis C diagonalises a single B
        return lam[:, None] + lam, [(P, P)]
    M = state.Lam @ P
    N = M @ state.Lam
    Mt = M.transpose(0, 2, 1)
    return None, [(N, P), (P, N), (M, Mt), (Mt, M)]


def _add(
    H: Matrix,
    rows: np.ndarray,
    cols: np.ndarray,
    scale: Matrix,
    weights: Matrix | None,
    terms: list[tuple[Stack, Stack]],
) -> None:
    """Add Y ↦ W∘Σ A (W∘Y) Bᵀ to the lower triangle of the matrix, which its factorisation reads."""
    # Index the rows first: left[a] is (n, d), so that one product gives all entries (c, d′) for a pair (a, b).
    left = np.concatenate([A for A, _ in terms]).transpose(1, 2, 0).copy()
    right = np.concatenate([B for _, B in terms]).transpose(1, 0, 2).copy()
    factor = scale if weights is None else scale * weights[rows, cols]
    places = rows * right.shape[2] + cols
    for k in range(rows.size):
        products = left[rows[k]] @ right[cols[k]]
        H[k:, k] += (0.5 * factor[k]) * factor[k:] * (products + products.T).ravel().take(places[k:])


def _add_determinant(
    H: Matrix,
    rows: np.ndarray,
    cols: np.ndarray,
    scale: Matrix,
    model: Model,
    family: Family,
    state: FamilyState,
    p: Point,
    T: Matrix,
    metric: Matrix,
) -> None:
    """The terms of c′ tr(Y): with t = the functional tr and w = that of ⟨P₂, ·⟩ in the frame T,

    c′² tr(G²) t tᵀ − c′(t wᵀ + w tᵀ) + c′ tr(Z) (metric ⊗ metric − t tᵀ/root).
    """
    t = scale * metric[rows, cols]
    M = sym(T.T @ family.Q.adjoint(state.P2) @ T)
    w = scale * twice_symmetric(state.Lam, M)[rows, cols]
    total = state.slope * trace(state.Z)
    coefficient = state.slope**2 * float(np.sum(state.G**2)) - total / model.program.root
    H += coefficient * np.outer(t, t) - state.slope * (np.outer(t, w) + np.outer(w, t))
    _add(H, rows, cols, scale, None, [(total * metric[None], metric[None])])
