"""Arguments that make no sense: each is refused by its name, and none ends in an error of numpy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from stepsize_opt import (
    BlockDiagonal,
    Budget,
    CompressedStep,
    EstimatedSmoothness,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    compare_distributed,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    plan,
)
from stepsize_opt.problems import Federated, LeastSquares, LogisticRegression, Quadratic
from stepsize_opt.results import StepsizeResult
from stepsize_validation import check_rate, distributed_lambda, run
from stepsize_validation.data import federated_logistic, random_smoothness, with_spectrum

# The signatures are wrong on purpose.
# pyright: reportArgumentType=false, reportCallIssue=false
L: Any = np.array([[2.0, 1.0], [1.0, 3.0]])
SKETCH = RandK(2, 1)
HUGE: Any = 10**400
RAGGED: Any = [[1.0, 2.0], [3.0]]
SPARSE: Any = sparse.eye_array(2)
RNG = np.random.default_rng(0)
ROWS = np.ones((4, 2))
METHOD = optimal_method(L, 1)
STEP = CompressedStep.of(0.1 * L, SKETCH)
F = Quadratic(L, np.ones(2))
FLAT: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0}
Call = Callable[[], Any]

# One call for each check, and for each function that reads an argument in its own way.
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

OTHERS: dict[str, tuple[Call, str]] = {
    "L is huge": (lambda: optimal_stepsize(HUGE, SKETCH), "^L must hold real numbers that float64 holds"),
    "structure": (
        lambda: optimal_stepsize(L, SKETCH, structure=L),
        r"structure must be 'full'.*got ndarray; Direction",
    ),
    "unknown structure": (lambda: optimal_stepsize(L, SKETCH, structure="foo"), "^unknown structure 'foo'; choose"),
    "start": (lambda: optimal_stepsize(L, SKETCH, warm_start=L), "^warm_start must be a StepsizeResult"),
    "option": (lambda: optimal_stepsize(L, SKETCH, options={"tolerance": 1e-3}), "^unknown native option tolerance"),
    "n_jobs": (lambda: optimal_stepsize(L, SKETCH, n_jobs=0), "^n_jobs must not be 0; use 1"),
    "diagonal is ragged": (lambda: LowRankPlusDiagonal(ROWS, RAGGED), "^diagonal must be an array of numbers"),
    "source": (lambda: EstimatedSmoothness(L, 1.0, 3), "^source must be a str, got int"),
    "budget": (lambda: Budget(per_round=-1.0), "^per_round must be a finite positive number"),
    "rounds": (lambda: Budget(rounds=0), "^rounds must be a whole number of at least 1, got 0"),
    "on_progress": (lambda: plan(L, 1, on_progress=3, **FLAT), "^on_progress must be a function, got 3"),
    "empty path": (lambda: StepsizeResult.load(""), "^path must be that of a file, got ''"),
    "draw": (lambda: METHOD.encode(np.ones(2), [2]), "^draw must hold places of directions from 0 to 1"),
    "ragged draw": (lambda: METHOD.encode(np.ones(2), RAGGED), "^draw must hold places"),
    "draw of a step": (lambda: STEP.encode(np.ones(2), 0), "^draw must be a Draw, such as step.draw"),
    "text": (lambda: STEP.encode(["a", "b"], SKETCH.draw(RNG)), "^gradient must be an array of real numbers"),
    "too many diagonals": (lambda: SKETCH.sample_diagonal(RNG, HUGE), "^size=1000"),
    "client": (lambda: Federated((L,)), r"^clients\[0\] must be an objective such as LogisticRegression, got ndarray"),
    "run of": (lambda: run(L, 0.1 * L, SKETCH, iterations=1), "^objective must be an objective"),
    "huge run": (lambda: run(F, 0.1 * L, SKETCH, iterations=HUGE), "^the record of 1000.* iterations .* take inf GB"),
    "rate of": (lambda: check_rate(L), "^run must be a Run, got ndarray"),
    "rate of clients": (
        lambda: check_rate(run(Federated((F, F)), 0.1 * L, SKETCH, iterations=2, seeds=2)),
        "2 clients that draw sketches of their own: check_distributed_rate",
    ),
    "reg": (lambda: LeastSquares(ROWS, np.ones(4), np.ones(2)), "^reg must be a number"),
    "generator": (lambda: random_smoothness(0, 3, 10.0), "^rng must be a numpy Generator"),
    "eigenvalues": (lambda: with_spectrum(RNG, L), r"^eigenvalues must be a list of numbers, got shape \(2, 2\)"),
}


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


@pytest.mark.parametrize("case", OTHERS)
def test_nonsense_is_refused_by_the_argument(case: str) -> None:
    call, message = OTHERS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_sparse_quadratic_and_a_budget_of_any_size_are_taken() -> None:
    np.testing.assert_array_equal(Quadratic(SPARSE, np.ones(2)).smoothness(), np.eye(2))
    assert plan(L, Budget(1, rounds=HUGE), **FLAT).best.method == "subspace"
    assert str(Budget(1.0, rounds=1_000_000)) == "at most 1 floats per round, 1000000 rounds"


def test_more_numbers_than_float64_holds_are_named() -> None:
    with pytest.raises(OverflowError, match="exceeds float64; ask for less accuracy"):
        compare_distributed([L, L], SKETCH, epsilon2=1e-320, initial_gap=1.0, delta_inf=0.5)
