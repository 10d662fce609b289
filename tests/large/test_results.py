"""Large matrices and stepsizes as values: operators, files, messages, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from shared.goals import GOALS
from stepsize_opt import Direction, Gaussian, LowRankPlusDiagonal, RandK, compression_limit, optimal_stepsize
from stepsize_opt.large.solve import SOLVERS, LargeQuestion, large_problem
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.smoothness import NeedsDense
from stepsize_solvers.programs import Settings

L: Any = LowRankPlusDiagonal(np.random.default_rng(2).standard_normal((30, 3)), np.linspace(0.1, 1.0, 30))
SPARSE: Any = LowRankPlusDiagonal(sparse.csr_array(np.abs(L.U)), 1.0)
SKETCH = RandK(30, 5)
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
    result = optimal_stepsize(L, SKETCH, **CALLS[name])
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


def along(W: Any, **goal: Any) -> Any:
    return optimal_stepsize(L, SKETCH, structure=Direction(W), **goal)


ERRORS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.ones(3), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.ones((3, 0)), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(np.full((3, 1), np.nan), 1.0)),
    (ValueError, "U", lambda: LowRankPlusDiagonal(sparse.csr_array(np.full((3, 1), np.inf)), 1.0)),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), 0.0)),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), [1.0, 1.0])),
    (ValueError, "diagonal", lambda: LowRankPlusDiagonal(np.ones((3, 1)), [1.0, 1.0, -1.0])),
    (ValueError, "cut", lambda: LowRankPlusDiagonal(np.ones((2, 1)), 1.0, cut=np.inf)),
    (TypeError, "cut", lambda: LowRankPlusDiagonal(np.ones((2, 1)), 1.0, cut="x")),  # type: ignore[arg-type]
    (ValueError, "dense", lambda: optimal_stepsize(L, SKETCH)),
    (ValueError, "dense", lambda: optimal_stepsize(L, Gaussian(30, 3), structure="diagonal")),
    (ValueError, "dense", lambda: optimal_stepsize(L, SKETCH, structure="diagonal", **GOALS["descent"])),
    (ValueError, "optimal_method", lambda: optimal_stepsize(L, SKETCH, **GOALS["descent"])),
    (ValueError, "optimal_method", lambda: optimal_stepsize(L, Gaussian(30, 2))),
    (ValueError, "dense U", lambda: optimal_stepsize(SPARSE, SKETCH, algorithm="det-CGD2")),
    (
        ValueError,
        "negative",
        lambda: optimal_stepsize(LowRankPlusDiagonal(-SPARSE.U, 1.0), SKETCH, structure="diagonal"),
    ),
    (ValueError, "sketch", lambda: optimal_stepsize(L, RandK(7, 3), structure="diagonal")),
    (TypeError, "L", lambda: optimal_stepsize(aslinearoperator(np.eye(4)), RandK(4, 2))),
    (ValueError, "W", lambda: Direction([1.0, 0.0, 1.0])),
    (TypeError, "todense", lambda: Direction(aslinearoperator(np.eye(4)))),
    (ValueError, "W", lambda: Direction(L, (10, 20))),
    (ValueError, "W", lambda: Direction(np.ones(4), (2, 3))),
    (ValueError, "W", lambda: along(np.ones(3))),
    (TypeError, "vector", lambda: along(SPARSE)),
    (TypeError, "vector", lambda: along(compression_limit(L, 5).D)),
    (ValueError, "dense", lambda: along(np.ones(30), **GOALS["descent"])),
    (ValueError, "W", lambda: along(np.geomspace(1e-100, 1e100, 30))),
]


@pytest.mark.parametrize(("error", "part", "call"), ERRORS, ids=[part for _, part, _ in ERRORS])
def test_refusals_name_the_argument_or_what_it_lacks(
    error: type[Exception], part: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(error, match=rf"\b{part}\b"):
        call()


def test_a_refusal_lists_what_every_solver_takes() -> None:
    with pytest.raises(NeedsDense) as refused:
        optimal_stepsize(L, SKETCH)
    assert all(solver.takes in str(refused.value) for solver in SOLVERS)


@pytest.mark.parametrize("kind", [L, SPARSE, RAND_ONE], ids=["dense U", "sparse U", "rand-1"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", "direction", "block(10,20)"])
def test_no_question_has_two_solvers(kind: Any, structure: str) -> None:
    matrix, law = (L, RandK(30, 1).map) if kind is RAND_ONE else (kind, SKETCH.map)
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
