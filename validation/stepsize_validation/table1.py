"""Table 1 of the paper for any L and layer sizes: communication of each method, computed and as printed.

The table lists E[floats per round]/det(D)^{1/d}, the communication in units of 2Δ⁰/ε², for D = Diag(γᵢWᵢ) with the
largest factors γᵢ that condition (3) allows (Theorem 2) and for the optimal D of det-CGD2.  Here every row is computed
by the condition itself, with a certificate, next to the closed form that the paper prints; the optimal D of det-CGD1,
which the paper does not have, is added below, under the condition and for the descent metric H = 2D − T(D).  What the
descent metric guarantees for the D of a row, E[floats per round]/det(H)^{1/d}, is next to it.

The printed forms of rows 2 and 8 hold only for a diagonal L.  With W = diag⁻¹(L) and rand-k the condition gives
γ = 1/λmax((d/k)[(d−k)/(d−1) I + (k−1)/(d−1) C]), C the correlation matrix of L, and λmax(C) > 1 unless L is diagonal.
Row 11 prints d for dᵢ in its matrix L̃ᵢ, and its column for one layer lacks a power 1/d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import GoalName
from stepsize_opt.inputs import (
    SMOOTHNESS_REMEDY,
    Direction,
    Structure,
    check_positive_definite,
    dense,
    items,
    read_matrix,
    whole_number,
)
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node import StepsizeResult, optimal_stepsize
from stepsize_opt.planning import power_of
from stepsize_opt.records import completed
from stepsize_opt.sketches import BernQ, Identity, LayerWise, RandK, Sketch
from stepsize_solvers.programs import Matrix, Vector, block_slices

_NOTES = {
    2: "the printed form holds only for a diagonal L",
    8: "the printed form holds only for a diagonal L",
    11: "the printed form has d for dᵢ in L̃ᵢ, or lacks the power 1/d for one layer",
}


@dataclass(frozen=True, eq=False)
class TableRow:
    """One row: ``printed`` is the paper's closed form (None where it has none), ``result`` the certified computation.

    number: of the paper's table, or None for the rows of the optimal D.
    """

    number: int | None
    method: str
    sketch: str
    stepsize: str
    printed: float | None
    result: StepsizeResult

    @property
    def computed(self) -> float:
        """E[floats per round]/det(D)^{1/d} for the certified D; det(H)^{1/d} in the row "optimal, descent"."""
        return self.result.expected_nonzeros / self.result.rate

    @property
    def descent(self) -> float:
        """E[floats per round]/det(H)^{1/d} of the same D: never more than ``computed``."""
        return self.result.expected_nonzeros / self.result.descent_rate

    @property
    def differs(self) -> bool:
        """Whether the printed form is not what the condition gives, beyond the certified gap."""
        # A closed form and a repaired D agree to rounding plus the certified gap; 1e-9 covers the rounding of an
        # eigenvalue of a matrix of condition 10⁶.
        if self.printed is None:
            return False
        return abs(self.computed - self.printed) > (1e-9 + 2.0 * max(self.result.gap, 0.0)) * self.computed

    @property
    def note(self) -> str:
        return _NOTES.get(self.number or 0, "") if self.differs else ""


@dataclass(frozen=True, eq=False)
class CommunicationTable:
    """The rows of ``communication_table``; prints as text, gives records for pandas or JSON.

    Examples
    --------
    See ``communication_table``.
    """

    rows: tuple[TableRow, ...]
    layers: tuple[int, ...]
    k: tuple[int, ...]
    q: tuple[float, ...]

    def row(self, number: int) -> TableRow:
        """Return the row with the paper's number; raises KeyError when there is none."""
        for row in self.rows:
            if row.number == number:
                return row
        msg = f"no row {number}; the rows are 1 to 13"
        raise KeyError(msg)

    @property
    def optimal(self) -> tuple[TableRow, ...]:
        """The rows of the optimal D of det-CGD1."""
        return tuple(row for row in self.rows if row.number is None)

    @property
    def differing(self) -> tuple[int, ...]:
        """Numbers of the rows whose printed form is not what the condition gives."""
        return tuple(row.number for row in self.rows if row.differs and row.number is not None)

    def to_records(self) -> list[dict[str, Any]]:
        return [
            {
                "row": row.number,
                "method": row.method,
                "sketch": row.sketch,
                "stepsize": row.stepsize,
                "computed": row.computed,
                "descent": row.descent,
                "printed": row.printed,
                "efficiency": row.result.efficiency,
                "differs": row.differs,
                "note": row.note,
                "status": row.result.status,
                "gap": row.result.gap,
            }
            for row in self.rows
        ]

    def __repr__(self) -> str:
        width = max(len(row.stepsize) for row in self.rows)
        header = (
            f"{'row':>3} {'method':<8} {'sketch':<8} {'stepsize':<{width}} {'computed':>11} {'descent':>11} "
            f"{'printed':>11} {'share of limit':>14}"
        )
        lines = [f"communication in units of 2Δ⁰/ε², layers {self.layers}, k = {self.k}, q = {self.q}", header]
        lines.append("-" * len(header))
        for row in self.rows:
            printed = "" if row.printed is None else f"{row.printed:.6g}"
            lines.append(
                f"{row.number or '*':>3} {row.method:<8} {row.sketch:<8} {row.stepsize:<{width}} "
                f"{row.computed:>11.6g} {row.descent:>11.6g} {printed:>11} {row.result.efficiency:>14.3f}"
                + (f"  ≠ {row.note}" if row.differs else "")
            )
        return "\n".join(lines)


def communication_table(
    L: Any,
    layers: Sequence[int] | None = None,
    *,
    k: int | Sequence[int] | None = None,
    q: float | Sequence[float] = 0.5,
    tol: float = 1e-6,
) -> CommunicationTable:
    """Compute Table 1 of the paper for the smoothness matrix L.

    Parameters
    ----------
    L
        Symmetric positive definite; block-diagonal with blocks ``layers`` when there are several.
    layers
        Layer sizes d₁, …, d_l (default: one layer of size d).
    k
        kᵢ of rows 8 and 11, one for all layers or one for each; default dᵢ/2 rounded up.
    q
        qᵢ of row 12.
    tol
        The certified gap asked of each row.

    Raises
    ------
    ValueError
        For sizes that do not add up to d, an L with entries between layers, or k outside 1 … dᵢ.

    Examples
    --------
    >>> from stepsize_validation import communication_table
    >>> table = communication_table([[2.0, 0.0], [0.0, 4.0]], k=1)
    >>> table.row(1).method, round(table.row(1).computed, 6)
    ('det-CGD1', 5.656854)
    """
    smoothness = dense(read_matrix("L", L))
    d = len(smoothness)
    sizes = (d,) if layers is None else tuple(whole_number("layers", size) for size in items("layers", layers))
    if sum(sizes) != d:
        msg = f"layers {sizes} add up to {sum(sizes)}, but L is {d}×{d}"
        raise ValueError(msg)
    blocks = [np.asarray(smoothness[part, part]) for part in block_slices(sizes)]
    if not np.array_equal(smoothness, _diagonal_blocks(blocks)):
        msg = f"L must be block-diagonal with blocks of sizes {sizes}; use layers=None for a general L"
        raise ValueError(msg)
    check_positive_definite("L", smoothness, SMOOTHNESS_REMEDY)
    wanted = [-(-size // 2) for size in sizes] if k is None else np.ravel(k).tolist()
    if len(wanted) not in (1, len(sizes)):
        msg = f"k must be one number, or one for each of the {len(sizes)} layers, got {wanted}"
        raise ValueError(msg)
    wanted = wanted * len(sizes) if len(wanted) == 1 else wanted
    ks = tuple(whole_number("k", one, high=size) for one, size in zip(wanted, sizes, strict=True))
    bernoulli = BernQ(q, sizes)
    problem = _Problem(smoothness, blocks, sizes, ks, bernoulli.q)

    identity = Identity(d)
    rand_1, rand_k = _rand(sizes, (1,) * len(sizes)), _rand(sizes, ks)
    inverse = problem.direction(lambda B: power_of(B, -1.0))
    diagonal = problem.direction(lambda B: np.diag(1.0 / np.diagonal(B)))
    root = problem.direction(lambda B: power_of(B, -0.5))
    scalar = problem.direction(lambda B: np.eye(len(B)))
    first, second = DetCGD1(), DetCGD2()

    rows: list[TableRow] = []

    def add(
        number: int | None,
        method: Method,
        sketch: Sketch,
        name: str,
        stepsize: str,
        structure: Structure,
        goal: GoalName = "paper",
        shown: str = "",
    ) -> None:
        result = optimal_stepsize(smoothness, sketch, algorithm=method, structure=structure, goal=goal, tol=tol)
        printed = None if number is None else problem.printed(number)
        rows.append(TableRow(number, shown or method.name, name, stepsize, printed, completed(result)))

    add(1, first, identity, "identity", "γ L⁻¹", inverse)
    add(2, first, identity, "identity", "γ diag⁻¹(L)", diagonal)
    add(3, first, identity, "identity", "γ I", scalar)
    add(4, first, rand_1, "rand-1", "γ I", scalar)
    add(5, first, rand_1, "rand-1", "γ L⁻¹", inverse)
    add(6, first, rand_1, "rand-1", "γ L^(-1/2)", root)
    add(7, first, rand_1, "rand-1", "γ diag⁻¹(L)", diagonal)
    add(8, first, rand_k, "rand-k", "γ diag⁻¹(L)", diagonal)
    add(9, second, identity, "identity", "optimal", "full")
    add(10, second, rand_1, "rand-1", "optimal", "full")
    add(11, second, rand_k, "rand-k", "optimal", "full")
    add(12, second, bernoulli, "Bern-q", "optimal", "full")
    add(13, first, identity, "identity", "γ I", "scalar", shown="GD")
    optima: tuple[tuple[str, GoalName], ...] = (("optimal", "paper"), ("optimal, descent", "descent"))
    for stepsize, goal in optima:
        add(None, first, rand_1, "rand-1", stepsize, "full", goal)
        if ks != (1,) * len(sizes):
            add(None, first, rand_k, "rand-k", stepsize, "full", goal)
        add(None, first, bernoulli, "Bern-q", stepsize, "full", goal)
    return CommunicationTable(tuple(rows), sizes, ks, tuple(float(x) for x in bernoulli.q))


@dataclass(frozen=True, eq=False)
class _Problem:
    """L in its blocks, and the paper's closed forms; products of powers are taken by their logarithms."""

    L: Matrix
    blocks: list[Matrix]
    sizes: tuple[int, ...]
    k: tuple[int, ...]
    q: Vector

    def direction(self, W: Callable[[Matrix], Matrix]) -> Direction:
        return Direction(_diagonal_blocks([W(block) for block in self.blocks]), self.sizes)

    def printed(self, number: int) -> float | None:
        """Return the closed form of the paper: its column for layers, or for one layer its general column."""
        d, n = np.array(self.sizes, dtype=float), len(self.sizes)
        total = float(d.sum())
        k = np.array(self.k, dtype=float)
        log_det = sum(float(np.linalg.slogdet(B)[1]) for B in self.blocks) / total
        log_diag = float(np.sum(np.log(np.diagonal(self.L)))) / total

        def mean(logs: Sequence[float] | Vector) -> float:
            """Return log of (Π xᵢ^{dᵢ})^{1/d} from the logarithms of the xᵢ."""
            return float(d @ np.asarray(logs)) / total

        def tops(f: Callable[[Matrix], Matrix]) -> list[float]:
            return [float(np.log(np.linalg.eigvalsh(f(B))[-1])) for B in self.blocks]

        if number in (1, 9):
            return total * float(np.exp(log_det))
        if number == 2:
            return total * float(np.exp(log_diag))
        if number == 3:
            return total * float(np.exp(mean(tops(lambda B: B))))
        if number == 4:
            return n * float(np.exp(mean(np.log(d)) + mean([float(np.log(np.diagonal(B).max())) for B in self.blocks])))
        if number == 5:
            return n * float(np.exp(mean(np.log(d)) + mean(tops(_row_five)) + log_det))
        if number == 6:
            return n * float(np.exp(mean(np.log(d)) + 0.5 * mean(tops(lambda B: B)) + 0.5 * log_det))
        if number in (7, 10):
            return n * float(np.exp(mean(np.log(d)) + log_diag))
        if number == 8:
            return float(k.sum()) * float(np.exp(mean(np.log(d / k)) + log_diag))
        if number == 11:
            return self._row_eleven()
        if number == 12:
            return float(self.q @ d) * float(np.exp(mean(-np.log(self.q)) + log_det))
        # Row 13 prints no form for several layers.
        return total * float(np.linalg.eigvalsh(self.L)[-1]) if n == 1 else None

    def _row_eleven(self) -> float | None:
        """Return the printed form: L̃ᵢ with the total d in place of dᵢ, for one layer d·det(L̃) without the power 1/d."""
        total = sum(self.sizes)
        if total == 1:
            return None  # the printed form is 0/0
        log_det = 0.0
        for B, k in zip(self.blocks, self.k, strict=True):
            mixed = ((total - k) * np.diag(np.diagonal(B)) + (k - 1) * B) / (total - 1)
            log_det += float(np.linalg.slogdet(mixed)[1])
        if len(self.sizes) == 1:
            with np.errstate(over="ignore"):
                return float(total * np.exp(log_det))
        ratio = sum(size * np.log(size / k) for size, k in zip(self.sizes, self.k, strict=True)) / total
        return float(sum(self.k) * np.exp(ratio + log_det / total))


def _rand(sizes: Sequence[int], k: Sequence[int]) -> Sketch:
    layers = [RandK(size, one) for size, one in zip(sizes, k, strict=True)]
    return layers[0] if len(layers) == 1 else LayerWise(layers)


def _diagonal_blocks(blocks: Sequence[Matrix]) -> Matrix:
    sizes = [len(block) for block in blocks]
    out = np.zeros((sum(sizes), sum(sizes)))
    for part, block in zip(block_slices(sizes), blocks, strict=True):
        out[part, part] = block
    return out


def _row_five(B: Matrix) -> Matrix:
    """Return L^½ diag(L⁻¹) L^½."""
    root = power_of(B, 0.5)
    return np.asarray((root * np.diagonal(power_of(B, -1.0))) @ root)
