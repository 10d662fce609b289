"""Diagonal stepsizes proved by products: what is proved must hold, whatever the multiplier."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import RandK, certify, optimal_stepsize
from stepsize_opt.proofs import LowRankCondition, NonnegativeCondition, ProvedDiagonal
from stepsize_solvers.large.balancing import solve_balanced
from stepsize_solvers.large.low_rank import solve_low_rank
from stepsize_solvers.numerics.progress import Limits
from stepsize_solvers.programs import Matrix, Vector

LIMITS = Limits(1e-7, 200)


@dataclass(frozen=True, eq=False)
class Case:
    """A condition, its dense M, the best x and its multiplier."""

    condition: NonnegativeCondition | LowRankCondition
    M: Matrix
    x: Vector
    multiplier: Matrix

    def prove(self, x: Vector, multiplier: Matrix) -> ProvedDiagonal | None:
        return self.condition.prove(x, multiplier)


def cases(seed: int, d: int) -> list[Case]:
    """Low rank, full rank, small a and untouched coordinates; sparse and graded M without negative entries."""
    rng = np.random.default_rng(seed)
    r, tiny, untouched = rng.choice([1, 3, d]), rng.choice([1.0, 1e-6]), rng.choice([0, 2])
    a = tiny * rng.uniform(0.1, 2.0, d)
    U = rng.standard_normal((d, r)) * np.logspace(0.0, -rng.uniform(0.0, 2.0), r)
    U[:untouched] = 0.0
    best = solve_low_rank(a, U, LIMITS)[1].best
    assert best is not None
    M, K = np.diag(a) + U @ U.T, best.point.K
    A, scale = rng.random((d, d)) * (rng.random((d, d)) < 0.5), np.exp(rng.uniform(0.0, 3.0) * rng.standard_normal(d))
    P = (A @ A.T + 0.01 * np.eye(d)) * np.multiply.outer(scale, scale)
    balanced = solve_balanced(lambda y: P @ y, P.diagonal(), LIMITS)[1].best
    assert balanced is not None
    x, y = balanced.point.x, balanced.point.y
    return [
        Case(LowRankCondition(a, a, 1.0, U, 1e-15), M, best.point.x, K),
        Case(NonnegativeCondition(P), P, x, y),
        Case(NonnegativeCondition(P, 1e-15), P, x, y),
    ]


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), d=st.integers(3, 30), wrong=st.floats(0.0, 1.0))
def test_bounds_hold_for_any_multiplier_and_are_tight_for_the_best(seed: int, d: int, wrong: float) -> None:
    rng = np.random.default_rng(seed)
    for case in cases(seed, d):
        proved = case.prove(case.x, case.multiplier)
        assert proved is not None and proved.certificate.is_optimal(1e-6)
        # The definition of feasible, and the descent metric, in plain floating point.
        assert np.linalg.eigvalsh(case.M * np.sqrt(np.multiply.outer(proved.x, proved.x)))[-1] <= 1.0 + 1e-12
        F = np.diag(proved.x) - proved.x[:, None] * case.M * proved.x
        metric = np.linalg.slogdet(np.diag(proved.x) + F)[1]
        assert proved.certificate.log_det <= proved.descent_log_det <= metric + 1e-9 * d
        other = case.prove(case.x, case.multiplier * (1.0 + wrong * rng.random(case.multiplier.shape)))
        assert other is None or other.certificate.upper_bound >= proved.certificate.log_det


@pytest.mark.parametrize("kind", range(3))
def test_what_is_infeasible_is_moved_inside_or_not_proved(kind: int) -> None:
    case = cases(11, 12)[kind]
    far = case.x.copy()
    far[0] *= 1.5
    for start in (far, 1.001 * case.x):
        proved = case.prove(start, case.multiplier)
        if proved is not None:
            assert np.linalg.eigvalsh(case.M * np.sqrt(np.multiply.outer(proved.x, proved.x)))[-1] <= 1.0
    assert case.prove(case.x, np.full_like(case.multiplier, np.nan)) is None


def test_the_multiplier_of_balancing_is_one_of_the_general_certificate() -> None:
    rng = np.random.default_rng(0)
    X = rng.random((80, 40)) * (rng.random((80, 40)) < 0.1)
    L = X.T @ X + 0.01 * np.eye(40)
    result = optimal_stepsize(L, RandK(40, 4), structure="diagonal")
    assert result.status == "optimal" and certify(result, L).gap <= 2e-6
