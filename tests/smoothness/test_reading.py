"""A smoothness matrix is read and proved positive definite once, and every function takes it in place of L."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from stepsize_opt import (
    EstimatedSmoothness,
    LowRankPlusDiagonal,
    RandK,
    certify,
    compare,
    compare_distributed,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    plan,
    to_cvxpy,
)
from stepsize_opt.smoothness import MatrixSmoothness, NeedsDense, matrices, read_smoothness
from stepsize_validation.data import random_smoothness

D = 6
SKETCH = RandK(D, 2)
L = random_smoothness(np.random.default_rng(0), D, 30.0)
BLOCKS = sparse.csr_array(sparse.block_diag([L[:2, :2], L[2:, 2:]]))
ASKED: dict[str, Any] = {"epsilon2": 1e-3, "initial_gap": 1.0}
CLIENTS: dict[str, Any] = {**ASKED, "delta_inf": 0.1}

GIVEN = {
    "dense": L,
    "sparse": BLOCKS,
    "low rank": LowRankPlusDiagonal(np.random.default_rng(1).standard_normal((D, 2)), 0.5),
    "estimated": EstimatedSmoothness(L, 1.5, "two Hessians"),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often L is read, and each matrix proved positive definite."""
    calls: Counter[str] = Counter()

    def count(name: str, key: Callable[[Any], str]) -> None:
        real = getattr(matrices, name)

        def wrapped(label: str, value: Any, *more: Any) -> Any:
            calls[key(value)] += 1
            return real(label, value, *more)

        monkeypatch.setattr(matrices, name, wrapped)

    count("read_matrix", lambda value: "read")
    count("check_positive_definite", lambda value: f"proved {value.tobytes()!r}")
    yield calls


def _check_once(counted: Counter[str], proofs: int) -> None:
    assert counted["read"] == 1
    assert len(counted) == 1 + proofs
    assert set(counted.values()) == {1}


def test_plan_reads_and_proves_L_once(counted: Counter[str]) -> None:
    plan(L, 3, goal=["descent", "euclidean", "linear"], accuracy=1e-3, strong_convexity=0.01 * np.eye(D), **ASKED)
    _check_once(counted, proofs=1)


def test_plan_proves_each_block_once(counted: Counter[str]) -> None:
    """The limit takes L as a whole, the stepsizes its two blocks."""
    plan(BLOCKS, 3, **ASKED)
    _check_once(counted, proofs=3)


def test_compare_reads_and_proves_L_once(counted: Counter[str]) -> None:
    compare(L, SKETCH)
    _check_once(counted, proofs=1)


def test_a_matrix_that_was_read_is_not_read_again(counted: Counter[str]) -> None:
    read = read_smoothness(L)
    assert read_smoothness(read) is read
    optimal_stepsize(read, SKETCH)
    optimal_stepsize(read, RandK(D, 3), goal="descent")
    optimal_method(read, 2)
    compression_limit(read, 2)
    _check_once(counted, proofs=1)


CALLS: dict[str, Callable[[Any], Any]] = {
    "optimal_stepsize": lambda one: (optimal_stepsize(one, SKETCH, structure="diagonal").D @ np.eye(D)).tolist(),
    "certify": lambda one: certify(0.01 * np.eye(D), one, SKETCH).summary(),
    "compare": lambda one: compare(one, SKETCH).to_records(),
    "compression_limit": lambda one: compression_limit(one, 2).summary(),
    "optimal_method": lambda one: optimal_method(one, 2, goal="euclidean").summary(),
    "plan": lambda one: plan(one, 2, **ASKED).to_records(),
    "to_cvxpy": lambda one: re.sub(r"var\d+", "var", str(to_cvxpy(one, SKETCH).problem)),
    "optimal_distributed_stepsize": lambda one: optimal_distributed_stepsize(
        [one, one], SKETCH, structure="diagonal", **CLIENTS
    ).D.tolist(),
    "compare_distributed": lambda one: len(compare_distributed([one, one], SKETCH, **CLIENTS).rows),
}
# The functions that have an answer, or a label, for an L that is not a proved matrix.
OTHERS = {
    "low rank": {"optimal_stepsize", "certify", "compression_limit", "optimal_method", "plan"},
    "estimated": {"optimal_stepsize", "certify", "compare"},
}


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("name", CALLS)
def test_every_function_takes_a_matrix_that_was_read(name: str, kind: str) -> None:
    given, call = GIVEN[kind], CALLS[name]
    read = read_smoothness(given)
    if name in OTHERS.get(kind, CALLS):
        assert repr(call(given)) == repr(call(read))
        return
    for one in (given, read):
        with pytest.raises((TypeError, ValueError), match=r"estimated|dense|operator"):
            call(one)


def test_a_low_rank_matrix_is_not_formed_by_a_function_that_needs_all_of_it() -> None:
    with pytest.raises(NeedsDense, match=r"takes a dense L: give it L\.todense\(\)"):
        compare(GIVEN["low rank"], SKETCH)


def test_a_matrix_that_was_read_shows_its_kind() -> None:
    assert repr(read_smoothness(BLOCKS)) == "MatrixSmoothness(d=6, sparse)"
    assert repr(read_smoothness(GIVEN["estimated"])) == "MatrixSmoothness(d=6, dense, certified=False)"


def test_blocks_and_directions_belong_to_the_matrix() -> None:
    read = MatrixSmoothness(L)
    places = np.array([1, 4])
    np.testing.assert_array_equal(read.block(places), L[np.ix_(places, places)])
    assert read.log_det(places) == pytest.approx(np.linalg.slogdet(L[np.ix_(places, places)])[1])
    np.testing.assert_allclose(read.inverse() @ L, np.eye(D), atol=1e-10)
    for basis in ("root", "eigenvectors"):
        A, defect = read.directions(basis)
        assert np.linalg.norm(A.T @ L @ A - np.eye(D), 2) <= defect < 1e-10
