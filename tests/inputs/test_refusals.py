"""Arguments that are refused: the type of the error, and the argument that it names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Budget,
    CompressedStep,
    DiagonalSketch,
    EstimatedSmoothness,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    SystematicSampling,
    certify,
    compare_distributed,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    parse_sketch,
    plan,
    smoothness,
)
from stepsize_opt.methods import DetCGD1, get_method
from stepsize_opt.problems import (
    Federated,
    Infimum,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    SoftmaxRegression,
    find_federated_infimum,
    find_infimum,
)
from stepsize_opt.results import StepsizeResult
from stepsize_validation import check_rate, distributed_lambda, run
from stepsize_validation.data import federated_logistic, random_smoothness, with_spectrum

# The signatures are wrong on purpose.
# mypy: disable-error-code="arg-type, call-arg, call-overload, operator, list-item, type-var"
# pyright: reportArgumentType=false, reportCallIssue=false
L: Any = np.array([[2.0, 1.0], [1.0, 3.0]])
DIAGONAL: Any = np.diag([1.0, 2.0])
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
SINGULAR = [[1.0, 1.0], [1.0, 1.0]]
MASKED: Any = np.ma.array(np.eye(2), mask=[[0, 1], [1, 0]])
HUGE: Any = 10**400
RAGGED: Any = [[1.0, 2.0], [3.0]]
SPARSE: Any = sparse.eye_array(2)
GENERATOR = RNG = np.random.default_rng(0)
ROWS = np.ones((4, 2))
ONES: Any = LowRankPlusDiagonal(np.ones((4, 1)), 1.0)
GRADED: Any = LowRankPlusDiagonal(np.ones((6, 2)), np.linspace(0.1, 1.0, 6))
WIDE: Any = LowRankPlusDiagonal(1e9 * np.ones((1, 3)), 1.0)
SPARSE_FACTOR: Any = LowRankPlusDiagonal(sparse.eye_array(6, format="csr"), 0.5)
SKETCH: Any = RandK(2, 1)
METHOD, METHOD2 = optimal_method(L, 1), optimal_method(DIAGONAL, 1)
STEP, STEP3 = CompressedStep.of(0.1 * L, SKETCH), CompressedStep.of(np.eye(3), RandK(3, 1))
DRAW3: Any = STEP3.draw(np.random.default_rng(0))
F = Quadratic(L, np.ones(2))
HALF = Quadratic(np.eye(2), np.zeros(2))
FLAT: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0}

REFUSALS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    # sketches
    (ValueError, "d", lambda: Identity(0)),
    (TypeError, "d", lambda: Identity("3")),
    (TypeError, "d", lambda: Identity(True)),
    (ValueError, "k", lambda: RandK(10, 11)),
    (ValueError, "k", lambda: RandK(10, 2.5)),
    (ValueError, "k", lambda: RandK(10, float("nan"))),
    (TypeError, "k", lambda: RandK(10, np.True_)),
    (TypeError, "k", lambda: Gaussian(3, 1j)),
    (ValueError, "q", lambda: BernQ(0.0, 3)),
    (ValueError, "q", lambda: BernQ([0.5, 0.5], [1, 2, 3])),
    (TypeError, "q", lambda: BernQ(True, 3)),
    (ValueError, "sizes", lambda: BernQ(0.5, [2, 0])),
    (ValueError, "sizes", lambda: BernQ(0.5, [])),
    (TypeError, "sizes", lambda: BernQ(0.5, "abc")),
    (ValueError, "p", lambda: IndependentSampling([0.5, -0.1])),
    (ValueError, "p", lambda: SystematicSampling([0.5, 0.0])),
    (ValueError, "p", lambda: IndependentSampling(0.5)),
    (ValueError, "p", lambda: IndependentSampling([0.5, np.inf])),
    (TypeError, "p", lambda: IndependentSampling([0.5j])),
    (ValueError, "vectors", lambda: DiagonalSketch([1.0, 1.0], [1.0])),
    (ValueError, "vectors", lambda: DiagonalSketch([[1.0, 2.0], [1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[3.0], [-1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[2.0], [0.5]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch(MASKED, [0.5, 0.5])),
    (ValueError, "use 0 instead", lambda: DiagonalSketch([[2.0, 1e-200], [0.0, 2.0]], [0.5, 0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [1.0])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [1.5, -0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [0.5, 0.4])),
    (TypeError, "weights", lambda: DiagonalSketch([[1.0]], ["a"])),
    (ValueError, "matrices", lambda: FiniteSketch(np.eye(2), [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([[[1.0, 0.1], [0.0, 1.0]]], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([np.eye(2), INDEFINITE], [0.5, 0.5])),
    (ValueError, "matrices", lambda: FiniteSketch([2.0 * np.eye(2)], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([MASKED], [1.0])),
    (ValueError, "weights", lambda: FiniteSketch([np.eye(2)], [0.5, 0.5])),
    (ValueError, "layers", lambda: LayerWise([])),
    (TypeError, "layers", lambda: LayerWise([RandK(3, 1), 4])),
    (ValueError, "outcomes", lambda: RandK(30, 15).support()),
    (ValueError, "outcomes", lambda: BernQ(0.5, [1] * 2000).support()),
    (ValueError, "outcomes", lambda: IndependentSampling([0.5] * 17).support()),
    (ValueError, "outcomes", lambda: LayerWise([RandK(10, 5)] * 3).support()),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).support()),
    (ValueError, "gaussian:1", lambda: Gaussian(3, 1).second_moment_matrix),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).sample_diagonal(GENERATOR, 2)),
    (ValueError, "size", lambda: RandK(3, 1).sample_diagonal(GENERATOR, -1)),
    (TypeError, "rng", lambda: RandK(3, 1).sample(None)),
    (ValueError, "x", lambda: RandK(3, 1).apply(np.ones((1, 1, 3)), GENERATOR)),
    (TypeError, "x", lambda: RandK(3, 1).apply([1j, 0, 0], GENERATOR)),
    (ValueError, "M", lambda: RandK(3, 1).second_moment(np.eye(4))),
    (ValueError, "M", lambda: RandK(2, 1).second_moment([[1, 2], [3, 4]])),
    (ValueError, "M", lambda: RandK(2, 1).centered_second_moment(MASKED)),
    (ValueError, "Z", lambda: RandK(3, 1).adjoint(np.ones(3))),
    (TypeError, "text", lambda: parse_sketch(8, 10)),
    (ValueError, "d", lambda: parse_sketch("randk:1", 0)),
    # methods
    (ValueError, "algorithm", lambda: get_method("subspace")),
    (ValueError, "algorithm", lambda: optimal_stepsize(DIAGONAL, SKETCH, algorithm="det-CGD3")),
    (TypeError, "algorithm", lambda: certify(DIAGONAL, DIAGONAL, SKETCH, algorithm=3)),
    (TypeError, "algorithm", lambda: run(Quadratic(DIAGONAL, np.ones(2)), DIAGONAL, SKETCH, algorithm=DetCGD1)),
    (TypeError, "algorithm", lambda: optimal_stepsize(DIAGONAL, METHOD2.sketch, algorithm=METHOD2)),
    (ValueError, "sketch", lambda: run(Quadratic(DIAGONAL, np.ones(2)), METHOD2, RandK(2, 2))),
    (ValueError, "D", lambda: CompressedStep.of(np.eye(3), SKETCH)),
    (ValueError, "gradient", lambda: STEP3.encode(np.ones(4), DRAW3)),
    (ValueError, "numbers", lambda: STEP3.decode(np.ones(3), DRAW3)),
    (ValueError, "gradient", lambda: METHOD2.encode(np.ones(5), np.arange(2))),
    (ValueError, "gradient", lambda: optimal_method(GRADED, 2).encode(np.ones(5), np.arange(2))),
    (ValueError, "basis", lambda: optimal_method(DIAGONAL, 1, basis="svd")),
    (ValueError, "basis", lambda: optimal_method(DIAGONAL, 1, goal="euclidean", basis="root")),
    (ValueError, "basis", lambda: optimal_method(GRADED, 2, basis="eigenvectors")),
    (ValueError, "L", lambda: optimal_method(np.ones((2, 2)), 1)),
    (ValueError, "k", lambda: optimal_method(DIAGONAL, 3)),
    (ValueError, "k", lambda: optimal_method(GRADED, 7)),
    (ValueError, "diagonal", lambda: optimal_method(GRADED, 2, goal="euclidean")),
    (ValueError, "strong_convexity", lambda: optimal_method(GRADED, 2, goal="linear", strong_convexity=np.eye(6))),
    (ValueError, "strong_convexity", lambda: optimal_method(GRADED, 2, goal="linear", strong_convexity=10.0)),
    (ValueError, "dense U", lambda: optimal_method(SPARSE_FACTOR, 2, goal="euclidean")),
    (ValueError, "U", lambda: optimal_method(WIDE, 1, goal="euclidean")),
    # limits
    (ValueError, "L", lambda: compression_limit(SINGULAR, k=1)),
    (ValueError, "k", lambda: compression_limit(np.eye(2), k=2.5)),
    (ValueError, "k", lambda: compression_limit(ONES, k=5)),
    (ValueError, "k", lambda: compression_limit(np.eye(2), k=1e-300)),
    (ValueError, "k", lambda: compression_limit(ONES, k=1e-300)),
    (ValueError, "k", lambda: compression_limit(np.eye(2), k=math.nan)),
    (TypeError, "k", lambda: compression_limit(np.eye(2), k="1")),
    (ValueError, "goal", lambda: compression_limit(np.eye(2), k=1, goal="mean")),
    (ValueError, "goal", lambda: compression_limit(np.eye(2), k=1, goal="paper")),
    (ValueError, "goal", lambda: compression_limit(ONES, k=1, goal="mean")),
    (ValueError, "strong_convexity", lambda: compression_limit(np.eye(2), k=1, goal="linear")),
    (ValueError, "strong_convexity", lambda: compression_limit(np.eye(2), k=1, strong_convexity=1.0)),
    (ValueError, "M", lambda: compression_limit(np.eye(2), k=1, goal="linear", strong_convexity=3.0)),
    (ValueError, "strong_convexity", lambda: compression_limit(ONES, k=1, goal="linear", strong_convexity=np.eye(4))),
    (ValueError, "dense U", lambda: compression_limit(SPARSE_FACTOR, k=1)),
    # smoothness matrices
    (ValueError, "rank", lambda: smoothness.logistic(np.ones((6, 5)), 0.1, rank=0)),
    (ValueError, "rank", lambda: smoothness.logistic(sparse.csr_array(np.ones((6, 5))), 0.1, rank=5)),
    (ValueError, "reg", lambda: smoothness.logistic(np.ones((6, 5)), 0.0)),
    (ValueError, "penalty", lambda: smoothness.logistic(np.ones((6, 5)), 0.1, penalty="lasso")),
    (ValueError, "X", lambda: smoothness.logistic(np.ones(5), 0.1)),
    (TypeError, "X", lambda: smoothness.logistic(sparse.csr_array(np.eye(3) * (1 + 1j)), 0.1)),
    (ValueError, "X", lambda: smoothness.logistic(1e-150 * np.eye(3), 1e-300)),
    # problems
    (ValueError, "b", lambda: LogisticRegression(np.eye(3), np.ones(2), 0.1)),
    (ValueError, "reg", lambda: LogisticRegression(np.eye(3), np.ones(3), 0.0)),
    (ValueError, "A", lambda: LeastSquares(sparse.csr_array(np.diag([1.0, np.inf])), np.ones(2))),
    (ValueError, "A", lambda: LeastSquares(np.zeros((0, 3)), np.zeros(0))),
    (ValueError, "minimiser", lambda: Quadratic(np.eye(3), np.zeros(2))),
    (ValueError, "H", lambda: Quadratic(-np.eye(2), np.zeros(2))),
    (ValueError, "labels", lambda: SoftmaxRegression(np.eye(3), np.array([0, 1, 3]), 3, 0.1)),
    (TypeError, "A", lambda: SoftmaxRegression(sparse.eye_array(2), np.arange(2), 2, 0.1)),
    (TypeError, "clients", lambda: Federated(HALF)),
    (ValueError, "clients", lambda: Federated((HALF, Quadratic(np.eye(3), np.zeros(3))))),
    (ValueError, "found", lambda: Infimum(1.0, 0.5)),
    (ValueError, "start", lambda: find_infimum(HALF, np.zeros(3))),
    (ValueError, "iterations", lambda: find_infimum(HALF, iterations=-1)),
    (TypeError, "objective", lambda: find_federated_infimum(HALF)),
    # what is no argument at all
    (TypeError, "L", lambda: optimal_stepsize(HUGE, SKETCH)),
    (ValueError, "structure", lambda: optimal_stepsize(L, SKETCH, structure="foo")),
    (TypeError, "warm_start", lambda: optimal_stepsize(L, SKETCH, warm_start=L)),
    (ValueError, "option", lambda: optimal_stepsize(L, SKETCH, options={"tolerance": 1e-3})),
    (ValueError, "n_jobs", lambda: optimal_stepsize(L, SKETCH, n_jobs=0)),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(ROWS, RAGGED)),
    (TypeError, "source", lambda: EstimatedSmoothness(L, 1.0, 3)),
    (ValueError, "per_round", lambda: Budget(per_round=-1.0)),
    (ValueError, "rounds", lambda: Budget(rounds=0)),
    (TypeError, "on_progress", lambda: plan(L, 1, on_progress=3, **FLAT)),
    (TypeError, "path", lambda: StepsizeResult.load("")),
    (ValueError, "draw", lambda: METHOD.encode(np.ones(2), [2])),
    (ValueError, "draw", lambda: METHOD.encode(np.ones(2), RAGGED)),
    (TypeError, "draw", lambda: STEP.encode(np.ones(2), 0)),
    (TypeError, "gradient", lambda: STEP.encode(["a", "b"], SKETCH.draw(RNG))),
    (ValueError, "size", lambda: SKETCH.sample_diagonal(RNG, HUGE)),
    (TypeError, "clients", lambda: Federated((L,))),
    (TypeError, "objective", lambda: run(L, 0.1 * L, SKETCH, iterations=1)),
    (ValueError, "iterations", lambda: run(F, 0.1 * L, SKETCH, iterations=HUGE)),
    (TypeError, "run", lambda: check_rate(L)),
    (TypeError, "reg", lambda: LeastSquares(ROWS, np.ones(4), np.ones(2))),
    (TypeError, "rng", lambda: random_smoothness(0, 3, 10.0)),
    (ValueError, "eigenvalues", lambda: with_spectrum(RNG, L)),
    (TypeError, "structure", lambda: optimal_stepsize(L, SKETCH, structure=L)),
    (ValueError, "check_distributed_rate", lambda: check_rate(run(Federated((F, F)), 0.1 * L, SKETCH, iterations=2))),
]  # fmt: skip

# One call for each check of a name or a list, and for each function that reads one in its own way.
NAMES: list[tuple[str, Callable[[Any], Any]]] = [
    ("goal", lambda bad: optimal_stepsize(L, SKETCH, goal=bad)),
    ("solver", lambda bad: optimal_stepsize(L, SKETCH, solver=bad)),
    ("goal", lambda bad: compression_limit(L, 1, goal=bad)),
    ("penalty", lambda bad: LogisticRegression(ROWS, np.ones(4), 0.1, bad)),
    ("on_divergence", lambda bad: run(F, 0.1 * L, SKETCH, iterations=1, on_divergence=bad)),
]

LISTS: list[tuple[str, Callable[[Any], Any]]] = [
    ("sizes", BlockDiagonal),
    ("layers", LayerWise),
    ("clients", Federated),
    ("parts", lambda bad: federated_logistic(bad, 0.1)),
    ("sketches", lambda bad: plan(L, 1, sketches=bad, **FLAT)),
    ("client_L", lambda bad: distributed_lambda(0.1 * L, L, bad, SKETCH, "det-CGD1")),
]


@pytest.mark.parametrize(("error", "argument", "call"), REFUSALS, ids=[argument for _, argument, _ in REFUSALS])
def test_the_error_names_the_argument(error: type[Exception], argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=rf"\b{argument}\b"):
        call()


@pytest.mark.parametrize("bad", [np.eye(2), np.zeros(0), SPARSE, 3], ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize(("name", "call"), NAMES)
def test_what_is_no_name_is_refused_by_the_argument(name: str, call: Callable[[Any], Any], bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be"):
        call(bad)


@pytest.mark.parametrize("bad", [SPARSE, b"x", {1, 2}, {}, 3, ()], ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize(("name", "call"), LISTS)
def test_what_is_no_list_is_refused_by_the_argument(name: str, call: Callable[[Any], Any], bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=rf"^{name} must "):
        call(bad)


def test_a_sparse_quadratic_and_a_budget_of_any_size_are_taken() -> None:
    np.testing.assert_array_equal(Quadratic(SPARSE, np.ones(2)).smoothness(), np.eye(2))
    assert plan(L, Budget(1, rounds=HUGE), **FLAT).best.method == "subspace"
    assert str(Budget(1.0, rounds=1_000_000)) == "at most 1 floats per round, 1000000 rounds"


def test_more_numbers_than_float64_holds_are_named() -> None:
    with pytest.raises(OverflowError, match="exceeds float64; ask for less accuracy"):
        compare_distributed([L, L], SKETCH, epsilon2=1e-320, initial_gap=1.0, delta_inf=0.5)
