"""Input that is wrong in one place: the error names the argument, wherever it was given."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepsize_opt import (
    CompressedStep,
    LowRankPlusDiagonal,
    RandK,
    best_client_draws,
    certify_distributed,
    compare,
    compare_distributed,
    optimal_distributed_stepsize,
    optimal_stepsize,
    plan,
    smoothness,
)
from stepsize_opt.problems import LeastSquares, LogisticRegression, Quadratic, SoftmaxRegression
from stepsize_validation import check_rate, communication_table, distributed_lambda, run

L: Any = np.array([[2.0, 1.0], [1.0, 3.0]])
S: Any = RandK(2, 1)
TARGETS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
TEXT: Any = "randk:1"
NOTHING: Any = None


def large() -> Any:
    return optimal_stepsize(LowRankPlusDiagonal(np.ones((2, 1)), np.ones(2)), S, structure="diagonal")


def record() -> Any:
    return run(Quadratic(L, np.ones(2)), 0.1 * np.eye(2), S, iterations=3, seeds=2)


CASES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "indefinite": (lambda: compare([[1.0, 2.0], [2.0, 1.0]], S), ValueError, "L is indefinite"),
    "singular": (lambda: compare([[1.0, 1.0], [1.0, 1.0]], S), ValueError, "L is singular"),
    "fixed": (lambda: compare(L, S, guarantee="descent"), ValueError, "compare takes no guarantee"),
    "table": (lambda: communication_table(L, structure="full"), ValueError, "communication_table takes no structure"),
    "layers": (lambda: communication_table(L, 2), TypeError, "layers must be a list, got 2"),  # type: ignore[arg-type]
    "warm start": (lambda: optimal_stepsize(L, S, warm_start=large()), ValueError, "warm_start is of a LowRank"),
    "sparse": (lambda: large().tosparse(), ValueError, "D is an operator that is never formed"),
    "huge": (lambda: optimal_stepsize(L, S, criterion="linear", lower=10**400), ValueError, "lower must be a finite"),
    "above L": (
        lambda: optimal_stepsize(L, S, criterion="linear", lower=(1.0 + 2e-6) * L),
        ValueError,
        "M exceeds L by a factor of 1 + 2e-06",
    ),
    "units": (
        lambda: communication_table(L, criterion="euclidean"),
        ValueError,
        "communication_table takes no criterion",
    ),
    "unknown": (
        lambda: optimal_stepsize(np.eye(2), S, tolerance=1e-3),
        ValueError,
        "unknown native option tolerance",
    ),
    "unknown of clients": (
        lambda: optimal_distributed_stepsize([L, L], S, structure="scalar", foo=1, **TARGETS),
        ValueError,
        "unknown native option foo",
    ),
    "plan": (lambda: plan([L, L], 1, seeds="shared", **TARGETS), ValueError, "plan takes no seeds"),
    "optimum": (
        lambda: certify_distributed(0.1 * L, [L, L], S, solve=True, seeds="shared", **TARGETS),
        ValueError,
        "takes no seeds",
    ),
    "rounds": (
        lambda: compare_distributed([L, L], S, iterations=50, **TARGETS),
        ValueError,
        "compare_distributed takes no iterations",
    ),
    "tiny data": (lambda: smoothness.least_squares(1e-150 * L, 1e-300), ValueError, "X has entries of about 1e-150"),
    "many": (
        lambda: optimal_distributed_stepsize([L], S, iterations=10**400, **TARGETS),
        ValueError,
        "beyond what float64 holds; ask for fewer",
    ),
    "budgets": (lambda: best_client_draws([L, L], np.array([1, 3]), **TARGETS), ValueError, "k must be at most d=2"),  # type: ignore[arg-type]
    "many, certified": (
        lambda: certify_distributed(0.1 * L, [L, L], S, iterations=10**400, **TARGETS),
        ValueError,
        "iterations would be about 1e+400, beyond what float64 holds; ask for fewer",
    ),
    "step": (lambda: CompressedStep.of(L, TEXT), TypeError, "sketch must be a Sketch such as RandK"),
    "run": (lambda: run(Quadratic(L, np.ones(2)), L, TEXT), TypeError, "sketch must be a Sketch such as RandK"),
    "no sketch": (lambda: run(Quadratic(L, np.ones(2)), L, NOTHING), TypeError, "got NoneType"),
    "lambda": (lambda: distributed_lambda(L, np.eye(3), [L], S, "det-CGD1"), ValueError, "L is 3×3 but D is 2×2"),
    "rate": (
        lambda: check_rate(record(), guarantee="foo", criterion="linear", rate=0.1),
        ValueError,
        "guarantee must be one of 'condition', 'descent', got 'foo'",
    ),
    "labels": (lambda: LogisticRegression(np.eye(2), np.array([1, 2]), 0.1), ValueError, "labels -1 and 1, got 1, 2"),
    "row": (lambda: LeastSquares(np.ones(2), np.ones(2)), ValueError, "A must be a matrix"),
    "classes": (
        lambda: SoftmaxRegression(np.eye(2), np.array([0, 1]), 2.5, 0.1),
        ValueError,
        "classes must be a whole",
    ),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_names_the_argument(case: str) -> None:
    call, error, message = CASES[case]
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_what_is_accepted() -> None:
    """Lists for arrays, a number in an array."""
    assert LogisticRegression([[1.0, 2.0]], [1.0], 0.1).d == 2  # type: ignore[arg-type]
    assert LeastSquares([[1, 0], [0, 1]], [1, 1]).smoothness().tolist() == [[0.5, 0.0], [0.0, 0.5]]  # type: ignore[arg-type]
    assert optimal_stepsize(L, S, criterion="linear", lower=np.array(0.1)).status == "optimal"
