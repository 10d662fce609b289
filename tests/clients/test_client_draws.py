"""The best independent draws of n clients: their moments, their λ_D, what is proved, and that no sketch does better."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import random_clients, root, variance
from shared.exact import Rational, combine, definiteness, is_positive_semidefinite, product, rational
from shared.strategies import seeds, sketches
from stepsize_opt import RandK, best_client_draws, optimal_distributed_stepsize
from stepsize_opt.clients.draws import ClientDraws, _design, _root, _smallest
from stepsize_opt.proofs import Pair, dominating_factor

pytestmark = pytest.mark.slow

TARGETS: dict[str, Any] = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": 0.5}
GUARANTEES = pytest.mark.parametrize("guarantee", ["condition", "descent"])


def effective_dimension(D: Rational, L: Rational, client: Rational, c: Fraction) -> Fraction:
    """tr(ALᵢ(ALᵢ + cI)⁻¹) for A = DLD, exactly: d − c tr((ALᵢ + cI)⁻¹), by Gauss and Jordan."""
    d = len(D)
    M = product(product(product(D, L), D), client)
    rows = [
        [M[i][j] + (c if i == j else 0) for j in range(d)] + [Fraction(int(i == j)) for j in range(d)] for i in range(d)
    ]
    for i in range(d):
        pivot = next(r for r in range(i, d) if rows[r][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(d):
            if r != i and rows[r][i] != 0:
                rows[r] = [x - rows[r][i] * y for x, y in zip(rows[r], rows[i], strict=True)]
    return d - c * sum(rows[i][d + i] for i in range(d))


def judge(result: ClientDraws, clients: list[Any], k: float) -> None:
    """Every statement about D, λ_D, the rate and K in exact arithmetic."""
    d, n, t = len(result.D), len(clients), result.targets
    D, L = rational(np.array(result.D)), combine(*[(Fraction(1, n), rational(M)) for M in clients])
    quadratic = product(product(D, L), D)
    H = combine((2, D), (-1, quadratic)) if result.guarantee == "descent" else D
    if result.guarantee == "condition":
        assert is_positive_semidefinite(combine((1, D), (-1, quadratic)))
    rate, lam = Fraction(result.rate), Fraction(result.lambda_D)
    assert 0 < rate**d <= definiteness(H).det
    if k < d:
        for M in clients:
            assert effective_dimension(D, L, rational(M), lam) <= Fraction(k)
    assert lam * result.K <= n
    assert 4 * lam * Fraction(t.delta_inf) <= n * Fraction(t.epsilon2) * rate
    assert result.K * rate * Fraction(t.epsilon2) >= 12 * Fraction(t.initial_gap)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["condition", "descent"]), st.floats(0.3, 3.0), st.floats(-4.0, 2.0), seeds)
def test_what_is_claimed_is_exact(guarantee: Any, k: float, power: float, seed: int) -> None:
    clients = random_clients(3, 3, seed)
    goal = {**TARGETS, "epsilon2": 10.0**power}
    judge(best_client_draws(clients, k, guarantee=guarantee, **goal), clients, k)


@GUARANTEES
@pytest.mark.parametrize("k", [1, 2.5, 4])
def test_the_draws_have_the_moments_that_are_claimed(guarantee: Any, k: float) -> None:
    clients = random_clients(5, 3, 1)
    L = np.mean(clients, axis=0)
    result = best_client_draws(clients, k, guarantee=guarantee, **TARGETS)
    for client, draw in zip(clients, result.draws, strict=True):
        assert draw.law.expected_nonzeros == pytest.approx(k, rel=1e-9)
        np.testing.assert_allclose(draw.receive.T @ L @ draw.receive, np.eye(5), atol=1e-10)
        np.testing.assert_allclose(draw.receive @ draw.send.T, result.D, atol=1e-10)
        # E[GᵀLG] with the second moments of the law, not with the formula of the proof.
        T = draw.send @ draw.law.second_moment(draw.receive.T @ L @ draw.receive) @ draw.send.T
        V = root(client) @ (T - result.D @ L @ result.D) @ root(client)
        assert np.linalg.eigvalsh(V)[-1] <= result.lambda_D * (1.0 + 1e-6)
        rng, g = np.random.default_rng(0), np.arange(1.0, 6.0)
        steps = np.array([draw.step(g, rng) for _ in range(4000)])
        error = steps.std(axis=0) / np.sqrt(len(steps))
        assert np.all(np.abs(steps.mean(axis=0) - result.D @ g) <= 5.0 * error + 1e-12)
    assert result.communication == pytest.approx(3 * k * result.K)


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(["det-CGD1", "det-CGD2"]), seeds)
def test_no_sketch_has_a_smaller_variance_for_the_same_stepsize(data: st.DataObject, algorithm: str, seed: int) -> None:
    """The theorem: k numbers are those of the sketch, its expected rank."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 5))
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    clients = random_clients(d, 2, seed)
    L = np.mean(clients, axis=0)
    A = rng.standard_normal((d, d))
    D = A @ A.T + 0.05 * np.eye(d)
    k = sketch.expected_nonzeros
    exact = Pair.exact(D)
    found = []
    for M in clients:
        H = dominating_factor(M)
        assert H is not None
        found.append(_smallest(exact @ (Pair.exact(L) @ exact), H, k))
    best = max(c for c in found if c is not None)
    assert best <= variance(D, L, clients, [sketch] * 2, algorithm) * (1.0 + 1e-7) + 1e-10


@GUARANTEES
def test_fewer_rounds_than_the_best_full_stepsize_of_both_methods(guarantee: Any) -> None:
    clients = random_clients(5, 3, 0)
    for k in (1, 2):
        found = best_client_draws(clients, k, guarantee=guarantee, **TARGETS).K
        for algorithm in ("det-CGD1", "det-CGD2"):
            options: dict[str, Any] = {"algorithm": algorithm, "guarantee": guarantee}
            assert found < optimal_distributed_stepsize(clients, RandK(5, k), **options, **TARGETS).K


def test_all_numbers_leave_no_variance() -> None:
    clients = random_clients(4, 3, 2)
    result = best_client_draws(clients, 4, **TARGETS)
    assert result.lambda_D == 0.0
    np.testing.assert_allclose(result.D, np.linalg.inv(np.mean(clients, axis=0)), rtol=1e-8)
    assert result.K == pytest.approx(optimal_distributed_stepsize(clients, RandK(4, 4), **TARGETS).K, abs=1)


def test_singular_clients_and_budgets_of_their_own() -> None:
    rng = np.random.default_rng(3)
    rows = [rng.standard_normal((2, 4)) for _ in range(3)]
    clients = [A.T @ A for A in rows]
    result = best_client_draws(clients, [1, 1, 2], **TARGETS)
    judge_budgets = (1.0, 1.0, 2.0)
    assert result.numbers == judge_budgets
    for client, draw, k in zip(clients, result.draws, judge_budgets, strict=True):
        assert draw.law.expected_nonzeros <= k * (1.0 + 1e-9)
        # On the range of Lᵢ, where ∇fᵢ lies, E[G] = D.
        np.testing.assert_allclose(draw.receive @ draw.send.T @ client, result.D @ client, atol=1e-9)


def test_the_design_and_the_root() -> None:
    matrices = random_clients(4, 6, 5)
    A = _design(matrices)
    inner = [float(np.sum(M * A)) for M in matrices]
    assert max(inner) == pytest.approx(1.0)
    # Weak duality: log det A ≤ −log det Σy M − d + Σy for every y ≥ 0, here those that make A stationary.
    y = np.linalg.lstsq(np.array([M.ravel() for M in matrices]).T, np.linalg.inv(A).ravel(), rcond=None)[0]
    y = np.maximum(y, 0.0)
    dual = -np.linalg.slogdet(np.tensordot(y, np.array(matrices), axes=1))[1] - 4.0 + y.sum()
    assert np.linalg.slogdet(A)[1] == pytest.approx(dual, abs=4e-3)
    alpha = np.array([0.1, 1.0, 10.0])
    for k in (0.2, 1.0, 2.9):
        assert np.sum(alpha / (alpha + _root(alpha, k))) == pytest.approx(k)
    assert _root(alpha, 3.0) == 0.0


def test_errors_name_the_argument() -> None:
    clients = random_clients(3, 2, 0)
    with pytest.raises(ValueError, match="k must be one number or one for each of the 2 clients, got 3"):
        best_client_draws(clients, [1, 1, 1], **TARGETS)
    with pytest.raises(ValueError, match="k must be at most d=3, got 4"):
        best_client_draws(clients, [1, 4], **TARGETS)
    with pytest.raises(ValueError, match="guarantee must be one of"):
        best_client_draws(clients, 1, guarantee="rate", **TARGETS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"smoothness\[1\] must be positive semidefinite"):
        best_client_draws([clients[0], -np.eye(3)], 1, mean_smoothness=np.eye(3), **TARGETS)
    assert "computed, not proved" in repr(best_client_draws(clients, 1, **TARGETS))


@pytest.mark.parametrize("seed", range(12))
def test_clients_that_have_not_seen_a_feature(seed: int) -> None:
    """Singular matrices, some of rank k: all of one client fits into its numbers, and c is next to 0."""
    rng, d = np.random.default_rng(seed), 5
    clients = []
    for _ in range(3):
        A = rng.integers(0, 2, (6, d)).astype(float)
        A[:, rng.integers(d)] = 0.0
        clients.append(A.T @ A / 24.0 + (0.01 * np.eye(d) if not clients else 0.0))
    for k in (1, 2, 4):
        found = best_client_draws(clients, k, epsilon2=0.1, initial_gap=1.0, delta_inf=0.5)
        assert found.K >= 1 and np.linalg.eigvalsh(found.D)[0] > 0.0
    assert (
        best_client_draws([np.diag([1.0, 0.0]), np.diag([0.0, 1.0])], 1, epsilon2=0.1, initial_gap=1.0, delta_inf=0.5).K
        > 1
    )


def test_draws_are_those_of_d_in_any_unit_and_within_the_budget() -> None:
    targets: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.5}
    for unit in (1.0, 1e-14, 1e-20):
        found = best_client_draws([np.diag([1.0, unit]), np.diag([2.0, 3.0 * unit])], 1, **targets)
        for draw in found.draws:
            np.testing.assert_allclose(np.diagonal(draw.receive @ draw.send.T), np.diagonal(found.D), rtol=1e-9)
    clients = [np.diag([1.0, 2.0]), np.zeros((2, 2))]
    found = best_client_draws(clients, 0.5, mean_smoothness=np.diag([1.0, 2.0]), **targets)
    assert all(draw.law.expected_nonzeros <= 0.5 for draw in found.draws)
