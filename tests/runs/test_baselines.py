"""The baselines against plain loops for one run, and against what is known of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest

from shared.small_data import correlated_data, small_data
from stepsize_opt.problems import Federated, Quadratic
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import federated_logistic, logistic_regression, random_quadratic, split
from stepsize_validation.experiments import baselines

ROUNDS = 12
F = federated_logistic(split(small_data(m=40, d=5), 4, np.random.default_rng(0), "label"), 0.1, "ridge")
START = np.linspace(-1.0, 1.0, F.d)
STEPSIZES = np.array([0.1, 0.5, 2.0])


def after(points: Iterator[Matrix], rounds: int = ROUNDS) -> Matrix:
    return list(islice(points, rounds))[-1]


def largest(v: Vector, k: int) -> Vector:
    """Top-k by sorting."""
    out = np.zeros_like(v)
    kept = sorted(range(len(v)), key=lambda j: -abs(v[j]))[:k]
    out[kept] = v[kept]
    return out


def plain_ef21(gamma: float, k: int) -> Vector:
    x, remembered = START.copy(), [np.zeros(F.d) for _ in F.clients]
    for _ in range(ROUNDS):
        for i, client in enumerate(F.clients):
            remembered[i] += largest(client.gradient(x[None])[0] - remembered[i], k)
        x -= gamma * sum(remembered) / F.n
    return x


@pytest.mark.parametrize(("method", "plain"), [(baselines.ef21, plain_ef21)])
def test_error_feedback_equals_a_loop_over_clients(
    method: Callable[..., Iterator[Matrix]], plain: Callable[..., Vector]
) -> None:
    found = after(method(F.client_gradients, START, STEPSIZES, 2))
    np.testing.assert_allclose(found, [plain(gamma, 2) for gamma in STEPSIZES], rtol=1e-10)


def test_sending_everything_is_gradient_descent() -> None:
    dense, rng = after(baselines.gradient_descent(F.gradient, START, STEPSIZES)), np.random.default_rng(0)
    same = (
        baselines.ef21(F.client_gradients, START, STEPSIZES, F.d),
        baselines.power_sgd(F.gradient, START, STEPSIZES, min(baselines.power_sgd_shape(F.d)), rng),
    )
    for points in same:
        np.testing.assert_allclose(after(points), dense, rtol=1e-10)


def test_power_sgd_of_rank_one_equals_clients_that_average_their_factors() -> None:
    """The messages of each client, as in PyTorch's hook: means of M_i q and of M_iᵀp, an error that each keeps."""
    rows, columns = baselines.power_sgd_shape(F.d)
    assert (rows, columns) == (3, 2)
    q, x = np.random.default_rng(5).standard_normal((1, columns, 1))[0, :, 0], START.copy()
    errors = [np.zeros((rows, columns)) for _ in F.clients]
    for _ in range(ROUNDS):
        gradients = [np.append(client.gradient(x[None])[0], 0.0).reshape(rows, columns) for client in F.clients]
        wanted = [error + gradient for error, gradient in zip(errors, gradients, strict=True)]
        p = np.mean([M @ q for M in wanted], axis=0)
        p /= np.linalg.norm(p)
        q = np.mean([M.T @ p for M in wanted], axis=0)
        errors = [M - np.outer(p, q) for M in wanted]
        x -= 0.5 * np.outer(p, q).ravel()[: F.d]
    found = after(baselines.power_sgd(F.gradient, START, np.array([0.5]), 1, np.random.default_rng(5)))
    np.testing.assert_allclose(found[0], x, rtol=1e-10)


def test_nesterov_keeps_its_rate_on_a_quadratic_that_gradient_descent_does_not() -> None:
    f = random_quadratic(np.geomspace(1e-3, 1.0, 20), np.random.default_rng(2))
    x, kept = np.zeros(20), 1.0 - math.sqrt(1e-3)
    start = float(f.value(x[None])[0]) + 5e-4 * float(f.minimiser @ f.minimiser)
    fast = [f.value(X)[0] for X in islice(baselines.nesterov(f.gradient, x, np.ones(1), 1e-3), 300)]
    assert all(value <= start * kept ** (k + 1) for k, value in enumerate(fast))
    assert f.value(after(baselines.gradient_descent(f.gradient, x, np.ones(1)), 300))[0] > start * kept**300


def test_lbfgs_finds_the_minimum_and_lists_its_evaluations() -> None:
    f = Quadratic(np.diag([1.0, 10.0, 100.0]), np.ones(3))
    points = baselines.lbfgs(f.value, f.gradient, np.zeros(3), 40)
    assert len(points) <= 40 and f.value(points[-1])[0] < 1e-10
    assert f.value(points[0])[0] < f.value(np.zeros((1, 3)))[0]


def test_lbfgs_in_the_metric_of_a_quadratic_is_newtons_method() -> None:
    L = np.diag([1.0, 10.0, 100.0])
    f = Quadratic(L, np.ones(3))
    first = baselines.lbfgs(f.value, f.gradient, np.zeros(3), 10, L)
    assert min(f.value(point)[0] for point in first[:4]) < 1e-12


def test_giant_with_one_client_is_newtons_method_with_the_best_length() -> None:
    f = logistic_regression(correlated_data(m=63), 1e-2, "ridge")
    x = np.full(f.d, 0.1)
    H = (f.gradient(x + 1e-6 * np.eye(f.d)) - f.gradient(x - 1e-6 * np.eye(f.d))) / 2e-6
    np.testing.assert_allclose(baselines.ridge_hessian(f, x), H, rtol=1e-6, atol=1e-9)
    direction = np.linalg.solve(H, f.gradient(x[None])[0])
    best = min(f.value((x - length * direction)[None])[0] for length in baselines.GIANT_LENGTHS)
    assert f.value(after(baselines.giant(Federated((f,)), x), 1))[0] == pytest.approx(best)


def test_scaffold_with_one_local_step_is_gradient_descent_and_its_controls_keep_the_optimum() -> None:
    gammas = np.array([0.1, 0.02])
    one = after(baselines.scaffold(F.clients, START, gammas, 1), 5)
    np.testing.assert_allclose(one, after(baselines.gradient_descent(F.gradient, START, gammas), 5), rtol=1e-10)
    far = after(baselines.scaffold(F.clients, START, np.array([0.02]), 4), 2000)
    np.testing.assert_allclose(F.gradient(far), 0.0, atol=1e-8)


def test_floats_until_a_level() -> None:
    floats, excess = np.array([0.0, 3.0, 6.0, 9.0]), np.array([1.0, 0.2, 0.5, 0.1])
    assert [baselines.floats_until(floats, excess, level) for level in (1.0, 0.2, 0.1)] == [0.0, 3.0, 9.0]
    assert baselines.floats_until(floats, excess, 0.05) == math.inf


def test_a_trace_ends_when_one_stepsize_reaches_the_level_in_the_median_of_the_seeds() -> None:
    f, stepsizes = Quadratic(np.eye(1), np.zeros(1)), np.array([0.5, 0.25, 1e3])
    points = baselines.gradient_descent(f.gradient, np.ones(1), np.tile(stepsizes, 3))
    found = baselines.trace(points, f.value, np.ones(1), floats=2.0, budget=100.0, level=0.5 / 4**5, seeds=3)
    np.testing.assert_array_equal(found.floats, 2.0 * np.arange(6))
    np.testing.assert_allclose(found.excess[:, 0], 0.5 / 4.0 ** np.arange(6))
    assert found.best(0.5 / 4**5) == 0
    short = baselines.trace(iter(points), f.value, np.ones(1), floats=2.0, budget=7.0, level=0.0)
    assert short.floats[-1] == 6.0 and short.best(0.0) != 2


def test_a_stepsize_that_diverges_is_never_the_best() -> None:
    for points in (
        baselines.ef21(F.client_gradients, START, np.array([1e300, 0.5]), 2),
        baselines.power_sgd(F.gradient, START, np.array([1e300, 0.5]), 1, np.random.default_rng(0)),
    ):
        found = baselines.trace(points, F.value, START, floats=1.0, budget=30.0, level=0.0)
        assert found.best(1e-9) == 1
