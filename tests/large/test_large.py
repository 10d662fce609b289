"""An L that is never formed: every answer equals the dense one within the certified gaps, in any units."""

from __future__ import annotations

import math
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
    compression_limit,
    optimal_method,
    optimal_stepsize,
    plan,
    smoothness,
)
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.programs import Vector
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
    return {**call, "structure": Direction(structure.matrix())}


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
    assert large.satisfies_condition and large.dual is None and large.blocks == ()
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
    # A vector is a direction for a dense L, too; what has products alone is none.
    one, other = (optimal_stepsize(L.todense(), sketch, **each).rate for each in (call, formed(call)))
    assert one == pytest.approx(other, rel=1e-9)
    for operator in (large.D, L):
        with pytest.raises(TypeError, match=r"W must be a matrix.*todense"):
            Direction(operator)


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


# ----------------------------------------------------------------
# any units: the answer of ordinary units, scaled, or a ValueError with the reason


D = 8
RNG = np.random.default_rng(3)
U = RNG.standard_normal((D, 2))
OWN = RNG.uniform(0.3, 2.0, D)
POWERS = (-498, -250, 200, 498)  # of four: L is about 1e-300, 1e-150, 1e120 and 1e300
SKETCH = IndependentSampling(np.linspace(0.3, 0.9, D))


def matrix(kind: str, n: int) -> LowRankPlusDiagonal:
    """4ⁿL, exactly, with a diagonal that is one number or not, or a sparse factor."""
    factor: Any = sparse.csr_array(np.abs(U) * (U > -0.5)) if kind == "sparse" else U
    own = np.full(D, 0.5) if kind == "constant diagonal" else OWN
    return LowRankPlusDiagonal(factor * math.ldexp(1.0, n), np.ldexp(own, 2 * n))


STEPSIZES: dict[str, tuple[str, Sketch, dict[str, Any]]] = {
    "full": ("dense", RandK(D, 3), {"algorithm": "det-CGD2"}),
    "descent": ("dense", RandK(D, 3), {"algorithm": "det-CGD2", **GOALS["descent"]}),
    "diagonal": ("dense", SKETCH, {"structure": "diagonal"}),
    "scalar": ("dense", SKETCH, {"structure": "scalar"}),
    "multiples of a vector": ("dense", SKETCH, {"structure": lambda n: Direction(np.ldexp(1.0 / OWN, -2 * n))}),
    "full, gaussian": ("dense", Gaussian(D, 3), {"algorithm": "det-CGD2"}),
    "diagonal, sparse": ("sparse", SKETCH, {"structure": "diagonal"}),
    "scalar, sparse": ("sparse", SKETCH, {"structure": "scalar"}),
    "euclidean": ("dense", SKETCH, {"structure": "diagonal", **GOALS["euclidean"]}),
    "linear": ("dense", SKETCH, {"structure": "diagonal", **arguments_of("linear", 0.25)}),
}


def in_units(call: dict[str, Any], n: int) -> dict[str, Any]:
    """The arguments that go with 4ⁿL."""
    out = dict(call)
    if callable(out.get("structure")):
        out["structure"] = out["structure"](n)
    if "strong_convexity" in out:
        out["strong_convexity"] = math.ldexp(out["strong_convexity"], 2 * n)
    return out


def logarithms(x: float | Vector, n: int) -> Any:
    """log 4ⁿx."""
    return np.log(x) + 2.0 * n * math.log(2.0)


@pytest.mark.parametrize("name", STEPSIZES)
def test_stepsizes_scale_with_the_units(name: str) -> None:
    kind, sketch, call = STEPSIZES[name]
    one = optimal_stepsize(matrix(kind, 0), sketch, **in_units(call, 0))
    for n in POWERS:
        found = optimal_stepsize(matrix(kind, n), sketch, **in_units(call, n))
        unit = 0 if "strong_convexity" in call else n  # t of D ⪰ tM⁻¹ has no unit if M has that of L
        assert found.status == one.status
        assert found.gap == pytest.approx(one.gap, abs=1e-9)
        assert found.efficiency == pytest.approx(one.efficiency, rel=1e-9, nan_ok=True)
        assert logarithms(found.rate, unit) == pytest.approx(math.log(one.rate), abs=1e-9)
        assert found.descent_log_det + 2.0 * n * D * math.log(2.0) == pytest.approx(one.descent_log_det, abs=1e-8)
        np.testing.assert_allclose(logarithms(found.D.diagonal(), n), np.log(one.D.diagonal()), atol=1e-7)


@pytest.mark.parametrize(("kind", "goal"), [("dense", "descent"), ("constant diagonal", "euclidean")])
def test_limits_and_methods_scale_with_the_units(kind: str, goal: str) -> None:
    gradient = np.linspace(-1.0, 1.0, D)
    one, method = compression_limit(matrix(kind, 0), 3, goal=goal), optimal_method(matrix(kind, 0), 3, goal=goal)
    draw = method.draw(np.random.default_rng(0))
    sent = method.encode(gradient, draw)
    for n in POWERS:
        limit = compression_limit(matrix(kind, n), 3, goal=goal)
        assert logarithms(np.array([limit.value, limit.upper]), n) == pytest.approx(np.log([one.value, one.upper]))
        np.testing.assert_allclose(logarithms(limit.D.diagonal(), n), np.log(one.D.diagonal()), atol=1e-9)
        np.testing.assert_allclose(limit.probabilities, one.probabilities, rtol=1e-9)
        found = optimal_method(matrix(kind, n), 3, goal=goal)
        assert (found.efficiency, found.defect) == pytest.approx((method.efficiency, method.defect), abs=1e-9)
        # A is 2⁻ⁿ times that of L: what is sent is 2ⁿ times as large for a gradient that is 4ⁿ times as large.
        np.testing.assert_allclose(np.ldexp(found.encode(gradient, draw), n), sent, rtol=1e-9)
        np.testing.assert_allclose(np.ldexp(found.decode(np.ldexp(sent, -n), draw), 2 * n), method.decode(sent, draw))


@pytest.mark.parametrize("n", POWERS)
def test_a_plan_has_the_same_rounds_in_all_units(n: int) -> None:
    """f and 4ⁿf have the same rounds for ε² in the units of ‖∇f‖², 16ⁿ, and Δ⁰ in those of f."""
    plans = [
        plan(matrix("dense", m), 4, epsilon2=1e-3, initial_gap=math.ldexp(1.0, -2 * m), goal="euclidean")
        for m in (0, n)
    ]
    rounds = [[row.rounds for row in one.rows] for one in plans]
    assert rounds[0] == rounds[1]


def test_the_numbers_given_are_kept() -> None:
    L = matrix("dense", 498)
    assert np.array_equal(optimal_stepsize(L, RandK(D, 3), algorithm="det-CGD2").D.U, L.U)
    assert np.array_equal(optimal_method(L, 3).directions.U, L.U)


@pytest.mark.parametrize(
    ("L", "k", "reason"),
    [
        (LowRankPlusDiagonal(U, 2.0**-160), 1, r"sizes differ by 2\^16\d"),
        (LowRankPlusDiagonal(1e200 * U, 1e300), 1, r"sizes differ by 2\^3\d\d"),
        (LowRankPlusDiagonal(0.0 * U, np.geomspace(1e-30, 1e30, D)), 1, r"sizes differ by 2\^199"),
        (LowRankPlusDiagonal(1e153 * U, 1.7e308), 1, "outside the range of float64"),
        (LowRankPlusDiagonal(1e-160 * U, 1e-310), D, "outside the range of float64"),
    ],
)
def test_what_float64_does_not_hold_is_refused_with_the_reason(L: LowRankPlusDiagonal, k: int, reason: str) -> None:
    calls = [
        lambda: optimal_stepsize(L, RandK(D, k), algorithm="det-CGD2"),
        lambda: optimal_stepsize(L, RandK(D, k), structure="diagonal"),
        lambda: compression_limit(L, k, goal="euclidean"),
        lambda: compression_limit(L, k),
        lambda: optimal_method(L, k),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=reason):
            call()


# ----------------------------------------------------------------
# large matrices and stepsizes as values: operators, files, messages, and refusals


def test_the_message_tells_what_to_do() -> None:
    wide = LowRankPlusDiagonal(np.random.default_rng(2).standard_normal((6, 8)), 1.0)
    result = optimal_stepsize(wide, RandK(6, 2), structure="diagonal", max_iters=1)
    assert result.status == "user_limit" and result.certificate.feasible
    assert "L.todense() is no larger" in result.message


def test_the_matrix_is_a_linear_operator_and_does_not_change_with_its_arguments() -> None:
    U, own = np.ones((4, 2)), np.ones(4)
    matrix = LowRankPlusDiagonal(U, own)
    U[0, 0] = own[0] = 7.0
    dense = 2.0 * np.ones((4, 4)) + np.eye(4)
    for formed in (matrix.todense(), matrix @ np.eye(4), matrix.T @ np.eye(4)):
        np.testing.assert_array_equal(formed, dense)
    np.testing.assert_array_equal(matrix.diagonal(), dense.diagonal())
    assert matrix.trace() == 12.0 and matrix.rank == 2 and "rank=2" in repr(matrix)


@pytest.mark.parametrize(
    "parts", [[np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([3.0, 4.0])], [np.diag([1.0, 2.0, 3.0])]]
)
def test_a_stepsize_by_blocks_is_its_dense_matrix(parts: list[Any]) -> None:
    order = np.random.default_rng(0).permutation(sum(map(len, parts)))
    places = np.split(order, np.cumsum([len(part) for part in parts])[:-1])
    D = BlockStepsize([np.sort(place) for place in places], parts)
    dense, X = D.todense(), np.random.default_rng(1).standard_normal((len(order), 3))
    np.testing.assert_allclose(D @ X, dense @ X)
    np.testing.assert_allclose(D @ X[:, 0], dense @ X[:, 0])
    np.testing.assert_array_equal(D.diagonal(), np.diagonal(dense))
    np.testing.assert_array_equal(D.tosparse().toarray(), dense)
