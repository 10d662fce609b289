"""The public functions of one node: input of every kind, results, warm starts, files, comparisons."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import sparse
from scipy.linalg import block_diag

from shared.goals import GOALS, arguments_of
from shared.reference_problems import REFERENCE_OPTIMA, random_smoothness, smoothness_of
from stepsize_opt import (
    Direction,
    Gaussian,
    LayerWise,
    RandK,
    certify,
    compare,
    optimal_stepsize,
    write_certificate,
)
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.programs import Pattern
from stepsize_validation.properties.exact import satisfies_condition

L = random_smoothness(4, 50.0, 0)
SKETCH = RandK(4, 2)
every_goal = pytest.mark.parametrize("goal", GOALS)


@pytest.mark.parametrize(("name", "reg", "k", "expected"), REFERENCE_OPTIMA)
def test_reference_optima(name: str, reg: float, k: int, expected: float) -> None:
    matrix = smoothness_of(name, reg)
    sketch = RandK(len(matrix), k)
    result = optimal_stepsize(matrix, sketch)
    assert result.status == "optimal"
    assert result.gap <= 1e-6
    assert result.log_det / result.d == pytest.approx(expected, abs=1e-6)
    assert satisfies_condition(result.D, matrix, sketch, "det-CGD1")
    assert certify(result.D, matrix, sketch, dual=result.dual).feasible


@pytest.mark.parametrize(
    "convert",
    [
        lambda M: M.tolist(),
        pd.DataFrame,
        sparse.csr_matrix,
        sparse.coo_array,
        np.asfortranarray,
        lambda M: M.astype(object),
        lambda M: M.astype(int),
        lambda M: M.astype(np.float32),
        np.ma.array,
        np.matrix,
    ],
    ids=["lists", "pandas", "csr_matrix", "coo_array", "fortran", "objects", "whole", "float32", "no mask", "matrix"],
)
@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_other_containers_give_the_same_answer(convert: Any) -> None:
    whole = np.array([[4.0, 1.0], [1.0, 3.0]])
    result = optimal_stepsize(convert(whole), RandK(2, 1))
    assert result.D.dtype == np.float64
    np.testing.assert_array_equal(result.D, optimal_stepsize(whole, RandK(2, 1)).D)


@pytest.mark.parametrize("scale", [1e-280, 1.0, 1e280])
def test_rounding_of_a_product_is_no_asymmetry(scale: float) -> None:
    """AᵀBA differs from its transpose by rounding, relative to √(M_ii M_jj) also where columns differ by 10⁸."""
    A = np.random.default_rng(0).standard_normal((50, 4)) * np.array([1e-8, 1.0, 1e8, 1.0])
    M = scale * (A.T @ (np.linspace(1.0, 2.0, 50)[:, None] * A))
    assert (M != M.T).any()
    for matrix in (M, sparse.csr_array(M)):
        assert optimal_stepsize(matrix, SKETCH).certificate.feasible
    A = A.astype(np.float32)
    assert optimal_stepsize(np.einsum("mi,mj->ij", A, A) / 50, SKETCH).certificate.feasible


def test_arguments_are_left_unchanged() -> None:
    matrix, D = L.copy(), np.eye(4)
    for algorithm in ("det-CGD1", "det-CGD2"):
        optimal_stepsize(matrix, SKETCH, algorithm=algorithm)
    certify(D, matrix, SKETCH)
    compare(matrix, SKETCH)
    np.testing.assert_array_equal(matrix, L)
    np.testing.assert_array_equal(D, np.eye(4))


@pytest.mark.parametrize("condition", [1e10, 1e12])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_huge_condition_number(condition: float, k: int) -> None:
    """Either certified or honest about the gap; D is feasible without rounding in both cases."""
    matrix = random_smoothness(6, condition, 1)
    result = optimal_stepsize(matrix, RandK(6, k))
    assert result.status == ("optimal" if result.gap <= 1e-6 else "optimal_inaccurate")
    assert result.gap < 1e-2
    assert satisfies_condition(result.D, matrix, RandK(6, k), "det-CGD1")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("condition", [1.5e5, 1e12])
def test_directions_by_layers_at_high_condition(seed: int, condition: float) -> None:
    matrix, sizes = random_smoothness(12, condition, seed), (3, 4, 5)
    W = Pattern(sizes).blocks(matrix)
    for direction in (W, np.linalg.inv(W)):
        direction = Pattern(sizes).blocks(0.5 * (direction + direction.T))
        for sketch in (RandK(12, 3), LayerWise([RandK(3, 1), Gaussian(4, 2), RandK(5, 2)])):
            result = optimal_stepsize(matrix, sketch, structure=Direction(direction, sizes))
            assert result.status == "optimal"
            assert result.solver_stats.solver_name == "native"


@every_goal
@pytest.mark.parametrize("d", [6, 10, 15])
def test_a_result_is_a_start_and_a_bad_one_does_no_harm(goal: str, d: int) -> None:
    matrix, sketch = random_smoothness(d, 1e3, 0), RandK(d, 2)
    asked = arguments_of(goal, 0.5 * matrix)
    cold = optimal_stepsize(matrix, sketch, **asked)
    elsewhere = optimal_stepsize(random_smoothness(d, 1e6, 9), RandK(d, d - 1))
    for start in (cold, elsewhere):
        warm = optimal_stepsize(matrix, sketch, warm_start=start, **asked)
        assert warm.status == "optimal"
        assert warm.rate == pytest.approx(cold.rate, rel=2e-6)


def test_other_files_are_refused(tmp_path: Any) -> None:
    np.savez(tmp_path / "other.npz", D=np.eye(2))
    np.savez(tmp_path / "old.npz", meta=np.array(json.dumps({"format": 0})))
    for name in ("other.npz", "old.npz"):
        with pytest.raises(ValueError, match=name):
            StepsizeResult.load(tmp_path / name)


def test_a_plot_of_a_result_shows_its_eigenvalues_beside_those_of_another() -> None:
    result, ax = optimal_stepsize(L, SKETCH), Figure().subplots()
    textbook = optimal_stepsize(L, SKETCH, structure="scalar")
    assert result.plot(ax, beside=textbook) is ax
    best, scalar = ax.get_lines()
    assert best.get_label() == "full D, det-CGD1, randk:2, goal paper"
    assert scalar.get_label() == "best γI, det-CGD1, randk:2, goal paper"
    np.testing.assert_allclose(best.get_ydata(), np.linalg.eigvalsh(result.D)[::-1])
    np.testing.assert_allclose(scalar.get_ydata(), textbook.D[0, 0])
    assert len(result.plot(Figure().subplots()).get_lines()) == 1


class TestCompare:
    def test_rows(self) -> None:
        table = compare(L, SKETCH)
        assert len(table.rows) == 7 and {(row.method, row.stepsize) for row in table.rows} == {
            ("det-CGD1", "optimal"),
            ("det-CGD2", "optimal"),
            ("det-CGD1", "optimal, descent"),
            ("det-CGD1", "γ I"),
            ("det-CGD1", "γ diag⁻¹(L)"),
            ("det-CGD1", "γ L⁻¹"),
            ("det-CGD1", "γ L^(-1/2)"),
        }
        assert [row.rounds for row in table.rows] == sorted(row.rounds for row in table.rows)
        assert table.best is table.rows[0] and table.best.stepsize == "optimal, descent"
        assert table.best.more["times the rounds"] == 1.0
        for record, row in zip(table.to_records(), table.rows, strict=True):
            assert record["floats"] == pytest.approx(2.0 / record["descent rate"])
            assert record["descent rate"] == row.result.descent_rate >= row.rate * (1 - 1e-14)
            assert record["status"] == "optimal"
        assert compare(sparse.csr_array(L), SKETCH).best.rate == table.best.rate

    @every_goal
    def test_the_optimum_is_the_best_for_every_goal(self, goal: str) -> None:
        table = compare(L, SKETCH, **arguments_of(goal, L))
        assert table.best.stepsize == ("optimal, descent" if goal == "paper" else "optimal")
        assert all(row.more["times the rounds"] >= 1.0 for row in table.rows)
        for row in table.rows:
            rate = row.result.guaranteed_rate
            assert row.rounds == pytest.approx(1.0 / (-math.log1p(-rate) if goal == "linear" else rate))


def test_a_sketch_may_be_given_by_its_text() -> None:
    result = optimal_stepsize(L, "randk:50%")
    assert str(result.sketch) == "randk:2"
    np.testing.assert_array_equal(result.D, optimal_stepsize(L, SKETCH).D)
    assert certify(result.D, L, "randk:2") == certify(result.D, L, SKETCH)


def test_the_factors_of_a_direction(tmp_path: Any) -> None:
    """Theorem 2 of the paper has one factor for each layer; a file keeps them."""
    W = block_diag(random_smoothness(2, 5.0, 0), random_smoothness(2, 5.0, 1))
    result = optimal_stepsize(L, SKETCH, structure=Direction(W, (2, 2)))
    first, second = result.gammas
    np.testing.assert_allclose(result.D, block_diag(first * W[:2, :2], second * W[2:, 2:]))
    assert StepsizeResult.load(result.save(tmp_path / "D")).gammas == result.gammas
    of_vector = optimal_stepsize(L, SKETCH, structure=Direction(2.0 / np.diagonal(L)))
    (gamma,) = of_vector.gammas
    write_certificate(of_vector, L, tmp_path / "D.cert.json")
    assert gamma > 0.0 and optimal_stepsize(L, SKETCH).gammas == ()


def test_a_vector_with_layers_is_the_diagonal_matrix_with_layers() -> None:
    L = random_smoothness(5, 10.0, 0)
    w, sizes = 1.0 / np.diagonal(L), (2, 3)
    rates = [optimal_stepsize(L, RandK(5, 2), structure=Direction(W, sizes)).rate for W in (w, np.diag(w))]
    assert rates[0] == rates[1]
    with pytest.raises(ValueError, match="sizes"):
        Direction(w, (2, 2))
