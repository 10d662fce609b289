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
from stepsize_opt.limit import UNITS
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.node.goals import CRITERIA, Criterion, Guarantee
from stepsize_opt.node.large import refuse_operator
from stepsize_opt.node.powers import inverse_of, power_of
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.sketches import Sketch
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix

# t = 1 solves in one step; the largest float below it keeps the logarithm finite.
_ALMOST_ONE = math.nextafter(1.0, 0.0)

_UNITS = {**UNITS, "convex": "‖x⁰ − x*‖²/(2 accuracy), in the norm of D⁻¹ scaled to determinant 1"}


@dataclass(frozen=True, eq=False)
class ComparisonRow:
    """One choice of stepsize: its rate under the guarantee it was solved for, and that of its descent metric.

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
        """det(H)^{1/d}, H = 2D − T(D); for the criteria ``euclidean`` and ``linear`` t of H ⪰ tM⁻¹."""
        return self.result.descent_rate if self.result.descent_t is None else self.result.descent_t

    @property
    def rounds(self) -> float:
        """Iterations in the ``units`` of the comparison: 1/rate, for the criterion ``linear`` 1/−log(1 − t)."""
        rate = self.result.guaranteed_rate
        return 1.0 / (rate if self.result.criterion != "linear" else -math.log1p(-min(rate, _ALMOST_ONE)))

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
        return _UNITS[self.best.result.criterion]

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


def compare(L: Any, sketch: Sketch, *, criterion: Criterion = "det", lower: Any = None, **options: Any) -> Comparison:
    """The optima and the paper's directions γI, γ diag⁻¹(L), γL⁻¹, γL^{−½}, each with its rates and communication.

    ``rate`` is det(D)^{1/d} under the condition, in the row "optimal, descent" det(H)^{1/d} of the best descent metric
    H = 2D − T(D) of det-CGD1; ``descent`` is det(H)^{1/d} of each row.  For det-CGD2 both optima are the same.
    With ``criterion`` and ``lower`` as in ``optimal_stepsize`` the rates are t of D ⪰ tM⁻¹ and of H ⪰ tM⁻¹, or for
    ``"convex"``, which has rows for det-CGD1 under its condition only, det(D)^{1/d}.
    ``options`` go to ``optimal_stepsize``, limits for each row.
    "of limit" is the ``efficiency`` of a row, its share of the best rate of a method without memory and of the same
    expected rank.
    Rates of rows are comparable: each bounds the same criterion, for ``"det"`` a mean of ‖∇f‖² in a metric of
    determinant 1.

    Examples
    --------
    >>> from stepsize_opt import RandK, compare
    >>> for row in compare([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1)).rows[:3]:
    ...     print(row.method, row.stepsize, round(row.rate, 4))
    det-CGD1 optimal 0.2041
    det-CGD2 optimal 0.2041
    det-CGD1 optimal, descent 0.2168
    """
    refuse_options("compare", options, ("algorithm", "structure", "guarantee"))
    check_one_of("criterion", criterion, CRITERIA)
    estimated = isinstance(L, EstimatedSmoothness)
    refuse_operator(L, dense_only=True)
    smoothness = read_matrix("L", L.matrix if estimated else L)
    given = L if estimated else smoothness
    check_positive_definite("L", dense(smoothness), SMOOTHNESS_REMEDY)
    with blas_threads(smoothness.shape[0]):
        directions = _directions(dense(smoothness))
    first, second = DetCGD1(), DetCGD2()
    cases: list[tuple[Method, str, Structure, Guarantee]] = [(first, "optimal", "full", "condition")]
    if criterion != "convex":
        cases.append((second, "optimal", "full", "condition"))
        cases.append((first, "optimal, descent", "full", "descent"))
    for name, structure in directions:
        cases.append((first, name, structure, "condition"))
    rows = []
    for method, name, structure, guarantee in cases:
        result = optimal_stepsize(
            given,
            sketch,
            algorithm=method,
            structure=structure,
            guarantee=guarantee,
            criterion=criterion,
            lower=lower,
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
