"""The Newton system of a point and its solution by conjugate gradients.

The linearised optimality conditions  X⁻¹ + F′*(Z) = 0,  F + W dZ W = σμ Z⁻¹ − dF  reduce to

    𝓗(Y) = I + σμ F′*(F⁻¹),     𝓗(Y) = Y + [curvature of −⟨Z, F⟩](Y) + Σ_j F_j′*(G_j F_j′(Y) G_j),     G_j = W_j⁻¹.

In products with the d×d matrices P_j = H_j G_j H_jᵀ the last term is 𝒬*(Σ_j P_j 𝒬(S) P_j), S = C(ΛY + YΛ)Cᵀ.

*Preconditioner.*  In the basis C the first two terms are nearly a multiplication entry by entry with
J_ab = 1 + Σ(λ_a r_b + λ_b r_a), λ = diag Λ, r = diag R̃.  The last term is Σ √(s_a s_b) u uᵀ over the pairs of columns
of H_j V_j; close to the boundary a few pairs of active directions outweigh everything else.  Those pairs are taken
exactly: with T the scaled functionals, (I + TᵀT)⁻¹ = I − RᵀR + Rᵀ Diag(1/(1 + σ²)) R for the singular vectors R of T,
which unlike the Woodbury formula does not cancel.  Conjugate gradients see what remains.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_solvers.families.pairs import ActivePairs, active_pairs, applies_to
from stepsize_solvers.families.point import FamilyState, Model, Point, twice_symmetric
from stepsize_solvers.numerics import Work, conjugate_gradients, sym
from stepsize_solvers.programs import Matrix, Vector, add_to_diagonal

# A pair counts as active when it outweighs the entrywise part of the system by this factor.
_ACTIVE = 20.0
# Pairs taken exactly at most: their Gram matrix is then as cheap as a few products with the whole system.
_MAX_PAIRS = 500


@dataclass(frozen=True, eq=False)
class NewtonSystem:
    """𝓗 at one point, with its preconditioner.

    J: the entrywise inverse 1/J_ab; R: orthonormal rows that span the active functionals, in coordinates scaled by √J;
    shrink: 1/(1 + σ²) for each row, what the inverse of I + Σσ²rrᵀ does along it.
    """

    model: Model
    p: Point
    J: Matrix
    R: Matrix
    shrink: Vector
    pairs: ActivePairs | None = None

    def inner(self, Y: Matrix, Y2: Matrix) -> float:
        return float(np.vdot(Y, Y2))

    def __call__(self, Y: Matrix) -> Matrix:
        """𝓗(Y), projected onto the pattern."""
        p, model = self.p, self.model
        out = Y.copy()
        t = float(np.trace(Y))
        for family, state in zip(model.program.families, p.states, strict=True):
            M = family.Q.apply(sym(p.C @ twice_symmetric(state.Lam, Y) @ p.C.T))
            N = _sum_of_congruences(state, M)
            if state.slope:
                e = state.slope * t
                weight = state.slope * (e * float(np.sum(state.G**2)) - float(np.sum(state.P2 * M)))
                weight += state.slope * float(np.einsum("nii->", state.Z)) * (-t / model.program.root)
                N = N - e * state.P2
                out += state.slope * float(np.einsum("nii->", state.Z)) * Y
                add_to_diagonal(out, weight)
            image = sym(p.C.T @ family.Q.adjoint(sym(N)) @ p.C)
            out += twice_symmetric(state.Lam, image)
            if state.Lam is not None:
                half = state.Lam @ Y @ state.Rt
                out += half + half.T
        return model.project(out)

    def precondition(self, Y: Matrix) -> Matrix:
        """An approximation of 𝓗⁻¹(Y)."""
        if self.pairs is not None:
            return sym(self.pairs.solve(Y))
        root = np.sqrt(self.J)
        scaled = root * Y
        if self.R.shape[0]:
            # Twice is enough: the second pass removes what rounding left of the first.
            z = scaled.ravel()
            along = self.R @ z
            z = z - self.R.T @ along
            z = z - self.R.T @ (self.R @ z)
            scaled = (z + self.R.T @ (self.shrink * along)).reshape(Y.shape)
        return self.model.project(root * scaled)


def _sum_of_congruences(state: FamilyState, M: Matrix) -> Matrix:
    """Σ_j P_j M P_j, in products with the P_j or, when these have small rank r, with their factors."""
    n, r, d = state.Hs.shape
    if 2 * r > d:
        # One product of the stacked M P_j with the stacked P_j: 4nd³ operations against 4n(d²r + dr²).
        return np.asarray((M @ state.P).reshape(-1, d).T @ state.P.reshape(-1, d))
    rows = state.Hs.reshape(-1, d)
    inner = (rows @ M).reshape(n, r, d) @ state.Hs.transpose(0, 2, 1)
    return np.asarray((inner @ state.Hs).reshape(-1, d).T @ rows)


def newton_system(model: Model, p: Point, slow: bool = False) -> NewtonSystem:
    """The system at a point and its preconditioner, a dearer one after a slow solve."""
    d = model.program.d
    R, shrink = np.zeros((0, d * d)), np.zeros(0)
    pairs = active_pairs(model, p, slow) if applies_to(model) else None
    if pairs is not None:
        return NewtonSystem(model, p, np.ones((d, d)), R, shrink, pairs)
    J = np.ones((d, d))
    for state in p.states:
        if state.Lam is not None:
            # Of semidefinite matrices, below 0 by rounding alone.
            lam, r = (np.maximum(np.diagonal(M), 0.0) for M in (state.Lam, state.Rt))
            J += np.outer(lam, r) + np.outer(r, lam)
        if state.slope:
            J += state.slope * float(np.einsum("nii->", state.Z))
    inverse = 1.0 / J
    U, weights = _active_pairs(model, p, inverse)
    if len(U):
        T = U * np.sqrt(weights)[:, None] * np.sqrt(inverse).ravel()
        squares, vectors = np.linalg.eigh(T @ T.T)
        # Eigenvectors of a Gram matrix are right to ε σ²max/σ²: those of smaller σ would spoil the orthogonality.
        keep = squares > max(_ACTIVE, 1e-10 * squares[-1])
        R = (vectors[:, keep].T @ T) / np.sqrt(squares[keep])[:, None]
        shrink = 1.0 / (1.0 + squares[keep])
    return NewtonSystem(model, p, inverse, R, shrink)


def _active_pairs(model: Model, p: Point, J_inverse: Matrix) -> tuple[Matrix, Vector]:
    """The heaviest functionals u of the last term of 𝓗, as rows of length d², and their weights."""
    d = model.program.d
    if model.program.pattern.W is not None:
        return np.zeros((0, d * d)), np.zeros(0)  # a handful of unknowns needs no preconditioner
    rows: list[Matrix] = []
    weights: list[Vector] = []
    for family, state in zip(model.program.families, p.states, strict=True):
        N = family.H @ state.V
        # ‖u‖ in the J-norm is about the size of Cᵀ𝒬*(hhᵀ)C; its diagonal pairs rank the directions.
        size = np.einsum("nda,nda->na", p.C.T @ N, p.C.T @ N)
        if state.Lam is not None:
            size = 2.0 * np.einsum("nda,nda->na", p.C.T @ N, state.Lam @ (p.C.T @ N))
        gain = family.Q.diagonal_action.max() if not family.is_plain else 1.0
        strength = np.sqrt(state.s) * size * gain
        for j, a, b in _pairs(strength):
            weight = np.sqrt(state.s[j, a] * state.s[j, b]) * (1.0 if a == b else 2.0)
            h, g = N[j, :, a], N[j, :, b]
            S = 0.5 * (np.outer(h, g) + np.outer(g, h))
            u = -twice_symmetric(state.Lam, sym(p.C.T @ family.Q.adjoint(S) @ p.C))
            if state.slope:
                add_to_diagonal(u, state.slope * float(state.V[j, :, a] @ state.V[j, :, b]))
            u = model.project(u)
            if weight * float(np.sum(J_inverse * u * u)) > _ACTIVE:
                rows.append(u.ravel())
                weights.append(weight)
    if not rows:
        return np.zeros((0, d * d)), np.zeros(0)
    return np.array(rows), np.array(weights)


def _pairs(strength: Matrix) -> list[tuple[int, int, int]]:
    """Candidates (j, a ≤ b) whose product of strengths is above the threshold, heaviest first, at most _MAX_PAIRS."""
    found: list[tuple[float, int, int, int]] = []
    for j, row in enumerate(strength):
        order = np.argsort(row)[::-1]
        for position, a in enumerate(order):
            if row[a] * row[a] <= _ACTIVE:
                break
            for b in order[position:]:
                if row[a] * row[b] <= _ACTIVE:
                    break
                found.append((float(row[a] * row[b]), j, int(a), int(b)))
    found.sort(reverse=True)
    return [(j, a, b) for _, j, a, b in found[:_MAX_PAIRS]]


def solve_by_cg(system: NewtonSystem, rhs: Matrix, tolerance: float, most: int, work: Work) -> Matrix:
    """Y with ‖𝓗(Y) − rhs‖ ≤ tolerance·‖rhs‖ after at most so many iterations; raises ``OutOfTime`` at the deadline."""
    goal = tolerance * float(np.linalg.norm(rhs))
    found = conjugate_gradients(system, rhs, lambda left, _: not float(np.linalg.norm(left)) > goal, most, work)
    return sym(found)
