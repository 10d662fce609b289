"""An L that is never formed: every answer equals the dense one within the certified gaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.goals import GOALS, arguments_of
from shared.large import exact_smoothness, exact_stepsize
from shared.moments import descent_metric
from stepsize_opt import (
    BernQ,
    Direction,
    Gaussian,
    Identity,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    optimal_stepsize,
    smoothness,
)
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import load_dataset
from stepsize_validation.properties import exact
from stepsize_validation.properties.strategies import seeds

DET_CGD2: dict[str, Any] = {"algorithm": "det-CGD2"}
DIAGONAL: dict[str, Any] = {"structure": "diagonal"}
SCALAR: dict[str, Any] = {"structure": "scalar"}
DESCENT: dict[str, Any] = dict(GOALS["descent"])
PLAIN = [DET_CGD2, DIAGONAL, SCALAR]


def low_rank(seed: int, d: int, r: int, size: float = 1.0, own: float | None = None) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(seed)
    U = size * rng.standard_normal((d, r))
    return LowRankPlusDiagonal(U, rng.uniform(0.05, 1.0, d) if own is None else own)


def sampling(d: int, k: int) -> st.SearchStrategy[Sketch]:
    """Sketches whose map is a diagonal plus a multiple."""
    return st.sampled_from(
        [RandK(d, k), BernQ(0.4, d), IndependentSampling(np.linspace(0.2, 1.0, d)), Identity(d)],
    )


def formed(call: dict[str, Any]) -> dict[str, Any]:
    """The same call with a dense direction."""
    structure = call.get("structure")
    if not isinstance(structure, Direction):
        return call
    W: Any = structure.W
    return {**call, "structure": Direction(np.diag(W) if isinstance(W, np.ndarray) else np.asarray(W.todense()))}


def agree(L: LowRankPlusDiagonal, sketch: Sketch, call: dict[str, Any]) -> StepsizeResult:
    """Check both certificates against each other and against matrices that are formed; return the large answer."""
    large, dense = optimal_stepsize(L, sketch, **call), optimal_stepsize(L.todense(), sketch, **formed(call))
    assert isinstance(large, StepsizeResult) and large.certificate.feasible
    d, slack = large.d, 1e-9 * large.d
    assert large.certificate.log_det <= dense.certificate.upper_bound + slack
    assert dense.certificate.log_det <= large.certificate.upper_bound + slack
    assert large.limit >= dense.rate * (1.0 - 1e-9)
    assert large.rate == pytest.approx(dense.rate, rel=1e-5)
    D, vector = large.D.todense(), np.linspace(-1.0, 1.0, d)
    np.testing.assert_allclose(large.D @ vector, D @ vector, rtol=1e-9, atol=1e-12 * np.abs(D).max())
    np.testing.assert_allclose(large.D.diagonal(), D.diagonal(), rtol=1e-9)
    assert large.D.shape == (d, d)
    H = descent_metric(large.algorithm, D, L.todense(), sketch)
    assert np.linalg.eigvalsh(H)[0] > 0.0
    assert large.descent_log_det <= np.linalg.slogdet(H)[1] + slack
    assert large.satisfies_condition
    rounding = 1e-9 * np.abs(D).max() if isinstance(sketch, Gaussian) else 1e-12
    assert np.linalg.eigvalsh(H - D)[0] >= -rounding
    judged = H if large.goal == "descent" else D
    assert large.log_det == pytest.approx(np.linalg.slogdet(judged)[1], abs=1e-6 * d)
    return large


def agree_and_be_optimal(L: LowRankPlusDiagonal, sketch: Sketch, call: dict[str, Any]) -> None:
    """Check also that the D of a plain call is below 𝒫(L)⁻¹, and its status."""
    large = agree(L, sketch, call)
    assert large.status == "optimal"
    D, root = large.D.todense(), np.linalg.cholesky(np.asarray(sketch.second_moment(L.todense())))
    assert np.linalg.eigvalsh(root.T @ D @ root)[-1] <= 1.0 + 1e-12
    assert large.log_det == pytest.approx(np.linalg.slogdet(D)[1], abs=1e-9 * large.d)


@settings(max_examples=20)
@given(seed=seeds, d=st.integers(2, 24), size=st.floats(0.05, 5.0), data=st.data())
def test_a_dense_factor(seed: int, d: int, size: float, data: st.DataObject) -> None:
    L = low_rank(seed, d, data.draw(st.integers(1, d)), size)
    sketch = data.draw(sampling(d, data.draw(st.integers(1, d))))
    agree_and_be_optimal(L, sketch, data.draw(st.sampled_from(PLAIN)))


@settings(max_examples=20)
@given(seed=seeds, d=st.integers(2, 24), data=st.data())
def test_a_sparse_factor(seed: int, d: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random((2 * d, d)) * (rng.random((2 * d, d)) < 0.2)
    L = LowRankPlusDiagonal(sparse.coo_array(X.T), 0.1)
    sketch = data.draw(sampling(d, data.draw(st.integers(1, d))))
    agree_and_be_optimal(L, sketch, data.draw(st.sampled_from([DIAGONAL, SCALAR])))
    assert agree(L, sketch, {"structure": Direction(rng.uniform(0.1, 3.0, d))}).gap <= 1e-6


@settings(max_examples=15)
@given(seed=seeds, d=st.integers(2, 20), algorithm=st.sampled_from(["det-CGD1", "det-CGD2"]), data=st.data())
def test_multiples_of_a_direction(seed: int, d: int, algorithm: str, data: st.DataObject) -> None:
    rng, L = np.random.default_rng(seed), low_rank(seed, d, 2)
    sketch = data.draw(st.sampled_from([RandK(d, 1), RandK(d, max(1, d // 2)), IndependentSampling(np.full(d, 0.3))]))
    w = rng.uniform(0.1, 3.0, d)
    call = {"algorithm": algorithm, "structure": Direction(w)}
    large = agree(L, sketch, call)
    assert large.gap <= 1e-6
    np.testing.assert_allclose(large.D.diagonal() / large.D.diagonal()[0], w / w[0], rtol=1e-9)
    # Vectors and operators are directions for a dense L, too.
    asked = [call, formed(call), call | {"structure": Direction(large.D)}]
    one, other, again = (optimal_stepsize(L.todense(), sketch, **each).rate for each in asked)
    assert one == pytest.approx(other, rel=1e-9) and one == pytest.approx(again, rel=1e-9)


@settings(max_examples=15)
@given(seed=seeds, d=st.integers(2, 16), size=st.floats(0.1, 10.0), data=st.data())
def test_a_gaussian_sketch(seed: int, d: int, size: float, data: st.DataObject) -> None:
    sketch, r = Gaussian(d, data.draw(st.integers(1, d))), data.draw(st.integers(1, min(3, d)))
    call = data.draw(st.sampled_from([DET_CGD2, {**DET_CGD2, **DIAGONAL}, SCALAR]))
    assert agree(low_rank(seed, d, r, size), sketch, call).status == "optimal"


@pytest.mark.parametrize("goal", ["euclidean", "linear"])
@pytest.mark.parametrize("call", PLAIN, ids=["det-CGD2", "diagonal", "scalar"])
def test_the_largest_t(call: dict[str, Any], goal: str) -> None:
    L = LowRankPlusDiagonal(np.random.default_rng(1).standard_normal((12, 2)), np.linspace(0.2, 1.0, 12))
    asked: Any = {**call, **arguments_of(goal, 0.1)}
    large, dense = optimal_stepsize(L, RandK(12, 4), **asked), optimal_stepsize(L.todense(), RandK(12, 4), **asked)
    assert large.status == "optimal"
    for number in ("rate", "guaranteed_rate", "limit"):
        assert getattr(large, number) == pytest.approx(getattr(dense, number), rel=1e-6)
    assert large.certificate.log_det <= dense.certificate.upper_bound + 1e-12  # that of a rounded L


@pytest.mark.parametrize("d", [1, 3, 30])
@pytest.mark.parametrize("U", [np.zeros((1, 2)), np.ones((1, 2))], ids=["zeros", "equal columns"])
def test_factors_without_full_rank(d: int, U: Any) -> None:
    L = LowRankPlusDiagonal(np.repeat(U, d, axis=0), np.linspace(1.0, 2.0, d))
    for sketch in (RandK(d, max(1, d // 2)), Identity(d)):
        for call in PLAIN:
            agree_and_be_optimal(L, sketch, call)
    agree_and_be_optimal(LowRankPlusDiagonal(np.repeat(U, d, axis=0), 0.5), Gaussian(d, 1), DET_CGD2)


def test_a_diagonal_stepsize_of_data_with_more_rows_than_features() -> None:
    """U has 569 columns for d = 30: their dual is singular, and the path started 10¹² away from it."""
    L = smoothness.logistic(load_dataset("breast_cancer").A, 0.1)
    for k in (3, 15, 29):
        thin = agree(L, RandK(30, k), DIAGONAL)
        assert thin.status == "optimal"
        assert certify(np.diag(thin.D.diagonal()), L.todense(), RandK(30, k), dual=np.eye(30)).margin > -1e-12


def test_an_inverse_that_rounding_keeps_from_the_tolerance_is_inaccurate() -> None:
    U = np.array([[639.8424731730165, 316.8260635635773], [68.1321174793781, 47.33146961434452], [227.5, 118.4]])
    L = LowRankPlusDiagonal(U, np.array([1.86268439e-04, 2.47076842, 2.33722474e-04]))
    result = optimal_stepsize(L, Identity(3), algorithm="det-CGD2")
    assert result.status == "optimal_inaccurate" and 1e-6 < result.gap < 1e-3
    assert result.certificate.feasible


def test_a_sketch_that_commutes_gives_the_inverse() -> None:
    L = low_rank(1, 12, 2)
    for call in ({}, DESCENT):
        result = optimal_stepsize(L, BernQ(0.3, 12), **call)
        assert result.status == "optimal"
        assert result.D.todense() == pytest.approx(0.3 * np.linalg.inv(L.todense()))


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


# ----------------------------------------------------------------
# what is proved of stepsizes that are never formed, judged in rational arithmetic for their very floats


CASES: list[tuple[Sketch, dict[str, Any]]] = [
    (RandK(5, 2), DET_CGD2),
    (RandK(5, 2), {**DET_CGD2, "goal": "descent"}),
    (IndependentSampling([0.2, 0.4, 0.5, 0.7, 0.9]), DET_CGD2),
    (Gaussian(5, 2), DET_CGD2),
    (RandK(5, 2), {"structure": "diagonal"}),
    (IndependentSampling([0.2, 0.4, 0.5, 0.7, 0.9]), {"structure": "diagonal"}),
    (Gaussian(5, 1), {"structure": "scalar"}),
    (RandK(5, 3), {"structure": Direction(np.linspace(0.5, 2.0, 5))}),
]


@pytest.mark.parametrize(("size", "unit"), [(0.1, 1.0), (3.0, 1.0), (1e3, 1.0), (3.0, 1e-150), (3.0, 1e150)])
@pytest.mark.parametrize(("sketch", "call"), CASES, ids=[f"{s} {c}" for s, c in CASES])
def test_the_ends_hold_in_exact_arithmetic(sketch: Sketch, call: dict[str, Any], size: float, unit: float) -> None:
    """L is of size unit²."""
    rng = np.random.default_rng(7)
    L = LowRankPlusDiagonal(size * unit * rng.standard_normal((5, 2)), unit**2 * rng.uniform(0.1, 1.0, 5))
    result = optimal_stepsize(L, sketch, **call)
    D, smoothness = exact_stepsize(result.D), exact_smoothness(L)
    algorithm = call.get("algorithm", "det-CGD1")
    H = exact.descent_metric(D, smoothness, sketch, algorithm)
    assert exact.is_positive_definite(H) and exact.is_positive_definite(D)
    assert result.descent_log_det <= exact.log_det(H)
    of_the_guarantee = exact.log_det(H if result.goal == "descent" else D)
    assert result.certificate.log_det <= of_the_guarantee <= result.certificate.upper_bound
    assert exact.is_positive_semidefinite(exact.condition_slack(D, smoothness, sketch, algorithm))
