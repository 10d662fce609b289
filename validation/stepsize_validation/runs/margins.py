"""Rand-1 on a logistic node: a step changes the margins along one known direction, so they need not be recomputed.

A step A S B∇f with S = d e_j e_jᵀ is c A e_j, c = d (B∇f)_j, so the margins z = Mx change by −c (MA) e_j, a column of a
matrix that is computed once.  On a1a this is two thirds of the price of a product with the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from stepsize_opt.methods import Factors
from stepsize_opt.problems import LogisticRegression
from stepsize_opt.sketches import RandK, Sketch
from stepsize_solvers.programs import Matrix
from stepsize_validation.runs.sampling import SingleCoordinates

# Each update adds a rounding error of the size of one in a product; after this many steps (counted from the start of
# the run, so that a continued run does the same) they are computed afresh, so no more than 100 such errors add up.
_REFRESH = 100
# An update takes about as long as a product with this many nonzeros in every row (measured on a1a).
_NONZEROS = 6


@dataclass(frozen=True, eq=False)
class SingleSteps:
    """Gradient and step of a method with rand-1 on a logistic regression, for s seeds.

    directions: Aᵀ, d×d; columns: (MA)ᵀ, shape (d, m); right: B; margins: the rows Mx of all seeds, shape (s, m), which
    ``step`` changes in place and which a checkpoint has to keep.
    """

    objective: LogisticRegression
    directions: Matrix
    columns: Matrix
    margins: Matrix
    right: Matrix | None

    @staticmethod
    def pays(objective: Any, sketches: Sequence[Sketch]) -> TypeGuard[LogisticRegression]:
        """Whether this is such a run, with data of enough nonzeros for updates to be cheaper than products."""
        first = sketches[0]
        if not isinstance(objective, LogisticRegression) or not (isinstance(first, RandK) and first.k == 1):
            return False
        return objective.nonzeros_per_row >= _NONZEROS

    @staticmethod
    def of(objective: LogisticRegression, factors: Factors, seeds: int) -> SingleSteps:
        directions = np.eye(objective.d) if factors.left is None else factors.left.T
        columns = np.ascontiguousarray(objective.margins(directions).T)
        return SingleSteps(objective, directions, columns, np.zeros((seeds, columns.shape[1])), factors.right)

    def step(self, X: Matrix, draws: SingleCoordinates, t: int, k: int) -> tuple[Matrix, Matrix]:
        """∇f and step k of the run from the points X, both (s, d), with the draws of step t of a chunk."""
        if k % _REFRESH == 0:
            self.margins[:] = self.objective.margins(X).T
        gradient = self.objective.gradient(X, self.margins.T)
        chosen = draws.chosen[t][:, 0]
        sent = draws.entries(t, gradient[:, None], self.right) * float(draws.d)
        change = self.columns[chosen]
        change *= sent
        np.subtract(self.margins, change, out=self.margins)
        return gradient, self.directions[chosen] * sent
