"""Rand-1 on a logistic node: a step changes the margins along one known direction, so they need not be recomputed.

A step is x⁺ = x − c B e_j with B = D for det-CGD1 and B = I for det-CGD2, so the margins z = Mx change by −c (MB) e_j,
a column of a matrix that is computed once.  On a1a this is two thirds of the price of a product with the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

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
    """Gradient and step of det-CGD1 or det-CGD2 with rand-1 on a logistic regression, for s seeds.

    directions: B, d×d symmetric; columns: (MB)ᵀ, shape (d, m); margins: the rows Mx of all seeds, shape (s, m), which
    :meth:`step` changes in place and which a checkpoint has to keep.
    """

    objective: LogisticRegression
    directions: Matrix
    columns: Matrix
    margins: Matrix
    after: bool

    @staticmethod
    def pays(objective: Any, sketches: Sequence[Sketch]) -> TypeGuard[LogisticRegression]:
        """Whether this is such a run, with data of enough nonzeros for updates to be cheaper than products."""
        first = sketches[0]
        if not isinstance(objective, LogisticRegression) or not (isinstance(first, RandK) and first.k == 1):
            return False
        return objective.nonzeros_per_row >= _NONZEROS

    @staticmethod
    def of(objective: LogisticRegression, D: Matrix, seeds: int, after: bool) -> SingleSteps:
        """``after``: the sketch comes after D, as in det-CGD2."""
        B = np.eye(objective.d) if after else D
        columns = np.ascontiguousarray(objective.margins(B).T)
        return SingleSteps(objective, B, columns, np.zeros((seeds, columns.shape[1])), after)

    def step(self, X: Matrix, D: Matrix, draws: SingleCoordinates, t: int, k: int) -> tuple[Matrix, Matrix, Matrix]:
        """∇f, D∇f and step k of the run from the points X, all (s, d), with the draws of step t of a chunk."""
        if k % _REFRESH == 0:
            self.margins[:] = self.objective.margins(X).T
        gradient = self.objective.gradient(X, self.margins.T)
        scaled = gradient @ D
        chosen = draws.chosen[t][:, 0]
        sent = (scaled if self.after else gradient)[np.arange(len(X)), chosen, None] * float(draws.d)
        change = self.columns[chosen]
        change *= sent
        np.subtract(self.margins, change, out=self.margins)
        return gradient, scaled, self.directions[chosen] * sent
