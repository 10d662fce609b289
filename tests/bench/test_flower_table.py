"""The baselines of the table on the Flower page: DASHA and MARINA without compression are gradient descent."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from benchmarks import flower
from stepsize_opt.problems import Federated


@pytest.fixture
def f() -> Federated:
    rng = np.random.default_rng(0)
    return Federated(tuple(flower.SquaredError(rng.standard_normal((30, 6))) for _ in range(3)))


def test_the_loss_has_its_gradient_and_its_smoothness(f: Federated) -> None:
    rng = np.random.default_rng(1)
    X, step = rng.standard_normal((4, 6)), 1e-6
    for j, e in enumerate(step * np.eye(6)):
        np.testing.assert_allclose((f.value(X + e) - f.value(X - e)) / (2 * step), f.gradient(X)[:, j], atol=1e-9)
    Y = X + rng.standard_normal((4, 6))
    above = (
        f.value(X) + np.sum(f.gradient(X) * (Y - X), axis=1) + 0.5 * np.sum((Y - X) @ f.smoothness() * (Y - X), axis=1)
    )
    assert np.all(f.value(Y) <= above)
    s = np.linspace(0.0, 1.0, 100_001)
    assert np.abs(2 * s * (1 - s) ** 2 * (3 * s - 1)).max() < flower.CURVATURE


@pytest.mark.parametrize("method", [flower.dasha, flower.marina])
def test_without_compression_it_is_gradient_descent(
    method: object, f: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower, "K", 6)
    gammas = np.array([0.1, 1.0])
    X = np.zeros((2, 6))
    for found, up, down in islice(method(f.client_gradients, 6, gammas, np.random.default_rng(0)), 9):  # type: ignore[operator]
        X = X - gammas[:, None] * f.gradient(X)
        np.testing.assert_allclose(found, X, rtol=1e-12)
        assert np.all(np.asarray(up) == 24) and down == 24


@pytest.mark.parametrize("method", [flower.dasha, flower.marina])
def test_compressed_runs_converge(method: object, f: Federated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "K", 2)
    rounds = method(f.client_gradients, 6, np.full(1, 0.5), np.random.default_rng(0))  # type: ignore[operator]
    norms = [np.linalg.norm(f.gradient(X)) for X, _, _ in islice(rounds, 2000)]
    assert norms[-1] < 1e-3 * norms[0]
