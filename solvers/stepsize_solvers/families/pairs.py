"""The active pairs of linear families taken exactly: a preconditioner whose Gram matrix costs O(d) for each entry.

For linear families the Newton operator is αY + TᵀT Y + (light terms), with one row of T for each pair (a, b) of columns
of one Ĥ_j = H_j V_j Diag(s_j)^{1/4}: in the basis C with C Cᵀ = X

    u_ab = σ_ab I − Cᵀ 𝒬*(S_ab) C,    S_ab = (ĥ_a ĥ_bᵀ + ĥ_b ĥ_aᵀ)/2,    σ_ab = c′⟨v̂_a, v̂_b⟩,

counted twice for a ≠ b.  For 𝒬(M) = βM + Diag(α∘diag M), which rand-k, independent sampling and the identity have,

    ⟨Cᵀ𝒬*(S_p)C, Cᵀ𝒬*(S_q)C⟩ = β_p β_q ⟨S_p, X S_q X⟩ + β_q⟨B_p, E_q⟩ + β_p⟨E_p, B_q⟩ + B_pᵀ(X∘X)B_q,

with B_p = α∘ĥ_a∘ĥ_b, E_p = (Xĥ_a)∘(Xĥ_b), and ⟨S_p, X S_q X⟩ is made of four entries of ĤᵀXĤ: no row of T, which has d²
entries, is ever formed.  (αI + TᵀT)⁻¹ = (I − Tᵀ(αI + TTᵀ)⁻¹T)/α then takes one factorisation of the size of the number
of pairs.  Its rounding errors, relative to the largest weight, only cost conjugate gradients an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.families.point import Model, Point
from stepsize_solvers.numerics import sym
from stepsize_solvers.programs import Indices, Matrix, Vector, add_to_diagonal

# A pair is taken when it outweighs the identity by this factor: lighter ones cost an iteration each at most.
_ACTIVE = 20.0
# The factorisation of all pairs, R³/3 operations, may cost as much as so many products with the whole system.
_PRODUCTS = 5.0
# The same after a solve that took many products, and how many pairs at most: their matrix takes 200 megabytes.
_SLOW_PRODUCTS = 200.0
_MOST = 5000


def applies_to(model: Model) -> bool:
    """Whether all families are linear with maps of the kind βM + Diag(α∘diag M), and X has no pattern."""
    program = model.program
    cheap = all(f.B is None and f.Q.diagonal_plus_scaled is not None for f in program.families)
    return program.pattern.is_full and cheap


@dataclass(frozen=True, eq=False)
class ActivePairs:
    """(αI + TᵀT)⁻¹ in the basis C.

    left, right: the two columns ĥ_a, ĥ_b of each pair as rows, shape (R, d); beta, sigma, weight: β_p, σ_p and √1 or
    √2; B: the B_p as rows, shape (R, d); factor: the Cholesky factor of αI + TTᵀ.
    """

    C: Matrix
    alpha: float
    left: Matrix
    right: Matrix
    beta: Vector
    sigma: Vector
    weight: Vector
    B: Matrix
    factor: Matrix

    def solve(self, Y: Matrix) -> Matrix:
        """(αI + TᵀT)⁻¹ Y."""
        if not self.beta.size:
            return Y / self.alpha
        coefficients, _ = lapack.dpotrs(self.factor, self.functionals(Y), lower=1)
        return (Y - self.combination(coefficients)) / self.alpha

    def functionals(self, Y: Matrix) -> Vector:
        """T Y."""
        S = self.C @ Y @ self.C.T
        values = self.beta * np.einsum("pd,pd->p", self.left @ S, self.right) + self.B @ np.diagonal(S)
        return np.asarray(self.weight * (self.sigma * np.trace(Y) - values))

    def combination(self, coefficients: Vector) -> Matrix:
        """Tᵀ c."""
        c = self.weight * coefficients
        S = sym(self.left.T @ ((self.beta * c)[:, None] * self.right))
        add_to_diagonal(S, c @ self.B)
        out = -sym(self.C.T @ S @ self.C)
        add_to_diagonal(out, float(c @ self.sigma))
        return out


def active_pairs(model: Model, p: Point, slow: bool = False) -> ActivePairs | None:
    """The preconditioner at a point, with more pairs after a slow solve; None when rounding prevents it."""
    X = p.X
    squares = X * X
    alpha = 1.0
    parts = []
    offset = 0
    for family, state in zip(model.program.families, p.states, strict=True):
        split = family.Q.diagonal_plus_scaled
        assert split is not None  # see applies_to
        n, k, d = state.Hs.shape
        if state.slope:
            alpha += state.slope * float(np.einsum("nii->", state.Z))
        columns = state.Hs.reshape(-1, d)
        images = columns @ X
        # ‖u_aa‖ for every column, by which pairs are chosen: ‖u_ab‖² is about ‖u_aa‖‖u_bb‖.
        own = split.beta * np.einsum("md,md->m", columns, images)
        size = own * own
        if np.any(split.alpha):
            B = split.alpha * columns * columns
            size = size + np.einsum("md,md->m", B, 2.0 * split.beta * images * images + B @ squares)
        strength = np.sqrt(np.maximum(size, 0.0)).reshape(n, k)
        products = strength[:, :, None] * strength[:, None, :]
        j, a, b = np.nonzero(np.triu(products > _ACTIVE))
        first, second = j * k + a, j * k + b
        sigma = np.zeros(j.size)
        if state.slope:
            sigma = state.slope * np.einsum("nr,nr->n", state.frame[j, :, a], state.frame[j, :, b])
        B = split.alpha * columns[first] * columns[second]
        beta = np.full(j.size, split.beta)
        parts.append((columns, offset + first, offset + second, beta, sigma, B, products[j, a, b]))
        offset += n * k
    columns, first, second, beta, sigma, B, heaviness = (np.concatenate(same) for same in zip(*parts, strict=True))
    most = _most_pairs(p, _SLOW_PRODUCTS if slow else _PRODUCTS)
    if first.size > most:
        keep = np.argpartition(heaviness, first.size - most)[first.size - most :]
        first, second, beta, sigma, B = first[keep], second[keep], beta[keep], sigma[keep], B[keep]
    used, positions = np.unique(np.concatenate([first, second]), return_inverse=True)
    columns = columns[used]
    first, second = positions[: first.size], positions[first.size :]
    weight = np.where(first == second, 1.0, np.sqrt(2.0))
    if not first.size:
        empty = np.zeros((0, 0))
        return ActivePairs(p.C, alpha, columns, columns, beta, sigma, weight, B, empty)
    gram = _gram(X, squares, columns, first, second, beta, sigma, B)
    gram *= weight[:, None] * weight
    add_to_diagonal(gram, alpha)
    factor, info = lapack.dpotrf(gram.T, lower=1, overwrite_a=1)
    if info != 0:
        return None
    return ActivePairs(p.C, alpha, columns[first], columns[second], beta, sigma, weight, B, factor)


def _most_pairs(p: Point, products: float) -> int:
    """How many pairs may be taken: see _PRODUCTS; a product takes 8d³ operations and 4n(d²r + dr²) for each family."""
    work = 8.0 * len(p.C) ** 3
    for state in p.states:
        n, r, d = state.Hs.shape
        work += 4.0 * n * d * r * (d + r)
    return min(int((3.0 * products * work) ** (1.0 / 3.0)), _MOST)


def _gram(
    X: Matrix,
    squares: Matrix,
    columns: Matrix,
    first: Indices,
    second: Indices,
    beta: Vector,
    sigma: Vector,
    B: Matrix,
) -> Matrix:
    """⟨u_p, u_q⟩ for all pairs, as the module's text says."""
    images = columns @ X
    K = images @ columns.T
    to_first, to_second = K[:, first], K[:, second]
    gram = to_first[first] * to_second[second] + to_second[first] * to_first[second]
    gram *= (0.5 * beta)[:, None] * beta
    if np.any(B):
        E = beta[:, None] * images[first] * images[second]
        cross = B @ (E + 0.5 * (B @ squares)).T
        gram += cross
        gram += cross.T
    if np.any(sigma):
        traces = beta * K[first, second] + B @ np.diagonal(X)
        gram -= np.outer(sigma, traces) + np.outer(traces, sigma)
        gram += len(X) * np.outer(sigma, sigma)
    return np.asarray(gram)
