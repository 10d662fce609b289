"""The public functions: input of every kind, results, solver paths, saving and loading."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.linalg import block_diag

from shared.exact import satisfies_condition
from shared.reference_problems import (
    REFERENCE_OPTIMA,
    needs_data,
    random_smoothness,
    satisfies_numerically,
    smoothness_of,
)
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Gaussian,
    LayerWise,
    RandK,
    StepsizeResult,
    certify,
    compare,
    optimal_stepsize,
)
from stepsize_solvers.programs.patterns import Pattern

L = random_smoothness(4, 50.0, 0)
SKETCH = RandK(4, 2)


@needs_data
@pytest.mark.parametrize(("name", "reg", "k", "expected"), REFERENCE_OPTIMA)
def test_reference_optima(name: str, reg: float, k: int, expected: float) -> None:
    matrix = smoothness_of(name, reg)
    sketch = RandK(len(matrix), k)
    result = optimal_stepsize(matrix, sketch)
    assert result.status == "optimal"
    assert result.gap <= 1e-6
    assert result.log_det / result.d == pytest.approx(expected, abs=1e-6)
    assert satisfies_numerically(result.D, matrix, sketch.second_moment)
    assert certify(result.D, matrix, sketch, dual=result.dual).feasible


class TestBadInput:
    """Each gets a clear error or the right answer."""

    @pytest.mark.parametrize(
        ("matrix", "error", "message"),
        [
            (np.ones((2, 3)), ValueError, r"L must be a square matrix, got shape \(2, 3\)"),
            (np.ones(4), ValueError, r"L must be a square matrix, got shape \(4,\)"),
            (np.zeros((0, 0)), ValueError, "L is empty"),
            ([], ValueError, r"L must be a square matrix, got shape \(0,\)"),
            ([[1.0, 2.0], [3.0]], ValueError, "rows have different lengths"),
            ([[1.0, 0.1], [0.2, 1.0]], ValueError, "L must be symmetric"),
            ([[1.0, 2.0], [2.0, 1.0]], ValueError, "L is indefinite"),
            ([[1.0, 0.0], [0.0, -1.0]], ValueError, "L is indefinite: a diagonal entry is -1"),
            ([[1.0, 1.0], [1.0, 1.0]], ValueError, "L is singular to working precision"),
            ([[1.0, 0.0], [0.0, 0.0]], ValueError, "L is singular: a diagonal entry is 0"),
            (np.diag([1.0, np.nan]), ValueError, "L contains NaN or infinite entries"),
            (np.diag([1.0, np.inf]), ValueError, "L contains NaN or infinite entries"),
            (np.eye(2) * 1j, TypeError, "L must hold real numbers"),
            ([["a", "b"], ["c", "d"]], TypeError, "L must hold real numbers"),
            (sparse.csr_array(np.array([[1.0, 0.5], [0.0, 1.0]])), ValueError, "L must be symmetric"),
            (sparse.csr_array(np.diag([1.0, np.nan])), ValueError, "L contains NaN"),
            (sparse.csr_array(np.ones((2, 3))), ValueError, "L must be a square matrix"),
            (np.eye(3), ValueError, "sketch is for d=2 but L is 3×3"),
            ([[1e32, 9e15], [0.0, 1.0]], ValueError, r"\|L − Lᵀ\| reaches 0.9 of √\(L_ii L_jj\)"),
            (sparse.csr_array(np.array([[1e32, 9e15], [0.0, 1.0]])), ValueError, "L must be symmetric"),
            (
                np.ma.array(np.eye(2), mask=[[0, 1], [1, 0]]),
                ValueError,
                "L has masked entries; give every entry a value",
            ),
            ([np.ma.array([1.0, 0.0], mask=[0, 1]), [0.0, 1.0]], ValueError, "L has masked entries"),
        ],
    )
    def test_matrix(self, matrix, error, message: str) -> None:
        with pytest.raises(error, match=message):
            optimal_stepsize(matrix, RandK(2, 1))

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({"tol": 0.0}, ValueError, "tol must be a finite positive number"),
            ({"tol": "small"}, TypeError, "tol must be a number"),
            ({"algorithm": "det-CGD3"}, ValueError, "algorithm must be one of 'det-CGD1', 'det-CGD2'"),
            ({"structure": "banded"}, ValueError, "unknown structure 'banded'"),
            ({"structure": BlockDiagonal((2, 3))}, ValueError, r"structure block\(2,3\) is for d=5 but L is 4×4"),
            ({"structure": Direction(np.eye(3))}, ValueError, "the direction W is for d=3 but L is 4×4"),
            ({"solver": "gurobi"}, ValueError, "unknown solver 'gurobi'"),
            ({"warm_start": optimal_stepsize(np.eye(5), RandK(5, 1))}, ValueError, "is for d=5 but L is 4×4"),
        ],
    )
    def test_arguments(self, arguments, error, message: str) -> None:
        with pytest.raises(error, match=message):
            optimal_stepsize(L, SKETCH, **arguments)

    @pytest.mark.parametrize("scale", [1e-280, 1.0, 1e280])
    def test_rounding_of_a_product_is_no_asymmetry(self, scale: float) -> None:
        """AᵀBA differs from its transpose by rounding, relative to √(M_ii M_jj) also where columns differ by 10⁸."""
        A = np.random.default_rng(0).standard_normal((50, 4)) * np.array([1e-8, 1.0, 1e8, 1.0])
        M = scale * (A.T @ (np.linspace(1.0, 2.0, 50)[:, None] * A))
        assert (M != M.T).any()
        for matrix in (M, sparse.csr_array(M)):
            assert optimal_stepsize(matrix, SKETCH).certificate.feasible

    def test_masks_and_asymmetry_of_every_matrix(self) -> None:
        masked = np.ma.array(np.eye(4), mask=np.eye(4, k=1) + np.eye(4, k=-1))
        skew = np.diag([1e32, 1.0, 1.0, 1.0])
        skew[0, 1] = 9e15
        for bad, message in ((masked, "masked entries"), (skew, "must be symmetric")):
            for call in (
                lambda bad=bad: certify(bad, L, SKETCH),
                lambda bad=bad: certify(np.eye(4), L, SKETCH, dual=bad),
                lambda bad=bad: Direction(bad),
                lambda bad=bad: SKETCH.second_moment(bad),
                lambda bad=bad: FiniteSketch(bad[None] if bad is skew else [bad], [1.0]),
            ):
                with pytest.raises(ValueError, match=message):
                    call()
        with pytest.raises(ValueError, match="vectors has masked entries"):
            DiagonalSketch.from_support(np.ma.array(np.ones((1, 2)), mask=[[0, 1]]), [1.0])
        assert optimal_stepsize(np.ma.array(L), SKETCH).status == "optimal"  # nothing is masked

    def test_sketch_must_be_a_sketch(self) -> None:
        with pytest.raises(TypeError, match="sketch must be a Sketch such as RandK"):
            optimal_stepsize(L, "randk:2")  # type: ignore[arg-type]

    def test_directions(self) -> None:
        with pytest.raises(ValueError, match="W is indefinite"):
            Direction(np.diag([1.0, -1.0]))
        with pytest.raises(ValueError, match="add up to 3, but W is 2×2"):
            Direction(np.eye(2), (1, 2))
        with pytest.raises(ValueError, match="W must be block-diagonal"):
            Direction([[1.0, 0.5], [0.5, 1.0]], (1, 1))
        with pytest.raises(ValueError, match="sizes must not be empty"):
            BlockDiagonal(())
        with pytest.raises(TypeError, match="sizes must be a list, got 3"):
            BlockDiagonal(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="its rows have different lengths"):
            Direction([[1.0, 2.0], [3.0]])
        with pytest.raises(ValueError, match="W must not be empty"):
            Direction([])

    @pytest.mark.parametrize(
        "convert",
        [
            lambda M: M.tolist(),
            pd.DataFrame,
            sparse.csr_matrix,
            sparse.coo_array,
            np.asfortranarray,
            lambda M: M.astype(object),
            np.matrix,
        ],
        ids=["lists", "pandas", "csr_matrix", "coo_array", "fortran", "objects", "matrix"],
    )
    @pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
    def test_other_containers_give_the_same_answer(self, convert) -> None:
        np.testing.assert_array_equal(optimal_stepsize(convert(L), SKETCH).D, optimal_stepsize(L, SKETCH).D)

    def test_integers_and_float32(self) -> None:
        whole = np.array([[4, 1], [1, 3]])
        np.testing.assert_array_equal(
            optimal_stepsize(whole, RandK(2, 1)).D, optimal_stepsize(whole.astype(float), RandK(2, 1)).D
        )
        single = L.astype(np.float32)
        result = optimal_stepsize(single, SKETCH)
        assert result.D.dtype == np.float64
        assert satisfies_condition(result.D, single.astype(float), SKETCH, "det-CGD1")

    def test_rounding_asymmetry_is_forgiven(self) -> None:
        A = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32)
        gram = np.einsum("mi,mj->ij", A, A) / 50
        assert optimal_stepsize(gram, RandK(6, 2)).status == "optimal"

    def test_read_only_and_unchanged(self) -> None:
        mine = L.copy()
        mine.setflags(write=False)
        optimal_stepsize(mine, SKETCH)
        np.testing.assert_array_equal(mine, L)
        writable = L.copy()
        D = np.eye(4)
        optimal_stepsize(writable, SKETCH, algorithm="det-CGD2")
        certify(D, writable, SKETCH)
        compare(writable, SKETCH)
        np.testing.assert_array_equal(writable, L)
        np.testing.assert_array_equal(D, np.eye(4))

    def test_one_by_one(self) -> None:
        for sketch in (RandK(1, 1), BernQ(0.25, 1)):
            result = optimal_stepsize([[4.0]], sketch)
            assert result.D[0, 0] == pytest.approx(0.25 / sketch.second_moment([[1.0]])[0, 0], rel=1e-12)
            assert result.status == "optimal"

    @pytest.mark.parametrize("condition", [1e10, 1e12])
    @pytest.mark.parametrize("k", [1, 2, 4, 6])
    def test_huge_condition_number(self, condition: float, k: int) -> None:
        """Either certified or honest about the gap; D is feasible without rounding in both cases."""
        matrix = random_smoothness(6, condition, 1)
        result = optimal_stepsize(matrix, RandK(6, k))
        assert result.status in ("optimal", "optimal_inaccurate")
        assert (result.status == "optimal") == (result.gap <= 1e-6)
        assert result.gap < 1e-2
        assert satisfies_condition(result.D, matrix, RandK(6, k), "det-CGD1")

    def test_huge_scale_differences_cost_nothing(self) -> None:
        scale = np.logspace(-75, 75, 4)
        result = optimal_stepsize(scale[:, None] * L * scale, SKETCH)
        plain = optimal_stepsize(L, SKETCH)
        assert result.status == "optimal"
        assert result.log_det + 2 * np.sum(np.log(scale)) == pytest.approx(plain.log_det, abs=1e-5)


class TestResult:
    result = optimal_stepsize(L, SKETCH)

    def test_numbers(self) -> None:
        r = self.result
        assert r.rate == pytest.approx(np.linalg.det(r.D) ** 0.25)
        assert r.log_det == pytest.approx(np.linalg.slogdet(r.D)[1], abs=1e-10)
        assert r.iterations(1e-2, 3.0) == math.ceil(2 * 3.0 / (r.descent_rate * 1e-2))
        assert r.communication(1e-2, 3.0) == 2.0 * r.iterations(1e-2, 3.0)
        assert r.certificate.log_det <= r.certificate.upper_bound
        with pytest.raises(ValueError, match="epsilon2 must be a finite positive number"):
            r.iterations(-1.0, 1.0)
        with pytest.raises(TypeError, match="initial_gap must be a number"):
            r.communication(1.0, "much")  # type: ignore[arg-type]

    def test_matrices_are_read_only(self) -> None:
        with pytest.raises(ValueError, match="read-only"):
            self.result.D[0, 0] = 1.0
        with pytest.raises(ValueError, match="read-only"):
            self.result.dual[0, 0] = 1.0

    def test_save_and_load(self, tmp_path) -> None:
        shuffled = np.ix_([3, 0, 4, 1, 2], [3, 0, 4, 1, 2])
        blocks = block_diag(random_smoothness(3, 10, 0), np.diag([1.0, 2.0]))[shuffled]
        for result in (self.result, optimal_stepsize(blocks, RandK(5, 2))):
            path = result.save(tmp_path / "answer")
            assert path.name == "answer.npz"
            again = StepsizeResult.load(path)
            np.testing.assert_array_equal(again.D, result.D)
            np.testing.assert_array_equal(again.dual, result.dual)
            assert again.certificate == result.certificate
            assert again.summary() == json.loads(json.dumps(result.summary()))
            with np.load(path, allow_pickle=False) as data:
                np.testing.assert_array_equal(data["D"], result.D)

    def test_load_refuses_other_files(self, tmp_path) -> None:
        np.savez(tmp_path / "other.npz", D=np.eye(2))
        with pytest.raises(ValueError, match=r"was not written by StepsizeResult\.save"):
            StepsizeResult.load(tmp_path / "other.npz")
        np.savez(tmp_path / "old.npz", meta=np.array(json.dumps({"format": 0})))
        with pytest.raises(ValueError, match="has format 0; this version reads format 4"):
            StepsizeResult.load(tmp_path / "old.npz")

    def test_printing(self) -> None:
        text = repr(self.result)
        for part in ("optimal", "det-CGD1, sketch randk:2, full D, d = 4", "certified gap", "proved", "native"):
            assert part in text
        html = self.result._repr_html_()
        assert html.startswith("<table>")
        assert "certified gap" in html

    def test_a_hopeless_tolerance_is_not_called_optimal(self) -> None:
        result = optimal_stepsize(random_smoothness(6, 1e6, 0), RandK(6, 2), tol=1e-16)
        assert result.status == "optimal_inaccurate"
        assert result.certificate.feasible
        assert result.gap < 1e-6
        assert "try another solver" in result.message


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


class TestCompare:
    def test_rows(self) -> None:
        table = compare(L, SKETCH)
        assert [(row.method, row.stepsize) for row in table.rows] == [
            ("det-CGD1", "optimal"),
            ("det-CGD2", "optimal"),
            ("det-CGD1", "optimal, descent"),
            ("det-CGD1", "γ I"),
            ("det-CGD1", "γ diag⁻¹(L)"),
            ("det-CGD1", "γ L⁻¹"),
            ("det-CGD1", "γ L^(-1/2)"),
        ]
        assert table.relative_iterations(table.best) == 1.0
        for record, row in zip(table.to_records(), table.rows, strict=True):
            assert record["communication"] == pytest.approx(2.0 / row.descent)
            assert record["descent"] == row.result.descent_rate >= row.rate * (1 - 1e-14)
            assert record["status"] == "optimal"
        assert "γ L⁻¹" in repr(table)
        assert table.best.stepsize == "optimal, descent"

    def test_sparse(self) -> None:
        assert compare(sparse.csr_array(L), SKETCH).rows[0].rate == compare(L, SKETCH).rows[0].rate
