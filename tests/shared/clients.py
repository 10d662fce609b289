"""Random clients, and the distributed conditions checked outcome by outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shared.judges import Clients, judge_distributed
from stepsize_opt import DistributedResult, Sketch, optimal_distributed_stepsize
from stepsize_solvers.programs.maps import Matrix


def random_clients(d: int, n: int, seed: int, reg: float = 0.05) -> list[Matrix]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        A = rng.standard_normal((max(1, d - 1), d)) * rng.uniform(0.3, 2.0, size=d)
        out.append(A.T @ A / (4.0 * len(A)) + reg * np.eye(d))
    return out


def judged(clients: Sequence[Matrix], sketch: Sketch | Sequence[Sketch], **options: Any) -> DistributedResult:
    """A result whose every statement holds in exact arithmetic."""
    laws = [sketch] * len(clients) if isinstance(sketch, Sketch) else sketch
    options = {"epsilon2": 1e-2, "initial_gap": 1.0, "delta_inf": 0.1, **options}
    problem = Clients(tuple(clients), tuple(laws), **options)
    result = optimal_distributed_stepsize(**problem.arguments)
    judge_distributed(problem, result)
    return result


def root(M: Matrix) -> Matrix:
    w, V = np.linalg.eigh(M)
    return (V * np.sqrt(np.maximum(w, 0.0))) @ V.T


def variance(D: Matrix, L: Matrix, clients: Sequence[Matrix], laws: Sequence[Sketch], algorithm: str) -> float:
    """λ_D with the expectation taken outcome by outcome."""
    largest = 0.0
    for Li, sketch in zip(clients, laws, strict=True):
        weights, outcomes = sketch.support()
        V = np.zeros_like(D)
        for w, s in zip(weights, outcomes, strict=True):
            C = (np.diag(s) if s.ndim == 1 else s) - np.eye(len(D))
            V += w * (C @ D @ L @ D @ C if algorithm == "det-CGD1" else D @ C @ L @ C @ D)
        largest = max(largest, float(np.linalg.eigvalsh(root(Li) @ V @ root(Li))[-1]))
    return largest


def assert_conditions(
    result: DistributedResult,
    clients: Sequence[Matrix],
    sketch: Sketch | Sequence[Sketch],
    L: Matrix | None = None,
) -> None:
    """All of (12) for the (D, K) returned; 1e-11 is the rounding of this plain evaluation."""
    laws = [sketch] * len(clients) if isinstance(sketch, Sketch) else list(sketch)
    L = np.mean(clients, axis=0) if L is None else L
    t, D, n = result.targets, result.D, len(clients)
    assert np.linalg.eigvalsh(root(L) @ D @ root(L))[-1] <= 1.0 + 1e-11
    tau = math.exp(np.linalg.slogdet(D)[1] / len(D))
    lam = variance(D, L, clients, laws, result.algorithm)
    assert lam <= result.lambda_D * (1.0 + 1e-11)
    assert lam <= n / result.K * (1.0 + 1e-11)
    if t.delta_inf > 0.0:
        assert lam <= n * t.epsilon2 * tau / (4.0 * t.delta_inf) * (1.0 + 1e-11)
    assert result.K >= 12.0 * t.initial_gap / (tau * t.epsilon2) * (1.0 - 1e-11)
    assert result.certificate.feasible
    assert tau == pytest.approx(result.rate, rel=1e-10)
