"""Smoothness matrices from data: the right formula, and a larger matrix where something is cut off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stepsize_opt import RandK, optimal_stepsize, smoothness
from stepsize_opt.problems import LeastSquares, LogisticRegression


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
    assert smoothness.huber(convert(A), 0.2).todense() == pytest.approx(gram + 0.2 * np.eye(5))
    assert smoothness.poisson(convert(A), 0.2, 3.0).todense() == pytest.approx(3.0 * gram + 0.2 * np.eye(5))
    head = smoothness.softmax(convert(A), 3, 0.2).todense()
    assert head == pytest.approx(np.kron(np.eye(3), 0.5 * gram) + 0.2 * np.eye(15))


def test_the_softmax_head_is_smooth_with_it() -> None:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((7, 2))
    L = smoothness.softmax(X, 3, 0.01).todense()
    for _ in range(20):
        logits = X @ rng.standard_normal((2, 3)) * 3.0
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        H = sum(np.kron(np.diag(q) - np.outer(q, q), np.outer(a, a)) for q, a in zip(p, X, strict=True)) / 7
        assert np.linalg.eigvalsh(L - H)[0] >= 0.0


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


def test_memory_is_a_number_of_columns() -> None:
    X = np.random.default_rng(2).standard_normal((30, 20))
    assert smoothness.logistic(X, 0.1, memory=8 * 20 * 4 + 7).rank == 4
    assert smoothness.logistic(X, 0.1).rank == 30 and smoothness.logistic(X, 0.1).loss == 1.0


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"rank": 3, "memory": 1e6}, "not both"),
        ({"memory": 10.0}, "hold no column"),
        ({"rank": 0}, "rank"),
        ({"rank": 5}, "below min"),
        ({"reg": 0.0}, "reg"),
        ({"penalty": "lasso"}, "penalty"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        smoothness.logistic(np.ones((6, 5)), **{"reg": 0.1, **arguments})
    with pytest.raises(ValueError, match="shape"):
        smoothness.logistic(np.ones(5), 0.1)
