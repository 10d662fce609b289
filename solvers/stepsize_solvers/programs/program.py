"""The one problem type of the project: log det X, or a metric of X, under matrix-concave inequalities.

    maximise    log det X,   or  log det G(X),   or  t with G(X) ⪰ t·E,      G(X) = aX − 𝒬(X B X),
    subject to  F_j(X) = (c + e τ(X)) I + a X − H_jᵀ 𝒬(φ(X)) H_j ⪰ 0      for every factor H_j of every family,
                X ≻ 0 in a pattern,        τ(X) = exp((log det X − offset)/root),

where φ(X) = X (a linear family) or φ(X) = X B X with B ⪰ 0 (a quadratic one), 𝒬 is a positive map and c, e ≥ 0.
Each F_j is matrix-concave: 𝒬 keeps the order, X ↦ XBX is matrix-convex, and τ is a power of at most one of the
concave det(X)^{1/d}, because root ≥ d.  The program is therefore convex and any KKT point is a global optimum.

The stepsize conditions of det-CGD are instances.  H_j H_jᵀ = L_j also serves singular L_j: H_jᵀMH_j ⪯ cI if and only if
λmax(L_j^½ M L_j^½) ≤ c.

==============================  ==========  =========  ==========  =========  ==========
condition                       X           𝒬          B           H Hᵀ       a, c, e
==============================  ==========  =========  ==========  =========  ==========
(3)  E[S D L D S] ⪯ D           D           𝒫          L           H = I      1, 0, 0
(4)  E[D T L T D] ⪯ D           D           identity   𝒫(L)        H = I      1, 0, 0
(12), full D                    A = D L D   𝒫ᵢ − id    –           Lᵢ         0, c, e
D ⪯ L⁻¹, full D                 A           identity   –           L          0, 1, 0
(12), D with a pattern          D           𝒫ᵢ − id    L           Lᵢ         0, c, e
(12′)                           D           identity   𝒫ᵢ(L) − L   Lᵢ         0, c, e
D ⪯ L⁻¹, any pattern            D           identity   –           L          0, 1, 0
==============================  ==========  =========  ==========  =========  ==========

A *pattern* is a list of consecutive diagonal blocks: free ones, X = Diag(X₁, …, X_m) with symmetric Xᵢ, or multiples of
given positive definite blocks, X = Diag(γ₁W₁, …, γ_mW_m).  One free block is a full matrix, free blocks of size 1 are a
diagonal one, and one given block is the direction D = γW of the paper.

The descent metric of det-CGD is G(D) = 2D − 𝒫(DLD): E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_G without any condition on D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepsize_solvers.programs.maps import Indices, Matrix, PositiveMap, Stack, Vector, block_slices, is_identity

# γᵢWᵢ is rounded entry by entry, so it matches its direction to a few units in the last place for each row.
_SAME_DIRECTION = 16 * 2.0**-53


@dataclass(frozen=True, eq=False)
class Pattern:
    """X = Diag(X₁, …, X_m) with free symmetric blocks of the given sizes, or X = Diag(γ₁W₁, …, γ_mW_m) if W is given.

    ``W`` is block-diagonal with the same sizes and positive definite.  Raises ValueError for sizes below 1.
    """

    sizes: tuple[int, ...]
    W: Matrix | None = None

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            msg = f"block sizes must be positive whole numbers, got {self.sizes}"
            raise ValueError(msg)

    @staticmethod
    def full(d: int) -> Pattern:
        """All symmetric d×d matrices."""
        return Pattern((d,))

    @cached_property
    def d(self) -> int:
        return sum(self.sizes)

    @cached_property
    def unknowns(self) -> int:
        """How many numbers describe X."""
        return len(self.sizes) if self.W is not None else sum(n * (n + 1) // 2 for n in self.sizes)

    @cached_property
    def slices(self) -> list[slice]:
        return block_slices(self.sizes)

    @property
    def is_full(self) -> bool:
        """Whether X is any symmetric matrix."""
        return self.W is None and len(self.sizes) == 1

    @property
    def is_diagonal(self) -> bool:
        """Whether X is any diagonal matrix."""
        return self.W is None and max(self.sizes) == 1

    @property
    def direction(self) -> Matrix | None:
        """W when X = γW with one factor γ, otherwise None."""
        return self.W if len(self.sizes) == 1 else None

    @property
    def member(self) -> Matrix:
        """A positive definite matrix with the pattern: the identity, or W."""
        return np.eye(self.d) if self.W is None else self.W

    @cached_property
    def labels(self) -> Indices:
        """The number of the block that each coordinate belongs to."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def blocks(self, M: Matrix) -> Matrix:
        """M with the entries outside the blocks set to zero."""
        if len(self.sizes) == 1:
            return M
        out = np.zeros_like(M)
        for s in self.slices:
            out[s, s] = M[s, s]
        return out

    def projected(self, Y: NDArray[Any]) -> NDArray[Any]:
        """The projection of Y in a basis in which every member is γᵢI in block i, or that keeps free blocks."""
        if self.W is None:
            return self.blocks(Y)
        means = [np.trace(Y[s, s]) / (s.stop - s.start) for s in self.slices]
        return np.diag(np.repeat(means, self.sizes)).astype(Y.dtype)

    def nearest(self, M: Matrix) -> Matrix:
        """M made symmetric and put into the pattern: other entries are dropped, each γᵢ is matched by its trace."""
        M = 0.5 * (M + M.T)
        if self.W is None:
            return self.blocks(M)
        out = np.zeros_like(M)
        for s in self.slices:
            W = self.W[s, s]
            out[s, s] = (np.trace(M[s, s]) / np.trace(W)) * W
        return out

    def contains(self, M: Matrix) -> bool:
        """Whether M is symmetric and has the pattern: exactly, but for the rounding of a product γᵢWᵢ."""
        if not (M == M.T).all() or (len(self.sizes) > 1 and not np.array_equal(M, self.blocks(M))):
            return False
        return self.W is None or self.has_direction(M)

    def has_direction(self, M: Matrix) -> bool:
        """Whether the diagonal blocks of M are positive multiples of those of W, up to rounding of their entries."""
        for s in self.slices:
            W, block = self.member[s, s], M[s, s]
            if np.array_equal(W, block):
                continue
            j = int(np.argmax(W.diagonal()))
            if not block[j, j] > 0.0:
                return False
            # Near one by powers of two, so that no quotient leaves the range of float64.
            W, block = np.ldexp(W, -math.frexp(W[j, j])[1]), np.ldexp(block, -math.frexp(block[j, j])[1])
            if not np.allclose(block * (W[j, j] / block[j, j]), W, rtol=_SAME_DIRECTION * len(W), atol=0.0):
                return False
        return True

    def rescaled(self, scale: Vector) -> Pattern:
        """The pattern of Λ⁻¹XΛ⁻¹ for the diagonal Λ of the given entries."""
        return self if self.W is None else replace(self, W=self.W / scale[:, None] / scale)

    def restrict(self, indices: Indices) -> Pattern:
        """The pattern seen by some of the coordinates, taken in increasing order."""
        if indices.size == self.d and self.W is None:
            return self
        # Of the blocks that are touched alone: there may be as many as coordinates, and as many calls.
        sizes = tuple(np.unique(self.labels[indices], return_counts=True)[1].tolist())
        # One free factor for each 1×1 block is a free diagonal.
        if self.W is None or max(sizes) == 1:
            return Pattern(sizes)
        return Pattern(sizes, self.W[np.ix_(indices, indices)])

    def commutes_with(self, Q: PositiveMap) -> bool:
        """Whether every outcome of the sketch behind 𝒬 commutes with every X of the pattern.

        That is so when a diagonal sketch is constant on each block, or X is diagonal.  Equal rows i, j of P have
        E(s_i − s_j)² = P_ii − 2P_ij + P_jj = 0, so s_i = s_j; for P = Diag(α) + β11ᵀ this is α_i + α_j = 0.
        """
        split = Q.diagonal_plus_scaled
        if split is not None and self.is_full:
            return split.is_multiple or self.d == 1
        if split is not None and self.W is None:
            return all(n == 1 or not split.alpha[s].any() for n, s in zip(self.sizes, self.slices, strict=True))
        P = Q.hadamard_matrix
        if P is None:
            return False
        if self.W is not None and np.array_equal(self.W, np.diag(np.diagonal(self.W))):
            return True
        return all(bool(np.all(P[s] == P[s.start])) for s in self.slices)


@dataclass(frozen=True, eq=False)
class Family:
    """Inequalities (c + e τ(X)) I + a X − H_jᵀ 𝒬(φ(X)) H_j ⪰ 0 that share all but the factor H_j.

    B: None for φ(X) = X, a positive semidefinite d×d matrix for φ(X) = X B X.
    factors: the H_j, shape (n, d, r), a factor of smaller rank padded with zero columns; None is the one factor H = I.
    B_slack: a vector r with B − Diag(r) ⪯ B̄ ⪯ B + Diag(r), when B is a rounded B̄ (a computed E[TLT], say).  Solvers
        ignore it; the certificate holds for every such B̄.

    Raises ValueError for factors of another size, a term aX beside factors, or right-hand sides that bound nothing.
    """

    Q: PositiveMap
    B: Matrix | None = None
    factors: Stack | None = None
    a: float = 0.0
    c: float = 0.0
    e: float = 0.0
    B_slack: Vector | None = None

    def __post_init__(self) -> None:
        if self.factors is not None:
            if self.factors.ndim != 3 or self.factors.shape[1] != self.Q.d:
                shape = self.factors.shape
                msg = f"factors must have shape (n, {self.Q.d}, r) for a map of size {self.Q.d}, got {shape}"
                raise ValueError(msg)
            if self.a != 0.0:
                msg = f"the term aX goes with the factor H = I only, got a={self.a!r} beside factors"
                raise ValueError(msg)
        numbers = (self.a, self.c, self.e)
        if not (min(numbers) >= 0.0 and max(numbers) > 0.0 and math.isfinite(sum(numbers))):
            msg = f"a, c and e must be nonnegative, finite and not all zero, got {numbers}"
            raise ValueError(msg)

    @property
    def count(self) -> int:
        """How many inequalities there are."""
        return 1 if self.factors is None else len(self.factors)

    @property
    def rows(self) -> int:
        """The size r of each inequality."""
        return self.Q.d if self.factors is None else self.factors.shape[2]

    @property
    def is_plain(self) -> bool:
        """Whether 𝒬 is the identity."""
        return is_identity(self.Q)

    @property
    def degree(self) -> int:
        """φ(tX) = t^degree φ(X)."""
        return 1 if self.B is None else 2

    @property
    def H(self) -> Stack:
        """The factors as an array, shape (n, d, r)."""
        return np.eye(self.Q.d)[None] if self.factors is None else self.factors

    def images(self, X: Matrix) -> Stack:
        """H_jᵀ 𝒬(φ(X)) H_j for every j."""
        M = self.Q.apply(X if self.B is None else _symmetric(X @ self.B @ X))
        return _symmetric(self.H.transpose(0, 2, 1) @ (M @ self.H))

    def weights(self) -> Matrix:
        """Σ_j 𝒬*(H_j H_jᵀ), the gradient of −Σ_j tr F_j of a linear family."""
        stacked = self.H.transpose(0, 2, 1).reshape(-1, self.Q.d)
        return self.Q.adjoint(stacked.T @ stacked)


@dataclass(frozen=True, eq=False)
class Metric:
    """G(X) = aX − 𝒬(φ(X)), the left-hand side of a family with H = I, as objective: log det G(X), or t with G(X) ⪰ t·E.

    left: the family that holds a, 𝒬 and B.
    floor: E, positive definite, for the largest t; None for log det G(X).
    Raises ValueError for a family that has more than these terms, or a floor of another size.
    """

    left: Family
    floor: Matrix | None = None

    def __post_init__(self) -> None:
        left, d = self.left, self.left.Q.d
        if left.factors is not None or left.c or left.e:
            msg = "a metric is aX − 𝒬(φ(X)), without factors and without the terms c and e"
            raise ValueError(msg)
        if self.floor is not None and self.floor.shape != (d, d):
            msg = f"the floor of a metric must have shape {(d, d)}, got {self.floor.shape}"
            raise ValueError(msg)


@dataclass(frozen=True, eq=False)
class Program:
    """maximise log det X subject to every inequality of the families, X ≻ 0 with the pattern.

    root, offset: of τ(X); a root of 0 stands for d.  objective: what is maximised instead of log det X, if not None.
    Raises ValueError for sizes that do not agree, a root below d, and unless there are either inequalities or a metric.
    """

    families: tuple[Family, ...]
    pattern: Pattern
    root: float = 0.0
    offset: float = 0.0
    objective: Metric | None = None

    def __post_init__(self) -> None:
        if bool(self.families) == (self.objective is not None):
            msg = "a program has inequalities, or a metric as objective, and not both"
            raise ValueError(msg)
        for family in self.families if self.objective is None else (self.objective.left,):
            if family.Q.d != self.pattern.d:
                msg = f"a family is for d={family.Q.d} but the pattern is for d={self.pattern.d}"
                raise ValueError(msg)
        if self.root == 0.0:
            object.__setattr__(self, "root", float(self.pattern.d))
        if not self.root >= self.pattern.d:
            msg = f"root must be at least d={self.pattern.d} for τ to be concave, got {self.root!r}"
            raise ValueError(msg)

    @staticmethod
    def single(B: Matrix, Q: PositiveMap, pattern: Pattern | None = None, B_slack: Vector | None = None) -> Program:
        """maximise log det X subject to 𝒬(X B X) ⪯ X: conditions (3) and (4)."""
        return Program((Family(Q, B, a=1.0, B_slack=B_slack),), pattern or Pattern.full(len(B)))

    @staticmethod
    def descent(
        B: Matrix,
        Q: PositiveMap,
        pattern: Pattern | None = None,
        floor: Matrix | None = None,
        B_slack: Vector | None = None,
    ) -> Program:
        """maximise log det(2X − 𝒬(X B X)), or the largest t with 2X − 𝒬(X B X) ⪰ t·floor: the descent metric."""
        metric = Metric(Family(Q, B, a=2.0, B_slack=B_slack), floor)
        return Program((), pattern or Pattern.full(len(B)), objective=metric)

    @property
    def d(self) -> int:
        return self.pattern.d

    @cached_property
    def condition(self) -> Family | None:
        """The one family of a program made by ``single`` that maximises log det X; None for any other program."""
        if len(self.families) != 1:
            return None
        family = self.families[0]
        alone = family.factors is None and family.B is not None
        return family if alone and (family.a, family.c, family.e) == (1.0, 0.0, 0.0) else None

    @property
    def total_size(self) -> int:
        """The sizes of all matrix inequalities together, that of a metric among them."""
        metric = 0 if self.objective is None else self.d
        return metric + sum(family.count * family.rows for family in self.families)

    @property
    def power(self) -> float:
        """d/root: τ(tX) = t^power τ(X)."""
        return self.d / self.root

    def tau(self, log_det: float) -> float:
        """τ as a function of log det X."""
        return math.exp((log_det - self.offset) / self.root)

    def constant(self, family: Family, log_det: float) -> float:
        """c + e τ(X) of a family."""
        return family.c + (family.e * self.tau(log_det) if family.e else 0.0)

    def largest_scale(self, log_det: float, tops: Sequence[float]) -> float:
        """The largest t with tX feasible, from log det X and each family's largest eigenvalue of all H_jᵀ𝒬(φ(X))H_j.

        It is the minimum over the families, none of which has a term aX, of the root of c + eτ(X) t^power = t^p top,
        p the degree.
        """
        scale = math.inf
        for family, top in zip(self.families, tops, strict=True):
            if top > 0.0:
                lift = family.e * self.tau(log_det) if family.e else 0.0
                scale = min(scale, _root(family.c / top, lift / top, family.degree, self.power))
        return scale


def _symmetric(M: Stack) -> Stack:
    return np.asarray(0.5 * (M + M.mT))


def _root(a: float, b: float, p: int, q: float) -> float:
    """The positive t with t^p = a + b t^q, from below, for a, b ≥ 0 and p > q > 0."""
    if b == 0.0:
        return float(a ** (1.0 / p))
    if a == 0.0:
        return float(b ** (1.0 / (p - q)))
    # At t the larger of the two terms is at least half of t^p, and neither is more than all of it.
    low = max(a ** (1.0 / p), b ** (1.0 / (p - q)))
    high = max((2.0 * a) ** (1.0 / p), (2.0 * b) ** (1.0 / (p - q)))
    for _ in range(60):  # halves the logarithm of a ratio of at most 2^{1/(p−q)} down to rounding
        middle = math.sqrt(low * high)
        if middle**p <= a + b * middle**q:
            low = middle
        else:
            high = middle
    return float(low)
