"""The Newton system of a point and its solution by conjugate gradients.

The linearised optimality conditions  X⁻¹ + F′*(Z) = 0,  F + W dZ W = σμ Z⁻¹ − dF  reduce to

    𝓗(Y) = I + σμ F′*(F⁻¹),     𝓗(Y) = Y + [curvature of −⟨Z, F⟩](Y) + Σ_j F_j′*(G_j F_j′(Y) G_j),     G_j = W_j⁻¹.

In products with the d×d matrices P_j = H_j G_j H_jᵀ the last term is 𝒬*(Σ_j P_j 𝒬(S) P_j), S = C(ΛY + YΛ)Cᵀ.

*Preconditioner.*  In the basis C the first two terms are nearly a multiplication entry by entry with
J_ab = 1 + Σ(λ_a r_b + λ_b r_a), λ = diag Λ, r = diag R̃.  The last term is TᵀT with one row of T for each pair (a, b) of
columns of one Ĥ_j = H_j V_j Diag(s_j)^{1/4}, counted twice for a ≠ b,

    u_ab = σ_ab I − (ΛM + MΛ),    M = Cᵀ 𝒬*(S_ab) C,    S_ab = (ĥ_a ĥ_bᵀ + ĥ_b ĥ_aᵀ)/2,    σ_ab = c′⟨v̂_a, v̂_b⟩.

Close to the boundary a few pairs of active directions outweigh everything else.  Their rows are taken exactly: with the
rows scaled by √J, (I + TᵀT)⁻¹ = I − RᵀR + Rᵀ Diag(1/(1 + σ²)) R for the singular vectors R of T, which unlike the
formula of Woodbury does not cancel.

*Rows that are never formed.*  For linear families J is a number α, and for 𝒬(M) = βM + Diag(α∘diag M), which rand-k,
independent sampling and the identity have,

    ⟨Cᵀ𝒬*(S_p)C, Cᵀ𝒬*(S_q)C⟩ = β_p β_q ⟨S_p, X S_q X⟩ + β_q⟨B_p, E_q⟩ + β_p⟨E_p, B_q⟩ + B_pᵀ(X∘X)B_q,

with B_p = α∘ĥ_a∘ĥ_b, E_p = (Xĥ_a)∘(Xĥ_b), and ⟨S_p, X S_q X⟩ is made of four entries of ĤᵀXĤ: O(d) operations for each
entry of TTᵀ instead of O(d²), so that ten times as many pairs can be taken.  (αI + TᵀT)⁻¹ = (I − Tᵀ(αI + TTᵀ)⁻¹T)/α
then takes one factorisation of the size of the number of pairs, whose rounding errors, relative to the largest weight,
only cost conjugate gradients an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.families.point import FamilyState, Model, Point, trace
from stepsize_solvers.numerics import Work, cholesky, conjugate_gradients, lazy, sym
from stepsize_solvers.programs import Indices, Matrix, Vector, add_to_diagonal

# A pair is taken when it outweighs the identity by this factor: lighter ones cost an iteration each at most.
_ACTIVE = 20.0
# Rows that are formed, at most: their Gram matrix is then as cheap as a few products with the whole system.
_MOST_ROWS = 500
# Where rows are not formed, the factorisation of all pairs, R³/3 operations, may cost as much as so many products with
# the whole system; the same after a solve that took many of them; and how many pairs at most: 200 megabytes.
_PRODUCTS = 5.0
_SLOW_PRODUCTS = 200.0
_MOST_PAIRS = 5000


@dataclass(frozen=True, eq=False)
class NewtonSystem:
    """𝓗 at one point; inverse: that of its entrywise part and its heaviest pairs."""

    model: Model
    p: Point
    inverse: FormedRows | PairedRows

    def inner(self, Y: Matrix, Y2: Matrix) -> float:
        return float(np.vdot(Y, Y2))

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
        """An approximation of 𝓗⁻¹(Y)."""
        return self.model.project(self.inverse.solve(Y))


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
    return NewtonSystem(model, p, _inverse(model, p, J, slow))


# ---------------------------------------------------------------- the pairs that are taken exactly


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
        frame = self.state.frame
        products = np.einsum("nr,nr->n", frame[self.j, :, self.a], frame[self.j, :, self.b])
        return np.asarray(self.state.slope * products)


def _inverse(model: Model, p: Point, J: Matrix, slow: bool) -> FormedRows | PairedRows:
    """(J + TᵀT)⁻¹ with the rows of the heaviest pairs."""
    program = model.program
    if program.pattern.W is not None:  # a handful of unknowns needs no rows
        return FormedRows.of(model, p, J, [])
    if program.pattern.is_full and all(f.B is None and f.Q.diagonal_plus_scaled is not None for f in program.families):
        most = _most_pairs(p, _SLOW_PRODUCTS if slow else _PRODUCTS)
        found = PairedRows.of(p, float(J[0, 0]), _heaviest(p, [_norms(state, p.X) for state in p.states], most))
        if not found.first.size or found.factor is not None:
            return found
    return FormedRows.of(model, p, J, _heaviest(p, [_estimates(state) for state in p.states], _MOST_ROWS))


def _heaviest(p: Point, strengths: list[Matrix], most: int) -> list[_Pairs]:
    """The pairs of each family that count, heaviest first, ``most`` of all.

    strengths: ‖u_aa‖ for every column, of which ‖u_ab‖² is about the product.
    """
    found, heaviness = [], []
    for state, strength in zip(p.states, strengths, strict=True):
        products = strength[:, :, None] * strength[:, None, :]
        j, a, b = np.nonzero(np.triu(products > _ACTIVE))
        weights = products[j, a, b]
        order = np.argsort(-weights)
        found.append(_Pairs(state, j[order], a[order], b[order]))
        heaviness.append(weights[order])
    together = np.concatenate(heaviness)
    if together.size <= most:
        return found
    least = np.partition(together, together.size - most)[together.size - most]
    counts = (int(np.count_nonzero(weights >= least)) for weights in heaviness)
    return [one._replace(j=one.j[:n], a=one.a[:n], b=one.b[:n]) for one, n in zip(found, counts, strict=True)]


def _estimates(state: FamilyState) -> Matrix:
    """Upper estimates of ‖u_aa‖ for every column of every Ĥ_j."""
    columns = state.Hs @ state.C
    size = np.einsum("nkd,nkd->nk", columns, columns if state.Lam is None else 2.0 * (columns @ state.Lam))
    return np.asarray(size * state.family.Q.diagonal_action.max())


def _norms(state: FamilyState, X: Matrix) -> Matrix:
    """‖u_aa‖ for every column of every Ĥ_j of a linear family with a cheap map."""
    split = state.family.Q.diagonal_plus_scaled
    assert split is not None  # see _inverse
    columns = state.Hs
    images = columns @ X
    squares = (split.beta * np.einsum("nkd,nkd->nk", columns, images)) ** 2
    if np.any(split.alpha):
        B = split.alpha * columns * columns
        squares += np.einsum("nkd,nkd->nk", B, 2.0 * split.beta * images * images + B @ (X * X))
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _most_pairs(p: Point, products: float) -> int:
    """How many pairs may be taken: see _PRODUCTS; a product takes 8d³ operations and 4n(d²r + dr²) for each family."""
    work = 8.0 * len(p.C) ** 3
    for state in p.states:
        n, r, d = state.Hs.shape
        work += 4.0 * n * d * r * (d + r)
    return min(int((3.0 * products * work) ** (1.0 / 3.0)), _MOST_PAIRS)


@dataclass(frozen=True, eq=False)
class FormedRows:
    """(J + TᵀT)⁻¹ by the singular vectors of T.

    root: 1/√J_ab; R: orthonormal rows that span T, in coordinates scaled by √J; shrink: 1/(1 + σ²) for each of them.
    """

    root: Matrix
    R: Matrix
    shrink: Vector

    @staticmethod
    def of(model: Model, p: Point, J: Matrix, pairs: list[_Pairs]) -> FormedRows:
        """From the rows that outweigh J: the strengths by which the pairs were chosen are estimates."""
        inverse, rows = 1.0 / J, []
        root = np.sqrt(inverse)
        for one in pairs:
            state, N = one.state, one.state.family.H @ one.state.V
            for j, a, b in zip(one.j, one.a, one.b, strict=True):
                weight = np.sqrt(state.s[j, a] * state.s[j, b]) * (1.0 if a == b else 2.0)
                S = sym(np.outer(N[j, :, a], N[j, :, b]))
                u = -state.twice(sym(p.C.T @ state.family.Q.adjoint(S) @ p.C))
                if state.slope:
                    add_to_diagonal(u, state.slope * float(state.V[j, :, a] @ state.V[j, :, b]))
                u = model.project(u)
                if weight * float(np.sum(inverse * u * u)) > _ACTIVE:
                    rows.append((u * np.sqrt(weight) * root).ravel())
        T = np.array(rows).reshape(-1, J.size)
        if not rows:
            return FormedRows(root, T, np.zeros(0))
        squares, vectors = np.linalg.eigh(T @ T.T)
        # Eigenvectors of a Gram matrix are right to ε σ²max/σ²: those of smaller σ would spoil the orthogonality.
        keep = squares > max(_ACTIVE, 1e-10 * squares[-1])
        R = (vectors[:, keep].T @ T) / np.sqrt(squares[keep])[:, None]
        return FormedRows(root, R, 1.0 / (1.0 + squares[keep]))

    def solve(self, Y: Matrix) -> Matrix:
        """(J + TᵀT)⁻¹ Y."""
        scaled = self.root * Y
        if self.R.shape[0]:
            z = scaled.ravel()
            along = self.R @ z
            # Twice is enough: the second pass removes what rounding left of the first.
            z = z - self.R.T @ along
            z = z - self.R.T @ (self.R @ z)
            scaled = (z + self.R.T @ (self.shrink * along)).reshape(Y.shape)
        return np.asarray(self.root * scaled)


@dataclass(frozen=True, eq=False)
class PairedRows:
    """(αI + TᵀT)⁻¹ for linear families with cheap maps, by the pairs themselves.

    columns: all ĥ that occur, as rows; first, second: which two of them each pair has, shape (R,); beta, sigma, weight:
    β_p, σ_p and the root of how often it counts; B: the B_p as rows, shape (R, d).
    """

    C: Matrix
    X: Matrix
    alpha: float
    columns: Matrix
    first: Indices
    second: Indices
    beta: Vector
    sigma: Vector
    weight: Vector
    B: Matrix

    @staticmethod
    def of(p: Point, alpha: float, pairs: list[_Pairs]) -> PairedRows:
        columns, first, second, beta, B, offset = [], [], [], [], [], 0
        for one in pairs:
            split = one.state.family.Q.diagonal_plus_scaled
            assert split is not None  # see _inverse
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
            alpha=alpha,
            columns=np.concatenate(columns)[used],
            first=places[: len(places) // 2],
            second=places[len(places) // 2 :],
            beta=np.concatenate(beta),
            sigma=np.concatenate([one.sigma for one in pairs]),
            weight=np.concatenate([one.weight for one in pairs]),
            B=np.concatenate(B),
        )

    def solve(self, Y: Matrix) -> Matrix:
        """(αI + TᵀT)⁻¹ Y."""
        if not self.first.size:
            return np.asarray(Y / self.alpha)
        coefficients, _ = lapack.dpotrs(self.factor, self.functionals(Y), lower=1)
        return np.asarray((Y - self.combination(coefficients)) / self.alpha)

    @lazy
    def left(self) -> Matrix:
        return np.asarray(self.columns[self.first])

    @lazy
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

    @lazy
    def factor(self) -> Matrix | None:
        """The Cholesky factor of αI + TTᵀ; None when rounding prevents it."""
        gram = self.gram()
        add_to_diagonal(gram, self.alpha)
        return cholesky(gram)

    def gram(self) -> Matrix:
        """TTᵀ, as the module's text says."""
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
        gram *= self.weight[:, None] * self.weight
        return np.asarray(gram)


def solve_by_cg(system: NewtonSystem, rhs: Matrix, tolerance: float, most: int, work: Work) -> Matrix:
    """Y with ‖𝓗(Y) − rhs‖ ≤ tolerance·‖rhs‖ after at most so many iterations; raises ``OutOfTime`` at the deadline."""
    goal = tolerance * float(np.linalg.norm(rhs))
    found = conjugate_gradients(system, rhs, lambda left, _: not float(np.linalg.norm(left)) > goal, most, work)
    return sym(found)
