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
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh, null_space

from stepsize_solvers.families.cuts import CutPoint, is_cut, solve_by_cuts
from stepsize_solvers.families.iteration import (
    MOST_STEPS,
    directions,
    iterate,
    largest_scale,
    start_point,
)
from stepsize_solvers.families.point import Model, Point
from stepsize_solvers.numerics.linalg import cholesky, sym
from stepsize_solvers.numerics.progress import Limits, Progress, failure
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Matrix,
    Outcome,
    Pattern,
    Program,
    Settings,
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
    """Solve a program whose families all have factors; never raises for a numerical failure, which is a status."""
    split = agreement(program)
    found = _solve(program if split is None else split.program, settings)
    if split is None or found.X is None:
        return found
    return replace(found, X=split.point(found.X), duals=(split.duals(found.duals[0]),))


def _solve(program: Program, settings: Settings) -> Outcome:
    model = Model(program)
    if worth_cutting(program):
        for direction in directions(model):
            if not 0.0 < largest_scale(model, direction) < math.inf:
                continue
            status, cut = solve_by_cuts(model, settings, direction)
            # Rounds that get stuck are left for the whole program, which is dearer but does not depend on them.
            if cut.best is not None and status is not Status.INACCURATE:
                return _outcome(status, cut, rounds=len(cut.history))
    start = start_point(model, _START_FRACTION, directions(model))
    if start is None:
        return failure("no strictly feasible start was found")
    return _outcome(*iterate(model, start, Limits.of(settings, MOST_STEPS)))


def worth_cutting(program: Program) -> bool:
    """Whether d is large and some family has many more columns than d."""
    return program.d >= Sizes.CUTS and program.pattern.W is None and any(is_cut(f) for f in program.families)


def _outcome(status: Status, progress: Progress[Point] | Progress[CutPoint], **extra: object) -> Outcome:
    stats = progress.stats(**extra)
    if progress.best is None:
        return Outcome(status, None, (), stats, "stopped before the first point was evaluated")
    found = progress.best.point
    return Outcome(status, found.X, found.duals, stats)


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
