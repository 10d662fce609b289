"""The optimal stepsizes beside the paper's hand-picked directions, as a table.

The paper proposes D = γW for W ∈ {I, diag⁻¹(L), L⁻¹, L^{−½}} with the largest γ that condition (3) allows, and for
det-CGD2 the optimum (E[TLT])⁻¹.  Its Table 1 compares them by E[numbers sent a round]/det(D)^{1/d}, the communication
up to the common factor 2Δ⁰/ε².
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import GOAL_NAMES, WORDS, GoalName
from stepsize_opt.inputs import (
    SMOOTHNESS_REMEDY,
    Direction,
    EstimatedSmoothness,
    Structure,
    check_one_of,
    check_positive_definite,
    completed,
    dense,
    read_matrix,
    refuse_options,
)
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.node.large import refuse_operator
from stepsize_opt.node.powers import inverse_of, power_of
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.sketches import Sketch
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix

# t = 1 solves in one step; the largest float below it keeps the logarithm finite.
_ALMOST_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, eq=False)
class ComparisonRow:
    """One choice of stepsize: its rate for the goal it was solved for, and that of its descent metric.

    Iterations and communication come from the better proved of the two, as ``StepsizeResult.iterations`` does.
    """

    method: str
    stepsize: str
    result: StepsizeResult

    @property
    def rate(self) -> float:
        return self.result.rate

    @property
    def descent(self) -> float:
        """det(H)^{1/d}, H = 2D − T(D)."""
        return self.result.descent_rate

    @property
    def rounds(self) -> float:
        """Iterations in the ``units`` of the comparison: 1/rate, for the goal ``linear`` 1/−log(1 − t)."""
        rate = self.result.guaranteed_rate
        return 1.0 / (rate if self.result.goal != "linear" else -math.log1p(-min(rate, _ALMOST_ONE)))

    @property
    def communication(self) -> float:
        """Numbers sent in expectation, in the units of ``rounds``."""
        return self.result.expected_nonzeros * self.rounds


@dataclass(frozen=True, eq=False)
class Comparison:
    """The rows of ``compare``: the optima, then the directions of the paper.

    Examples
    --------
    See ``compare``.
    """

    rows: tuple[ComparisonRow, ...]

    @property
    def best(self) -> ComparisonRow:
        """The row with the largest proved rate, so the fewest iterations and numbers sent."""
        return max(self.rows, key=lambda row: row.result.guaranteed_rate)

    @property
    def advice(self) -> str:
        """Which method with which D has the best proved guarantee for this L, and which guarantee that is."""
        best = self.best
        return (
            f"best guarantee for this L: {best.method}, {best.stepsize}, by {best.result.guarantee_used} = "
            f"{best.result.guaranteed_rate:.6g}; a guarantee is an upper bound, and a run may rank the rows otherwise"
        )

    @property
    def units(self) -> str:
        """What ``rounds`` and ``communication`` are multiples of."""
        return WORDS[self.best.result.goal].unit

    def relative_iterations(self, row: ComparisonRow) -> float:
        """How many times the iterations of the best row this row needs."""
        return row.rounds / self.best.rounds

    def to_records(self) -> list[dict[str, Any]]:
        """Plain dictionaries, ready for pandas or JSON."""
        return [
            {
                "method": row.method,
                "stepsize": row.stepsize,
                "rate": row.rate,
                "descent": row.descent,
                "guarantee_used": row.result.guarantee_used,
                "relative_iterations": self.relative_iterations(row),
                "communication": row.communication,
                "efficiency": row.result.efficiency,
                "status": row.result.status,
                "gap": row.result.gap,
                "certified": row.result.certified,
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        header = (
            f"{'method':<8} {'stepsize':<16} {'rate':>11} {'descent':>11} {'steps ratio':>11} {'communication':>13} "
            f"{'of limit':>8} {'gap':>6}"
        )
        lines = [header, "-" * len(header)]
        lines += [
            f"{row.method:<8} {row.stepsize:<16} {row.rate:>11.6g} {row.descent:>11.6g} "
            f"{self.relative_iterations(row):>10.3f}x {row.communication:>13.6g} {row.result.efficiency:>8.3f} "
            f"{row.result.gap:>6.0e}"
            for row in self.rows
        ]
        lines.append(self.advice)
        return "\n".join(lines + list(dict.fromkeys(row.result.estimated for row in self.rows if row.result.estimated)))


def compare(
    L: Any, sketch: Sketch, *, goal: GoalName = "paper", strong_convexity: Any = None, **options: Any
) -> Comparison:
    """The optima and the paper's directions γI, γ diag⁻¹(L), γL⁻¹, γL^{−½}, each with its rates and communication.

    ``rate`` is that of the goal, ``goal`` and ``strong_convexity`` as in ``optimal_stepsize``; ``descent`` is
    det(H)^{1/d} of each row, H = 2D − T(D).  For ``"paper"`` the row "optimal, descent" has the best det(H)^{1/d} of
    det-CGD1; for det-CGD2 both optima are the same.  ``"convex"`` has rows for det-CGD1 only.
    ``options`` go to ``optimal_stepsize``, limits for each row.
    "of limit" is the ``efficiency`` of a row, its share of the best rate of a method without memory and of the same
    expected rank.
    Rates of rows are comparable: each bounds the same quantity, for ``"paper"`` and ``"descent"`` a mean of ‖∇f‖² in a
    metric of determinant 1.

    Examples
    --------
    >>> from stepsize_opt import RandK, compare
    >>> for row in compare([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1)).rows[:3]:
    ...     print(row.method, row.stepsize, round(row.rate, 4))
    det-CGD1 optimal 0.2041
    det-CGD2 optimal 0.2041
    det-CGD1 optimal, descent 0.2168
    """
    refuse_options("compare", options, ("algorithm", "structure"))
    check_one_of("goal", goal, GOAL_NAMES)
    estimated = isinstance(L, EstimatedSmoothness)
    refuse_operator(L, dense_only=True)
    smoothness = read_matrix("L", L.matrix if estimated else L)
    given = L if estimated else smoothness
    check_positive_definite("L", dense(smoothness), SMOOTHNESS_REMEDY)
    with blas_threads(smoothness.shape[0]):
        directions = _directions(dense(smoothness))
    first, second = DetCGD1(), DetCGD2()
    cases: list[tuple[Method, str, Structure, GoalName]] = [(first, "optimal", "full", goal)]
    if goal != "convex":
        cases.append((second, "optimal", "full", goal))
    if goal == "paper":
        cases.append((first, "optimal, descent", "full", "descent"))
    for name, structure in directions:
        cases.append((first, name, structure, goal))
    rows = []
    for method, name, structure, judged_by in cases:
        result = optimal_stepsize(
            given,
            sketch,
            algorithm=method,
            structure=structure,
            goal=judged_by,
            strong_convexity=strong_convexity,
            **options,
        )
        rows.append(ComparisonRow(method.name, name, completed(result)))
    return Comparison(tuple(rows))


def _directions(L: Matrix) -> list[tuple[str, Structure]]:
    return [
        ("γ I", "scalar"),
        ("γ diag⁻¹(L)", Direction(np.diag(1.0 / np.diagonal(L)))),
        ("γ L⁻¹", Direction(inverse_of(L))),
        ("γ L^(-1/2)", Direction(power_of(L, -0.5))),
    ]
