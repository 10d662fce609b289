"""Diagonal stepsizes: the primal–dual path of d unknowns."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import RandK, optimal_stepsize
from stepsize_solvers.numerics import Limits
from stepsize_solvers.programs import Matrix, Status
from stepsize_solvers.single.diagonal import DiagonalPoint, _Newton, solve_diagonal
from stepsize_validation.data import DATA_VARIABLE

LIMITS = Limits(1e-6, 200)
NETWORK = Path(os.environ.get(DATA_VARIABLE, "")) / "network_1210.npz"


def rotated(spectrum: Matrix, seed: int) -> Matrix:
    """A symmetric matrix with the given eigenvalues and random eigenvectors."""
    d = len(spectrum)
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    L = (Q * spectrum) @ Q.T
    return np.asarray(0.5 * (L + L.T))


def check_the_interval(M: Matrix, tol: float) -> int:
    """Solve, check the answer and its dual with numpy alone, and return the number of steps."""
    d = len(M)
    status, progress = solve_diagonal(M, Limits(tol, 200))
    assert status is Status.OPTIMAL and progress.best is not None
    best, bounds = progress.best.point, progress.best.bounds
    x = bounds.scale * best.x
    root = np.sqrt(x)
    assert np.linalg.eigvalsh(M * np.outer(root, root))[-1] <= 1.0 + 1e-9
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


def test_a_step_solves_the_linearised_equations() -> None:
    M = rotated(np.logspace(-2.0, 0.0, 8), 1)
    start = DiagonalPoint.central(M, 0.1 / np.diagonal(M))
    assert start is not None
    Y = start.Y * np.outer(*(np.linspace(0.9, 1.1, 8),) * 2)
    point = DiagonalPoint(start.x, start.N, start.K, Y)
    newton = _Newton.of(point)
    assert newton is not None
    nu = 0.3 * point.mu
    step = newton.step(nu)
    assert np.diagonal(Y) * step.h + np.diagonal(Y + step.dY) == pytest.approx(np.ones(8))
    slack = np.linalg.inv(point.N) - np.eye(8)
    change = np.linalg.solve(slack, nu * np.eye(8) - slack @ Y + step.h[:, None] * Y)
    assert step.dY == pytest.approx(0.5 * (change + change.T))


def test_a_start_near_the_answer_saves_steps() -> None:
    M = rotated(np.logspace(-2.0, 0.0, 30), 2)
    _, cold = solve_diagonal(M, LIMITS)
    assert cold.best is not None
    _, warm = solve_diagonal(1.001 * M, LIMITS, cold.best.point.x)
    assert warm.steps < cold.steps


def test_the_steps_end_where_rounding_does() -> None:
    """A gap below rounding is not reached; the method notices after a few steps, and no limit of a user is named."""
    status, progress = solve_diagonal(rotated(np.logspace(-3.0, 0.0, 20), 3), Limits(1e-18, 200))
    assert status is Status.INACCURATE
    assert progress.steps <= 60
    assert progress.best is not None and progress.best.bounds.width <= 1e-10


@pytest.mark.skipif(not NETWORK.is_file(), reason=f"{DATA_VARIABLE} names no folder with network_1210.npz")
def test_the_smoothness_of_a_network() -> None:
    d = 300
    lower = np.load(NETWORK)["lower"]
    L = np.zeros((d, d))
    L[np.tril_indices(d)] = lower[: d * (d + 1) // 2]
    result = optimal_stepsize(L + np.tril(L, -1).T, RandK(d, 15), structure="diagonal")
    assert result.status == "optimal"
    assert result.solver_stats.num_iters is not None and result.solver_stats.num_iters <= 16
