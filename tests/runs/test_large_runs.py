"""Runs on sparse data with stepsizes that are operators: the numbers of the dense run, without its memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.small_data import small_data
from stepsize_opt import (
    BernQ,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    optimal_method,
    optimal_stepsize,
    smoothness,
)
from stepsize_opt.problems import Federated, LeastSquares, LogisticRegression, find_infimum
from stepsize_validation import Run, check_rate, run
from stepsize_validation.data import federated_logistic, logistic_regression, split

DATA = small_data()
NODE = logistic_regression(DATA, 0.1)
L = smoothness.of(NODE)
# What takes the eigenvalues of H is not computed for an operator.
NOT_RECORDED = ("descent_rate", "smallest_eigenvalue", "condition")


def assert_same(large: Run, dense: Run) -> None:
    for name in vars(dense):
        if name in NOT_RECORDED:
            assert np.isnan(getattr(large, name))
        elif name == "algorithm":
            assert large.algorithm == dense.algorithm
        elif getattr(dense, name) is not None:
            np.testing.assert_allclose(getattr(large, name), getattr(dense, name), rtol=1e-7, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("sketch", [RandK(NODE.d, 1), RandK(NODE.d, 2), BernQ(0.5, NODE.d)], ids=str)
@pytest.mark.parametrize("call", [{"algorithm": "det-CGD2"}, {"structure": "diagonal"}, {"goal": "descent"}], ids=str)
def test_a_run_with_an_operator_has_the_numbers_of_the_dense_run(sketch: Sketch, call: dict[str, Any]) -> None:
    result = optimal_stepsize(L, sketch, **call)
    how: dict[str, Any] = {"iterations": 40, "seeds": 3}
    dense = run(NODE, result.D.todense(), sketch, algorithm=result.algorithm, **how)
    assert_same(run(NODE, result, **how), dense)


@pytest.mark.parametrize("client_seeds", ["independent", "shared"])
def test_clients_with_a_vector_have_the_numbers_of_the_dense_run(client_seeds: str) -> None:
    f = federated_logistic(split(DATA, 3, rng=np.random.default_rng(0)), 0.1)
    sketch = RandK(f.d, 2)
    mean = smoothness.of(f)
    np.testing.assert_allclose(mean.todense(), f.smoothness(), rtol=1e-12, atol=1e-14)
    x = optimal_stepsize(mean, sketch, structure="diagonal").D.diagonal()
    how: dict[str, Any] = {"client_seeds": client_seeds, "iterations": 30, "seeds": 2}
    assert_same(run(f, x, sketch, **how), run(f, np.diag(x), sketch, **how))


def test_the_subspace_method_that_is_not_formed_runs_and_holds() -> None:
    method = optimal_method(smoothness.logistic(NODE.A, NODE.reg, rank=4), NODE.d / 2)
    how: dict[str, Any] = {"algorithm": method, "iterations": 300, "start": np.ones(NODE.d)}
    record = run(NODE, method.D, method.sketch, **how)
    assert check_rate(record, find_infimum(NODE), rate=method.rate).verdict == "holds"
    # H = D: the norms in both are the same.
    np.testing.assert_allclose(record.metric_norms, record.squared_norms * record.rate, rtol=1e-9)
    # A step is decode(encode(∇f)) for the same draws.
    draws = method.sketch.sample_diagonal(np.random.default_rng(0), 1)[0]
    g, J = NODE.gradient(np.ones((1, NODE.d)))[0], np.flatnonzero(draws)
    C = method.factors(method.D, NODE.smoothness).left
    np.testing.assert_allclose(C @ (draws * (C.T @ g)), method.decode(method.encode(g, J), J), rtol=1e-10)
    with pytest.raises(ValueError, match=r"use method\.D"):
        run(NODE, method.D.todense(), method.sketch, algorithm=method)


def test_missing_records_are_explained() -> None:
    sketch = RandK(NODE.d, 2)
    full = optimal_stepsize(L, sketch, algorithm="det-CGD2").D
    record = run(NODE, 0.1 * full.diagonal(), sketch, iterations=5)
    with pytest.raises(ValueError, match="eigenvalues of H"):
        record.metric_means()
    with pytest.raises(ValueError, match="eigenvalues of H"):
        check_rate(record, goal="descent")
    # det-CGD1 with a full D: E[SDLDS] takes the diagonal of DLD, which is not formed.
    record = run(NODE, full, sketch, iterations=5, on_divergence="stop")
    assert np.isnan(record.metric_norms).all()
    assert np.isfinite(record.squared_norms).all()


def sparse_data(m: int, d: int, per_row: int) -> tuple[Any, Any]:
    """Rows like those of rcv1: few words each, frequent ones first, of length one."""
    rng = np.random.default_rng(0)
    columns = (d * rng.random((m, per_row)) ** 3).astype(np.int64)
    X: Any = sparse.csr_array(
        (rng.exponential(size=m * per_row), (np.repeat(np.arange(m), per_row), columns.ravel())), shape=(m, d)
    )
    X.sum_duplicates()
    lengths = np.sqrt(X.multiply(X).sum(axis=1))
    labels = np.where(X @ rng.standard_normal(d) < 0.0, -1.0, 1.0)
    return sparse.csr_array(sparse.diags_array(1.0 / lengths) @ X), labels


@pytest.mark.slow
def test_fifty_thousand_features_in_little_memory() -> None:
    m, d = 2000, 50_000
    X, b = sparse_data(m, d, 20)
    tracemalloc.start()
    try:
        clients = Federated(tuple(LogisticRegression(X[rows], b[rows], 1e-3) for rows in np.split(np.arange(m), 4)))
        sketch = RandK(d, d // 20)
        result = optimal_stepsize(smoothness.of(clients), sketch, structure="diagonal")
        how: dict[str, Any] = {"iterations": 20, "seeds": 2, "client_seeds": "shared"}
        record = run(clients, result.D, sketch, **how)
        ridge = LeastSquares(X, b, 1e-2)
        method = optimal_method(smoothness.least_squares(X, 1e-2, rank=16), d // 20)
        assert isinstance(smoothness.of(ridge), LowRankPlusDiagonal)
        other = run(ridge, method.D, method.sketch, algorithm=method, iterations=20, seeds=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.status == "optimal"
    assert peak < 0.02 * 8 * d * d  # a d×d matrix takes 20 GB
    for one in (record, other):
        assert one.values[:, -1].max() < one.start_value
    assert record.sent[0, 0] == 4 * (d // 20)
    # The same draws for every client: the guarantee of one node.
    assert check_rate(record, rate=result.rate).verdict != "violated"
