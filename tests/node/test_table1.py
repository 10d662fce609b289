"""Table 1: rows against the closed forms of the paper, the rows that differ, and the paper's corollaries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import block_diag

from stepsize_validation.table1 import communication_table


def random_L(d: int, seed: int) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((d, d + 2))
    return np.asarray(A @ A.T / d + 0.05 * np.eye(d))


RIGHT = (1, 3, 4, 5, 6, 7, 9, 10, 12, 13)


@pytest.mark.parametrize("seed", range(3))
def test_one_layer(seed: int) -> None:
    table = communication_table(random_L(6, seed), k=3, q=0.4)
    for number in RIGHT:
        row = table.row(number)
        assert row.printed is not None and row.computed == pytest.approx(row.printed, rel=1e-9)
        assert not row.differs and row.note == ""
    assert set(table.differing) == {2, 8, 11}
    assert all(table.row(number).note for number in (2, 8, 11))


def test_layers_with_their_own_k_and_q() -> None:
    L = block_diag(random_L(2, 0), random_L(3, 1), random_L(4, 2))
    table = communication_table(L, (2, 3, 4), k=(1, 2, 3), q=(0.2, 0.5, 0.9))
    for number in RIGHT:
        row = table.row(number)
        if number != 13:  # no closed form is printed for several layers
            assert row.printed is not None and row.computed == pytest.approx(row.printed, rel=1e-9)
    assert table.row(13).printed is None and not table.row(13).differs
    assert set(table.differing) == {2, 8, 11}


def test_rows_2_and_8_have_the_cost_that_the_correlation_matrix_gives() -> None:
    L, k, d = random_L(6, 5), 3, 6
    scale = 1.0 / np.sqrt(np.diagonal(L))
    C = scale[:, None] * L * scale
    mean = np.exp(np.mean(np.log(np.diagonal(L))))
    table = communication_table(L, k=k)
    assert table.row(2).computed == pytest.approx(d * np.linalg.eigvalsh(C)[-1] * mean, rel=1e-9)
    mixed = (d / k) * ((d - k) / (d - 1) * np.eye(d) + (k - 1) / (d - 1) * C)
    assert table.row(8).computed == pytest.approx(k * np.linalg.eigvalsh(mixed)[-1] * mean, rel=1e-9)


def test_printed_rows_2_and_8_are_right_for_a_diagonal_L() -> None:
    table = communication_table(np.diag([1.0, 3.0, 9.0, 2.0]), k=2)
    assert 2 not in table.differing and 8 not in table.differing


def test_row_11_is_right_after_correction() -> None:
    L = block_diag(random_L(3, 1), random_L(4, 2))
    k, sizes = (2, 3), (3, 4)
    table = communication_table(L, sizes, k=k)
    logs = 0.0
    for block, ki, di in zip((L[:3, :3], L[3:, 3:]), k, sizes, strict=True):
        mixed = ((di - ki) * np.diag(np.diagonal(block)) + (ki - 1) * block) / (di - 1)
        logs += np.linalg.slogdet(mixed)[1] + di * np.log(di / ki)
    assert table.row(11).computed == pytest.approx(sum(k) * np.exp(logs / 7), rel=1e-9)


@pytest.mark.parametrize(("off", "row_6"), [(0.0, 8.0), (3.9, 3.88)])
def test_rows_6_and_7_cross_as_in_the_paper(off: float, row_6: float) -> None:
    table = communication_table([[16.0, off], [off, 1.0]])
    assert table.row(7).computed / 2 == pytest.approx(4.0, rel=1e-9)
    assert table.row(6).computed / 2 == pytest.approx(row_6, abs=5e-3)


@pytest.mark.parametrize("seed", range(4))
def test_corollaries(seed: int) -> None:
    L = block_diag(random_L(2, seed), random_L(5, seed + 10))
    table = communication_table(L, (2, 5), q=(0.3, 0.8))
    # Row 5 never beats row 7.
    assert table.row(5).computed >= table.row(7).computed * (1.0 - 1e-9)
    # Compression for free: equal q costs what no compression costs, unequal q costs more.
    equal = communication_table(L, (2, 5), q=0.3)
    assert equal.row(12).computed == pytest.approx(table.row(9).computed, rel=1e-9)
    assert table.row(12).computed > equal.row(12).computed
    # The optimum of det-CGD1 is at least as good as every direction with the same sketch.
    best = {row.sketch: row.computed for row in table.optimal if row.result.goal == "paper"}
    free = {row.sketch: row.computed for row in table.optimal if row.result.goal == "descent"}
    # The descent metric of a D is at least D, and its optimum is at least as good as that of the condition.
    assert all(row.descent <= row.computed * (1.0 + 1e-9) for row in table.rows)
    assert all(free[sketch] <= best[sketch] * (1.0 + 2e-6) for sketch in best)
    # For rand-1 it is at least as good as det-CGD2's optimum.
    assert free["rand-1"] <= table.row(10).computed * (1.0 + 2e-6)
    for number in (4, 5, 6, 7):
        assert best["rand-1"] <= table.row(number).computed * (1.0 + 1e-6)
    assert best["rand-k"] <= table.row(8).computed * (1.0 + 1e-6)


def test_output() -> None:
    table = communication_table(random_L(3, 0), k=1)
    assert "≠" in repr(table) and len(table.to_records()) == len(table.rows)
    assert [row.sketch for row in table.optimal] == ["rand-1", "Bern-q"] * 2
    with pytest.raises(KeyError, match="no row 14"):
        table.row(14)


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match="add up to 4"):
        communication_table(np.eye(3), (2, 2))
    with pytest.raises(ValueError, match="block-diagonal"):
        communication_table(random_L(4, 0), (2, 2))
    with pytest.raises(ValueError, match="k must be"):
        communication_table(np.eye(3), k=4)
    with pytest.raises(ValueError, match="q must be"):
        communication_table(np.eye(3), q=0.0)
    with pytest.raises(ValueError, match="singular"):
        communication_table(np.diag([1.0, 0.0]))
