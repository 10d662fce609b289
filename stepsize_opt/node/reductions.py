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

*Convex f.*  The condition is 𝒫(D) ⪯ L⁻¹, linear in D: components and scaling as for (3), but commuting is of no use.

*Closed forms.*  𝒬 = identity and D full: D = B⁻¹, with multiplier Z = B.  D = γW: γ = 1/λmax(W^{−½} 𝒬(WBW) W^{−½}),
with Z = zzᵀ for the eigenvector z = W^{−½}u (Theorem 2 of the paper is this for each layer).  A coordinate alone:
D = 1/(q B).  Theorems A and B (``docs/native_solver.md``) extend this to many problems of rand-1 and rand-k.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from stepsize_opt.goals import PAPER, CurvatureBound, Goal
from stepsize_opt.inputs import LARGEST_SPREAD, Symmetric, dense
from stepsize_opt.methods import DetCGD1, DetCGD2, Method, SketchedGradient
from stepsize_opt.node.pieces import NO_UNDERFLOW, Component, Reduction, Singletons
from stepsize_opt.proofs import (
    LARGEST_COEFFICIENT,
    Enclosed,
    coefficient_roundings,
    image,
    twice_gamma,
)
from stepsize_opt.smoothness import MatrixSmoothness
from stepsize_solvers.programs import (
    Indices,
    Matrix,
    Pattern,
    PositiveMap,
    Program,
    Vector,
    is_identity,
)


def reduce_problem(
    L: MatrixSmoothness, Q: PositiveMap, pattern: Pattern, method: Method, *, goal: Goal = PAPER, split: bool = True
) -> Reduction:
    """Reduce the problem of one node; ``split=False`` keeps it in one piece and only scales it.

    Raises ValueError when L is not positive definite, or M of the goal is not between 0 and L.
    """
    out = Reduction()
    total = 0
    for indices in _groups(L.matrix, _maps(Q, method), pattern, goal.edges) if split else [np.arange(L.d)]:
        total += 1
        block = _proved_block(L, indices, goal, out)
        _reduce_block(block, _restricted(Q, indices), pattern.restrict(indices), method, indices, goal, split, out)
    if total > 1:
        out.notes.insert(0, f"L splits into {total} connected components")
    return out


def separate(
    L: MatrixSmoothness, Q: PositiveMap, pattern: Pattern, method: Method, D: Matrix, goal: Goal = PAPER
) -> Reduction:
    """The pieces of the *check* of a given D: nothing in L, the sketch, the pattern, D or M connects two."""
    out = Reduction()
    edges = D if goal.edges is None else np.abs(D) + np.abs(dense(goal.edges))
    for indices in _groups(L.matrix, _maps(Q, method), pattern, edges):
        block = _proved_block(L, indices, goal, out)
        part, sub = _restricted(Q, indices), pattern.restrict(indices)
        condition = method.condition(part, commutes=not goal.is_convex and sub.commutes_with(part))
        program, scale = _scaled_program(_rounded_image(condition.inner, block), condition.outer, sub)
        bound = goal.curvature_bound(indices, scale)
        out.components.append(Component(indices, scale, program, program, bound, goal.is_convex))
    return out


def _proved_block(L: MatrixSmoothness, indices: Indices, goal: Goal, out: Reduction) -> Matrix:
    """The block of some coordinates, proved to be between M and infinity; what the limit takes from it is noted."""
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
    split: bool,
    out: Reduction,
) -> None:
    condition = method.condition(law, commutes=split and not goal.is_convex and pattern.commutes_with(law))
    quadratic, Q = _rounded_image(condition.inner, L), condition.outer
    B = quadratic.B
    if condition.words:
        out.note(condition.words)
    pieces = [np.arange(len(B))]
    if split and not (B is L and Q is law):  # what L and the law connect has been found
        edges = None if goal.edges is None else goal.block(indices)
        pieces = list(_groups(B, [Q], pattern, edges))
    if len(pieces) > 1:
        out.note("E[SLS] splits into more components than L")
    alone = [piece for piece in pieces if piece.size == 1 and split]
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
        out.singletons.append(Singletons(alone_in, weights, error, quadratic.scale[single], goal.diagonal(alone_in)))
        out.note("closed form for coordinates that stand alone")
    for piece in pieces:
        if piece.size == 1 and split:
            continue
        program, scale = _scaled_program(quadratic.part(piece), _restricted(Q, piece), pattern.restrict(piece))
        if (scale != 1.0).any():
            out.note("diagonal scaling")
        out.components.append(_component(indices[piece], scale, program, goal))


def _component(indices: Indices, scale: Vector, program: Program, goal: Goal) -> Component:
    """The piece with the objective that the goal asks for."""
    condition = program.condition
    assert condition is not None and condition.B is not None
    if goal.is_convex:
        H = np.asarray(np.linalg.cholesky(condition.B), dtype=np.float64)
        convex = Program.convex(H, condition.Q, program.pattern)
        return Component(indices, scale, convex, program, is_convex=True)
    if not goal.judges_metric:
        return Component(indices, scale, program, program)
    bound = goal.curvature_bound(indices, scale)
    return Component(indices, scale, descent_program(program, bound), program, bound)


def equivalent_method(goal: Goal, method: Method, pattern: Pattern, law: PositiveMap) -> Method:
    """Return the method for which a goal is proved: det-CGD1 for ``convex`` and a det-CGD2 that commutes.

    Raises ValueError for another method of ``convex``, which is proved for x⁺ = x − D S ∇f(x).
    """
    if not goal.is_convex or isinstance(method, SketchedGradient):
        return method
    if not (isinstance(method, DetCGD2) and pattern.commutes_with(law)):
        msg = (
            f"goal='convex' is proved for x⁺ = x − D S ∇f(x), not for {method.name}: use det-CGD1, or a "
            "structure that commutes with the sketch for det-CGD2"
        )
        raise ValueError(msg)
    return DetCGD1()  # SD = DS


def descent_program(program: Program, bound: CurvatureBound | None = None) -> Program:
    """The program of the descent metric that belongs to the condition of a program."""
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
        """The rows and columns of some of the coordinates."""
        if indices.size == len(self.B):
            return self
        slack = None if self.slack is None else self.slack[indices]
        return _Quadratic(self.B[np.ix_(indices, indices)], slack, self.scale[indices])

    def scaled(self, scale: Vector) -> _Quadratic:
        """The same with ΛBΛ for another diagonal Λ of powers of two."""
        B = scale[:, None] * self.B * scale
        slack = None if self.slack is None else scale * self.slack * scale
        if not np.abs(B).min() > NO_UNDERFLOW and (B / scale[:, None] / scale != self.B).any():
            # Entries underflowed, by less than 2⁻¹⁰⁷⁴ each; 2⁻⁵² B_jj is what shifted_matrix can add to a diagonal.
            lost = len(B) * 2.0**-1070 + 2.0**-52 * B.diagonal()
            slack = lost if slack is None else slack + lost
        return _Quadratic(B, slack, self.scale * scale)


def _unscaled(L: Matrix) -> _Quadratic:
    return _Quadratic(L, None, np.ones(len(L)))


def _rounded_image(Q: PositiveMap, L: Matrix) -> _Quadratic:
    """𝒬(L), scaled before the map is applied so that no product leaves the range of float64."""
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


def _scaled_program(quadratic: _Quadratic, Q: PositiveMap, pattern: Pattern) -> tuple[Program, Vector]:
    """The program of one piece in coordinates in which D is near one, and Λ with D = ΛD̃Λ in the original ones."""
    _check_coefficients(Q)
    _check_spread(quadratic.B, Q)
    scaled = quadratic.scaled(_scaling(quadratic, Q, pattern))
    if pattern.W is not None:
        pattern = Pattern(pattern.sizes, _scaled_direction(pattern, scaled.scale))
    return Program.single(scaled.B, Q, pattern, scaled.slack), scaled.scale


def _scaling(quadratic: _Quadratic, Q: PositiveMap, pattern: Pattern) -> Vector:
    """Powers of two Λ, constant on coordinates that 𝒬 couples, that make the diagonal of Λ⁻¹DΛ⁻¹ near constant."""
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


def _scaled_direction(pattern: Pattern, scale: Vector) -> Matrix:
    """Λ⁻¹WΛ⁻¹ with each block multiplied by a power of two that brings it near one: only its direction counts."""
    out = np.zeros_like(pattern.member)
    exponents = np.frexp(scale)[1] - 1
    for s in pattern.slices:
        W, e = pattern.member[s, s], exponents[s]
        top = int((np.frexp(W.diagonal())[1] - 2 * e).max())
        out[s, s] = np.ldexp(W, -(e[:, None] + e) - top)
    return out


def _maps(law: PositiveMap, method: Method) -> Iterator[PositiveMap]:
    """What may connect coordinates: the law of the sketch and the maps that the method makes of it."""
    condition = method.condition(law)
    yield from (law, condition.outer, condition.inner)


def _groups(
    B: Symmetric, maps: Iterable[PositiveMap], pattern: Pattern, other: Symmetric | None = None
) -> Iterator[Indices]:
    """The finest groups of coordinates that B, another matrix, the maps and the ties of the pattern leave unconnected.

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
    """The map on some of the coordinates, taken in increasing order."""
    return Q if indices.size == Q.d else Q.restrict(indices)
