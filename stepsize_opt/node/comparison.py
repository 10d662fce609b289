"""The optimal stepsizes beside the paper's hand-picked directions, as a table.

The paper proposes D = γW for W ∈ {I, diag⁻¹(L), L⁻¹, L^{−½}} with the largest γ that condition (3) allows, and for
det-CGD2 the optimum (E[TLT])⁻¹.  Its Table 1 compares them by E[numbers sent a round]/det(D)^{1/d}, the communication
up to the common factor 2Δ⁰/ε².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.inputs import Direction, EstimatedSmoothness, Structure, dense, read_matrix
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.sketches import Sketch
from stepsize_solvers.numerics import blas_threads


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
        """det(H)^{1/d}, H = 2D − T(D)."""
        return self.result.descent_rate

    @property
    def communication(self) -> float:
        """Numbers sent in expectation, in units of 2Δ⁰/ε²."""
        return self.result.expected_nonzeros / self.result.guaranteed_rate


@dataclass(frozen=True, eq=False)
class Comparison:
    """The rows of ``compare``: the optima, then the directions of the paper."""

    rows: tuple[ComparisonRow, ...]

    @property
    def best(self) -> ComparisonRow:
        """The row with the largest proved rate, so the fewest iterations and numbers sent."""
        return max(self.rows, key=lambda row: row.result.guaranteed_rate)

    def relative_iterations(self, row: ComparisonRow) -> float:
        """How many times the iterations of the best row this row needs."""
        return self.best.result.guaranteed_rate / row.result.guaranteed_rate

    def to_records(self) -> list[dict[str, Any]]:
        """Plain dictionaries, ready for pandas or JSON."""
        return [
            {
                "method": row.method,
                "stepsize": row.stepsize,
                "rate": row.rate,
                "descent": row.descent,
                "relative_iterations": self.relative_iterations(row),
                "communication": row.communication,
                "status": row.result.status,
                "gap": row.result.gap,
                "certified": row.result.certified,
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        header = (
            f"{'method':<9} {'stepsize':<18} {'rate':>12} {'descent':>12} {'iterations':>11} {'communication':>14} "
            f"{'gap':>8}"
        )
        lines = [header, "-" * len(header)]
        lines += [
            f"{row.method:<9} {row.stepsize:<18} {row.rate:>12.6g} {row.descent:>12.6g} "
            f"{self.relative_iterations(row):>10.3f}x {row.communication:>14.6g} {row.result.gap:>8.0e}"
            for row in self.rows
        ]
        return "\n".join(lines + list(dict.fromkeys(row.result.estimated for row in self.rows if row.result.estimated)))


def compare(L: Any, sketch: Sketch, **options: Any) -> Comparison:
    """The optima and the paper's directions γI, γ diag⁻¹(L), γL⁻¹, γL^{−½}, each with its rates and communication.

    ``rate`` is det(D)^{1/d} under the condition, in the row "optimal, descent" det(H)^{1/d} of the best descent metric
    H = 2D − T(D) of det-CGD1; ``descent`` is det(H)^{1/d} of each row.  For det-CGD2 both optima are the same.
    ``options`` go to ``optimal_stepsize``, limits for each row.
    Rates of rows are comparable: each bounds a mean of ‖∇f‖² in a metric of determinant 1.
    """
    estimated = isinstance(L, EstimatedSmoothness)
    smoothness = read_matrix("L", L.matrix if estimated else L)
    given = L if estimated else smoothness
    with blas_threads(smoothness.shape[0]):
        directions = _directions(dense(smoothness))
    first, second = DetCGD1(), DetCGD2()
    cases: list[tuple[Method, str, Structure, str]] = [
        (first, "optimal", "full", "condition"),
        (second, "optimal", "full", "condition"),
        (first, "optimal, descent", "full", "descent"),
    ]
    cases += [(first, name, structure, "condition") for name, structure in directions]
    rows = []
    for method, name, structure, guarantee in cases:
        result = optimal_stepsize(given, sketch, algorithm=method, structure=structure, guarantee=guarantee, **options)
        rows.append(ComparisonRow(method.name, name, result))
    return Comparison(tuple(rows))


def _directions(L: np.ndarray[Any, np.dtype[np.float64]]) -> list[tuple[str, Structure]]:
    w, V = np.linalg.eigh(L)
    inverse_root = (V / np.sqrt(w)) @ V.T
    inverse = np.linalg.inv(L)
    return [
        ("γ I", "scalar"),
        ("γ diag⁻¹(L)", Direction(np.diag(1.0 / np.diagonal(L)))),
        ("γ L⁻¹", Direction(0.5 * (inverse + inverse.T))),
        ("γ L^(-1/2)", Direction(0.5 * (inverse_root + inverse_root.T))),
    ]
