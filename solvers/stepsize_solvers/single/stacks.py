"""Many problems of one size at once: the iteration of ``.iteration`` on stacks of matrices.

For small matrices the calls of Python take longer than their arithmetic; one call for a stack of them does not.  The
formulas are those of ``BlockModel`` with one block, whose arrays may have a leading axis.  What differs from member to
member are the numbers μ and σ and the length of the step.  Members that are finished leave the stack, and so do those
that break down: their status says so, and they are to be solved alone.

Three things differ from the iteration for one problem.  Steps have no second-order corrector, which one in twenty
takes.  The polynomial p(K) has the degree that the worst member needs.  And the length of a step comes from eigenvalues
instead of a bisection: in the coordinates of the Nesterov–Todd factor G both F and Z are Diag(v), and F(D) ≻ 0 makes
D ≻ 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    Bounds,
    Counters,
    Progress,
    Scaling,
    cholesky_of_each,
    inner,
    nesterov_todd,
    smallest_eigenvalue,
    transposed,
)
from stepsize_solvers.programs import Hadamard, Indices, Matrix, Pattern, Stack, Status, Vector
from stepsize_solvers.single.blocks import BlockModel, BlockPoint, central_point
from stepsize_solvers.single.iteration import FIRST_CENTRING, NEAR, Tuning, next_centring, target
from stepsize_solvers.single.starts import powers_in_stacks

# Shorter steps make no progress, and steps longer than this are cut to 1 anyway.
_SHORTEST = 1e-4
# A step as short as this may leave the neighbourhood of the central path.
_SHORT = 0.05
_BEYOND = 1.1


@dataclass(frozen=True, eq=False)
class _Pair:
    """Points and their scalings, those of a stack."""

    p: BlockPoint
    scaling: Scaling

    @staticmethod
    def of(p: BlockPoint | None) -> _Pair | None:
        """None unless F and Z of every member are numerically positive definite."""
        scaling = None if p is None else nesterov_todd(p.Ft, p.Zt)
        return None if p is None or scaling is None else _Pair(p, scaling)

    def members(self, which: Indices) -> _Pair:
        s = self.scaling
        return _Pair(self.p.members(which), Scaling(s.factor[which], s.G[which], s.v[which]))

    @staticmethod
    def joined(parts: Sequence[_Pair]) -> _Pair:
        if len(parts) == 1:
            return parts[0]
        p = BlockPoint.joined([part.p for part in parts])
        scalings = [part.scaling for part in parts]
        arrays = (np.concatenate([getattr(s, name) for s in scalings]) for name in ("factor", "G", "v"))
        return _Pair(p, Scaling(*arrays))

    @property
    def mu(self) -> Vector:
        """μ of each member, the mean of v²."""
        v = self.scaling.v
        return np.asarray((v * v).mean(axis=-1))


class Member(NamedTuple):
    """One pair of a stack; its matrices are not computed before they are asked for."""

    stack: BlockPoint
    place: int

    @property
    def D(self) -> Matrix:
        return self.stack.members(self.place).D

    @property
    def Z(self) -> Matrix:
        return self.stack.members(self.place).Z


def iterate_stack(B: Stack, P: Stack, progress: Sequence[Progress[Member]]) -> list[Status]:
    """maximise log det D subject to P∘(D B D) ⪯ D for each member; INACCURATE where that broke down.

    Each member has a progress of its own, with the same tolerance.
    """
    tuning = Tuning()
    whole = BlockModel(B, Hadamard(P), Pattern((B.shape[-1],)))
    statuses = [Status.INACCURATE] * len(B)
    where = np.flatnonzero(cholesky_of_each(B)[1])  # the places of the members that are not finished
    try:
        D = np.zeros_like(B)
        D[where] = tuning.start_fraction * powers_in_stacks(B[where], P[where])[0]
        where, pair = _possible(lambda some: _Pair.of(central_point(whole.members(some), D[some])), where)
        sigma = np.full(len(where), FIRST_CENTRING)
        while pair is not None:
            model, runs = whole.members(where), [progress[i] for i in where.tolist()]
            ends = _examine(model, pair, runs)
            for i, end in zip(where.tolist(), ends, strict=True):
                statuses[i] = end or Status.INACCURATE
            going = np.flatnonzero([end is None for end in ends])
            if going.size < where.size:
                where, pair, sigma = where[going], pair.members(going), sigma[going]
                model, runs = whole.members(where), [progress[i] for i in where.tolist()]
            if not going.size:
                break
            left, pair, sigma = _step(model, pair, sigma, tuning, runs)
            where = where[left]
    except KeyboardInterrupt:
        for i in where.tolist():
            statuses[i] = Status.INTERRUPTED
    except np.linalg.LinAlgError:  # numpy gives up on a stack when LAPACK does on one member: all of it is solved alone
        pass
    return statuses


def _possible(make: Callable[[Indices], _Pair | None], which: Indices) -> tuple[Indices, _Pair | None]:
    """``make`` of all these members, or of those of which it is not None, each alone; and which these are."""
    whole = make(which) if which.size else None
    if whole is not None or not which.size:
        return which, whole
    alone = [make(which[i : i + 1]) for i in range(which.size)]
    found = [pair for pair in alone if pair is not None]
    return which[[pair is not None for pair in alone]], _Pair.joined(found) if found else None


def _examine(model: BlockModel, pair: _Pair, runs: Sequence[Progress[Member]]) -> list[Status | None]:
    """The status of each member, None for one that goes on."""
    p, tol = pair.p, runs[0].limits.tol
    bounds = model.bounds_of_each(p, pair.mu <= NEAR * tol)
    # Bounds that would end a solve are computed once more, from D and Z themselves.
    ending = np.flatnonzero([one.width <= run.margin * tol * model.d for one, run in zip(bounds, runs, strict=True)])
    certain: dict[int, Bounds] = {}
    if ending.size:
        D, Z = p.D, p.Z
        some, again = _possible(lambda some: _Pair.of(model.members(some).point(D[some], Z[some])), ending)
        if again is not None:
            found = model.members(some).bounds_of_each(again.p, np.ones(some.size, dtype=bool))
            certain = dict(zip(some.tolist(), found, strict=True))
    return [run.examine(Member(p, j), bounds[j], confirmed=partial(certain.get, j)) for j, run in enumerate(runs)]


def _step(
    model: BlockModel, pair: _Pair, sigma: Vector, tuning: Tuning, runs: Sequence[Progress[Member]]
) -> tuple[Indices, _Pair | None, Vector]:
    """One step of each member: which got on, their pairs, and their centring factors."""
    p, scaling, tol = pair.p, pair.scaling, runs[0].limits.tol
    usable = np.flatnonzero((scaling.t > 0.0).all(axis=-1))
    if usable.size < len(runs):  # W of the others is singular to rounding
        if not usable.size:
            return usable, None, sigma[usable]
        some = [runs[i] for i in usable.tolist()]
        left, found, sigma = _step(model.members(usable), pair.members(usable), sigma[usable], tuning, some)
        return usable[left], found, sigma
    G, v, V = scaling.G, scaling.v, scaling.V
    r1, mu = model.dual_residual(p), pair.mu
    norms = np.sqrt(inner(r1, r1)[:, 0, 0] / model.d)
    numbers = zip(mu.tolist(), norms.tolist(), sigma.tolist(), strict=True)
    s = np.array([target(m, norm, one, tol) for m, norm, one in numbers])
    # In the basis V: r₂ = s Ẑ⁻¹ − F̂, as for one problem.
    GV = transposed(V) @ G
    r2 = (GV * (s[:, None] / v - v)[:, None, :]) @ transposed(GV)
    tolerance = (tuning.cg_accuracy * s / np.sqrt(mu))[:, None, None]
    system = model.system(p, scaling, np.float64, Counters())
    first = system.solve(r1, r2, tolerance, tuning.max_cg)
    for run in runs:
        run.steps += 1
        run.counters.cg_iterations += first.iterations
        run.counters.eigendecompositions += 3
    # In the coordinates of G: G⁻¹ = Diag(1/v) GᵀZ̃.
    G_inverse = (transposed(G) @ p.Zt) / v[:, :, None]
    root = 1.0 / np.sqrt(v)
    scale = root[:, :, None] * root[:, None, :]
    slope, bend = (
        scale * (G_inverse @ F @ transposed(G_inverse)) for F in (model.slope(p, first.X), model.bend(p, first.X))
    )
    length = longest(scale * (transposed(G) @ first.dZt @ G), slope, bend)
    length = np.where(length >= 1.0, 1.0, tuning.step_fraction * length)
    left, found = _moved(model, p, first.X, first.dZt, length, tuning)
    lengths = length[left].tolist()
    sigma = np.array(
        [next_centring(one, a, first.iterations, tuning) for one, a in zip(sigma[left].tolist(), lengths, strict=True)]
    )
    return left, found, sigma


def longest(zeta: Array, first: Array, second: Array) -> Vector:
    """A length a ≤ 1.1 for each member with I + aζ ⪰ 0 and I + aF′ + a²F″ ⪰ 0, F″ ⪯ 0, near the largest."""
    least = smallest_eigenvalue(zeta)
    a = np.where(least * _BEYOND < -1.0, -1.0 / np.minimum(least, -1e-300), _BEYOND)
    # The largest b with I + b(F′ + aF″) ⪰ 0 falls with a, and is feasible itself when b < a.
    low = np.zeros_like(a)
    for _ in range(2):
        least = smallest_eigenvalue(first + a[:, None, None] * second)
        inside = least * a >= -1.0
        low = np.where(inside, a, np.maximum(low, -1.0 / np.minimum(least, -1e-300)))
        if inside.all():
            break
        a = np.where(inside, a, 0.5 * (a + low))
    return np.asarray(low)


def _moved(
    model: BlockModel, p: BlockPoint, X: Array, dZt: Array, length: Vector, tuning: Tuning
) -> tuple[Indices, _Pair | None]:
    """The members that can move, and their pairs; ``length`` is shortened where a step has to be."""
    places: list[Indices] = []
    pairs: list[_Pair] = []
    todo = np.arange(len(length))

    def trial(some: Indices) -> _Pair | None:
        a = length[some][:, None, None]
        return _Pair.of(model.members(some).advance(p.members(some), a * X[some], a * dZt[some]))

    while todo.size:
        some, pair = _possible(trial, todo)
        if pair is not None:
            central = pair.scaling.v.min(axis=-1) ** 2 > tuning.neighbourhood * pair.mu
            good = np.flatnonzero(central | (length[some] < _SHORT))
            places.append(some[good])
            pairs.append(pair if good.size == some.size else pair.members(good))
            todo = np.setdiff1d(todo, places[-1])
        length[todo] *= 0.8
        todo = todo[length[todo] > _SHORTEST]
    if not any(some.size for some in places):
        return np.empty(0, dtype=np.intp), None
    return np.concatenate(places), _Pair.joined(pairs)
