"""An L that is never formed: every answer equals the dense one within the certified gaps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt import (
    BernQ,
    Gaussian,
    Identity,
    IndependentSampling,
    LargeStepsizeResult,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    StepsizeResult,
    certify,
    optimal_stepsize,
    smoothness,
)
from stepsize_validation.data import load_dataset

CALLS: list[dict[str, Any]] = [{"algorithm": "det-CGD2"}, {"structure": "diagonal"}, {"structure": "scalar"}]


def sketches(d: int, k: int) -> list[Sketch]:
    return [RandK(d, k), BernQ(0.4, d), IndependentSampling(np.linspace(0.2, 1.0, d)), Identity(d)]


def low_rank(seed: int, d: int, r: int, decay: float) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(seed)
    return LowRankPlusDiagonal(rng.standard_normal((d, r)) * np.logspace(0.0, -decay, r), rng.uniform(0.05, 1.0, d))


def agree(large: StepsizeResult, dense: StepsizeResult, L: LowRankPlusDiagonal, sketch: Sketch) -> None:
    """Both ends of both certificates, the operator's products, and feasibility by the definition."""
    assert isinstance(large, LargeStepsizeResult)
    assert large.status == "optimal"
    d, slack = large.d, 1e-9 * large.d
    assert large.certificate.log_det <= dense.certificate.upper_bound + slack
    assert dense.certificate.log_det <= large.certificate.upper_bound + slack
    assert large.limit >= dense.rate * (1.0 - 1e-9)
    D = large.D.todense()
    vector = np.linspace(-1.0, 1.0, d)
    np.testing.assert_allclose(large.D @ vector, D @ vector, rtol=1e-9, atol=1e-12 * np.abs(D).max())
    np.testing.assert_allclose(large.D.diagonal(), D.diagonal(), rtol=1e-9)
    assert large.D.shape == (d, d)
    M = np.asarray(sketch.second_moment(L.todense()))
    root = np.linalg.cholesky(M)
    assert np.linalg.eigvalsh(root.T @ D @ root)[-1] <= 1.0 + 1e-12
    assert large.log_det == pytest.approx(np.linalg.slogdet(D)[1], abs=1e-9 * d)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 24), decay=st.floats(0.0, 2.0), data=st.data())
def test_low_rank_answers_are_the_dense_ones(seed: int, d: int, decay: float, data: st.DataObject) -> None:
    L = low_rank(seed, d, data.draw(st.integers(1, d)), decay)
    sketch = data.draw(st.sampled_from(sketches(d, data.draw(st.integers(1, d)))))
    call = data.draw(st.sampled_from(CALLS))
    agree(optimal_stepsize(L, sketch, **call), optimal_stepsize(L.todense(), sketch, **call), L, sketch)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 24), data=st.data())
def test_sparse_factors_give_the_dense_answers(seed: int, d: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random((2 * d, d)) * (rng.random((2 * d, d)) < 0.2)
    L = LowRankPlusDiagonal(sparse.coo_array(X.T), 0.1)
    sketch = data.draw(st.sampled_from(sketches(d, data.draw(st.integers(1, d)))))
    call = data.draw(st.sampled_from(CALLS[1:]))
    agree(optimal_stepsize(L, sketch, **call), optimal_stepsize(L.todense(), sketch, **call), L, sketch)


def test_det_cgd1_with_a_sketch_that_commutes_is_the_inverse() -> None:
    L = low_rank(1, 12, 2, 0.0)
    assert optimal_stepsize(L, BernQ(0.3, 12)).D.todense() == pytest.approx(0.3 * np.linalg.inv(L.todense()))


def test_a_large_sparse_matrix_has_a_feasible_answer_that_says_what_is_not_proved() -> None:
    d = 5000
    band = sparse.diags_array([np.full(d - 1, 0.4), np.ones(d), np.full(d - 1, 0.4)], offsets=[-1, 0, 1])
    result = optimal_stepsize(band, RandK(d, 50), structure="diagonal")
    assert isinstance(result, LargeStepsizeResult)
    assert result.certificate.feasible and result.status == "optimal_inaccurate"
    assert "L ⪰ 0, which is not proved" in result.message
    # The same matrix by its factor is proved: L = XXᵀ + Diag.
    X = sparse.diags_array([np.full(d, 0.8), np.full(d - 1, 0.5)], offsets=[0, -1])
    own = band.diagonal() - (X @ X.T).diagonal()
    proved = optimal_stepsize(LowRankPlusDiagonal(X, own), RandK(d, 50), structure="diagonal")
    assert proved.status == "optimal"
    assert proved.log_det == pytest.approx(result.log_det, abs=1e-6 * d)


def test_results_are_saved_and_read(tmp_path: Path) -> None:
    L = low_rank(3, 30, 4, 1.0)
    for call in CALLS:
        result = optimal_stepsize(L, RandK(30, 5), **call)
        again = LargeStepsizeResult.load(result.save(tmp_path / "d"))
        ours, theirs = ({**r.summary(), "solver_stats": None} for r in (again, result))
        assert ours == theirs
        np.testing.assert_array_equal(again.D @ np.ones(30), result.D @ np.ones(30))
        assert again.iterations(0.1, 1.0) == result.iterations(0.1, 1.0) > 0
    with pytest.raises(ValueError, match="LargeStepsizeResult"):
        StepsizeResult.load(tmp_path / "d")


def test_what_has_no_answer_without_a_dense_matrix_is_refused() -> None:
    L = low_rank(4, 20, 2, 0.0)
    for call in (
        {"sketch": RandK(20, 3)},  # the full D of det-CGD1
        {"sketch": Gaussian(20, 3), "structure": "diagonal"},
        {"sketch": RandK(20, 3), "structure": "diagonal", "guarantee": "descent"},
    ):
        with pytest.raises(ValueError, match="answers without a dense matrix"):
            optimal_stepsize(L, **call)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not have negative entries"):
        optimal_stepsize(LowRankPlusDiagonal(sparse.csr_array(L.U), 1.0), RandK(20, 3), structure="diagonal")
    with pytest.raises(TypeError, match="products alone"):
        optimal_stepsize(aslinearoperator(np.eye(4)), RandK(4, 2))
    with pytest.raises(TypeError, match=r"L\.todense\(\)"):
        certify(np.eye(20), L, RandK(20, 3))
    with pytest.raises(ValueError, match="not kept"):
        _ = optimal_stepsize(L, RandK(20, 3), structure="diagonal").dual
    with pytest.raises(ValueError, match="sketch is for d=7"):
        optimal_stepsize(L, RandK(7, 3), structure="diagonal")


@pytest.mark.parametrize(
    ("U", "diagonal", "match"),
    [
        (np.ones(3), 1.0, "shape"),
        (np.ones((3, 0)), 1.0, "shape"),
        (np.ones((3, 1)), 0.0, "positive"),
        (np.ones((3, 1)), [1.0, 1.0], "one entry for each of the 3 rows"),
        (np.ones((3, 1)), [1.0, 1.0, -1.0], "positive"),
        (np.full((3, 1), np.nan), 1.0, "finite"),
        (sparse.csr_array(np.full((3, 1), np.inf)), 1.0, "finite"),
    ],
)
def test_bad_factors_are_refused(U: Any, diagonal: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        LowRankPlusDiagonal(U, diagonal)


def test_the_matrix_is_a_linear_operator_and_does_not_change_with_its_arguments() -> None:
    U, own = np.ones((4, 2)), np.ones(4)
    L = LowRankPlusDiagonal(U, own)
    U[0, 0] = own[0] = 7.0
    dense = 2.0 * np.ones((4, 4)) + np.eye(4)
    np.testing.assert_array_equal(L.todense(), dense)
    np.testing.assert_array_equal(L @ np.eye(4), dense)
    np.testing.assert_array_equal(L.T @ np.arange(4.0), dense @ np.arange(4.0))
    np.testing.assert_array_equal(L.diagonal(), dense.diagonal())
    assert L.trace() == 12.0 and L.rank == 2 and repr(L) == "LowRankPlusDiagonal(d=4, rank=2)"


def test_a_million_coordinates_need_no_dense_matrix() -> None:
    rng = np.random.default_rng(0)
    d = 10**6
    L = LowRankPlusDiagonal(rng.standard_normal((d, 2)), 0.1)
    result = optimal_stepsize(L, RandK(d, 1000), algorithm="det-CGD2")
    assert result.status == "optimal"
    g = rng.standard_normal(d)
    # D = 𝒫(L)⁻¹: applying 𝒫(L) gives g back.
    split = RandK(d, 1000).map.diagonal_plus_scaled
    assert split is not None
    Dg = result.D @ g
    np.testing.assert_allclose(split.alpha * L.diagonal() * Dg + split.beta * (L @ Dg), g, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("guarantee", ["condition", "descent"])
@pytest.mark.parametrize("criterion", ["euclidean", "linear"])
@pytest.mark.parametrize(
    ("structure", "algorithm"), [("diagonal", "det-CGD1"), ("scalar", "det-CGD1"), ("full", "det-CGD2")]
)
def test_the_largest_t_of_a_large_model_is_that_of_the_dense_one(
    structure: str, algorithm: str, criterion: str, guarantee: str
) -> None:
    L = LowRankPlusDiagonal(np.random.default_rng(1).standard_normal((12, 2)), np.linspace(0.2, 1.0, 12))
    asked: Any = {"structure": structure, "algorithm": algorithm, "criterion": criterion, "guarantee": guarantee}
    asked["lower"] = 0.1 if criterion == "linear" else None
    large, dense = optimal_stepsize(L, RandK(12, 4), **asked), optimal_stepsize(L.todense(), RandK(12, 4), **asked)
    assert large.status == "optimal"
    assert large.rate == pytest.approx(dense.rate, rel=1e-6)
    assert large.guaranteed_rate == pytest.approx(dense.guaranteed_rate, rel=1e-6)
    assert large.limit == pytest.approx(dense.limit, rel=1e-6)
    assert large.certificate.log_det <= dense.certificate.upper_bound + 1e-12  # that of a rounded L


@pytest.mark.parametrize("d", [1, 3, 30])
def test_a_factor_of_zeros_leaves_the_diagonal(d: int) -> None:
    L = LowRankPlusDiagonal(np.zeros((d, 2)), np.linspace(1.0, 2.0, d))
    for sketch in (RandK(d, max(1, d // 2)), Identity(d)):
        for call in CALLS:
            agree(optimal_stepsize(L, sketch, **call), optimal_stepsize(L.todense(), sketch, **call), L, sketch)


def test_an_inverse_that_rounding_keeps_from_the_tolerance_is_inaccurate() -> None:
    U = np.array([[639.8424731730165, 316.8260635635773], [68.1321174793781, 47.33146961434452], [227.5, 118.4]])
    L = LowRankPlusDiagonal(U, np.array([1.86268439e-04, 2.47076842, 2.33722474e-04]))
    result = optimal_stepsize(L, Identity(3), algorithm="det-CGD2")
    assert result.status == "optimal_inaccurate" and 1e-6 < result.gap < 1e-3
    assert result.certificate.feasible


def test_a_diagonal_stepsize_of_data_with_more_rows_than_features() -> None:
    """U has 569 columns for d = 30: their dual is singular, and the path started 10¹² away from it."""
    L = smoothness.logistic(load_dataset("breast_cancer").A, 0.1)
    for k in (3, 15, 29):
        thin = optimal_stepsize(L, RandK(30, k), structure="diagonal")
        dense = optimal_stepsize(L.todense(), RandK(30, k), structure="diagonal")
        assert thin.status == dense.status == "optimal"
        assert thin.rate == pytest.approx(dense.rate, rel=3e-6)
        assert certify(np.diag(thin.D.diagonal()), L.todense(), RandK(30, k), dual=np.eye(30)).margin > -1e-12
