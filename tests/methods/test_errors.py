"""Arguments that no method takes: the type of the error, and the argument that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from stepsize_opt import CompressedStep, LowRankPlusDiagonal, RandK, certify, optimal_method, optimal_stepsize
from stepsize_opt.methods import DetCGD1, get_method
from stepsize_opt.problems import Quadratic
from stepsize_validation import run

L: Any = np.diag([1.0, 2.0])
S: Any = RandK(2, 1)
LARGE: Any = LowRankPlusDiagonal(np.ones((6, 2)), np.linspace(0.1, 1.0, 6))
WIDE: Any = LowRankPlusDiagonal(1e9 * np.ones((1, 3)), 1.0)
METHOD: Any = optimal_method(L, 1)
STEP: Any = CompressedStep.of(np.eye(3), RandK(3, 1))
DRAW: Any = STEP.draw(np.random.default_rng(0))


def sparse_factor() -> Any:
    return LowRankPlusDiagonal(sparse.eye_array(6, format="csr"), 0.5)


CALLS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "algorithm", lambda: get_method("subspace")),
    (ValueError, "algorithm", lambda: optimal_stepsize(L, S, algorithm="det-CGD3")),
    (TypeError, "algorithm", lambda: certify(L, L, S, algorithm=3)),  # type: ignore[arg-type]
    (TypeError, "algorithm", lambda: run(Quadratic(L, np.ones(2)), L, S, algorithm=DetCGD1)),  # type: ignore[arg-type]
    (TypeError, "algorithm", lambda: optimal_stepsize(L, METHOD.sketch, algorithm=METHOD)),
    (ValueError, "sketch", lambda: run(Quadratic(L, np.ones(2)), METHOD, RandK(2, 2))),
    (ValueError, "D", lambda: CompressedStep.of(np.eye(3), S)),
    (ValueError, "gradient", lambda: STEP.encode(np.ones(4), DRAW)),
    (ValueError, "numbers", lambda: STEP.decode(np.ones(3), DRAW)),
    (ValueError, "gradient", lambda: METHOD.encode(np.ones(5), np.arange(2))),
    (ValueError, "gradient", lambda: optimal_method(LARGE, 2).encode(np.ones(5), np.arange(2))),
    (ValueError, "basis", lambda: optimal_method(L, 1, basis="svd")),
    (ValueError, "basis", lambda: optimal_method(L, 1, goal="euclidean", basis="root")),
    (ValueError, "basis", lambda: optimal_method(LARGE, 2, basis="eigenvectors")),
    (ValueError, "L", lambda: optimal_method(np.ones((2, 2)), 1)),
    (ValueError, "k", lambda: optimal_method(L, 3)),
    (ValueError, "k", lambda: optimal_method(LARGE, 7)),
    (ValueError, "diagonal", lambda: optimal_method(LARGE, 2, goal="euclidean")),
    (ValueError, "strong_convexity", lambda: optimal_method(LARGE, 2, goal="linear", strong_convexity=np.eye(6))),
    (ValueError, "strong_convexity", lambda: optimal_method(LARGE, 2, goal="linear", strong_convexity=10.0)),
    (ValueError, "dense U", lambda: optimal_method(sparse_factor(), 2, goal="euclidean")),
    (ValueError, "U", lambda: optimal_method(WIDE, 1, goal="euclidean")),
]  # fmt: skip


@pytest.mark.parametrize(("error", "argument", "call"), CALLS, ids=[argument for _, argument, _ in CALLS])
def test_the_error_names_the_argument(error: type[Exception], argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=rf"\b{argument}\b"):
        call()


@pytest.mark.parametrize("k", [1e-300, 5e-16, 1e-15])
def test_a_budget_below_the_grid_of_probabilities_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match=r"k must be at least 2\.7e-15 for d=5"):
        optimal_method(np.eye(5), k)
    assert optimal_method(np.eye(5), 2.7e-15).probabilities.min() > 0.0
