"""Diagonal stepsizes with a thin multiplier: balancing, low rank, and how the two forms are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import Matrix, Status, Vector
from stepsize_solvers.single.diagonal import solve_diagonal
from stepsize_solvers.thin import find_low_rank, solve_balanced, solve_low_rank

LIMITS = Limits(1e-7, 200)


def barrier_value(M: Matrix) -> float:
    """The optimum by the central path in x, from below, within 1e-7 d."""
    status, progress = solve_diagonal(M, LIMITS)
    assert status is Status.OPTIMAL
    return progress.lower


def thin_bound(M: Matrix, Q: Matrix) -> float:
    """d log(tr(QᵀMQ)/d) − Σ log ‖(MQ)_j‖², written out."""
    image = M @ Q
    return len(M) * math.log(float(np.trace(Q.T @ image)) / len(M)) - float(np.log((image**2).sum(axis=1)).sum())


def low_rank(seed: int, d: int, r: int, decay: float, tiny: float = 1.0) -> tuple[Vector, Matrix]:
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((d, r)) * np.logspace(0.0, -decay, r)
    return tiny * rng.uniform(0.1, 2.0, d), V


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), d=st.integers(2, 30), spread=st.floats(0.0, 3.0))
def test_balancing_is_the_optimum_of_the_central_path(seed: int, d: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    A = rng.random((d, d)) * (rng.random((d, d)) < 0.5)
    scale = np.exp(spread * rng.standard_normal(d))
    M = (A @ A.T + 0.01 * np.eye(d)) * np.multiply.outer(scale, scale)
    status, progress = solve_balanced(lambda y: M @ y, M.diagonal(), LIMITS)
    assert status is Status.OPTIMAL and progress.best is not None
    x = progress.best.point.x
    N = M * np.sqrt(np.multiply.outer(x, x))
    assert np.linalg.eigvalsh(N)[-1] <= 1.0 + 1e-12
    assert abs(np.log(x).sum() - barrier_value(M)) <= 2e-7 * d
    assert abs(thin_bound(M, progress.best.point.Q) - np.log(x).sum()) <= 1e-9 * d


def test_balancing_needs_products_with_a_sparse_matrix_only() -> None:
    rng = np.random.default_rng(1)
    d = 20_000
    rows = np.repeat(np.arange(d), 5)
    X = sparse.csr_array((rng.random(5 * d), (rows, rng.integers(0, d, 5 * d))), shape=(d, d))
    M = sparse.csr_array(X.T @ X + sparse.diags_array(np.full(d, 1e-3)))
    status, progress = solve_balanced(lambda y: np.asarray(M @ y), M.diagonal(), LIMITS)
    assert status is Status.OPTIMAL
    assert progress.steps < 30 and progress.counters.products < 200


@pytest.mark.parametrize(
    ("d", "r", "decay", "tiny"), [(40, 1, 0.0, 1.0), (60, 5, 2.0, 1.0), (30, 30, 1.0, 1.0), (50, 8, 0.5, 1e-6)]
)
def test_low_rank_is_the_optimum_of_the_central_path(d: int, r: int, decay: float, tiny: float) -> None:
    a, V = low_rank(7, d, r, decay, tiny)
    M = np.diag(a) + V @ V.T
    status, progress = solve_low_rank(a, V, LIMITS)
    assert status is Status.OPTIMAL and progress.best is not None
    point = progress.best.point
    assert np.linalg.eigvalsh(M * np.sqrt(np.multiply.outer(point.x, point.x)))[-1] <= 1.0 + 1e-9
    assert abs(np.log(point.x).sum() - barrier_value(M)) <= 3e-7 * d


def test_low_rank_with_coordinates_that_the_factor_does_not_touch() -> None:
    a, V = low_rank(3, 40, 4, 1.0)
    V[:5] = 0.0
    status, progress = solve_low_rank(a, V, LIMITS)
    assert status is Status.OPTIMAL and progress.best is not None
    assert progress.best.point.x[:5] == pytest.approx(1.0 / a[:5])


def test_many_rows_are_known_by_some_of_them() -> None:
    a, V = low_rank(5, 40_000, 4, 1.0)
    status, progress = solve_low_rank(a, V, LIMITS)
    assert status is Status.OPTIMAL
    assert progress.steps < 120


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), d=st.integers(16, 80), decay=st.floats(0.0, 2.0))
def test_diagonal_plus_low_rank_is_found(seed: int, d: int, decay: float) -> None:
    a, V = low_rank(seed, d, d // 8, decay)
    M = np.diag(a) + V @ V.T
    found = find_low_rank(M)
    assert found is not None
    assert found[1].shape == V.shape
    assert np.diag(found[0]) + found[1] @ found[1].T == pytest.approx(M, abs=1e-8 * np.abs(M).max())


def test_other_matrices_are_not_taken_for_low_rank() -> None:
    A = np.random.default_rng(0).standard_normal((60, 60))
    assert find_low_rank(A @ A.T + np.eye(60)) is None
    assert find_low_rank(2.0 * np.eye(4) + 1.0) is None  # too small for a rank of d/8
