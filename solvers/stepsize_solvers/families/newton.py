"""The Newton system of a point and its solution by conjugate gradients.

The linearised optimality conditions  X⁻¹ + F′*(Z) = 0,  F + W dZ W = σμ Z⁻¹ − dF  reduce to

    𝓗(Y) = I + σμ F′*(F⁻¹),     𝓗(Y) = Y + [curvature of −⟨Z, F⟩](Y) + Σ_j F_j′*(G_j F_j′(Y) G_j),     G_j = W_j⁻¹.

In products with the d×d matrices P_j = H_j G_j H_jᵀ the last term is 𝒬*(Σ_j P_j 𝒬(S) P_j), S = C(ΛY + YΛ)Cᵀ.

*Preconditioner.*  In the basis C the first two terms are nearly a multiplication entry by entry with
J_ab = 1 + Σ(λ_a r_b + λ_b r_a), λ = diag Λ, r = diag R̃.  For a full X and linear families, where J is a number, the
last term is TᵀT with one row of T for each pair (a, b) of columns of one Ĥ_j = H_j V_j Diag(s_j)^{1/4}, counted twice
for a ≠ b,

    u_ab = σ_ab I − Cᵀ 𝒬*(S_ab) C,    S_ab = (ĥ_a ĥ_bᵀ + ĥ_b ĥ_aᵀ)/2,    σ_ab = c′⟨v̂_a, v̂_b⟩.

Close to the boundary a few pairs of active directions outweigh everything else.  Their rows are taken exactly:

    (J + TᵀT)⁻¹ = J⁻¹ − J⁻¹ Tᵀ(I + T J⁻¹ Tᵀ)⁻¹ T J⁻¹

takes one factorisation of the size of the number of pairs, whose rounding errors, relative to the largest weight, only
cost conjugate gradients an iteration.

*Rows that are never formed.*  For 𝒬(M) = βM + Diag(α∘diag M), which rand-k, independent sampling and the identity have,

    ⟨Cᵀ𝒬*(S_p)C, Cᵀ𝒬*(S_q)C⟩ = β_p β_q ⟨S_p, X S_q X⟩ + β_q⟨B_p, E_q⟩ + β_p⟨E_p, B_q⟩ + B_pᵀ(X∘X)B_q,

with B_p = α∘ĥ_a∘ĥ_b, E_p = (Xĥ_a)∘(Xĥ_b), and ⟨S_p, X S_q X⟩ is made of four entries of ĤᵀXĤ: O(d) operations for each
entry of TTᵀ instead of O(d²).  Other maps and quadratic families are preconditioned by J alone: with their rows formed
as matrices 20 problems with 4 to 10 clients took 1.0 to 2.6 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.families.point import FamilyState, Model, Point, trace
from stepsize_solvers.numerics.krylov import Operator, conjugate_gradients
from stepsize_solvers.numerics.linalg import cholesky, sym
from stepsize_solvers.numerics.progress import Work
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Indices, Matrix, Vector, add_to_diagonal

# A pair is taken when it outweighs the identity by this factor: lighter ones cost an iteration each at most.
_ACTIVE = 20.0
# The factorisation of all pairs, R³/3 operations, may cost as much as so many products with the whole system; the same
# after a solve that took many of them.
_PRODUCTS = 5.0
_SLOW_PRODUCTS = 200.0


@dataclass(frozen=True, eq=False)
class NewtonSystem(Operator):
    """𝓗 at one point, with its preconditioner: 1/J_ab, T, and the Cholesky factor of I + TJ⁻¹Tᵀ (None without rows)."""

    model: Model
    p: Point
    J_inverse: Matrix
    T: PairedRows | None = None
    factor: Matrix | None = None

    def __call__(self, Y: Matrix) -> Matrix:
        """𝓗(Y), projected onto the pattern."""
        p, model = self.p, self.model
        out = Y.copy()
        t = float(np.trace(Y))
        for state in p.states:
            Q = state.family.Q
            M = Q.apply(sym(p.C @ state.twice(Y) @ p.C.T))
            N = _sum_of_congruences(state, M)
            if state.slope:
                e, total = state.slope * t, state.slope * trace(state.Z)
                weight = state.slope * (e * float(np.sum(state.G**2)) - float(np.sum(state.P2 * M)))
                N = N - e * state.P2
                out += total * Y
                add_to_diagonal(out, weight - total * t / model.program.root)
            out += state.twice(sym(p.C.T @ Q.adjoint(sym(N)) @ p.C))
            if state.Lam is not None:
                half = state.Lam @ Y @ state.Rt
                out += half + half.T
        return model.project(out)

    def precondition(self, Y: Matrix) -> Matrix:
        """(J + TᵀT)⁻¹ Y, an approximation of 𝓗⁻¹(Y)."""
        out = self.model.project(self.J_inverse * Y)
        if self.T is None or self.factor is None:
            return out
        coefficients, _ = lapack.dpotrs(self.factor, self.T.functionals(out), lower=1)
        return np.asarray(out - self.J_inverse * self.T.combination(coefficients))


def _sum_of_congruences(state: FamilyState, M: Matrix) -> Matrix:
    """Σ_j P_j M P_j, in products with the P_j or, when these have small rank r, with their factors."""
    n, r, d = state.Hs.shape
    if 2 * r > d:
        # One product of the stacked M P_j with the stacked P_j: 4nd³ operations against 4n(d²r + dr²).
        return np.asarray((M @ state.P).reshape(-1, d).T @ state.P.reshape(-1, d))
    rows = state.Hs.reshape(-1, d)
    inner = (rows @ M).reshape(n, r, d) @ state.Hs.mT
    return np.asarray((inner @ state.Hs).reshape(-1, d).T @ rows)


def newton_system(model: Model, p: Point, slow: bool = False) -> NewtonSystem:
    """The system at a point and its preconditioner, with more pairs after a slow solve where they are cheap."""
    d = model.program.d
    J = np.ones((d, d))
    for state in p.states:
        if state.Lam is not None:
            # Of semidefinite matrices, below 0 by rounding alone.
            lam, r = (np.maximum(np.diagonal(M), 0.0) for M in (state.Lam, state.Rt))
            J += np.outer(lam, r) + np.outer(r, lam)
        if state.slope:
            J += state.slope * trace(state.Z)
    inverse = 1.0 / J
    T = active_rows(model, p, slow)
    if T is None or not T.count:
        return NewtonSystem(model, p, inverse)
    gram = T.gram(float(inverse[0, 0]))
    add_to_diagonal(gram, 1.0)
    return NewtonSystem(model, p, inverse, T, cholesky(gram))


# ---------------------------------------------------------------- the rows of T


class _Pairs(NamedTuple):
    """The pairs (j, a ≤ b) that are taken from one family."""

    state: FamilyState
    j: Indices
    a: Indices
    b: Indices

    @property
    def weight(self) -> Vector:
        """The root of how often each counts."""
        return np.where(self.a == self.b, 1.0, np.sqrt(2.0))

    @property
    def sigma(self) -> Vector:
        """σ_ab."""
        if not self.state.slope:
            return np.zeros(self.j.size)
        half = self.state.half
        products = np.einsum("nr,nr->n", half[self.j, :, self.a], half[self.j, :, self.b])
        return np.asarray(self.state.slope * products)


def active_rows(model: Model, p: Point, slow: bool) -> PairedRows | None:
    """The rows of the heaviest pairs; None where they are not cheap."""
    program = model.program
    cheap = all(f.B is None and f.Q.diagonal_plus_scaled is not None for f in program.families)
    if not (program.pattern.is_full and cheap):
        return None
    return PairedRows.of(p, _heaviest(p, _most_pairs(p, _SLOW_PRODUCTS if slow else _PRODUCTS)))


def _heaviest(p: Point, most: int) -> list[_Pairs]:
    """The pairs of each family that count, ``most`` of all: ‖u_ab‖² is about ‖u_aa‖‖u_bb‖."""
    found, heaviness = [], []
    for state in p.states:
        strength = _strength(state, p.X)
        products = strength[:, :, None] * strength[:, None, :]
        j, a, b = np.nonzero(np.triu(products > _ACTIVE))
        found.append(_Pairs(state, j, a, b))
        heaviness.append(products[j, a, b])
    together = np.concatenate(heaviness)
    if together.size <= most:
        return found
    least = np.partition(together, together.size - most)[together.size - most]
    kept = (size >= least for size in heaviness)
    return [one._replace(j=one.j[k], a=one.a[k], b=one.b[k]) for one, k in zip(found, kept, strict=True)]


def _strength(state: FamilyState, X: Matrix) -> Matrix:
    """‖u_aa‖ of every column of every Ĥ_j."""
    n, k, d = state.Hs.shape
    columns, split = state.Hs.reshape(-1, d), state.family.Q.diagonal_plus_scaled
    assert split is not None  # see active_rows
    images = columns @ state.C
    squares = (split.beta * np.einsum("md,md->m", images, images)) ** 2
    if np.any(split.alpha):
        B, products = split.alpha * columns * columns, columns @ X
        squares += np.einsum("md,md->m", B, 2.0 * split.beta * products * products + B @ (X * X))
    return np.asarray(np.sqrt(np.maximum(squares, 0.0))).reshape(n, k)


def _most_pairs(p: Point, products: float) -> int:
    """How many pairs may be taken: see _PRODUCTS; a product takes 8d³ operations and 4n(d²r + dr²) for each family."""
    work = 8.0 * len(p.C) ** 3
    for state in p.states:
        n, r, d = state.Hs.shape
        work += 4.0 * n * d * r * (d + r)
    return min(int((3.0 * products * work) ** (1.0 / 3.0)), Sizes.PAIRS)


@dataclass(frozen=True, eq=False)
class PairedRows:
    """The rows of linear families with cheap maps by their pairs.

    columns: all ĥ that occur, as rows; first, second: which two of them each pair has, shape (R,); beta, sigma, weight:
    β_p, σ_p and the root of how often it counts; B: the B_p as rows, shape (R, d).
    """

    C: Matrix
    X: Matrix
    columns: Matrix
    first: Indices
    second: Indices
    beta: Vector
    sigma: Vector
    weight: Vector
    B: Matrix

    @staticmethod
    def of(p: Point, pairs: list[_Pairs]) -> PairedRows:
        columns, first, second, beta, B, offset = [], [], [], [], [], 0
        for one in pairs:
            split = one.state.family.Q.diagonal_plus_scaled
            assert split is not None  # see active_rows
            n, k, d = one.state.Hs.shape
            columns.append(one.state.Hs.reshape(-1, d))
            first.append(offset + one.j * k + one.a)
            second.append(offset + one.j * k + one.b)
            beta.append(np.full(one.j.size, split.beta))
            B.append(split.alpha * one.state.Hs[one.j, one.a] * one.state.Hs[one.j, one.b])
            offset += n * k
        used, places = np.unique(np.concatenate(first + second), return_inverse=True)
        return PairedRows(
            C=p.C,
            X=p.X,
            columns=np.concatenate(columns)[used],
            first=places[: len(places) // 2],
            second=places[len(places) // 2 :],
            beta=np.concatenate(beta),
            sigma=np.concatenate([one.sigma for one in pairs]),
            weight=np.concatenate([one.weight for one in pairs]),
            B=np.concatenate(B),
        )

    @property
    def count(self) -> int:
        return self.first.size

    @cached_property
    def left(self) -> Matrix:
        return np.asarray(self.columns[self.first])

    @cached_property
    def right(self) -> Matrix:
        return np.asarray(self.columns[self.second])

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

    def gram(self, factor: float) -> Matrix:
        """TTᵀ times a factor."""
        first, second, beta, sigma, B = self.first, self.second, self.beta, self.sigma, self.B
        images = self.columns @ self.X
        K = images @ self.columns.T
        to_first, to_second = K[:, first], K[:, second]
        gram = to_first[first] * to_second[second] + to_second[first] * to_first[second]
        gram *= (0.5 * beta)[:, None] * beta
        if np.any(B):
            E = beta[:, None] * images[first] * images[second]
            cross = B @ (E + 0.5 * (B @ (self.X * self.X))).T
            gram += cross
            gram += cross.T
        if np.any(sigma):
            traces = beta * K[first, second] + B @ np.diagonal(self.X)
            gram -= np.outer(sigma, traces) + np.outer(traces, sigma)
            gram += len(self.X) * np.outer(sigma, sigma)
        gram *= factor * (self.weight[:, None] * self.weight)
        return np.asarray(gram)


def solve_by_cg(system: NewtonSystem, rhs: Matrix, tolerance: float, most: int, work: Work) -> Matrix:
    """Y with ‖𝓗(Y) − rhs‖ ≤ tolerance·‖rhs‖ after at most so many iterations; raises ``OutOfTime`` at the deadline."""
    goal = tolerance * float(np.linalg.norm(rhs))
    found = conjugate_gradients(system, rhs, lambda left, _: not float(np.linalg.norm(left)) > goal, most, work)
    return sym(found)
