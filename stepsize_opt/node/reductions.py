"""Exact reductions: what can be proved about the optimum before any solver starts.

The single-node problem is: maximise log det D subject to 𝒬(D B D) ⪯ D, D in a pattern, with the pair (𝒬, B) of the
method (``stepsize_opt.methods.Method.condition``): (𝒫, L) for condition (3) and (identity, 𝒫(L)) for condition (4).

*Commuting.*  If every outcome of the sketch is constant on each block of the pattern, then S D = D S and
E[S D L D S] = D E[S L S] D: condition (3) is condition (4).  For a diagonal sketch this is visible in P: equal rows
i, j of P have E(s_i − s_j)² = P_ii − 2P_ij + P_jj = 0, so s_i = s_j.  The full pattern needs a scalar sketch
(identity, one-coin Bernoulli), the diagonal pattern takes every diagonal sketch.

*Components.*  Let the coordinates fall into groups such that B has no entry between two groups and every diagonal sign
matrix Ω that is constant on groups commutes with 𝒬.  If D is feasible, so is ΩDΩ with the same determinant.  The
average over all Ω deletes the entries of D between groups; it is feasible because the feasible set is convex, and its
log det is no smaller because log det is concave.  So an optimal D has no entry between groups, and each group can be
solved alone.

*Scaling.*  For a positive diagonal Λ that commutes with 𝒬, D is feasible for B if and only if Λ⁻¹DΛ⁻¹ is for ΛBΛ.
Powers of two make the scaled problem the same problem bit for bit.  Λ evens out D rather than B: a coordinate alone has
D_jj = 1/(q_j B_jj), and D = γW has D_jj ∝ W_jj.  D becomes about 1/min q.

*The descent metric.*  The goals ``descent``, ``euclidean`` and ``linear`` maximise log det H or t with H ⪰ tM⁻¹,
H(D) = 2D − 𝒬(DBD), and each reduction holds for them.  Commuting is an identity of T(D) = 𝒬(DBD).  Components:
H(ΩDΩ) = ΩH(D)Ω, and H is matrix-concave, so the average D̄ over all Ω has H(D̄) ⪰ H̄, the average of ΩH(D)Ω.  log det is
monotone and concave: log det H(D̄) ≥ log det H(D).  If M, too, has no entry between groups, H(D) ⪰ tM⁻¹ gives
ΩH(D)Ω ⪰ tM⁻¹, hence H(D̄) ⪰ tM⁻¹; t of the whole is the smallest of the groups.  Scaling: with ΛBΛ in place of B the
metric of Λ⁻¹DΛ⁻¹ is Λ⁻¹H(D)Λ⁻¹, and H ⪰ tM⁻¹ becomes Λ⁻¹HΛ⁻¹ ⪰ t(ΛMΛ)⁻¹.  𝒬 = identity and D full: H ⪯ B⁻¹ with
equality for D = B⁻¹, the best for every goal.  A coordinate alone: H = D(2 − qBD) ≤ 1/(qB), at the same D.

*Closed forms.*  𝒬 = identity and D full: D = B⁻¹, with multiplier Z = B.  D = γW: γ = 1/λmax(W^{−½} 𝒬(WBW) W^{−½}),
with Z = zzᵀ for the eigenvector z = W^{−½}u (Theorem 2 of the paper is this for each layer).  A coordinate alone:
D = 1/(q B).  Theorems A and B (``docs/native_solver.md``) extend this to many problems of rand-1 and rand-k.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from stepsize_opt.goals import Goal, Units, stepsize_out_of_range
from stepsize_opt.inputs.matrices import LARGEST_SPREAD, Scaling, Symmetric, dense
from stepsize_opt.methods import Condition, Method
from stepsize_opt.node.question import Question
from stepsize_opt.proofs import (
    LARGEST_COEFFICIENT,
    SMALLEST_NORMAL,
    UNIT,
    Certificate,
    Enclosed,
    coefficient_roundings,
    image,
    is_held,
    twice_gamma,
)
from stepsize_opt.smoothness import MatrixSmoothness
from stepsize_solvers.programs import (
    Indices,
    Matrix,
    Pattern,
    PositiveMap,
    Program,
    SolverStats,
    Status,
    Vector,
    is_identity,
)

_NO_UNDERFLOW = 2.0**-1000  # far above the smallest normal number


@dataclass(frozen=True, eq=False)
class Component:
    """A connected piece to be solved: its units, the condition 𝒬(DBD) ⪯ D and the goal in them."""

    units: Units
    condition: Program
    goal: Goal


@dataclass(frozen=True, eq=False)
class Piece:
    """A D of some coordinates with what is proved of it, in the original units.

    D, dual: a matrix, or the vector of a diagonal, and its multiplier; certificate: of the goal; descent: of
    H = 2D − T(D), proved positive definite or not, and its log det from below; stats: None where nothing was solved.
    """

    indices: Indices
    D: Matrix
    dual: Matrix
    certificate: Certificate
    descent: Certificate
    satisfies_condition: bool = True
    stats: SolverStats | None = None
    status: Status = Status.OPTIMAL
    note: str | None = None
    message: str = ""


@dataclass
class Reduction:
    """The pieces of a problem, solved or not, the groups of coordinates that L leaves apart, and what was reduced."""

    components: list[Component] = field(default_factory=list)
    solved: list[Piece] = field(default_factory=list)
    groups: list[Indices] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str | None) -> None:
        if text and text not in self.notes:
            self.notes.append(text)


def reduce_problem(question: Question) -> Reduction:
    """Reduce the problem of one node.

    Raises ValueError when L is not positive definite, or M of the goal is not between 0 and L.
    """
    L, law, method, goal = question.L.formed(), question.sketch.map, question.method, question.goal
    pattern = question.pattern()
    out = Reduction(groups=list(_groups(L.matrix, _maps(law, method), pattern, goal.edges)))
    for indices in out.groups:
        block = _proved_block(L, indices, goal)
        _reduce_block(block, _restricted(law, indices), pattern.restrict(indices), method, indices, goal, out)
    if len(out.groups) > 1:
        out.notes.insert(0, f"L splits into {len(out.groups)} connected components")
    return out


def separate(question: Question, pattern: Pattern, D: Matrix) -> Reduction:
    """Separate the *check* of a given D into pieces: nothing in L, the sketch, the pattern, D or M connects two."""
    L, law, method, goal = question.L.formed(), question.sketch.map, question.method, question.goal
    edges = D if goal.edges is None else np.abs(D) + np.abs(dense(goal.edges))
    out = Reduction(groups=list(_groups(L.matrix, _maps(law, method), pattern, edges)))
    for indices in out.groups:
        block = _proved_block(L, indices, goal)
        part, sub = _restricted(law, indices), pattern.restrict(indices)
        condition = method.condition(part, commutes=sub.commutes_with(part))
        program, scaling = scaled_program(block, condition, sub)
        out.components.append(_component(indices, scaling, program, goal))
    return out


def _proved_block(L: MatrixSmoothness, indices: Indices, goal: Goal) -> Matrix:
    """Return the block of some coordinates, proved to be positive definite and to go with the goal."""
    block = L.block(indices)
    L.log_det(indices)
    goal.check(block, indices)
    return block


def _component(indices: Indices, scaling: Scaling, condition: Program, goal: Goal) -> Component:
    units = Units(indices, scaling)
    return Component(units, condition, goal.at(units))


def _reduce_block(
    L: Matrix, law: PositiveMap, pattern: Pattern, method: Method, indices: Indices, goal: Goal, out: Reduction
) -> None:
    condition = method.condition(law, commutes=pattern.commutes_with(law))
    quadratic, Q = _rounded_image(condition.inner, L), condition.outer
    out.note(condition.words)
    pieces = [np.arange(len(L))]
    if not (quadratic.B is L and Q is law):  # what L and the law connect has been found
        edges = None if goal.edges is None else dense(goal.edges[indices][:, indices])
        pieces = list(_groups(quadratic.B, [Q], pattern, edges))
    if len(pieces) > 1:
        out.note("E[SLS] splits into more components than L")
    alone = [piece for piece in pieces if piece.size == 1]
    if alone:
        places = np.concatenate(alone)
        out.solved.append(_alone(quadratic, Q, places, indices[places], goal))
        if pattern.W is not None:
            out.note("closed form for a fixed direction")
        out.note("closed form for coordinates that stand alone")
    for piece in pieces:
        if piece.size == 1:
            continue
        program, scaling = _scaled_program(quadratic.part(piece), _restricted(Q, piece), pattern.restrict(piece))
        if (scaling.factors != 1.0).any():
            out.note("diagonal scaling")
        out.components.append(_component(indices[piece], scaling, program, goal))


def _alone(quadratic: _Quadratic, Q: PositiveMap, places: Indices, indices: Indices, goal: Goal) -> Piece:
    """Solve coordinates that stand alone, ``indices`` of the whole: maximise Σ log D_j subject to w̄_j D_j ≤ 1.

    D_j = 1/w̄_j with w̄_j = q_j B̄_jj; w_j is w̄_j in scaled coordinates, rounded: |w̄_j − w_j| ≤ error_j w_j.
    Raises ValueError for a stepsize that float64 does not hold.
    """
    diagonal, scaling = np.diagonal(quadratic.B)[places], Scaling(quadratic.scale[places])
    with np.errstate(over="ignore"):  # an infinite weight is refused
        weights = Q.diagonal_action[places] * diagonal
    error = np.full(len(weights), twice_gamma(coefficient_roundings(Q) + 2))
    if quadratic.slack is not None:
        error += quadratic.slack[places] / diagonal
    inside = (weights >= SMALLEST_NORMAL) & (weights <= 1.0 / SMALLEST_NORMAL) & (error < 0.25)
    weights = np.where(inside, weights, 1.0)
    # The quotient and the products round by a few units; the rest lets the general check of the condition, whose
    # error bounds are wider, see it too.
    scaled = (1.0 - 2.0 * error - 40.0 * UNIT) / weights
    with np.errstate(over="ignore"):
        D = scaling.times(scaled)
    inside &= is_held(D)
    if not inside.all():
        raise stepsize_out_of_range(int(indices[~inside][0]))
    lower, upper = np.log(scaled), -np.log(weights * (1.0 - 2.0 * error))
    # Rounding of the logarithms (one ulp each), of their arguments and of the exact sums.
    slack = UNIT * (8.0 * len(D) + 4.0 * float(np.abs(lower).sum()))
    below, above = math.fsum(lower) - slack, math.fsum(upper) + slack
    margin = float(np.min(1.0 - weights * scaled))
    # w̄D ≤ 1 makes H = D(2 − w̄D) ≥ D, and H ≤ 1/w̄.
    log_det = Certificate(True, margin, below, above, len(D)).rescaled(scaling.factors)
    certificate = goal.of_coordinates(log_det, lower, upper, Units(indices, scaling))
    return Piece(indices, D, scaling.over(weights), certificate, log_det)


@dataclass(frozen=True, eq=False)
class _Quadratic:
    """B = ΛB̄Λ of the quadratic term D B̄ D, Λ = Diag(scale), up to −Diag(slack) ⪯ rounding ⪯ Diag(slack)."""

    B: Matrix
    slack: Vector | None
    scale: Vector

    def part(self, indices: Indices) -> _Quadratic:
        """Return the rows and columns of some of the coordinates."""
        if indices.size == len(self.B):
            return self
        slack = None if self.slack is None else self.slack[indices]
        return _Quadratic(self.B[np.ix_(indices, indices)], slack, self.scale[indices])

    def scaled(self, scale: Vector) -> _Quadratic:
        """Return the same with ΛBΛ for another diagonal Λ of powers of two."""
        units = Scaling(scale)
        B = units.times(self.B)
        slack = None if self.slack is None else units.times(self.slack)
        if not np.abs(B).min() > _NO_UNDERFLOW and (units.over(B) != self.B).any():
            # Entries underflowed, by less than 2⁻¹⁰⁷⁴ each; 2⁻⁵² B_jj is what shifted_matrix can add to a diagonal.
            lost = len(B) * 2.0**-1070 + 2.0**-52 * B.diagonal()
            slack = lost if slack is None else slack + lost
        return _Quadratic(B, slack, self.scale * scale)


def _unscaled(L: Matrix) -> _Quadratic:
    return _Quadratic(L, None, np.ones(len(L)))


def _rounded_image(Q: PositiveMap, L: Matrix) -> _Quadratic:
    """Return 𝒬(L), scaled before the map is applied so that no product leaves the range of float64."""
    if is_identity(Q):
        return _unscaled(L)
    _check_spread(L, Q)
    scaled = _unscaled(L)
    scaled = scaled.scaled(_scaling(scaled, Q, Pattern((1,) * len(L))))
    B = image(Q, Enclosed.exact(scaled.B)).symmetric()
    slack = np.asarray(B.error.sum(axis=1))  # the row sums of an entrywise bound
    if scaled.slack is not None:
        # Diag(−s) ⪯ E ⪯ Diag(s) gives 𝒬(Diag(−s)) ⪯ 𝒬(E) ⪯ 𝒬(Diag(s)), bounded by its own row sums.
        lost = image(Q, Enclosed.exact(np.diag(scaled.slack)))
        slack += (np.abs(lost.value) + lost.error).sum(axis=1)
    return _Quadratic(B.value, slack, scaled.scale)


def scaled_program(L: Matrix, condition: Condition, pattern: Pattern) -> tuple[Program, Scaling]:
    """Return the program of a condition in one piece, as ``_scaled_program`` does."""
    return _scaled_program(_rounded_image(condition.inner, L), condition.outer, pattern)


def _scaled_program(quadratic: _Quadratic, Q: PositiveMap, pattern: Pattern) -> tuple[Program, Scaling]:
    """Return the program of one piece in coordinates in which D̃ is near one, and Λ with D = ΛD̃Λ."""
    _check_coefficients(Q)
    _check_spread(quadratic.B, Q)
    scaled = quadratic.scaled(_scaling(quadratic, Q, pattern))
    scaling = Scaling(scaled.scale)
    if pattern.W is not None:
        pattern = Pattern(pattern.sizes, _scaled_direction(pattern, scaling))
    return Program.single(scaled.B, Q, pattern, scaled.slack), scaling


def _scaling(quadratic: _Quadratic, Q: PositiveMap, pattern: Pattern) -> Vector:
    """Return powers of two Λ, equal on coordinates that 𝒬 couples, that even out the diagonal of Λ⁻¹DΛ⁻¹."""
    size = -(Q.action_levels + np.log2(quadratic.B.diagonal()))  # of log₂ D_jj for a coordinate alone
    if pattern.W is not None:
        direction = np.log2(pattern.W.diagonal()) - 2.0 * np.log2(quadratic.scale)
        for s in pattern.slices:
            size[s] = direction[s] + (size[s] - direction[s]).min()
    if not Q.is_entrywise:
        labels = Q.groups
        size = (np.bincount(labels, weights=size) / np.maximum(np.bincount(labels), 1))[labels]
    return np.asarray(np.ldexp(1.0, np.rint(0.5 * size).astype(np.intc)))


def _check_coefficients(Q: PositiveMap) -> None:
    """Refuse a map whose coefficients leave the range of proofs, or lie too far apart for a bound."""
    smallest, largest = Q.action_range
    ratio = largest / smallest
    if largest > LARGEST_COEFFICIENT or ratio > _LARGEST_RATIO:
        msg = (
            f"the sketch has second moments up to {largest:.1g}, {ratio:.1g} times the smallest, but proofs in float64 "
            f"take at most {LARGEST_COEFFICIENT:.0e} and {_LARGEST_RATIO:.0e} times; give rare coordinates a larger "
            "probability"
        )
        raise ValueError(msg)


def _check_spread(B: Matrix, Q: PositiveMap) -> None:
    """Refuse coordinates that the sketch couples, so that no scaling brings them together, but that lie far apart."""
    if Q.is_entrywise:
        return
    size, labels = np.log2(B.diagonal()), Q.groups
    low, high = np.full(int(labels.max()) + 1, np.inf), np.full(int(labels.max()) + 1, -np.inf)
    np.minimum.at(low, labels, size)
    np.maximum.at(high, labels, size)
    if (high - low).max() > LARGEST_SPREAD:
        msg = (
            f"the sketch couples coordinates whose diagonal entries of L differ by 2^{(high - low).max():.0f}, beyond "
            "float64; rescale the variables so that the diagonal entries of L are of similar size"
        )
        raise ValueError(msg)


# The bound on the optimum cancels numbers that are the root of this ratio times as large as the result.
_LARGEST_RATIO = 2.0**84


def _scaled_direction(pattern: Pattern, scaling: Scaling) -> Matrix:
    """Return Λ⁻¹WΛ⁻¹ with each block brought near one by a power of two: only its direction counts."""
    out = np.zeros_like(pattern.member)
    for s in pattern.slices:
        W, e = pattern.member[s, s], scaling.exponents[s]
        top = int((np.frexp(W.diagonal())[1] - 2 * e).max())
        out[s, s] = np.ldexp(W, -(e[:, None] + e) - top)
    return out


def _maps(law: PositiveMap, method: Method) -> Iterator[PositiveMap]:
    """Yield what may connect coordinates: the law of the sketch and the maps that the method makes of it."""
    condition = method.condition(law)
    yield from (law, condition.outer, condition.inner)


def _groups(
    B: Symmetric, maps: Iterable[PositiveMap], pattern: Pattern, other: Symmetric | None = None
) -> Iterator[Indices]:
    """Yield the finest groups of coordinates that B, another matrix, the maps and the ties of the pattern leave apart.

    The other matrix is a given D, or M of a goal.  Groups come in order.
    """
    d = B.shape[0]
    if isinstance(B, np.ndarray) and B.all():
        yield np.arange(d)
        return
    edges = [np.nonzero(M) if isinstance(M, np.ndarray) else M.nonzero() for M in (B, other) if M is not None]
    ties = [Q.groups for Q in maps if not Q.is_entrywise] + ([] if pattern.W is None else [pattern.labels])
    for labels in ties:
        first = np.full(int(labels.max()) + 1, -1, dtype=np.intp)
        order = np.arange(d)[::-1]
        first[labels[order]] = order  # the first coordinate of each label
        edges.append((order, first[labels[order]]))
    rows, cols = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    if (rows == cols).all():
        yield from np.arange(d)[:, None]
        return
    graph = sparse.csr_array((np.ones(rows.size), (rows, cols)), shape=(d, d))
    count, labels = connected_components(graph, directed=False)
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(count + 1))
    for i in range(count):
        yield order[bounds[i] : bounds[i + 1]].astype(np.intp)


def _restricted(Q: PositiveMap, indices: Indices) -> PositiveMap:
    """Return the map on some of the coordinates, taken in increasing order."""
    return Q if indices.size == Q.d else Q.restrict(indices)
