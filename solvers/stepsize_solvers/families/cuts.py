"""Programs with many constraints, of which few directions count: a method of cutting surfaces.

At the optimum of the distributed conditions most of the n matrices F_j(X) of size r×r are far from singular, and the
others singular in a few directions only (mushrooms, n = 30: 11 of 3360).  For B_j with orthonormal columns, F_j(X) ⪰ 0
implies B_jᵀF_j(X)B_j ⪰ 0, which is the same constraint with the factor H_jB_j.  So the program with the factors H_jB_j
is a relaxation, whose cost grows not with n r but with the number of columns kept, and

* its multipliers Z̃_j give multipliers B_jZ̃_jB_jᵀ of the whole program with the same bound on log det X;
* the largest multiple of its X that is feasible for the whole program is an answer.

When both are as close as asked for, the program is solved.  Otherwise the eigenvectors of the F_j(X) whose eigenvalues
are not positive join the B_j, and directions that have become slack leave.  The next relaxation starts from the
feasible multiple of X with the multipliers of this one.

The case X ⪯ L_j⁻¹ of a plain linear family is left whole: there the active directions are some times d in number, every
relaxation leaves many others, and the rounds cost more than the steps of the whole program.

*Bounded relaxations.*  V = 𝒬(φ(X)) ⪰ 0 with H_jᵀVH_j ⪯ cI for all j, that is V^½L_jV^½ ⪯ cI with L_j = H_jH_jᵀ, has
V^½L̄V^½ ⪯ cI for the mean L̄ of the L_j.  A relaxation carries the weaker V^½L̄V^½ ⪯ 1.1cI: it never decides, so its
multiplier is dropped, and it bounds the relaxation whenever the mean of the constraints bounds the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stepsize_solvers.families.iteration import MOST_STEPS, iterate, start_point
from stepsize_solvers.families.point import Model
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.programs import Family, Matrix, Program, Settings, Stack, Status

# Families with fewer columns than this many times d are left whole: the rounds would cost more than they save.
_WORTH = 3
# How far the constraint of the mean is moved out.  Any factor above 1 is valid; close to 1 early relaxations stay sane.
_SLACK_MEAN = 1.1
# The constraint of the mean goes once the gap (per dimension) is below this: then the cuts bound the program.
_MEAN_GAP = 0.1
# A direction in which F_j is above this fraction of its right side is slack and leaves.
_SLACK = 0.3
# Directions kept from the round before, and new ones, at most: so many times d, the least slack and most violated.
# Fewer kept ones let the rounds go in circles.
_KEPT = 12
_NEW = 1
# Below a gap of 10⁻² directions in which F_j is below this fraction join too: they rotate into the active ones.
_NEAR = 0.02
# What is left of a new direction beyond the old ones counts when it is longer than this; less changes F_j by rounding.
_NEW_PART = 1e-7
# Each round is solved to this fraction of the gap of the round before (of 10 at most, which the first one takes), so
# that early rounds stay short.
_ROUND_GAP = 0.02
_MOST_ROUNDS = 60
# A relaxation whose X is outside by more than this does not warm the next one.
_TOO_FAR = 0.1


@dataclass(frozen=True, eq=False)
class CutPoint:
    """The best X so far, feasible for the whole program, and the multipliers of the best bound so far."""

    X: Matrix
    duals: tuple[Stack, ...]


def is_cut(family: Family) -> bool:
    """Whether the factors of a family are cut; the module's text says why plain linear ones are not."""
    n, d, r = family.H.shape
    return n * r > _WORTH * d and n > 1 and not (family.is_plain and family.B is None)


def solve_by_cuts(model: Model, settings: Settings, start: Matrix) -> tuple[Status, Progress[CutPoint]]:
    """Solve from a direction X ≻ 0; the history of the progress has one entry for each round."""
    program, d = model.program, model.program.d
    progress: Progress[CutPoint] = Progress(d, Limits.of(settings, _MOST_ROUNDS * MOST_STEPS), 1.0, _MOST_ROUNDS)
    examined = _examine(model, start)
    best, lower, upper = examined.scale * start, examined.lower, math.inf
    duals: tuple[Stack, ...] = ()
    bases = [_first_basis(f, s) for f, s in zip(program.families, examined.spectra, strict=True)]
    X, warm, fraction = start, None, 0.5
    for _ in range(_MOST_ROUNDS):
        if settings.seconds_left <= 0.0:
            return Status.USER_LIMIT, progress
        gap = (upper - lower) / d
        relaxed = replace(model, program=_relaxation(program, bases, with_mean=not gap < _MEAN_GAP))
        tol = max(_ROUND_GAP * min(gap, 10.0), 0.5 * settings.tol)
        steps_left = None if settings.max_iters is None else settings.max_iters - progress.steps
        limits = Limits.of(replace(settings, tol=tol, max_iters=steps_left, verbose=False), MOST_STEPS)
        first = start_point(relaxed, fraction, [X], warm)
        if first is None:
            return Status.INACCURATE, progress
        status, inner = iterate(relaxed, first, limits)
        progress.steps += inner.steps
        progress.work.cg_iterations += inner.work.cg_iterations
        if inner.best is None:
            return Status.INACCURATE, progress
        point = inner.best.point
        X, found = point.X, point.duals[: len(bases)]
        lifted = _lifted(program, bases, found)
        bound = _bound(relaxed, X, found)
        if bound < upper:
            upper, duals = bound, lifted
        examined = _examine(model, X)
        if examined.lower > lower:
            best, lower = examined.scale * X, examined.lower
        columns = sum(0 if b is None else b.count for b in bases)
        ended = progress.examine(CutPoint(best, duals), Bounds(lower, upper), {"columns": str(columns)})
        if ended is not None or status.is_stopped:
            return ended or status, progress
        near = _NEAR if (upper - lower) / d < 1e-2 else 0.0
        rhs = [program.constant(f, point.log_det) for f in program.families]
        bases = [
            _next_basis(f, b, s.F / c, w, near)
            for f, b, s, c, w in zip(
                program.families, bases, point.states[: len(bases)], rhs, examined.spectra, strict=True
            )
        ]
        # X was outside by this much.  A start further inside than that is central; far outside, multipliers say little.
        outside = 1.0 / examined.scale - 1.0
        fraction = max(0.5, 1.0 - max(2.0 * outside, (upper - lower) / d))
        warm = None
        if outside <= _TOO_FAR:
            warm = tuple(Z if b is None else b.compress(Z) for b, Z in zip(bases, lifted, strict=True))
    return Status.INACCURATE, progress


@dataclass(frozen=True, eq=False)
class _Basis:
    """B_j for the clients that have one: clients (m,), vectors (m, r, k) padded with zero columns, sizes (m,)."""

    clients: np.ndarray
    vectors: Stack
    sizes: np.ndarray

    @property
    def count(self) -> int:
        return int(self.sizes.sum())

    def compress(self, Z: Stack) -> Stack:
        """B_jᵀ Z_j B_j for the clients that have a basis."""
        return np.asarray(self.vectors.transpose(0, 2, 1) @ Z[self.clients] @ self.vectors)

    @staticmethod
    def of(parts: dict[int, Matrix], r: int) -> _Basis:
        clients = np.array([j for j, B in sorted(parts.items()) if B.shape[1]], dtype=np.intp)
        sizes = np.array([parts[j].shape[1] for j in clients], dtype=np.intp)
        vectors = np.zeros((clients.size, r, int(sizes.max(initial=0))))
        for i, j in enumerate(clients):
            vectors[i, :, : sizes[i]] = parts[j]
        return _Basis(clients, vectors, sizes)


@dataclass(frozen=True, eq=False)
class _Examined:
    """X in the whole program: its best feasible multiple, the value of that, and the spectra of cut F_j/(c + eτ).

    For log det X the largest feasible multiple is the best one.
    """

    scale: float
    lower: float
    spectra: list[tuple[Matrix, Stack] | None]


def _examine(model: Model, X: Matrix) -> _Examined:
    """All constraints of the whole program at X ≻ 0."""
    program = model.program
    basis = model.basis(X)
    assert basis is not None  # the caller's X comes from a point or is a direction that has been tried
    _, log_det = basis
    spectra: list[tuple[Matrix, Stack] | None] = []
    tops = []
    for family in program.families:
        images = family.images(X)
        if is_cut(family):
            values, vectors = np.linalg.eigh(images)
            spectra.append((1.0 - values / program.constant(family, log_det), vectors))
        else:
            values = np.linalg.eigvalsh(images)
            spectra.append(None)
        tops.append(float(values[:, -1].max()))
    # Strictly inside: eigenvalues of images of size one are right to about 10⁻¹⁴.
    scale = program.largest_scale(log_det, tops) * (1.0 - 1e-12)
    return _Examined(scale, log_det + program.d * math.log(scale), spectra)


def _first_basis(family: Family, spectrum: tuple[Matrix, Stack] | None) -> _Basis | None:
    """The two heaviest directions of every constraint."""
    if spectrum is None:
        return None
    values, vectors = spectrum
    return _Basis.of({j: vectors[j][:, -2:] for j in range(len(values))}, family.H.shape[2])


def _next_basis(
    family: Family, basis: _Basis | None, F: Stack, spectrum: tuple[Matrix, Stack] | None, near: float
) -> _Basis | None:
    """The directions that are not slack, and those in which the last point is not feasible."""
    if basis is None or spectrum is None:
        return None
    _, d, r = family.H.shape
    f, U = np.linalg.eigh(F)
    # Padding has F = 1 exactly, beyond any limit.  The least slack direction always stays: a family that does not count
    # is still one of the program.
    limit = max(_cutoff(f[f < _SLACK], _KEPT * d, _SLACK), math.nextafter(float(f.min()), math.inf))
    kept = basis.vectors @ U
    values, vectors = spectrum
    worst = _cutoff(values[values < near], _NEW * d, near)
    parts: dict[int, Matrix] = {int(j): kept[i][:, f[i] < limit] for i, j in enumerate(basis.clients)}
    for j in np.flatnonzero(values.min(axis=1) < worst):
        new = vectors[j][:, values[j] < worst]
        old = parts.get(int(j), np.zeros((r, 0)))
        # Orthogonal to the old ones, twice: the second pass removes what rounding left of the first.
        for _ in range(2):
            new = new - old @ (old.T @ new)
        Q, sigma, _ = np.linalg.svd(new, full_matrices=False)
        parts[int(j)] = np.concatenate([old, Q[:, sigma > _NEW_PART]], axis=1)
    return _Basis.of(parts, r)


def _cutoff(values: Matrix, count: int, most: float) -> float:
    """A bound below which at most ``count`` of the values lie, and no larger than ``most``."""
    return most if values.size <= count else float(np.partition(values, count)[count])


def _relaxation(program: Program, bases: list[_Basis | None], with_mean: bool) -> Program:
    """The families with the factors H_jB_j, then the constraints of the means."""
    families: list[Family] = []
    means: list[Family] = []
    for family, basis in zip(program.families, bases, strict=True):
        if basis is None:
            families.append(family)
            continue
        families.append(replace(family, factors=family.H[basis.clients] @ basis.vectors))
        if with_mean:
            stacked = family.H.transpose(0, 2, 1).reshape(-1, program.d)
            w, V = np.linalg.eigh(stacked.T @ stacked / len(family.H))
            root = V * np.sqrt(np.maximum(w, 0.0))
            means.append(replace(family, factors=root[None], c=_SLACK_MEAN * family.c, e=_SLACK_MEAN * family.e))
    return replace(program, families=tuple(families + means))


def _bound(relaxed: Model, X: Matrix, duals: tuple[Stack, ...]) -> float:
    """The bound on the objective without the constraints of the means."""
    program = relaxed.program
    model = replace(relaxed, program=replace(program, families=program.families[: len(duals)]))
    point = model.point(X, duals)
    return math.inf if point is None else model.upper_bound(point)


def _lifted(program: Program, bases: list[_Basis | None], duals: tuple[Stack, ...]) -> tuple[Stack, ...]:
    """B_jZ̃_jB_jᵀ, zero for the clients without a basis."""
    out = []
    for family, basis, Z in zip(program.families, bases, duals, strict=True):
        if basis is None:
            out.append(Z)
            continue
        n, _, r = family.H.shape
        whole = np.zeros((n, r, r))
        whole[basis.clients] = basis.vectors @ Z @ basis.vectors.transpose(0, 2, 1)
        out.append(whole)
    return tuple(out)
