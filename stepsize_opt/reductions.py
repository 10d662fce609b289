"""Exact reductions: what can be proved about the optimum before any solver starts.

The single-node problem is: maximise log det D subject to 𝒬(D B D) ⪯ D, D in a pattern, with (B, 𝒬) = (L, 𝒫) for
condition (3) and (𝒫(L), identity) for condition (4): D ≻ 0 gives D E[TLT] D ⪯ D ⟺ D ⪯ (E[TLT])⁻¹.

*Commuting.*  If every outcome of the sketch is constant on each block of the pattern, then S D = D S and
E[S D L D S] = D E[S L S] D: condition (3) is condition (4).  For a diagonal sketch this is visible in P: equal rows
i, j of P have E(s_i − s_j)² = P_ii − 2P_ij + P_jj = 0, so s_i = s_j.  The full pattern needs a scalar sketch
(identity, one-coin Bernoulli), the diagonal pattern takes every diagonal sketch.

*Components.*  Let the coordinates fall into groups such that B has no entry between two groups and every diagonal sign
matrix Ω that is constant on groups commutes with 𝒬.  If D is feasible, so is ΩDΩ with the same determinant.  The
average over all Ω deletes the entries of D between groups; it is feasible because the feasible set is convex, and its
log det is no smaller because log det is concave.  So an optimal D has no entry between groups, and each group can be
solved alone.

*Scaling.*  For a positive diagonal Λ that commutes with 𝒬, D is feasible for B just when Λ⁻¹DΛ⁻¹ is feasible for
ΛBΛ.  Powers of two make the scaled problem the same problem bit for bit.

*Closed forms.*  𝒬 = identity and D full: D = B⁻¹, with multiplier Z = B.  D = γW: γ = 1/λmax(W^{−½} 𝒬(WBW) W^{−½}),
with Z = zzᵀ for the eigenvector z = W^{−½}u (Theorem 2 of the paper is this for each layer).  A coordinate alone:
D = 1/(q B).  Theorems A and B (``docs/native_solver.md``) extend this to many problems of rand-1 and rand-k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.linalg import eigh, inv
from scipy.sparse.csgraph import connected_components

from solvers.maps import DiagonalPlusScaled, Hadamard, Indices, Matrix, PositiveMap, Vector, block_slices, is_identity
from solvers.program import BlockPattern, LogDetProgram, Pattern, ScaledPattern
from stepsize_opt.certificate import Certificate
from stepsize_opt.smoothness import (
    SMOOTHNESS_REMEDY,
    Symmetric,
    check_positive_definite,
    dense,
    power_of_two_scaling,
)
from stepsize_opt.verified import Enclosed
from stepsize_opt.verified_maps import image


@dataclass(frozen=True, eq=False)
class Singletons:
    """Coordinates that stand alone: maximise Σ log D_j subject to w_j D_j ≤ 1, solved by D_j = 1/w_j."""

    indices: Indices
    weights: Vector

    def solve(self) -> tuple[Vector, Vector, Certificate]:
        """D_j, its multipliers Z_j = w_j, and their certificate."""
        # 1/w and this product round by half an ulp each, w itself by at most three (a map and a product); the rest
        # lets the general check of the condition, whose error bounds are wider, see it too.
        D = (1.0 / self.weights) * (1.0 - 32.0 * np.finfo(float).eps)
        logs = -np.log(self.weights)
        value = math.fsum(logs)
        # Rounding of the logarithms, of w, and the retreat above, for each coordinate.
        slack = np.finfo(float).eps * (36.0 * len(logs) + 4.0 * float(np.sum(np.abs(logs))))
        margin = float(np.min(1.0 - self.weights * D))
        return D, self.weights.copy(), Certificate(True, margin, value - slack, value + slack, len(D))


@dataclass(frozen=True, eq=False)
class Component:
    """One connected piece: the scaled program and how its answer goes back, D[indices, indices] = Λ D̃ Λ."""

    indices: Indices
    scale: Vector
    program: LogDetProgram

    def lower(self, D: Matrix) -> Matrix:
        """A stepsize of the original coordinates in the scaled ones (exact)."""
        return D / self.scale[:, None] / self.scale

    def lift_stepsize(self, D: Matrix) -> Matrix:
        """A stepsize of the scaled coordinates in the original ones (exact)."""
        return self.scale[:, None] * D * self.scale

    def lower_dual(self, Z: Matrix) -> Matrix:
        """A multiplier of the original constraint in the scaled coordinates (exact)."""
        return self.scale[:, None] * Z * self.scale

    def lift_dual(self, Z: Matrix) -> Matrix:
        """A multiplier of the scaled constraint in the original coordinates (exact)."""
        return Z / self.scale[:, None] / self.scale


@dataclass
class Reduction:
    """The pieces of a problem and the names of the reductions that made them."""

    components: list[Component] = field(default_factory=list)
    singletons: list[Singletons] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def reduce_problem(L: Symmetric, Q: PositiveMap, pattern: Pattern, algorithm: str, *, split: bool = True) -> Reduction:
    """Reduce the problem of one node; ``split=False`` keeps it in one piece and only scales it.

    Raises ValueError when L is not positive definite.
    """
    out = Reduction()
    total = 0
    for indices in _groups(L, Q, pattern) if split else [np.arange(L.shape[0])]:
        block = _block(L, indices)
        total += 1
        check_positive_definite("L", block, SMOOTHNESS_REMEDY)
        _reduce_block(block, _restricted(Q, indices), _sub_pattern(pattern, indices), algorithm, indices, split, out)
    if total > 1:
        out.notes.insert(0, f"L splits into {total} connected components")
    return out


def separate(L: Matrix, Q: PositiveMap, algorithm: str, D: Matrix) -> list[Component]:
    """The pieces into which the *check* of a given D falls: nothing in L, the sketch or D connects two of them."""
    pieces: list[Component] = []
    full = BlockPattern((len(L),))
    for indices in _groups(L, Q, full, D):
        block, part = _block(L, indices), _restricted(Q, indices)
        check_positive_definite("L", block, SMOOTHNESS_REMEDY)
        slack = None
        if algorithm == "det-CGD2" and not is_identity(part):
            block, slack = _rounded_image(part, block)
            part = DiagonalPlusScaled.identity(len(block))
        program, scale = _scaled_program(block, slack, part, _sub_pattern(full, indices))
        pieces.append(Component(indices, scale, program))
    return pieces


def _reduce_block(
    L: Matrix, Q: PositiveMap, pattern: Pattern, algorithm: str, indices: Indices, split: bool, out: Reduction
) -> None:
    B: Matrix = L
    B_slack: Vector | None = None
    commuting = algorithm == "det-CGD1" and split and commutes(Q, pattern)
    if (algorithm == "det-CGD2" or commuting) and not is_identity(Q):
        B, B_slack = _rounded_image(Q, L)
        Q = DiagonalPlusScaled.identity(len(L))
    if algorithm == "det-CGD2":
        out.note("condition (4) is D ⪯ (E[TLT])⁻¹")
    elif commuting:
        out.note("the sketch commutes with D: condition (3) is D ⪯ (E[SLS])⁻¹")
    pieces = list(_groups(B, Q, pattern)) if split else [np.arange(len(B))]
    if len(pieces) > 1:
        out.note("E[SLS] splits into more components than L")
    alone = [piece for piece in pieces if piece.size == 1 and split]
    if alone:
        single = np.concatenate(alone)
        weights = Q.diagonal_action[single] * np.diagonal(B)[single]
        if isinstance(pattern, ScaledPattern):
            out.note("closed form for a fixed direction")
        out.singletons.append(Singletons(indices[single], weights))
        out.note("closed form for coordinates that stand alone")
    for piece in pieces:
        if piece.size == 1 and split:
            continue
        slack = None if B_slack is None else B_slack[piece]
        program, scale = _scaled_program(_block(B, piece), slack, _restricted(Q, piece), _sub_pattern(pattern, piece))
        if (scale != 1.0).any():
            out.note("diagonal scaling")
        out.components.append(Component(indices[piece], scale, program))


def _rounded_image(Q: PositiveMap, L: Matrix) -> tuple[Matrix, Vector]:
    """𝒬(L) and a vector r with −Diag(r) ⪯ rounding ⪯ Diag(r): the row sums of an entrywise bound."""
    B = image(Q, Enclosed(L, np.zeros_like(L))).symmetric()
    return B.value, np.asarray(B.error.sum(axis=1))


def _scaled_program(
    B: Matrix, B_slack: Vector | None, Q: PositiveMap, pattern: Pattern
) -> tuple[LogDetProgram, Vector]:
    scale = power_of_two_scaling(_mean_in_groups(B.diagonal(), Q))
    scaled = scale[:, None] * B * scale
    if isinstance(pattern, ScaledPattern):
        pattern = ScaledPattern(pattern.sizes, pattern.W / scale[:, None] / scale)
    slack = None if B_slack is None else scale**2 * B_slack
    return LogDetProgram.single_node(scaled, Q, pattern, slack), scale


def _mean_in_groups(diagonal: Vector, Q: PositiveMap) -> Vector:
    """The diagonal with each entry replaced by the geometric mean over the coordinates that the map couples to it."""
    if isinstance(Q, DiagonalPlusScaled | Hadamard):  # which couple none
        return diagonal
    labels = Q.groups
    count = np.bincount(labels)
    mean = np.bincount(labels, weights=np.log2(diagonal)) / np.maximum(count, 1)
    return np.asarray(np.exp2(mean)[labels])


def _groups(B: Symmetric, Q: PositiveMap, pattern: Pattern, D: Matrix | None = None) -> Iterator[Indices]:
    """The finest groups of coordinates that B, D, the map and the ties of the pattern leave unconnected, in order."""
    d = B.shape[0]
    if isinstance(B, np.ndarray) and B.all():
        yield np.arange(d)
        return
    edges = [sparse.coo_array(M != 0) for M in (B, D) if M is not None]
    for labels in [Q.groups] + ([_block_labels(pattern.sizes)] if isinstance(pattern, ScaledPattern) else []):
        first = np.full(int(labels.max()) + 1, -1, dtype=np.intp)
        order = np.arange(d)[::-1]
        first[labels[order]] = order  # the first coordinate of each label
        edges.append(sparse.coo_array((np.ones(d, dtype=bool), (order, first[labels[order]])), shape=(d, d)))
    rows = np.concatenate([edge.coords[0] for edge in edges])
    cols = np.concatenate([edge.coords[1] for edge in edges])
    graph = sparse.csr_array((np.ones(rows.size), (rows, cols)), shape=(d, d))
    count, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(count + 1))
    for i in range(count):
        yield order[bounds[i] : bounds[i + 1]].astype(np.intp)


def _block_labels(sizes: tuple[int, ...]) -> Indices:
    return np.repeat(np.arange(len(sizes)), sizes)


def _sub_pattern(pattern: Pattern, indices: Indices) -> Pattern:
    """The pattern seen by some of the coordinates, taken in increasing order."""
    if indices.size == pattern.d and isinstance(pattern, BlockPattern):
        return pattern
    counts = np.bincount(_block_labels(pattern.sizes)[indices], minlength=len(pattern.sizes))
    sizes = tuple(int(c) for c in counts if c)
    # One free factor for each 1×1 block is a free diagonal.
    if isinstance(pattern, ScaledPattern) and max(sizes) > 1:
        return ScaledPattern(sizes, pattern.W[np.ix_(indices, indices)])
    return BlockPattern(sizes)


def _restricted(Q: PositiveMap, indices: Indices) -> PositiveMap:
    """The map on some of the coordinates, taken in increasing order."""
    return Q if indices.size == Q.d else Q.restrict(indices)


def _block(L: Symmetric, indices: Indices) -> Matrix:
    """The rows and columns of some of the coordinates, taken in increasing order; an array itself if these are all."""
    if isinstance(L, np.ndarray):
        return L if indices.size == len(L) else np.asarray(L[np.ix_(indices, indices)])
    return dense(L[indices][:, indices])


def commutes(Q: PositiveMap, pattern: Pattern) -> bool:
    """Whether the sketch is constant on each block of the pattern, so that it commutes with every D of the pattern."""
    if isinstance(Q, DiagonalPlusScaled) and isinstance(pattern, BlockPattern):
        # E(s_i − s_j)² = α_i + α_j
        return all(
            n == 1 or not Q.alpha[s].any() for n, s in zip(pattern.sizes, block_slices(pattern.sizes), strict=True)
        )
    P = Q.hadamard_matrix
    if P is None:
        return False
    if isinstance(pattern, ScaledPattern):
        # D = Diag(γᵢWᵢ) with diagonal W commutes with every diagonal sketch.
        diagonal_W = np.array_equal(pattern.W, np.diag(np.diagonal(pattern.W)))
        if diagonal_W:
            return True
    return all(bool(np.all(P[s] == P[s.start])) for s in block_slices(pattern.sizes))


def closed_form(program: LogDetProgram) -> tuple[Matrix, Matrix, str] | None:
    """D, its multiplier Z and the name of the formula, when the program has a closed-form optimum; otherwise None."""
    constraint = program.constraints[0]
    Q, B, pattern = constraint.Q, constraint.B, program.pattern
    if Q is None or B is None:
        return None
    if isinstance(pattern, BlockPattern):
        if pattern.is_full and is_identity(Q):
            return np.asarray(inv(B)), B, "closed form D = (E[SLS])⁻¹"
        return None
    if len(pattern.sizes) > 1:
        return None
    W = pattern.W
    M = Q.apply(W @ B @ W)
    # All eigenpairs: asked for the last one alone, LAPACK may return none when all coincide (W = L⁻¹, no compression).
    values, vectors = eigh(0.5 * (M + M.T), W)
    z = vectors[:, -1]
    return W / float(values[-1]), np.outer(z, z), "closed form for a fixed direction"
