"""Diagonal stepsizes: the primal–dual path of d unknowns, and its thin forms, balancing and low rank."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from stepsize_opt import RandK
from stepsize_solvers.interior.diagonal import solve_diagonal
from stepsize_solvers.large.balancing import solve_balanced
from stepsize_solvers.large.low_rank import solve_low_rank
from stepsize_solvers.numerics.progress import Limits
from stepsize_solvers.programs import Matrix, Status, Vector
from stepsize_validation.data import with_spectrum

LIMITS = Limits(1e-7, 200)


def rotated(spectrum: Matrix, seed: int) -> Matrix:
    """A symmetric matrix with the given eigenvalues and random eigenvectors."""
    return with_spectrum(np.random.default_rng(seed), spectrum)


def assert_feasible(M: Matrix, x: Vector, slack: float) -> None:
    assert np.linalg.eigvalsh(M * np.sqrt(np.multiply.outer(x, x)))[-1] <= 1.0 + slack


def check_the_interval(M: Matrix, tol: float) -> int:
    """Solve, check the answer and its dual with numpy alone, and return the number of steps."""
    d = len(M)
    status, progress = solve_diagonal(M, Limits(tol, 200))
    assert status is Status.OPTIMAL and progress.best is not None
    best, bounds = progress.best.point, progress.best.bounds
    x = bounds.scale * best.x
    assert_feasible(M, x, 1e-9)
    assert np.linalg.eigvalsh(best.Y)[0] >= -1e-12
    image = np.diagonal(best.Y @ best.N)
    bound = d * np.log(image.sum() / d) - np.log(2.0 * image - np.diagonal(best.Y)).sum() + np.log(best.x).sum()
    assert bounds.upper == pytest.approx(bound, abs=1e-10 * d)
    assert bounds.upper - np.log(x).sum() <= tol * d
    return progress.steps


@pytest.mark.parametrize("d", [40, 80, 160])
@pytest.mark.parametrize("decay", [0.5, 1.0, 1.5])
def test_steps_do_not_grow_with_the_directions_at_the_boundary(d: int, decay: float) -> None:
    """Newton's method for the barrier alone takes 21 to 63 steps here, the more the larger d is."""
    L = rotated(np.maximum(np.arange(1.0, d + 1.0) ** -decay, 1e-3), seed=0)
    assert check_the_interval(np.asarray(RandK(d, d // 20).map.hadamard_matrix) * L, 1e-6) <= 14


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(2, 25),
    condition=st.floats(0.0, 15.0),
    rarest=st.floats(0.0, 12.0),
    spread=st.floats(0.0, 5.0),
)
def test_ill_conditioned_problems(seed: int, d: int, condition: float, rarest: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    M = rotated(10.0 ** -rng.uniform(0.0, condition, d), seed)
    M[np.diag_indices(d)] *= 10.0 ** rng.uniform(0.0, rarest, d)
    scale = 10.0 ** rng.uniform(-spread, spread, d)
    assert check_the_interval(M * np.outer(scale, scale), 1e-9) <= 30


def test_a_start_near_the_answer_saves_steps() -> None:
    M = rotated(np.logspace(-2.0, 0.0, 30), 2)
    _, cold = solve_diagonal(M, LIMITS)
    assert cold.best is not None
    assert solve_diagonal(1.001 * M, LIMITS, cold.best.point.x)[1].steps < cold.steps


def test_the_steps_end_where_rounding_does() -> None:
    """A gap below rounding is not reached; the method notices after a few steps, and no limit of a user is named."""
    status, progress = solve_diagonal(rotated(np.logspace(-3.0, 0.0, 20), 3), Limits(1e-18, 200))
    assert status is Status.INACCURATE and progress.steps <= 60
    assert progress.best is not None and progress.best.bounds.width <= 1e-10


@pytest.mark.parametrize("seed", range(440, 460))
def test_a_well_conditioned_matrix_without_compression(seed: int) -> None:
    """The predictor asks for an entry of x that is many times as large (seed 449)."""
    A = np.random.default_rng(seed).standard_normal((4, 4))
    assert solve_diagonal(A @ A.T + 0.01 * np.eye(4), LIMITS)[0] is Status.OPTIMAL


# ---------------------------------------------------------------- thin multipliers


def test_balancing_needs_products_with_a_sparse_matrix_only() -> None:
    rng, d = np.random.default_rng(1), 20_000
    rows = np.repeat(np.arange(d), 5)
    X = sparse.csr_array((rng.random(5 * d), (rows, rng.integers(0, d, 5 * d))), shape=(d, d))
    M = sparse.csr_array(X.T @ X + sparse.diags_array(np.full(d, 1e-3)))
    status, progress = solve_balanced(lambda y: np.asarray(M @ y), M.diagonal(), LIMITS)
    assert status is Status.OPTIMAL
    assert progress.steps < 30 and progress.work.cg_iterations < 200


def test_many_rows_are_known_by_some_of_them() -> None:
    rng = np.random.default_rng(5)
    U = rng.standard_normal((40_000, 4)) * np.logspace(0.0, -1.0, 4)
    status, progress = solve_low_rank(rng.uniform(0.1, 2.0, len(U)), U, LIMITS)
    assert status is Status.OPTIMAL and progress.steps < 120
