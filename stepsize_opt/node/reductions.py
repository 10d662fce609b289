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
from functools import cached_property
from typing import TypeVar

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from stepsize_opt.goals import PAPER, CurvatureBound, Goal
from stepsize_opt.inputs import LARGEST_SPREAD, Scaling, Symmetric, dense, out_of_range
from stepsize_opt.methods import Condition, Method
from stepsize_opt.proofs import (
    LARGEST_COEFFICIENT,
    SMALLEST_NORMAL,
    UNIT,
    Certificate,
    Enclosed,
    Evaluation,
    coefficient_roundings,
    image,
    log_det_power,
    twice_gamma,
)
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import LimitBounds, MatrixSmoothness
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

NO_UNDERFLOW = 2.0**-1000  # far above the smallest normal number
Proved = TypeVar("Proved", bound=Evaluation)


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


@dataclass(frozen=True, eq=False)
class Singletons:
    """Coordinates that stand alone: maximise Σ log D_j subject to w̄_j D_j ≤ 1, solved by D_j = 1/w̄_j.

    weights: w_j = q_j B_jj in scaled coordinates, rounded; error: |w̄_j − w_j| ≤ error_j w_j for w̄_j without rounding.
    scaling: the stepsize in the original units is Λ_j² D_j.
    """

    indices: Indices
    weights: Vector
    error: Vector
    scaling: Scaling
    curvature: Vector | None = None  # M_jj, for the largest t with D_j ≥ t/M_jj

    def solve(self) -> Piece:
        """Solve in the original units.

        Raises ValueError for a stepsize that float64 does not hold.
        """
        inside = (self.weights >= SMALLEST_NORMAL) & (self.weights <= 1.0 / SMALLEST_NORMAL) & (self.error < 0.25)
        weights = np.where(inside, self.weights, 1.0)
        # The quotient and the products round by a few units; the rest lets the general check of the condition, whose
        # error bounds are wider, see it too.
        scaled = (1.0 - 2.0 * self.error - 40.0 * UNIT) / weights
        with np.errstate(over="ignore"):
            D = self.scaling.times(scaled)
        inside &= (D >= SMALLEST_NORMAL) & np.isfinite(D)
        if not inside.all():
            raise stepsize_out_of_range(int(self.indices[~inside][0]))
        lower, upper = np.log(scaled), -np.log(weights * (1.0 - 2.0 * self.error))
        margin = float(np.min(1.0 - weights * scaled))
        # Rounding of the logarithms (one ulp each), of their arguments and of the exact sums.
        slack = UNIT * (8.0 * len(D) + 4.0 * float(np.abs(lower).sum()))
        below, above = math.fsum(lower) - slack, math.fsum(upper) + slack
        certificate = Certificate(True, margin, below, above, len(D)).rescaled(self.scaling.factors)
        reached = certificate
        if self.curvature is not None:
            # log t = min_j log M_jj + 2 log Λ_j + log D̃_j, each logarithm and sum rounded once.
            shift = np.log(self.curvature) + 2.0 * np.log(self.scaling.factors)
            sizes = np.abs(np.log(self.curvature)) + np.abs(2.0 * np.log(self.scaling.factors)) + np.abs(lower)
            loss = 16.0 * UNIT * (1.0 + sizes)
            low, high = (len(D) * float((end + shift).min()) for end in (lower - loss, upper + loss))
            reached = Certificate(True, margin, low, high, len(D))
        # w̄D ≤ 1 makes H = D(2 − w̄D) ≥ D, and H ≤ 1/w̄.
        return Piece(self.indices, D, self.scaling.over(weights), reached, certificate)


@dataclass(frozen=True, eq=False)
class Component:
    """One connected piece: the scaled program and how its answer goes back, D[indices, indices] = Λ D̃ Λ."""

    indices: Indices
    scaling: Scaling
    program: Program
    single: Program  # of the condition 𝒬(DBD) ⪯ D alone, by which D is proved
    bound: CurvatureBound | None = None

    @cached_property
    def power(self) -> int:
        """n with det D = 2ⁿ det D̃."""
        return log_det_power(self.scaling.factors)

    @property
    def log_shift(self) -> float:
        """What log det D / d, or log t where there is an M, exceeds that of the scaled program by."""
        power = self.power / self.program.d if self.bound is None else -self.bound.shift
        return power * math.log(2.0)

    def near_one(self, D: Matrix) -> tuple[Matrix | None, int]:
        """Return X and n with D = 2ⁿΛXΛ and a largest diagonal entry of X in [½, 1); None beyond float64."""
        e = self.scaling.exponents
        diagonal = D.diagonal()
        if not diagonal.min() > 0.0:
            return None, 0
        n = int((np.frexp(diagonal)[1] - 2 * e).max())
        shift = e[:, None] + e + n
        X = np.ldexp(D, -shift)
        return (X if np.array_equal(np.ldexp(X, shift), D) else None), n

    def dual_near_one(self, Z: Matrix) -> Matrix:
        """Return an original multiplier in the scaled coordinates, times a power of two: any is as good."""
        e = self.scaling.exponents
        shift = e[:, None] + e
        used = Z != 0.0
        top = int((np.frexp(Z)[1] + shift)[used].max()) if used.any() else 0
        return np.asarray(np.ldexp(Z, shift - top))

    def in_original_units(self, at: Proved) -> tuple[Proved, Matrix]:
        """Return the stepsize as float64 holds it, in the scaled and in the original coordinates.

        Proved feasible again if the range of float64 changed it; raises ValueError if that is not possible.
        """
        with np.errstate(over="ignore"):
            D = self.scaling.times(at.D)
        size = np.abs(D)
        if size.min() > NO_UNDERFLOW and size.max() < 1.0 / NO_UNDERFLOW:
            return at, D
        back = self.scaling.over(D)
        inside = (D.diagonal() >= SMALLEST_NORMAL) & np.isfinite(D.diagonal())
        if inside.all() and (back != at.D).any():
            at = at.elsewhere(back)  # entries between coordinates became subnormal or zero
        if not (inside.all() and at.feasible):
            raise stepsize_out_of_range(int(self.indices[np.argmin(inside)]))
        return at, D


def stepsize_out_of_range(coordinate: int) -> ValueError:
    """Return the error for a stepsize outside the range of float64."""
    what = f"the best stepsize of coordinate {coordinate}"
    return out_of_range(what)


@dataclass
class Reduction:
    """The pieces of a problem, the names of the reductions that made them, and what the limit takes from L."""

    components: list[Component] = field(default_factory=list)
    singletons: list[Singletons] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: list[LimitBounds] = field(default_factory=list)

    def log_limit(self, sketch: Sketch) -> float:
        """Return d log of the limit for draws as sparse as the sketch's, from above; +∞ where E[S] = I is not exact."""
        if not sketch.is_exactly_unbiased:
            return math.inf
        return LimitBounds.combine(self.limits).log_bound(sketch.expected_rank)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def reduce_problem(
    L: MatrixSmoothness, Q: PositiveMap, pattern: Pattern, method: Method, *, goal: Goal = PAPER
) -> Reduction:
    """Reduce the problem of one node.

    Raises ValueError when L is not positive definite, or M of the goal is not between 0 and L.
    """
    out = Reduction()
    total = 0
    for indices in _groups(L.matrix, _maps(Q, method), pattern, goal.edges):
        total += 1
        block = _proved_block(L, indices, goal, out)
        _reduce_block(block, _restricted(Q, indices), pattern.restrict(indices), method, indices, goal, out)
    if total > 1:
        out.notes.insert(0, f"L splits into {total} connected components")
    return out


def separate(
    L: MatrixSmoothness, Q: PositiveMap, pattern: Pattern, method: Method, D: Matrix, goal: Goal = PAPER
) -> Reduction:
    """Separate the *check* of a given D into pieces: nothing in L, the sketch, the pattern, D or M connects two."""
    out = Reduction()
    edges = D if goal.edges is None else np.abs(D) + np.abs(dense(goal.edges))
    for indices in _groups(L.matrix, _maps(Q, method), pattern, edges):
        block = _proved_block(L, indices, goal, out)
        part, sub = _restricted(Q, indices), pattern.restrict(indices)
        condition = method.condition(part, commutes=sub.commutes_with(part))
        program, scaling = scaled_program(block, condition, sub)
        bound = goal.curvature_bound(indices, scaling)
        out.components.append(Component(indices, scaling, program, program, bound))
    return out


def _proved_block(L: MatrixSmoothness, indices: Indices, goal: Goal, out: Reduction) -> Matrix:
    """Return the block of some coordinates, proved to lie between M and infinity; note what the limit takes from it."""
    block = L.block(indices)
    L.log_det(indices)
    goal.check(block, indices)
    out.limits.append(L.bounds(goal.curvature(indices), indices, momentum=goal.momentum))
    return block


def _reduce_block(
    L: Matrix,
    law: PositiveMap,
    pattern: Pattern,
    method: Method,
    indices: Indices,
    goal: Goal,
    out: Reduction,
) -> None:
    condition = method.condition(law, commutes=pattern.commutes_with(law))
    quadratic, Q = _rounded_image(condition.inner, L), condition.outer
    B = quadratic.B
    if condition.words:
        out.note(condition.words)
    pieces = [np.arange(len(B))]
    if not (B is L and Q is law):  # what L and the law connect has been found
        edges = None if goal.edges is None else goal.block(indices)
        pieces = list(_groups(B, [Q], pattern, edges))
    if len(pieces) > 1:
        out.note("E[SLS] splits into more components than L")
    alone = [piece for piece in pieces if piece.size == 1]
    if alone:
        single = np.concatenate(alone)
        diagonal = np.diagonal(B)[single]
        with np.errstate(over="ignore"):  # an infinite weight is refused
            weights = Q.diagonal_action[single] * diagonal
        error = np.full(len(single), twice_gamma(coefficient_roundings(Q) + 2))
        if quadratic.slack is not None:
            error += quadratic.slack[single] / diagonal
        if pattern.W is not None:
            out.note("closed form for a fixed direction")
        alone_in = indices[single]
        out.singletons.append(
            Singletons(alone_in, weights, error, Scaling(quadratic.scale[single]), goal.diagonal(alone_in))
        )
        out.note("closed form for coordinates that stand alone")
    for piece in pieces:
        if piece.size == 1:
            continue
        program, scaling = _scaled_program(quadratic.part(piece), _restricted(Q, piece), pattern.restrict(piece))
        if (scaling.factors != 1.0).any():
            out.note("diagonal scaling")
        out.components.append(_component(indices[piece], scaling, program, goal))


def _component(indices: Indices, scaling: Scaling, program: Program, goal: Goal) -> Component:
    """Return the piece with the objective that the goal asks for."""
    if not goal.judges_metric:
        return Component(indices, scaling, program, program)
    bound = goal.curvature_bound(indices, scaling)
    return Component(indices, scaling, descent_program(program, bound), program, bound)


def descent_program(program: Program, bound: CurvatureBound | None = None) -> Program:
    """Return the program of the descent metric that belongs to the condition of a program."""
    condition = program.condition
    assert condition is not None and condition.B is not None
    E = None if bound is None else bound.inverse
    return Program.descent(condition.B, condition.Q, program.pattern, E, condition.B_slack)


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
        if not np.abs(B).min() > NO_UNDERFLOW and (units.over(B) != self.B).any():
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
