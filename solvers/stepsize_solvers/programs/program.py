"""The one problem type of the project: log det D under matrix-concave constraints.

    maximise    log det D
    subject to  G_j(D) = C_j + a_j D + c_j det(D)^{1/d} E_j − 𝒬_j(D B_j D) ⪰ 0      for every j,
                D ≻ 0 in a given pattern (full, block-diagonal, or γᵢWᵢ block by block)

with positive maps 𝒬_j, B_j ⪰ 0 and c_j E_j ⪰ 0.  Each G_j is matrix-concave, because D ↦ D B D is
matrix-convex, a positive map keeps the order and det(D)^{1/d} is concave.  The program is therefore
convex and any KKT point is a global optimum.

The stepsize conditions of det-CGD are instances:

==============================  ============  =====  =======================  =========  =========
condition                       C             a      c E                      𝒬          B
==============================  ============  =====  =======================  =========  =========
(3)  E[S D L D S] ⪯ D           0             1      0                        𝒫          L
(4)  E[D T L T D] ⪯ D           0             1      0                        identity   𝒫(L)
D ⪯ L⁻¹                         L⁻¹           −1     0                        –          –
(12), bound n/K, client i       (n/K) Lᵢ⁻¹    0      0                        𝒫ᵢ − id    L
(12), bound with det, client i  0             0      (nε²/(4Δ^inf)) Lᵢ⁻¹      𝒫ᵢ − id    L
==============================  ============  =====  =======================  =========  =========
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_solvers.programs.maps import DiagonalPlusScaled, Matrix, PositiveMap, Vector, block_slices


@dataclass(frozen=True, eq=False)
class BlockPattern:
    """D = Diag(D₁, …, D_m) with free symmetric blocks; one block is a full matrix, blocks of size 1 a diagonal."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            msg = f"block sizes must be positive whole numbers, got {self.sizes}"
            raise ValueError(msg)

    @property
    def d(self) -> int:
        return sum(self.sizes)

    @property
    def is_full(self) -> bool:
        return len(self.sizes) == 1

    @property
    def plain(self) -> Matrix:
        """A positive definite matrix with the pattern."""
        return np.eye(self.d)

    def project(self, M: Matrix) -> Matrix:
        """The nearest matrix with the pattern: entries outside the blocks become zero."""
        out = np.zeros_like(M)
        for s in block_slices(self.sizes):
            out[s, s] = M[s, s]
        return out


@dataclass(frozen=True, eq=False)
class ScaledPattern:
    """D = Diag(γ₁W₁, …, γ_mW_m): one free positive factor for each given positive definite block.

    ``W`` is block-diagonal with the given sizes.  One block is the direction D = γW of the paper.
    """

    sizes: tuple[int, ...]
    W: Matrix

    @property
    def d(self) -> int:
        return sum(self.sizes)

    @property
    def plain(self) -> Matrix:
        """A positive definite matrix with the pattern."""
        return self.W


Pattern = BlockPattern | ScaledPattern


@dataclass(frozen=True, eq=False)
class Constraint:
    """C + a D + c det(D)^{1/d} E − 𝒬(D B D) ⪰ 0; a missing matrix is zero.

    ``B_slack`` is a vector r with B − Diag(r) ⪯ B̄ ⪯ B + Diag(r) for the matrix B̄ that is meant (a computed E[TLT] is
    rounded).  Solvers ignore it; the certificate holds for every such B̄.
    """

    Q: PositiveMap | None = None
    B: Matrix | None = None
    a: float = 1.0
    C: Matrix | None = None
    c: float = 0.0
    E: Matrix | None = None
    B_slack: Vector | None = None

    def __post_init__(self) -> None:
        if (self.Q is None) != (self.B is None):
            msg = "a constraint needs both the map Q and the matrix B of its quadratic term, or neither"
            raise ValueError(msg)
        if self.c != 0.0 and self.E is None:
            msg = "a constraint with c ≠ 0 needs the matrix E of its determinant term"
            raise ValueError(msg)

    @property
    def is_homogeneous(self) -> bool:
        """Whether G(tD)/t = aD + cE det(D)^{1/d} − t𝒬(DBD), so that a scale can be repaired in closed form."""
        return self.C is None

    def evaluate(self, D: Matrix) -> Matrix:
        """G(D) in plain floating point."""
        G = self.a * D
        if self.C is not None:
            G = G + self.C
        if self.E is not None and self.c != 0.0:
            G = G + self.c * np.exp(np.linalg.slogdet(D)[1] / D.shape[0]) * self.E
        if self.Q is not None and self.B is not None:
            G = G - self.Q.apply(D @ self.B @ D)
        return 0.5 * (G + G.T)


@dataclass(frozen=True, eq=False)
class LogDetProgram:
    """maximise log det D subject to the constraints, D ≻ 0 with the pattern."""

    constraints: tuple[Constraint, ...]
    pattern: Pattern

    def __post_init__(self) -> None:
        if not self.constraints:
            msg = "a program without constraints is unbounded"
            raise ValueError(msg)

    @property
    def d(self) -> int:
        return self.pattern.d

    @staticmethod
    def single_node(
        B: Matrix, Q: PositiveMap, pattern: Pattern | None = None, B_slack: Vector | None = None
    ) -> LogDetProgram:
        """The program of condition (3): maximise log det D subject to 𝒬(D B D) ⪯ D."""
        return LogDetProgram((Constraint(Q=Q, B=B, B_slack=B_slack),), pattern or BlockPattern((B.shape[0],)))

    @property
    def quadratic_lift_applies(self) -> bool:
        """Whether every 𝒬 is Diag(α∘diag M) + βM with α, β ≥ 0, as the second-order cone form needs."""
        return all(
            con.Q is None
            or (isinstance(con.Q, DiagonalPlusScaled) and con.Q.beta >= 0.0 and bool(np.all(con.Q.alpha >= 0.0)))
            for con in self.constraints
        )
