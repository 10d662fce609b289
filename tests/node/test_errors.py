"""Input that is wrong in one place: the type of the error, and the argument that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    BlockDiagonal,
    CompressedStep,
    Direction,
    LowRankPlusDiagonal,
    RandK,
    certify,
    compare,
    optimal_distributed_stepsize,
    optimal_stepsize,
    to_cvxpy,
)
from stepsize_opt.problems import LogisticRegression

L: Any = np.array([[2.0, 1.0], [1.0, 3.0]])
S: Any = RandK(2, 1)
MASKED: Any = np.ma.array(np.eye(2), mask=[[0, 1], [1, 0]])
SKEW: Any = np.array([[1e32, 9e15], [0.0, 1.0]])
TARGETS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
TEXT: Any = "randk:1"
CONVEX: Any = optimal_stepsize(L, S, goal="convex", momentum=True)
LINEAR: Any = optimal_stepsize(L, S, **arguments_of("linear", L))

MATRICES: dict[str, Any] = {
    "not square": np.ones((2, 3)),
    "a vector": np.ones(2),
    "empty": np.zeros((0, 0)),
    "ragged": [[1.0, 2.0], [3.0]],
    "asymmetric": SKEW,
    "sparse and asymmetric": sparse.csr_array(SKEW),
    "indefinite": [[1.0, 2.0], [2.0, 1.0]],
    "with a negative diagonal": [[1.0, 0.0], [0.0, -1.0]],
    "singular": [[1.0, 1.0], [1.0, 1.0]],
    "with a zero diagonal": [[1.0, 0.0], [0.0, 0.0]],
    "not finite": np.diag([1.0, np.nan]),
    "sparse and not finite": sparse.csr_array(np.diag([1.0, np.inf])),
    "sparse and not square": sparse.csr_array(np.ones((2, 3))),
    "of another size": np.eye(3),
    "masked": MASKED,
    "masked in a row": [np.ma.array([1.0, 0.0], mask=[0, 1]), [0.0, 1.0]],
}


def solve(**arguments: Any) -> Any:
    return optimal_stepsize(L, S, **arguments)


def large() -> Any:
    return optimal_stepsize(LowRankPlusDiagonal(np.ones((2, 1)), np.ones(2)), S, structure="diagonal")


CALLS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (TypeError, "L", lambda: optimal_stepsize(1j * L, S)),
    (TypeError, "L", lambda: optimal_stepsize([["a", "b"], ["c", "d"]], S)),
    (ValueError, "L", lambda: compare(MATRICES["indefinite"], S)),
    (ValueError, "L", lambda: to_cvxpy(-L, S)),
    (ValueError, "sketch", lambda: to_cvxpy(L, RandK(3, 1))),
    (TypeError, "sketch", lambda: optimal_stepsize(L, 3)),  # type: ignore[arg-type]
    (ValueError, "sketch", lambda: optimal_stepsize(L, "nobody:1")),
    (TypeError, "sketch", lambda: CompressedStep.of(L, TEXT)),
    (ValueError, "tol", lambda: solve(tol=0.0)),
    (TypeError, "tol", lambda: solve(tol="small")),
    (ValueError, "tolerance", lambda: solve(options={"tolerance": 1e-3})),
    (TypeError, "options", lambda: solve(options="fast")),
    (ValueError, "algorithm", lambda: solve(algorithm="det-CGD3")),
    (ValueError, "solver", lambda: solve(solver="gurobi")),
    (ValueError, "n_jobs", lambda: solve(n_jobs=0)),
    (ValueError, "structure", lambda: solve(structure="banded")),
    (ValueError, "structure", lambda: solve(structure=BlockDiagonal((2, 3)))),
    (ValueError, "W", lambda: solve(structure=Direction(np.eye(3)))),
    (ValueError, "W", lambda: Direction(-L)),
    (ValueError, "W", lambda: Direction(L, (1, 2))),
    (ValueError, "W", lambda: Direction(L, (1, 1))),
    (ValueError, "W", lambda: Direction([])),
    (ValueError, "W", lambda: Direction(MASKED)),
    (ValueError, "sizes", lambda: BlockDiagonal(())),
    (TypeError, "sizes", lambda: BlockDiagonal(3)),  # type: ignore[arg-type]
    (ValueError, "warm_start", lambda: solve(warm_start=optimal_stepsize(np.eye(5), RandK(5, 1)))),
    (ValueError, "warm_start", lambda: solve(warm_start=large())),
    (ValueError, "goal", lambda: solve(goal="trace")),
    (ValueError, "momentum=True", lambda: solve(goal="convex")),
    (ValueError, "momentum=True", lambda: certify(L, L, S, goal="convex")),
    (ValueError, "momentum=True", lambda: to_cvxpy(L, S, goal="convex")),
    (ValueError, "goal", lambda: compare(L, S, goal="convex")),
    (ValueError, "strong_convexity", lambda: solve(**GOALS["linear"])),
    (ValueError, "strong_convexity", lambda: solve(strong_convexity=1.0, **GOALS["paper"])),
    (ValueError, "strong_convexity", lambda: solve(**arguments_of("linear", -1.0))),
    (ValueError, "strong_convexity", lambda: solve(**arguments_of("linear", 10**400))),
    (ValueError, "M", lambda: solve(**arguments_of("linear", (1.0 + 2e-6) * L))),
    (ValueError, "strong_convexity", lambda: solve(**arguments_of("linear", np.eye(3)))),
    (ValueError, "strong_convexity", lambda: solve(**arguments_of("linear", -L))),
    (ValueError, "D", lambda: certify(np.eye(3), L, S)),
    (ValueError, "D", lambda: certify(SKEW, L, S)),
    (ValueError, "D", lambda: certify(L, L, S, structure="diagonal")),
    (ValueError, "dual", lambda: certify(L, L, S, dual=MASKED)),
    (ValueError, "dual", lambda: certify(L, L, S, dual=np.eye(3))),
    (ValueError, "optimum", lambda: certify(L, L, S, optimum=LINEAR)),
    (ValueError, "optimum", lambda: certify(L, L, S, optimum=large())),
    (TypeError, "optimum", lambda: certify(L, L, S, optimum=L)),
    (ValueError, "dual", lambda: certify(L, L, S, optimum=solve(), dual=L)),
    (ValueError, "epsilon2", lambda: solve().iterations(-1.0, 1.0)),
    (TypeError, "initial_gap", lambda: solve().communication(1.0, "much")),
    (ValueError, "epsilon2", lambda: LINEAR.iterations(1e-3, 2.0)),
    (TypeError, "initial_gap", lambda: LINEAR.iterations(accuracy=1e-3)),
    (ValueError, "accuracy", lambda: solve().iterations(accuracy=1e-3, initial_gap=1.0)),
    (ValueError, "initial_gap", lambda: CONVEX.iterations(accuracy=1e-3, initial_gap=1.0)),
    (ValueError, "initial_distance", lambda: CONVEX.iterations(accuracy=1e-3, initial_distance=np.ones(5))),
    (TypeError, "initial_distance", lambda: CONVEX.iterations(accuracy=1e-3, initial_distance=["a", "b"])),
    (ValueError, "D", lambda: large().tosparse()),
    (ValueError, "iterations", lambda: optimal_distributed_stepsize([L], S, iterations=10**400, **TARGETS)),
    (ValueError, "b", lambda: LogisticRegression(np.eye(2), np.array([1.0, 2.0]), 0.1)),
]


@pytest.mark.parametrize("kind", MATRICES)
def test_a_matrix_that_is_no_smoothness_matrix(kind: str) -> None:
    with pytest.raises(ValueError, match=r"\bL\b"):
        optimal_stepsize(MATRICES[kind], S)


@pytest.mark.parametrize(("error", "argument", "call"), CALLS, ids=[argument for _, argument, _ in CALLS])
def test_the_error_names_the_argument(error: type[Exception], argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=rf"\b{argument}\b"):
        call()


@pytest.mark.parametrize("function", [optimal_stepsize, to_cvxpy])
def test_a_wrong_sketch_is_named_before_M(function: Any) -> None:
    L = np.diag([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="sketch"):
        function(L, 3, goal="linear", strong_convexity=0.5 * L)
    with pytest.raises(ValueError, match="sketch is for d=2 but L is 3×3"):
        function(L, RandK(2, 1), goal="linear", strong_convexity=0.5 * L)
