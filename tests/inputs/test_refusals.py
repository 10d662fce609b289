"""Arguments that are refused: the type of the error, and the argument that it names."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Budget,
    CompressedStep,
    DiagonalSketch,
    Direction,
    EstimatedSmoothness,
    Feedback,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    SystematicSampling,
    certify,
    compare,
    compare_distributed,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    parse_sketch,
    plan,
    smoothness,
    to_cvxpy,
)
from stepsize_opt.methods import DetCGD1
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
from stepsize_opt.sketches.base import DiagonalBase
from stepsize_validation import check_rate, distributed_lambda, run, run_feedback
from stepsize_validation.data import Dataset, federated_logistic, random_smoothness, split, with_spectrum
from stepsize_validation.table1 import communication_table

# The signatures are wrong on purpose.
# mypy: disable-error-code="arg-type, call-arg, call-overload, operator, list-item, type-var"
# pyright: reportArgumentType=false, reportCallIssue=false
L: Any = np.array([[2.0, 1.0], [1.0, 3.0]])
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
SINGULAR = [[1.0, 1.0], [1.0, 1.0]]
MASKED: Any = np.ma.array(np.eye(2), mask=[[0, 1], [1, 0]])
HUGE: Any = 10**400
RAGGED: Any = [[1.0, 2.0], [3.0]]
SPARSE: Any = sparse.eye_array(2)
RNG = np.random.default_rng(0)
ROWS = np.ones((4, 2))
GRADED: Any = LowRankPlusDiagonal(np.ones((6, 2)), np.linspace(0.1, 1.0, 6))
WIDE: Any = LowRankPlusDiagonal(1e9 * np.ones((1, 3)), 1.0)
SPARSE_FACTOR: Any = LowRankPlusDiagonal(sparse.eye_array(6, format="csr"), 0.5)
SKETCH: Any = RandK(2, 1)
METHOD, STEP = optimal_method(L, 1), CompressedStep.of(0.1 * L, SKETCH)
F = Quadratic(L, np.ones(2))
FLAT: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0}
CLIENTS: dict[str, Any] = {**FLAT, "delta_inf": 0.1}

LINEAR: Any = optimal_stepsize(L, SKETCH, goal="linear", strong_convexity=L)
CONVEX: Any = optimal_stepsize(L, SKETCH, goal="convex", momentum=True)
MOVING: Any = optimal_method(L, 1, goal="convex", momentum=True)
SKEW: Any = np.array([[1e32, 9e15], [0.0, 1.0]])
Q = np.array([[0.8, -0.6], [0.6, 0.8]])
RAND_2 = RandK(6, 2)
NEGATIVE_FACTOR: Any = LowRankPlusDiagonal(sparse.csr_array(-np.eye(6)), 1.0)
RECORD = run(F, 1e-6 * np.eye(2), SKETCH, iterations=10, seeds=1)
DATA = Dataset("four rows", np.ones((4, 2)), np.array([1.0, -1.0, 1.0, -1.0]))


class Tensor:
    """What a tensor with a gradient looks like to those who do not import its package."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        msg = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        raise RuntimeError(msg)


MATRICES: dict[str, Any] = {
    "not square": np.ones((2, 3)),
    "a vector": np.ones(2),
    "empty": np.zeros((0, 0)),
    "ragged": RAGGED,
    "asymmetric": SKEW,
    "sparse and asymmetric": sparse.csr_array(SKEW),
    "with a zero diagonal": [[1.0, 0.0], [0.0, 0.0]],
    "not finite": np.diag([1.0, np.nan]),
    "sparse and not finite": sparse.csr_array(np.diag([1.0, np.inf])),
    "sparse and not square": sparse.csr_array(np.ones((2, 3))),
    "of another size": np.eye(3),
    "masked": MASKED,
    "masked in a row": [np.ma.array([1.0, 0.0], mask=[0, 1]), [0.0, 1.0]],
}


def solve(**arguments: Any) -> Any:
    return optimal_stepsize(L, SKETCH, **arguments)


def linear(M: Any, **arguments: Any) -> Any:
    return solve(goal="linear", strong_convexity=M, **arguments)


def large() -> Any:
    return optimal_stepsize(LowRankPlusDiagonal(np.ones((2, 1)), np.ones(2)), SKETCH, structure="diagonal")


def along(W: Any, **goal: Any) -> Any:
    return optimal_stepsize(GRADED, RAND_2, structure=Direction(W), **goal)


def clients(smoothness: Any = (L, 2.0 * L), sketch: Any = SKETCH, **options: Any) -> Any:
    return optimal_distributed_stepsize(smoothness, sketch, **{**CLIENTS, **options})


def planned(problem: Any = L, budget: Any = 1, **options: Any) -> Any:
    return plan(problem, budget, **{**FLAT, **options})


def ran(**arguments: Any) -> Any:
    return run(Federated((F, F)), **{"D": 0.1 * L, "sketch": SKETCH, "iterations": 5, **arguments})


REFUSALS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    # sketches
    (ValueError, "d", lambda: Identity(0)),
    (TypeError, "d", lambda: Identity(True)),
    (ValueError, "k", lambda: RandK(10, 11)),
    (ValueError, "k", lambda: RandK(10, 2.5)),
    (ValueError, "k", lambda: RandK(10, float("nan"))),
    (TypeError, "k", lambda: Gaussian(3, 1j)),
    (ValueError, "q", lambda: BernQ([0.5, 0.5], [1, 2, 3])),
    (TypeError, "q", lambda: BernQ(True, 3)),
    (ValueError, "sizes", lambda: BernQ(0.5, [2, 0])),
    (ValueError, "sizes", lambda: BernQ(0.5, [])),
    (ValueError, "p", lambda: SystematicSampling([0.5, 0.0])),
    (ValueError, "p", lambda: IndependentSampling(0.5)),
    (ValueError, "p", lambda: IndependentSampling([0.5, np.inf])),
    (ValueError, "vectors", lambda: DiagonalSketch([1.0, 1.0], [1.0])),
    (ValueError, "vectors", lambda: DiagonalSketch([[1.0, 2.0], [1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[3.0], [-1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[2.0], [0.5]], [0.5, 0.5])),
    (ValueError, "use 0 instead", lambda: DiagonalSketch([[2.0, 1e-200], [0.0, 2.0]], [0.5, 0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [1.5, -0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [0.5, 0.4])),
    (TypeError, "weights", lambda: DiagonalSketch([[1.0]], ["a"])),
    (ValueError, "matrices", lambda: FiniteSketch(np.eye(2), [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([[[1.0, 0.1], [0.0, 1.0]]], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([np.eye(2), INDEFINITE], [0.5, 0.5])),
    (ValueError, "matrices", lambda: FiniteSketch([2.0 * np.eye(2)], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([MASKED], [1.0])),
    (ValueError, "weights", lambda: FiniteSketch([np.eye(2)], [0.5, 0.5])),
    (TypeError, "layers", lambda: LayerWise([RandK(3, 1), 4])),
    (TypeError, "abstract", lambda: Sketch(3)),
    (TypeError, "abstract", lambda: DiagonalBase(3)),
    (ValueError, "second moments", lambda: optimal_stepsize(np.eye(3) + 0.1, IndependentSampling([1e-30, 0.5, 0.5]))),
    (ValueError, "outcomes", lambda: RandK(30, 15).support()),
    (ValueError, "outcomes", lambda: BernQ(0.5, [1] * 2000).support()),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).support()),
    (ValueError, "gaussian:1", lambda: Gaussian(3, 1).second_moment_matrix),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).sample_diagonal(RNG, 2)),
    (ValueError, "size", lambda: RandK(3, 1).sample_diagonal(RNG, -1)),
    (TypeError, "rng", lambda: RandK(3, 1).sample(None)),
    (ValueError, "x", lambda: RandK(3, 1).apply(np.ones((1, 1, 3)), RNG)),
    (TypeError, "x", lambda: RandK(3, 1).apply([1j, 0, 0], RNG)),
    (ValueError, "M", lambda: RandK(2, 1).second_moment([[1, 2], [3, 4]])),
    (ValueError, "M", lambda: RandK(2, 1).centered_second_moment(MASKED)),
    (ValueError, "Z", lambda: RandK(3, 1).adjoint(np.ones(3))),
    (TypeError, "text", lambda: parse_sketch(8, 10)),
    (ValueError, "d", lambda: parse_sketch("randk:1", 0)),
    # methods
    (TypeError, "algorithm", lambda: certify(L, L, SKETCH, algorithm=3)),
    (TypeError, "algorithm", lambda: run(F, 0.1 * L, SKETCH, algorithm=DetCGD1)),
    (ValueError, "sketch", lambda: run(F, METHOD, RandK(2, 2))),
    (ValueError, "D", lambda: CompressedStep.of(np.eye(3), SKETCH)),
    (ValueError, "numbers", lambda: STEP.decode(np.ones(3), SKETCH.draw(RNG))),
    (ValueError, "gradient", lambda: METHOD.encode(np.ones(5), np.arange(2))),
    (ValueError, "basis", lambda: optimal_method(L, 1, basis="svd")),
    (ValueError, "basis", lambda: optimal_method(L, 1, goal="euclidean", basis="root")),
    (ValueError, "basis", lambda: optimal_method(GRADED, 2, basis="eigenvectors")),
    (ValueError, "L", lambda: optimal_method(np.ones((2, 2)), 1)),
    (ValueError, "k", lambda: optimal_method(L, 3)),
    (ValueError, "diagonal", lambda: optimal_method(GRADED, 2, goal="euclidean")),
    (ValueError, "strong_convexity", lambda: optimal_method(GRADED, 2, goal="linear", strong_convexity=np.eye(6))),
    (ValueError, "strong_convexity", lambda: optimal_method(GRADED, 2, goal="linear", strong_convexity=10.0)),
    (ValueError, "dense U", lambda: optimal_method(SPARSE_FACTOR, 2, goal="euclidean")),
    (ValueError, "U", lambda: optimal_method(WIDE, 1, goal="euclidean")),
    # limits
    (ValueError, "k", lambda: compression_limit(np.eye(2), k=1e-300)),
    (ValueError, "k", lambda: compression_limit(LowRankPlusDiagonal(np.ones((4, 1)), 1.0), k=1e-300)),
    (ValueError, "k", lambda: compression_limit(np.eye(2), k=math.nan)),
    (ValueError, "goal", lambda: compression_limit(np.eye(2), k=1, goal="mean")),
    (ValueError, "goal", lambda: compression_limit(np.eye(2), k=1, goal="paper")),
    (ValueError, "strong_convexity", lambda: compression_limit(np.eye(2), k=1, strong_convexity=1.0)),
    (ValueError, "M", lambda: compression_limit(np.eye(2), k=1, goal="linear", strong_convexity=3.0)),
    (ValueError, "dense U", lambda: compression_limit(SPARSE_FACTOR, k=1)),
    # smoothness matrices
    (ValueError, "rank", lambda: smoothness.logistic(np.ones((6, 5)), 0.1, rank=0)),
    (ValueError, "rank", lambda: smoothness.logistic(sparse.csr_array(np.ones((6, 5))), 0.1, rank=5)),
    (ValueError, "reg", lambda: smoothness.logistic(np.ones((6, 5)), 0.0)),
    (ValueError, "penalty", lambda: smoothness.logistic(np.ones((6, 5)), 0.1, penalty="lasso")),
    (TypeError, "X", lambda: smoothness.logistic(sparse.csr_array(np.eye(3) * (1 + 1j)), 0.1)),
    (ValueError, "X", lambda: smoothness.logistic(1e-150 * np.eye(3), 1e-300)),
    # problems
    (ValueError, "b", lambda: LogisticRegression(np.eye(3), np.ones(2), 0.1)),
    (ValueError, "reg", lambda: LogisticRegression(np.eye(3), np.ones(3), 0.0)),
    (ValueError, "A", lambda: LeastSquares(np.zeros((0, 3)), np.zeros(0))),
    (ValueError, "minimiser", lambda: Quadratic(np.eye(3), np.zeros(2))),
    (ValueError, "H", lambda: Quadratic(-np.eye(2), np.zeros(2))),
    (ValueError, "labels", lambda: SoftmaxRegression(np.eye(3), np.array([0, 1, 3]), 3, 0.1)),
    (TypeError, "A", lambda: SoftmaxRegression(sparse.eye_array(2), np.arange(2), 2, 0.1)),
    (ValueError, "clients", lambda: Federated((F, Quadratic(np.eye(3), np.zeros(3))))),
    (ValueError, "found", lambda: Infimum(1.0, 0.5)),
    (ValueError, "start", lambda: find_infimum(F, np.zeros(3))),
    (ValueError, "iterations", lambda: find_infimum(F, iterations=-1)),
    (TypeError, "objective", lambda: find_federated_infimum(F)),
    # one node
    (ValueError, "L", lambda: to_cvxpy(-L, SKETCH)),
    (ValueError, "sketch", lambda: to_cvxpy(L, RandK(3, 1))),
    (TypeError, "sketch", lambda: optimal_stepsize(L, 3)),
    (TypeError, "sketch", lambda: CompressedStep.of(L, "randk:1")),
    (ValueError, "tol", lambda: solve(tol=0.0)),
    (TypeError, "options", lambda: solve(options="fast")),
    (ValueError, "options", lambda: solve(solver="scs", options={"tolerance": 1e-3})),
    (ValueError, "options", lambda: solve(solver="clarabel", options={"tolerance": 1e-3})),
    (ValueError, "n_jobs", lambda: solve(n_jobs=0)),
    (TypeError, "structure", lambda: solve(structure=L)),
    (ValueError, "structure", lambda: solve(structure=BlockDiagonal((2, 3)))),
    (ValueError, "W", lambda: solve(structure=Direction(np.eye(3)))),
    (ValueError, "W", lambda: Direction(-L)),
    (ValueError, "W", lambda: Direction(L, (1, 2))),
    (ValueError, "W", lambda: Direction(L, (1, 1))),
    (ValueError, "W", lambda: Direction([])),
    (ValueError, "W", lambda: Direction(MASKED)),
    (ValueError, "W", lambda: Direction([1.0, 0.0, 1.0])),
    (TypeError, "todense", lambda: Direction(aslinearoperator(np.eye(4)))),
    (ValueError, "warm_start", lambda: solve(warm_start=optimal_stepsize(np.eye(5), RandK(5, 1)))),
    (ValueError, "warm_start", lambda: solve(warm_start=large())),
    (TypeError, "warm_start", lambda: solve(warm_start=L)),
    (ValueError, "goal", lambda: compare(L, SKETCH, goal="convex")),
    (ValueError, "strong_convexity", lambda: linear(HUGE)),
    (ValueError, "strong_convexity", lambda: linear(np.eye(3))),
    (ValueError, "strong_convexity", lambda: linear(-L)),
    (ValueError, "M", lambda: linear((1.0 + 2e-6) * L)),
    (ValueError, "D", lambda: certify(np.eye(3), L, SKETCH)),
    (ValueError, "D", lambda: certify(SKEW, L, SKETCH)),
    (ValueError, "D", lambda: certify(L, L, SKETCH, structure="diagonal")),
    (ValueError, "dual", lambda: certify(L, L, SKETCH, dual=MASKED)),
    (ValueError, "dual", lambda: certify(L, L, SKETCH, dual=np.eye(3))),
    (ValueError, "optimum", lambda: certify(L, L, SKETCH, optimum=LINEAR)),
    (ValueError, "optimum", lambda: certify(L, L, SKETCH, optimum=large())),
    (TypeError, "optimum", lambda: certify(L, L, SKETCH, optimum=L)),
    (ValueError, "dual", lambda: certify(L, L, SKETCH, optimum=solve(), dual=L)),
    (ValueError, "epsilon2", lambda: solve().iterations(-1.0, 1.0)),
    (ValueError, "epsilon2", lambda: LINEAR.iterations(1e-3, 2.0)),
    (ValueError, "initial_distance", lambda: CONVEX.iterations(accuracy=1e-3, initial_distance=np.ones(5))),
    (TypeError, "initial_distance", lambda: CONVEX.iterations(accuracy=1e-3, initial_distance=["a", "b"])),
    (ValueError, "D", lambda: large().tosparse()),
    (TypeError, "initial_gap", lambda: optimal_method(L, 1, goal="linear", strong_convexity=L).iterations(accuracy=1)),
    (ValueError, "accuracy", lambda: METHOD.iterations(accuracy=1e-3, initial_gap=1.0)),
    # momentum
    (ValueError, "convex", lambda: solve(goal="descent", momentum=True)),
    (ValueError, "strong_convexity", lambda: optimal_method(L, 1, goal="linear", momentum=True)),
    (ValueError, "M", lambda: linear(2 * L, momentum=True)),
    (TypeError, "momentum", lambda: compression_limit(L, 1, goal="convex", momentum=0.9)),
    (ValueError, "strong_convexity", lambda: linear((Q * [1e-19, 1e-3]) @ Q.T, momentum=True)),
    (ValueError, "diagonal", lambda: compression_limit(GRADED, 1, goal="convex", momentum=True)),
    (ValueError, "updates", lambda: MOVING.decode(np.ones(1), np.array([0]))),
    (ValueError, "shape", lambda: MOVING.start(np.ones(3))),
    # an L that is never formed
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.ones(3), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.ones((3, 0)), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.full((3, 1), np.nan), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(sparse.csr_array(np.full((3, 1), np.inf)), 1.0)),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), 0.0)),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), [1.0, 1.0])),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), [1.0, 1.0, -1.0])),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(ROWS, RAGGED)),
    (ValueError, "cut", lambda: LowRankPlusDiagonal(np.ones((2, 1)), 1.0, cut=np.inf)),
    (TypeError, "cut", lambda: LowRankPlusDiagonal(np.ones((2, 1)), 1.0, cut="x")),
    (ValueError, "dense", lambda: optimal_stepsize(GRADED, RAND_2)),
    (ValueError, "dense", lambda: optimal_stepsize(GRADED, Gaussian(6, 3), structure="diagonal")),
    (ValueError, "dense", lambda: optimal_stepsize(GRADED, RAND_2, structure="diagonal", goal="descent")),
    (ValueError, "dense U", lambda: optimal_stepsize(SPARSE_FACTOR, RAND_2, algorithm="det-CGD2")),
    (ValueError, "negative", lambda: optimal_stepsize(NEGATIVE_FACTOR, RAND_2, structure="diagonal")),
    (TypeError, "LowRankPlusDiagonal", lambda: optimal_stepsize(aslinearoperator(np.eye(4)), RandK(4, 2))),
    (TypeError, "W", lambda: Direction(GRADED, (2, 4))),
    (ValueError, "W", lambda: along(np.ones(3))),
    (TypeError, "vector", lambda: along(SPARSE_FACTOR)),
    (ValueError, "W", lambda: along(np.geomspace(1e-100, 1e100, 6))),
    # clients
    (ValueError, "L", lambda: clients(L)),
    (TypeError, "smoothness", lambda: clients("L.npy")),
    (ValueError, "smoothness", lambda: clients([])),
    (ValueError, r"smoothness\[1", lambda: clients([L, np.eye(3)])),
    (ValueError, r"smoothness\[1", lambda: clients([L, np.diag([1.0, -1.0])])),
    (TypeError, "sketch", lambda: clients(sketch=["randk:1", 1])),
    (ValueError, "sketch", lambda: clients(sketch="randk:4")),
    (ValueError, "2 clients", lambda: clients(sketch=[SKETCH] * 3)),
    (ValueError, "mean_smoothness", lambda: clients(mean_smoothness=np.diag([1.0, 0.0]))),
    (ValueError, "epsilon2", lambda: clients(epsilon2=0.0)),
    (ValueError, "delta_inf", lambda: clients(delta_inf=-1.0)),
    (ValueError, "algorithm", lambda: clients(algorithm="det-CGD3")),
    (ValueError, "goal", lambda: clients(goal="convex")),
    (ValueError, "seeds='shared", lambda: clients(goal="descent")),
    (ValueError, "seeds", lambda: clients(seeds="same")),
    (ValueError, "one sketch", lambda: clients(sketch=[SKETCH, RandK(2, 2)], seeds="shared")),
    (ValueError, "iterations", lambda: clients(iterations=0)),
    (OverflowError, "float64", lambda: compare_distributed([L, L], SKETCH, **{**CLIENTS, "epsilon2": 1e-320})),
    (ValueError, "iterations", lambda: clients(iterations=HUGE)),
    (ValueError, "solver", lambda: clients(solver="nobody")),
    # plans, tables and feedback
    (ValueError, "budget", lambda: planned(budget=4)),
    (ValueError, "budget", lambda: planned(budget=0)),
    (ValueError, "goal", lambda: planned(goal="trace")),
    (ValueError, "goal", lambda: planned(goal=())),
    (ValueError, "epsilon2", lambda: planned(epsilon2=None)),
    (ValueError, "initial_gap", lambda: planned(initial_gap=None)),
    (ValueError, "sketches", lambda: planned(sketches=[RandK(4, 1)])),
    (ValueError, "accuracy", lambda: planned(accuracy=1e-3)),
    (ValueError, "strong_convexity", lambda: planned(strong_convexity=0.1)),
    (ValueError, "epsilon2", lambda: planned(goal="linear", accuracy=1e-3, strong_convexity=0.1)),
    (ValueError, "delta_inf", lambda: planned(delta_inf=0.1)),
    (ValueError, "delta_inf", lambda: planned([L, L], delta_inf=-1.0)),
    (ValueError, "shape", lambda: planned([L, np.eye(3)])),
    (ValueError, "tolerance", lambda: planned(solving={"options": {"tolerance": 0.1}})),
    (ValueError, "solving", lambda: planned(solving={"tolerance": 0.1})),
    (ValueError, "tol", lambda: planned(solving={"tol": 0.0})),
    (TypeError, "on_progress", lambda: planned(on_progress=3)),
    (ValueError, "per_round", lambda: Budget(per_round=0.0)),
    (ValueError, "total", lambda: Budget(total=-1.0)),
    (ValueError, "rounds", lambda: Budget(rounds=0)),
    (ValueError, "layers", lambda: communication_table(np.eye(3), (2, 2))),
    (ValueError, "L", lambda: communication_table(L, (1, 1))),
    (ValueError, "k", lambda: communication_table(np.eye(3), k=4)),
    (ValueError, "q", lambda: communication_table(np.eye(3), q=0.0)),
    (ValueError, "L", lambda: communication_table(np.diag([1.0, 0.0]))),
    (ValueError, "k", lambda: Feedback(L, 3)),
    (ValueError, "rule", lambda: Feedback(L, 1, rule="none")),
    (ValueError, "places", lambda: Feedback(L, 1, places="all")),
    (ValueError, "basis", lambda: Feedback(L, 1, basis="qr")),
    (ValueError, "clients", lambda: Feedback(L, 1, clients=0)),
    (ValueError, "gradient", lambda: Feedback(L, 1).client(0).message(np.zeros(3))),
    (ValueError, "i", lambda: Feedback(L, 1, clients=2).client(2)),
    (ValueError, "finite", lambda: Feedback(L, 1).server(np.zeros(2), math.nan)),
    (ValueError, "clients", lambda: run_feedback(F, Feedback(L, 1, clients=2))),
    (TypeError, "run_feedback", lambda: run(F, Feedback(L, 1), iterations=10)),
    # runs
    (TypeError, "sketch", lambda: run(F, 0.1 * L)),
    (TypeError, "swapped", lambda: run(METHOD, F)),
    (TypeError, "swapped", lambda: run_feedback(Feedback(L, 1), F)),
    (ValueError, "client_seeds", lambda: run(F, METHOD, client_seeds="shared")),
    (TypeError, "todense", lambda: run(F, large())),
    *[(ValueError, "D", partial(ran, D=wrong))
      for wrong in (np.eye(5), np.ones(2), -L, L + 1e-9 * np.eye(2, k=1), np.diag([1.0, np.nan]))],
    (ValueError, "start", lambda: ran(start=np.zeros(3))),
    (ValueError, "start", lambda: ran(start=[0.0, np.nan])),
    (ValueError, "seed", lambda: ran(seed=-1)),
    (ValueError, "sketch", lambda: ran(sketch=RandK(5, 1))),
    (ValueError, "client_seeds", lambda: ran(sketch=[SKETCH, RandK(2, 2)], client_seeds="common")),
    (ValueError, "client_seeds", lambda: ran(sketch=[SKETCH, RandK(2, 2)], client_seeds="shared")),
    (ValueError, "iterations", lambda: ran(iterations=0)),
    (ValueError, "on_divergence", lambda: ran(on_divergence="ignore")),
    (ValueError, "level", lambda: check_rate(RECORD, Infimum(0.0, 0.0), level=1.0)),
    (ValueError, "goal", lambda: check_rate(RECORD, Infimum(0.0, 0.0), goal="descend")),
    (ValueError, "rate", lambda: check_rate(RECORD, Infimum(0.0, 0.0), goal="linear")),
    (ValueError, "rate", lambda: check_rate(RECORD, Infimum(0.0, 0.0), rate=-1.0)),
    (TypeError, "infimum", lambda: check_rate(RECORD, 0.3)),
    (ValueError, "client_seeds", lambda: run(Federated((F, F)), MOVING, client_seeds="independent", iterations=2)),
    (ValueError, "find_infimum", lambda: check_rate(run(F, MOVING, iterations=2))),
    (ValueError, "goal", lambda: check_rate(run(F, MOVING, iterations=2), Infimum(0.0, 0.0), goal="euclidean")),
    # data
    (ValueError, "labels", lambda: Dataset("x", np.eye(2), np.array([0.0, 1.0]))),
    (ValueError, "label", lambda: Dataset("x", np.eye(2), np.ones(3))),
    (ValueError, "kind", lambda: split(DATA, 2, RNG, "alphabetical")),
    (ValueError, "clients", lambda: split(DATA, 5, RNG)),
    (ValueError, "b", lambda: LogisticRegression(np.eye(2), np.array([1.0, 2.0]), 0.1)),
    # common mistakes: the error names the remedy
    (TypeError, "np.load", lambda: optimal_stepsize("L.npy", SKETCH)),
    (TypeError, "np.load", lambda: optimal_stepsize(Path("L.csv"), SKETCH)),
    (TypeError, r"pass H @ np\.eye", lambda: Quadratic(aslinearoperator(np.eye(2)), np.ones(2))),
    (TypeError, "detach", lambda: optimal_stepsize(Tensor(), SKETCH)),
    (ValueError, "index=False", lambda: optimal_stepsize(pd.DataFrame(L).reset_index(), SKETCH)),
    (ValueError, "absolute", lambda: optimal_stepsize(np.diag([1.0, -1.0]), SKETCH)),
    (ValueError, "absolute", lambda: optimal_stepsize(INDEFINITE, SKETCH)),
    (ValueError, "regulariser", lambda: optimal_stepsize(SINGULAR, SKETCH)),
    (ValueError, "np.eye", lambda: certify(0.1, L, SKETCH)),
    (ValueError, "did you mean 'randk", lambda: optimal_stepsize(L, "rndk:1")),
    (ValueError, "did you mean 'diagonal", lambda: solve(structure="diag")),
    (ValueError, "did you mean 'descent", lambda: solve(goal="descend")),
    (ValueError, "did you mean 'det-CGD1", lambda: solve(algorithm="det-CGD11")),
    # what is no argument at all
    (TypeError, "L", lambda: optimal_stepsize(HUGE, SKETCH)),
    (TypeError, "source", lambda: EstimatedSmoothness(L, 1.0, 3)),
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


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_that_is_no_smoothness_matrix(kind: str) -> None:
    with pytest.raises(ValueError, match=r"\bL\b"):
        optimal_stepsize(MATRICES[kind], SKETCH)


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
