"""Table 1: rows against the closed forms of the paper, the rows that differ, and the paper's corollaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

from stepsize_validation.table1 import communication_table


def random_L(d: int, seed: int) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((d, d + 2))
    return np.asarray(A @ A.T / d + 0.05 * np.eye(d))


RIGHT = (1, 3, 4, 5, 6, 7, 9, 10, 12, 13)


def numbered(*arguments: Any, **options: Any) -> dict[int, Any]:
    """Return the rows that have a number of the paper."""
    rows = communication_table(*arguments, **options).rows
    return {row.more["row"]: row for row in rows if row.more["row"] is not None}


def differing(rows: dict[int, Any]) -> set[int]:
    return {number for number, row in rows.items() if row.more["differs"]}


@pytest.mark.parametrize("seed", range(3))
def test_one_layer(seed: int) -> None:
    rows = numbered(random_L(6, seed), k=3, q=0.4)
    for number in RIGHT:
        assert rows[number].floats == pytest.approx(rows[number].more["printed"], rel=1e-9)
        assert rows[number].more["note"] == ""
    assert differing(rows) == {2, 8, 11}
    assert all(rows[number].more["note"] for number in (2, 8, 11))


def test_layers_with_their_own_k_and_q() -> None:
    L = block_diag(random_L(2, 0), random_L(3, 1), random_L(4, 2))
    rows = numbered(L, (2, 3, 4), k=(1, 2, 3), q=(0.2, 0.5, 0.9))
    for number in RIGHT[:-1]:
        assert rows[number].floats == pytest.approx(rows[number].more["printed"], rel=1e-9)
    assert rows[13].more["printed"] is None  # no closed form is printed for several layers
    assert differing(rows) == {2, 8, 11}


def test_rows_2_and_8_have_the_cost_that_the_correlation_matrix_gives() -> None:
    L, k, d = random_L(6, 5), 3, 6
    scale = 1.0 / np.sqrt(np.diagonal(L))
    C = scale[:, None] * L * scale
    mean = np.exp(np.mean(np.log(np.diagonal(L))))
    table = numbered(L, k=k)
    assert table[2].floats == pytest.approx(d * np.linalg.eigvalsh(C)[-1] * mean, rel=1e-9)
    mixed = (d / k) * ((d - k) / (d - 1) * np.eye(d) + (k - 1) / (d - 1) * C)
    assert table[8].floats == pytest.approx(k * np.linalg.eigvalsh(mixed)[-1] * mean, rel=1e-9)


def test_printed_rows_2_and_8_are_right_for_a_diagonal_L() -> None:
    assert not differing(numbered(np.diag([1.0, 3.0, 9.0, 2.0]), k=2)) & {2, 8}


def test_row_11_is_right_after_correction() -> None:
    L = block_diag(random_L(3, 1), random_L(4, 2))
    k, sizes = (2, 3), (3, 4)
    table = numbered(L, sizes, k=k)
    logs = 0.0
    for block, ki, di in zip((L[:3, :3], L[3:, 3:]), k, sizes, strict=True):
        mixed = ((di - ki) * np.diag(np.diagonal(block)) + (ki - 1) * block) / (di - 1)
        logs += np.linalg.slogdet(mixed)[1] + di * np.log(di / ki)
    assert table[11].floats == pytest.approx(sum(k) * np.exp(logs / 7), rel=1e-9)


@pytest.mark.parametrize(("off", "row_6"), [(0.0, 8.0), (3.9, 3.88)])
def test_rows_6_and_7_cross_as_in_the_paper(off: float, row_6: float) -> None:
    table = numbered([[16.0, off], [off, 1.0]])
    assert table[7].floats / 2 == pytest.approx(4.0, rel=1e-9)
    assert table[6].floats / 2 == pytest.approx(row_6, abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_corollaries(seed: int) -> None:
    L = block_diag(random_L(2, seed), random_L(5, seed + 10))
    whole = communication_table(L, (2, 5), q=(0.3, 0.8))
    table = numbered(L, (2, 5), q=(0.3, 0.8))
    optima = [row for row in whole.rows if row.more["row"] is None]
    # Row 5 never beats row 7.
    assert table[5].floats >= table[7].floats * (1.0 - 1e-9)
    # Compression for free: equal q costs what no compression costs, unequal q costs more.
    equal = numbered(L, (2, 5), q=0.3)
    assert equal[12].floats == pytest.approx(table[9].floats, rel=1e-9)
    assert table[12].floats > equal[12].floats
    # The optimum of det-CGD1 is at least as good as every direction with the same sketch.
    best, free = ({row.sketch: row.floats for row in optima if row.goal == goal} for goal in ("paper", "descent"))
    # The descent metric of a D is at least D, and its optimum is at least as good as that of the condition.
    assert all(row.more["descent"] <= row.floats * (1.0 + 1e-9) for row in whole.rows)
    assert all(free[sketch] <= best[sketch] * (1.0 + 2e-6) for sketch in best)
    # For rand-1 it is at least as good as det-CGD2's optimum.
    assert free["rand-1"] <= table[10].floats * (1.0 + 2e-6)
    for number in (4, 5, 6, 7):
        assert best["rand-1"] <= table[number].floats * (1.0 + 1e-6)
    assert best["rand-k"] <= table[8].floats * (1.0 + 1e-6)


def test_rows_are_sorted_by_their_floats_and_the_best_is_marked() -> None:
    table = communication_table(random_L(3, 0), k=1)
    assert [row.sketch for row in table.rows if row.more["row"] is None and row.goal == "descent"] == [
        "Bern-q",
        "rand-1",
    ]
    for goal in ("paper", "descent"):
        floats = [row.floats for row in table.of_goal(goal)]
        assert floats == sorted(floats) and len(floats) == {"paper": 15, "descent": 2}[goal]
    text = repr(table)
    assert text.count("* ") >= 2 and "the printed form holds only for a diagonal L" in text
