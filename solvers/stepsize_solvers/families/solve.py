"""Families of inequalities: common directions split off, cutting surfaces where there are many, and the iteration.

*Directions in which all constraints of a plain linear program agree* are solved apart.

    maximise log det X   subject to   H_jᵀ X H_j ⪯ cI, that is X ⪯ cL_j⁻¹ where L_j = H_jH_jᵀ is regular.

Let L̄ be the mean of the L_j and U the directions v with L_jv = L̄v for every j: one-hot data, and whatever no client has
seen, leave many.  Take T = [U W] with UᵀL̄U = I, WᵀL̄W = I and WᵀL̄U = 0; then L_jU = L̄U gives TᵀL_jT = I ⊕ WᵀL_jW.
With X = T X̃ Tᵀ the constraint is X̃ ⪯ c(I ⊕ WᵀL_jW)⁻¹; dropping the blocks between U and W of X̃ keeps it (average X̃
with its image under the change of sign of U) and does not lower the determinant (Fischer).  So X̃ = cI ⊕ Y, where Y
solves the program with the factors WᵀH_j.

*Multipliers.*  H_jᵀU has orthonormal columns, orthogonal to the range of H_jᵀW.  Z_j + H_jᵀU UᵀH_j/(cn) has the images
Σ H_jZ_jH_jᵀ in W and I/c in U, which is what the optimum of the whole program asks for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh, null_space

from stepsize_solvers.families.cuts import Relaxed, solve_by_cuts, worth_cutting
from stepsize_solvers.families.iteration import (
    MOST_STEPS,
    directions,
    iterate,
    largest_scale,
    start_point,
    with_duals,
)
from stepsize_solvers.families.point import Model
from stepsize_solvers.numerics import Limits, cholesky, sym
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Matrix,
    Outcome,
    Pattern,
    Program,
    Settings,
    SolverStats,
    Stack,
    Status,
)

# The start lies at this fraction of the way to the boundary; closer starts take short first steps.
_START_FRACTION = 0.5
# ‖(L_j − L̄)v‖² summed over j is computed to rounding, 10⁻¹⁶ of its largest value; below this it counts as zero.
_ZERO = 1e-13
# What agrees only up to this fraction of L̄ makes X infeasible by as much, which whoever uses the answer repairs.
_AGREE = 1e-7
# X in U lies this close to its bound, so that it is still inside after rounding.
_INSIDE = 1e-11


def solve_families(program: Program, settings: Settings) -> Outcome:
    """Solve a program whose families all have factors; never raises for a numerical failure, which is a status.

    The objective is log det X, or log det of a metric aX − XBX.
    """
    began = time.perf_counter()
    split = agreement(program)
    found = _solve(program if split is None else split.program, settings)
    stats = replace(found.stats, solve_time=time.perf_counter() - began)
    if split is None or found.X is None:
        return replace(found, stats=stats)
    return replace(found, X=split.point(found.X), duals=(split.duals(found.duals[0]),), stats=stats)


def _solve(program: Program, settings: Settings) -> Outcome:
    model = Model.of(program)
    if worth_cutting(program):
        cut = _solve_by_cuts(program, model, settings)
        if cut is not None:
            return cut
    start = start_point(model, _START_FRACTION, directions(model))
    if start is None:
        message = "no strictly feasible start was found"
        return Outcome(Status.SOLVER_ERROR, None, (), _stats(0, {}), message)
    status, progress = iterate(model, start, Limits.of(settings, MOST_STEPS))
    best = progress.best
    if best is None:
        return Outcome(status, None, (), _stats(0, {}), "stopped before the first point was evaluated")
    found = best.point
    return Outcome(status, found.X, _duals(program, found.X, found.duals), _stats(progress.steps, progress.statistics))


def _duals(program: Program, X: Matrix, duals: tuple[Stack, ...]) -> tuple[Stack, ...]:
    """The multipliers of the families, and after them Y = G(X)⁻¹ of a metric, whose F₀ comes first in the model."""
    if program.objective is None:
        return duals
    left = program.objective.left
    assert left.B is not None  # see Model.of
    return (*duals[1:], np.asarray(np.linalg.inv(left.a * X - X @ left.B @ X), dtype=np.float64)[None])


def _stats(steps: int, extra: Mapping[str, object]) -> SolverStats:
    return SolverStats("native", setup_time=0.0, num_iters=steps, extra_stats=dict(extra))


def _solve_by_cuts(program: Program, model: Model, settings: Settings) -> Outcome | None:
    """The outcome of the method of cuts; None when it has no start or gets stuck."""
    for direction in directions(model):
        if not 0.0 < largest_scale(model, direction) < math.inf:
            continue
        status, found = solve_by_cuts(model, settings, direction, _relaxation)
        if not found.duals or status is Status.INACCURATE:
            continue  # the rounds got stuck: the whole program is dearer but does not depend on them
        extra = {
            "cg_iterations": found.cg_iterations,
            "gap": (found.upper - found.lower) / program.d,
            "rounds": found.rounds,
        }
        return Outcome(status, found.X, _duals(program, found.X, found.duals), _stats(found.iterations, extra))
    return None


def _relaxation(
    model: Model, settings: Settings, X: Matrix, duals: tuple[Stack, ...] | None, fraction: float
) -> Relaxed:
    """The answer of a relaxation, started at a fraction of the way from 0 to the boundary along X."""
    start = start_point(model, fraction, [X])
    if start is not None and duals is not None:
        start = with_duals(model, start, duals) or start
    if start is None:
        return Relaxed(Status.SOLVER_ERROR, None, 0, 0)
    status, progress = iterate(model, start, Limits.of(settings, MOST_STEPS))
    point = None if progress.best is None else progress.best.point
    return Relaxed(status, point, progress.steps, progress.work.cg_iterations)


# ---------------------------------------------------------------- directions in which all constraints agree


@dataclass(frozen=True, eq=False)
class Agreement:
    """The smaller program for Y, and the way back."""

    program: Program
    family: Family
    U: Matrix
    W: Matrix

    def point(self, Y: Matrix) -> Matrix:
        """X = cUUᵀ + WYWᵀ."""
        return sym((1.0 - _INSIDE) * self.family.c * self.U @ self.U.T + self.W @ Y @ self.W.T)

    def duals(self, Z: Stack) -> Stack:
        """The multipliers of the whole program."""
        E = self.family.H.transpose(0, 2, 1) @ self.U
        return np.asarray(Z + (E @ E.transpose(0, 2, 1)) / (self.family.c * len(E)))


def agreement(program: Program) -> Agreement | None:
    """The split of a program; None when there is nothing to split, or the form is another."""
    family = program.families[0]
    n, d, _ = family.H.shape
    if (
        len(program.families) > 1
        or program.objective is not None
        or not program.pattern.is_full
        or family.B is not None
        or not family.is_plain
        or family.e
        or n < 2
    ):
        return None
    matrices = family.H @ family.H.transpose(0, 2, 1)
    mean = matrices.mean(axis=0)
    if cholesky(mean) is None:
        return None
    differences = (matrices - mean).reshape(-1, d)
    w, V = np.linalg.eigh(differences.T @ differences)
    # Relative to L̄ too: identical constraints differ by rounding only.
    U = V[:, w <= _ZERO * max(w[-1], float(np.sum(mean * mean)))]
    if not 0 < U.shape[1] < d or np.linalg.norm((matrices - mean) @ U) > _AGREE * np.linalg.norm(mean):
        return None
    W = null_space((mean @ U).T)
    U, W = _orthonormal(U, mean), _orthonormal(W, mean)
    size = W.shape[1]
    reduced = replace(family, Q=DiagonalPlusScaled.identity(size), factors=np.asarray(W.T @ family.H))
    small = Program((reduced,), Pattern.full(size), 2.0 * size)
    return Agreement(small, family, U, W)


def _orthonormal(V: Matrix, metric: Matrix) -> Matrix:
    """V with its columns made orthonormal in the metric."""
    w, U = eigh(sym(V.T @ metric @ V))
    return np.asarray(V @ (U / np.sqrt(w)))
