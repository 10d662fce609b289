"""Smoothness matrices from data: the right formula, and a larger matrix where something is cut off."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.large import exact_smoothness
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
    smoothness,
    to_cvxpy,
)
from stepsize_opt.problems import Federated, Layered, LeastSquares, LogisticRegression, SoftmaxRegression
from stepsize_opt.smoothness import MatrixSmoothness, matrices, read_smoothness
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import combine, is_positive_semidefinite, product, rational, transpose


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_formulas_are_those_of_the_objectives(convert: Any) -> None:
    rng = np.random.default_rng(0)
    A, b = rng.random((12, 5)), np.where(rng.random(12) < 0.5, 1.0, -1.0)
    for penalty in ("nonconvex", "ridge"):
        L = smoothness.logistic(convert(A), 0.1, penalty).todense()
        assert pytest.approx(LogisticRegression(A, b, 0.1, penalty).smoothness()) == L
    gram = A.T @ A / 12
    assert smoothness.least_squares(convert(A), 0.1).todense() == pytest.approx(gram + 0.1 * np.eye(5))
    assert LeastSquares(A, b).smoothness() == pytest.approx(gram)
    assert smoothness.poisson(convert(A), 0.2, 3.0).todense() == pytest.approx(3.0 * gram + 0.2 * np.eye(5))
    head = smoothness.softmax(convert(A), 3, 0.2).todense()
    assert head == pytest.approx(SoftmaxRegression(A, np.zeros(12, dtype=int), 3, 0.2).smoothness())


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_the_factor_of_a_head_is_no_smaller_than_what_it_stands_for(convert: Any, classes: int) -> None:
    """In rational arithmetic, for the floats of the data and of the factor: λ is below the rounding of the rest."""
    X = np.random.default_rng(classes).standard_normal((4, 2))
    L = smoothness.softmax(convert(X), classes, 1e-20)
    ours = exact_smoothness(L)
    curvature = [[Fraction(int(i == j), 2) - Fraction(1, 2 * classes) for j in range(classes)] for i in range(classes)]
    A = rational(X)
    gram = combine((Fraction(1, 4), product(transpose(A), A)))
    theirs = [[a * b for a in top for b in row] for top in curvature for row in gram]
    theirs = [[x + Fraction(1e-20) * int(i == j) for j, x in enumerate(row)] for i, row in enumerate(theirs)]
    assert is_positive_semidefinite(combine((1, ours), (-1, theirs)))
    assert L.cut < 1e-12


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), m=st.integers(3, 25), d=st.integers(3, 25), data=st.data())
def test_what_is_cut_off_is_covered(seed: int, m: int, d: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d)) @ np.diag(np.logspace(0.0, -data.draw(st.floats(0.0, 4.0)), d))
    rank = data.draw(st.integers(1, min(m, d) - 1))
    whole = smoothness.logistic(X, 0.05)
    sparse_data = data.draw(st.booleans())
    cut = smoothness.logistic(sparse.csr_array(X) if sparse_data else X, 0.05, rank=rank)
    difference = np.linalg.eigvalsh(cut.todense() - whole.todense())
    assert cut.rank == rank and difference[0] >= -1e-15
    # The statement about the loss, and that it is no larger than the eigenvalues cut off make it.
    assert np.linalg.eigvalsh(cut.loss * whole.todense() - cut.todense())[0] >= -1e-12
    dropped = np.sort(np.linalg.eigvalsh(X.T @ X / (4.0 * m)))[: d - rank]
    # Sparse data: the bound cancels, to about the root of the rounding.
    slack = 1e-5 if sparse_data else 1e-11
    assert cut.cut <= 1.001 * np.linalg.norm(dropped) + slack * float((X**2).sum()) / (4.0 * m)
    if d == m:
        better = optimal_stepsize(whole.todense(), RandK(d, 1), structure="diagonal").rate
        assert optimal_stepsize(cut, RandK(d, 1), structure="diagonal").rate >= better / cut.loss * (1.0 - 1e-6)


@pytest.mark.parametrize("unit", [1e-85, 1e80])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_a_cut_lies_above_l_in_any_unit(unit: float, form: Any) -> None:
    """Squares of squares of the data underflowed, and with them what was cut off."""
    X = np.diag([3.0, 2.0, 1.0])
    L = smoothness.least_squares(form(unit * X), 1e-5 * unit * unit, rank=1)
    assert np.linalg.eigvalsh(L.todense() / unit**2 - X.T @ X / 3.0 - 1e-5 * np.eye(3))[0] > 0.0
    assert L.cut > 0.3 * unit**2 and L.loss > 1e4


FEATURES = np.random.default_rng(0).standard_normal((12, 4))
# The matrices by which the features are multiplied.
COLUMNS: dict[str, Any] = {
    "random": np.eye(4),
    "dependent": [[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]],
    "zero column": np.diag([1.0, 1.0, 0.0, 1.0]),
    "zero": np.zeros((4, 4)),
    "graded": np.diag(np.logspace(0.0, -7.0, 4)),
}


@pytest.mark.parametrize("unit", [1.0, 1e-80, 1e70])
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_dense_factor_has_no_more_columns_than_rows(kind: str, unit: float) -> None:
    """L ⪯ L̂ ⪯ loss·L in rational arithmetic, for twelve rows of four features."""
    X, reg = unit * FEATURES @ np.array(COLUMNS[kind]), 1e-3 * unit * unit
    short = smoothness.least_squares(X, reg)
    rows = rational(X)
    identity = rational(np.eye(4))
    L = combine((Fraction(1, 12), product(transpose(rows), rows)), (Fraction(reg), identity))
    larger = exact_smoothness(short)
    assert short.rank == {"dependent": 3, "zero column": 3, "zero": 1}.get(kind, 4)
    assert is_positive_semidefinite(combine((1, larger), (-1, L)))
    assert is_positive_semidefinite(combine((Fraction(short.loss), L), (-1, larger)))
    assert short.loss <= 1.0 + 1e-10


def test_the_subspace_method_of_a_head_has_matrices_of_its_size() -> None:
    X = np.random.default_rng(3).standard_normal((300, 4))
    L = smoothness.softmax(X, 5, 0.1)
    assert L.rank == 16
    method = optimal_method(L, 4)
    assert method.efficiency > 1.0 - 1e-8
    assert method.directions.Z.shape == (16, 16)
    clients = tuple(LeastSquares(part, np.zeros(100), 0.1) for part in np.split(X, 3))
    assert smoothness.of(Federated(clients)).rank == 4


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array])
def test_layers_stand_one_below_the_other(convert: Any) -> None:
    A = np.random.default_rng(4).standard_normal((6, 3))
    layers = (LeastSquares(A, np.zeros(6), 0.1), LogisticRegression(convert(A[:, :2]), np.ones(6), 0.2))
    L = smoothness.of(Layered(layers))
    np.testing.assert_allclose(L.todense(), Layered(layers).smoothness(), atol=1e-12)
    assert sparse.issparse(L.U) == (convert is not np.asarray) and L.cut < 1e-12
    without = Layered((*layers, LeastSquares(A, np.zeros(6))))
    np.testing.assert_array_equal(smoothness.of(without), without.smoothness())


@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.uint8, np.float32])
def test_sparse_data_of_a_smaller_type_are_read_as_float64(kind: Any) -> None:
    """AᵀA in the type of A wraps around or loses digits: L lay far below the Hessian."""
    A = (np.random.default_rng(0).random((300, 5)) < 0.5).astype(float) * (1.0 if kind is np.bool_ else 100.0)
    b = np.where(np.arange(300) % 2, 1.0, -1.0)
    for form in (sparse.csr_array, sparse.coo_array, sparse.lil_array):
        data = form(A.astype(kind))
        for one, other in (
            (LeastSquares(data, b, 0.1), LeastSquares(A, b, 0.1)),
            (LogisticRegression(data, b, 0.1), LogisticRegression(A, b, 0.1)),
        ):
            np.testing.assert_allclose(one.smoothness(), other.smoothness(), rtol=1e-14)
            x = np.full((1, 5), 0.01)
            np.testing.assert_allclose(one.gradient(x), other.gradient(x), rtol=1e-12)
        assert data.dtype == kind


def test_duplicates_of_sparse_data_are_summed_in_a_copy() -> None:
    A = sparse.csr_array((np.ones(3), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    assert LeastSquares(A, np.ones(2), 0.0).smoothness().tolist() == [[2.0, 0.0], [0.0, 0.5]]
    assert A.nnz == 3


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize(("unit", "reg"), [(1.0, 0.1), (1e4, 1e-6), (1e5, 1e-8)])
def test_the_loss_counts_all_that_was_added(unit: float, reg: float, rank: int | None) -> None:
    """In rational arithmetic, along a coordinate that the data do not have."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 2)) @ rng.standard_normal((2, 6)) * unit
    X[:, 5] = 0.0
    for L in (
        smoothness.least_squares(X, reg, rank=rank),
        smoothness.of(Federated(tuple(LeastSquares(part, np.zeros(10), reg) for part in (X[:10], X[10:])))),
    ):
        added = Fraction(L.shift[5]) + sum(Fraction(u) ** 2 for u in L.U[5]) - Fraction(reg)
        assert 0 < added <= (Fraction(L.loss) - 1) * Fraction(reg)


@pytest.mark.parametrize("n", [1, 7, 52, 100])
def test_the_mean_of_clients_is_rounded_up(n: int) -> None:
    A = np.random.default_rng(n).standard_normal((n, 1, 2))
    A[:, :, 1] = 0.0
    L = smoothness.of(Federated(tuple(LeastSquares(part, np.zeros(1), 0.1) for part in A)))
    assert Fraction(L.shift[1]) >= Fraction(0.1)
    exact = sum(Fraction(a) ** 2 for a in A[:, 0, 0]) / n + Fraction(0.1)
    assert Fraction(L.shift[0]) + sum(Fraction(u) ** 2 for u in L.U[0]) >= exact


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_data_without_a_number_are_cut_to_nothing(form: Any) -> None:
    L = smoothness.least_squares(form(np.zeros((4, 5))), 0.1, rank=2)
    assert L.loss == pytest.approx(1.0) and L.todense() == pytest.approx(0.1 * np.eye(5))


# ----------------------------------------------------------------
# a smoothness matrix is read and proved positive definite once, and every function takes it in place of L


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


CURVED: dict[str, Any] = {"goal": ["descent", "euclidean", "linear"], "accuracy": 1e-3}


@pytest.mark.parametrize(
    ("call", "proofs"),
    [
        (lambda: plan(L, 3, strong_convexity=0.01 * np.eye(D), **CURVED, **ASKED), 1),
        (lambda: plan(BLOCKS, 3, **ASKED), 3),  # the limit takes L as a whole, the stepsizes its two blocks
        (lambda: compare(L, SKETCH), 1),
        (lambda: [optimal_stepsize(one, SKETCH) and optimal_method(one, 2) for one in [read_smoothness(L)] * 2], 1),
    ],
    ids=["plan", "plan of blocks", "compare", "a matrix that was read"],
)
def test_a_matrix_is_read_and_proved_once(call: Any, proofs: int, counted: Counter[str]) -> None:
    call()
    assert counted["read"] == 1
    assert len(counted) == 1 + proofs and set(counted.values()) == {1}


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
