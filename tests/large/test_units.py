"""An L that is never formed, in any units: the answer of ordinary units, scaled, or a ValueError with the reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    Direction,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    plan,
)
from stepsize_opt.large.solve import SOLVERS, LargeQuestion, large_problem
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.smoothness import NeedsDense
from stepsize_solvers.programs import Settings, Vector

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


L: Any = LowRankPlusDiagonal(np.random.default_rng(2).standard_normal((30, 3)), np.linspace(0.1, 1.0, 30))
SPARSE: Any = LowRankPlusDiagonal(sparse.csr_array(np.abs(L.U)), 1.0)
RAND_5 = RandK(30, 5)
RAND_ONE = "rand-1"  # for which 𝒫(L) is diagonal
CALLS: dict[str, dict[str, Any]] = {
    "det-CGD2": {"algorithm": "det-CGD2"},
    "diagonal": {"structure": "diagonal"},
    "scalar": {"structure": "scalar"},
    "descent": {"algorithm": "det-CGD2", **GOALS["descent"]},
    "direction": {"structure": Direction(np.linspace(0.5, 2.0, 30))},
}


@pytest.mark.parametrize("name", CALLS)
def test_results_hold_no_multiplier(name: str) -> None:
    result = optimal_stepsize(L, RAND_5, **CALLS[name])
    assert result.iterations(0.1, 1.0) > 0
    assert result.dual is None and result.blocks == ()


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


def test_a_refusal_lists_what_every_solver_takes() -> None:
    with pytest.raises(NeedsDense) as refused:
        optimal_stepsize(L, RAND_5)
    assert all(solver.takes in str(refused.value) for solver in SOLVERS)


@pytest.mark.parametrize("kind", [L, SPARSE, RAND_ONE], ids=["dense U", "sparse U", "rand-1"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", "direction", "block(10,20)"])
def test_no_question_has_two_solvers(kind: Any, structure: str) -> None:
    matrix, law = (L, RandK(30, 1).map) if kind is RAND_ONE else (kind, RAND_5.map)
    question = LargeQuestion(large_problem(matrix, law), structure, np.ones(30))
    accepting = [solver for solver in SOLVERS if solver.accepts(question)]
    assert len(accepting) <= 1
    assert not (accepting and structure == "block(10,20)")
    if accepting:
        answer = accepting[0].solve(question, Settings())
        assert answer.certificate.feasible and answer.D.shape == (30, 30)


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
