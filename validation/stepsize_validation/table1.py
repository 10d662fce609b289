"""Table 1 of the paper for any L and layer sizes: the floats of each method, computed and as printed.

The table lists E[floats per round]/det(D)^{1/d}, the floats in units of 2Δ⁰/ε², for D = Diag(γᵢWᵢ) with the
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
from typing import Any, TypeAlias

import numpy as np
from scipy.linalg import block_diag

from stepsize_opt import BernQ, Identity, LayerWise, RandK, Sketch
from stepsize_opt.goals import GoalName
from stepsize_opt.inputs.checks import items, whole_number
from stepsize_opt.inputs.matrices import SMOOTHNESS_REMEDY, check_positive_definite, dense, read_matrix
from stepsize_opt.inputs.structures import Direction, Structure
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.planning import power_of
from stepsize_opt.records import completed
from stepsize_opt.tables import Row, Table, best_first
from stepsize_solvers.programs import Matrix, Vector, block_slices

_NOTES = {
    2: "the printed form holds only for a diagonal L",
    8: "the printed form holds only for a diagonal L",
    11: "the printed form has d for dᵢ in L̃ᵢ, or lacks the power 1/d for one layer",
}
# Row of the printed table, method, sketch by name, stepsize by name, structure.
_Asked: TypeAlias = tuple[int | None, str, tuple[str, Sketch], str, Structure]
_COLUMNS = ("row", "method", "sketch", "stepsize", "floats", "descent", "printed", "share of limit", "note")


def communication_table(
    L: Any,
    layers: Sequence[int] | None = None,
    *,
    k: int | Sequence[int] | None = None,
    q: float | Sequence[float] = 0.5,
    tol: float = 1e-6,
) -> Table:
    """Compute Table 1 of the paper for the smoothness matrix L.

    The column ``row`` has the paper's number, ``printed`` its closed form, None where it has none; ``descent`` is what
    the descent metric guarantees for the same D, and ``note`` tells why a printed form differs from the floats that the
    condition gives.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d)
        Symmetric positive definite; block-diagonal with blocks ``layers`` when there are several.
    layers
        Layer sizes d₁, …, d_l (default: one layer of size d).
    k
        kᵢ of rows 8 and 11, one for all layers or one for each; default dᵢ/2 rounded up.
    q
        qᵢ of row 12.
    tol
        The certified gap asked of each row.

    Returns
    -------
    stepsize_opt.tables.Table
        The rows of each goal, those with the fewest floats first.

    Raises
    ------
    ValueError
        For sizes that do not add up to d, an L with entries between layers, or k outside 1 … dᵢ.

    Examples
    --------
    >>> from stepsize_validation import communication_table
    >>> table = communication_table([[2.0, 0.0], [0.0, 4.0]], k=1)
    >>> [(row.method, round(row.floats, 6)) for row in table.rows if row.more["row"] == 1]
    [('det-CGD1', 5.656854)]
    """
    problem = _read(L, layers, k, q)
    sizes, d = problem.sizes, len(problem.L)
    identity, rand_1 = ("identity", Identity(d)), ("rand-1", _rand(sizes, (1,) * len(sizes)))
    rand_k, bernoulli = ("rand-k", _rand(sizes, problem.k)), ("Bern-q", BernQ(problem.q, sizes))
    inverse = problem.direction(lambda B: power_of(B, -1.0))
    diagonal = problem.direction(lambda B: np.diag(1.0 / np.diagonal(B)))
    root = problem.direction(lambda B: power_of(B, -0.5))
    scalar = problem.direction(lambda B: np.eye(len(B)))
    asked: list[_Asked] = [
        (1, "det-CGD1", identity, "γ L⁻¹", inverse),
        (2, "det-CGD1", identity, "γ diag⁻¹(L)", diagonal),
        (3, "det-CGD1", identity, "γ I", scalar),
        (4, "det-CGD1", rand_1, "γ I", scalar),
        (5, "det-CGD1", rand_1, "γ L⁻¹", inverse),
        (6, "det-CGD1", rand_1, "γ L^(-1/2)", root),
        (7, "det-CGD1", rand_1, "γ diag⁻¹(L)", diagonal),
        (8, "det-CGD1", rand_k, "γ diag⁻¹(L)", diagonal),
        (9, "det-CGD2", identity, "optimal", "full"),
        (10, "det-CGD2", rand_1, "optimal", "full"),
        (11, "det-CGD2", rand_k, "optimal", "full"),
        (12, "det-CGD2", bernoulli, "optimal", "full"),
        (13, "GD", identity, "γ I", "scalar"),
    ]
    compressed = [rand_1, bernoulli] if problem.k == (1,) * len(sizes) else [rand_1, rand_k, bernoulli]
    optima: list[_Asked] = [(None, "det-CGD1", sketch, "optimal", "full") for sketch in compressed]
    goals: dict[GoalName, list[_Asked]] = {"paper": asked + optima, "descent": optima}
    printed, rows = problem.printed(), []
    for goal, chosen in goals.items():
        for number, method, (name, sketch), stepsize, structure in chosen:
            algorithm = "det-CGD1" if method == "GD" else method
            result = optimal_stepsize(problem.L, sketch, algorithm=algorithm, structure=structure, goal=goal, tol=tol)
            rows.append(_row(number, method, name, stepsize, completed(result), printed.get(number or 0)))
    title = f"Table 1, layers {sizes}, k = {problem.k}, q = {tuple(map(float, problem.q))}"
    ordered = best_first(rows, lambda row: (row.goal != "paper", row.floats))
    return Table(tuple(ordered), _COLUMNS, title, unit="2Δ⁰/ε²")


def _row(number: int | None, method: str, sketch: str, stepsize: str, result: Any, printed: float | None) -> Row:
    """Return a row; a printed form differs where it is not what the condition gives, beyond the certified gap."""
    sent = result.expected_nonzeros
    floats = sent / result.rate
    # A closed form and a repaired D agree to rounding plus the certified gap; 1e-9 covers the rounding of an eigenvalue
    # of a matrix of condition 10⁶.
    differs = printed is not None and abs(floats - printed) > (1e-9 + 2.0 * max(result.gap, 0.0)) * floats
    note = _NOTES.get(number or 0, "") if differs else ""
    more = {
        "row": number,
        "descent": sent / result.descent_rate,
        "printed": printed,
        "differs": differs,
        "note": note,
    }
    own = {**result.columns(), "sketch": sketch}
    words = {"goal": result.goal, "method": method, "stepsize": stepsize}
    return Row(**words, rate=result.rate, rounds=1.0 / result.rate, floats=floats, more=more, **own)


@dataclass(frozen=True, eq=False)
class _Problem:
    """L in its blocks, and the paper's closed forms; products of powers are taken by their logarithms."""

    L: Matrix
    blocks: list[Matrix]
    sizes: tuple[int, ...]
    k: tuple[int, ...]
    q: Vector

    def direction(self, W: Callable[[Matrix], Matrix]) -> Direction:
        return Direction(block_diag(*(W(block) for block in self.blocks)), self.sizes)

    def printed(self) -> dict[int, float]:
        """Return the closed forms of the paper by row: its column for layers, or for one layer its general column."""
        d, k, n = np.array(self.sizes, dtype=float), np.array(self.k, dtype=float), len(self.sizes)
        total = float(d.sum())

        def mean(logs: Any) -> float:
            """Return log of (Π xᵢ^{dᵢ})^{1/d} from the logarithms of the xᵢ."""
            return float(d @ np.asarray(logs)) / total

        def tops(f: Callable[[Matrix], Matrix]) -> list[float]:
            return [float(np.log(np.linalg.eigvalsh(f(B))[-1])) for B in self.blocks]

        sizes, top = mean(np.log(d)), mean(tops(lambda B: B))
        log_det = sum(float(np.linalg.slogdet(B)[1]) for B in self.blocks) / total
        log_diag = float(np.sum(np.log(np.diagonal(self.L)))) / total
        largest = mean([np.log(np.diagonal(B).max()) for B in self.blocks])
        forms = {
            1: (total, log_det),
            2: (total, log_diag),
            3: (total, top),
            4: (n, sizes + largest),
            5: (n, sizes + mean(tops(_row_five)) + log_det),
            6: (n, sizes + 0.5 * top + 0.5 * log_det),
            7: (n, sizes + log_diag),
            8: (k.sum(), mean(np.log(d / k)) + log_diag),
            9: (total, log_det),
            10: (n, sizes + log_diag),
            12: (self.q @ d, mean(-np.log(self.q)) + log_det),
        }
        out = {number: float(floats * np.exp(log)) for number, (floats, log) in forms.items()}
        if n == 1:  # no form is printed for several layers
            out[13] = total * float(np.linalg.eigvalsh(self.L)[-1])
        if total > 1.0:  # where the printed form is not 0/0
            out[11] = self._row_eleven(mean(np.log(d / k)))
        return out

    def _row_eleven(self, ratio: float) -> float:
        """Return the printed form: L̃ᵢ with the total d in place of dᵢ, for one layer d·det(L̃) without the power 1/d."""
        total = sum(self.sizes)
        log_det = 0.0
        for B, k in zip(self.blocks, self.k, strict=True):
            mixed = ((total - k) * np.diag(np.diagonal(B)) + (k - 1) * B) / (total - 1)
            log_det += float(np.linalg.slogdet(mixed)[1])
        if len(self.sizes) == 1:
            with np.errstate(over="ignore"):
                return float(total * np.exp(log_det))
        return float(sum(self.k) * np.exp(ratio + log_det / total))


def _read(L: Any, layers: Any, k: Any, q: Any) -> _Problem:
    """Read the arguments of ``communication_table``; raises ValueError where they do not fit."""
    smoothness = dense(read_matrix("L", L))
    d = len(smoothness)
    sizes = (d,) if layers is None else tuple(whole_number("layers", size) for size in items("layers", layers))
    if sum(sizes) != d:
        msg = f"layers {sizes} add up to {sum(sizes)}, but L is {d}×{d}"
        raise ValueError(msg)
    blocks = [np.asarray(smoothness[part, part]) for part in block_slices(sizes)]
    joined: Any = block_diag(*blocks)
    if not np.array_equal(smoothness, joined):
        msg = f"L must be block-diagonal with blocks of sizes {sizes}; use layers=None for a general L"
        raise ValueError(msg)
    check_positive_definite("L", smoothness, SMOOTHNESS_REMEDY)
    wanted = [-(-size // 2) for size in sizes] if k is None else np.ravel(k).tolist()
    if len(wanted) not in (1, len(sizes)):
        msg = f"k must be one number, or one for each of the {len(sizes)} layers, got {wanted}"
        raise ValueError(msg)
    wanted = wanted * len(sizes) if len(wanted) == 1 else wanted
    ks = tuple(whole_number("k", one, high=size) for one, size in zip(wanted, sizes, strict=True))
    return _Problem(smoothness, blocks, sizes, ks, BernQ(q, sizes).q)


def _rand(sizes: Sequence[int], k: Sequence[int]) -> Sketch:
    layers = [RandK(size, one) for size, one in zip(sizes, k, strict=True)]
    return layers[0] if len(layers) == 1 else LayerWise(layers)


def _row_five(B: Matrix) -> Matrix:
    """Return L^½ diag(L⁻¹) L^½."""
    root = power_of(B, 0.5)
    return np.asarray((root * np.diagonal(power_of(B, -1.0))) @ root)
