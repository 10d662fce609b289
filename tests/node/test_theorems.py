"""Proposition 1 of the paper and its consequences, as properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.reference_problems import random_smoothness
from shared.strategies import problems, seeds, smoothness_matrices
from stepsize_opt import BernQ, Direction, RandK, compare, optimal_stepsize
from stepsize_opt.proofs.evaluation import Evaluation
from stepsize_opt.proofs.repairs import repair
from stepsize_solvers.programs.program import Program


def _feasible(L, sketch, rng) -> np.ndarray:
    """A random D on the boundary of the feasible set."""
    G = rng.standard_normal(L.shape)
    at = repair(Program.single(L, sketch.map), G @ G.T + 10.0 ** rng.uniform(-3, 1) * np.eye(len(L)))
    assert at is not None
    return at.D


def _slack(L, sketch, D) -> float:
    """λmin(D − E[SDLDS]) relative to D."""
    return float(np.linalg.eigvalsh(D - sketch.second_moment(D @ L @ D))[0] / np.linalg.norm(D, 2))


@given(problems(), seeds, st.floats(0.0, 1.0))
def test_feasible_set_is_convex(problem, seed: int, weight: float) -> None:
    L, sketch = problem
    rng = np.random.default_rng(seed)
    D1, D2 = _feasible(L, sketch, rng), _feasible(L, sketch, rng)
    assert _slack(L, sketch, weight * D1 + (1 - weight) * D2) >= -1e-9


@given(problems(), seeds, st.floats(1e-3, 1.0))
def test_feasible_set_is_closed_under_scaling_down(problem, seed: int, scale: float) -> None:
    L, sketch = problem
    D = _feasible(L, sketch, np.random.default_rng(seed))
    assert _slack(L, sketch, scale * D) >= -1e-9


@given(smoothness_matrices(max_condition=1e4), seeds, st.floats(0.0, 1.0))
def test_trace_function_is_convex(L, seed: int, weight: float) -> None:
    """D ↦ tr(L^½ D R D L^½) for R ⪰ 0 (the lemma behind Proposition 1)."""
    rng = np.random.default_rng(seed)
    A, B, C = (rng.standard_normal(L.shape) for _ in range(3))
    D1, D2, R = A @ A.T, B @ B.T, C @ C.T

    def f(D) -> float:
        return float(np.trace(D @ R @ D @ L))

    middle = f(weight * D1 + (1 - weight) * D2)
    ends = weight * f(D1) + (1 - weight) * f(D2)
    assert middle <= ends + 1e-9 * abs(ends)


@settings(max_examples=25)
@given(problems(max_d=5), seeds)
def test_invariance_under_diagonal_scaling_and_permutation(problem, seed: int) -> None:
    L, sketch = problem
    rng = np.random.default_rng(seed)
    best = optimal_stepsize(L, sketch)
    if sketch.is_diagonal:
        scale = 10.0 ** rng.uniform(-2, 2, len(L))
        scaled = optimal_stepsize(scale[:, None] * L * scale, sketch)
        assert scaled.log_det + 2 * np.sum(np.log(scale)) == pytest.approx(best.log_det, abs=2e-6 * len(L))
        flips = rng.choice([-1.0, 1.0], len(L))
        assert optimal_stepsize(flips[:, None] * L * flips, sketch).log_det == pytest.approx(
            best.log_det, abs=2e-6 * len(L)
        )
    if isinstance(sketch, RandK):
        order = rng.permutation(len(L))
        moved = optimal_stepsize(L[np.ix_(order, order)], sketch)
        assert moved.log_det == pytest.approx(best.log_det, abs=2e-6 * len(L))


@settings(max_examples=25)
@given(problems(max_d=6), seeds)
def test_optimum_beats_every_direction(problem, seed: int) -> None:
    L, sketch = problem
    best = optimal_stepsize(L, sketch)
    rng = np.random.default_rng(seed)
    for _ in range(3):
        D = _feasible(L, sketch, rng)
        assert np.linalg.slogdet(D)[1] <= best.certificate.upper_bound
    for row in compare(L, sketch).rows:
        if row.method == "det-CGD1" and row.result.guarantee == "condition":
            assert row.result.log_det <= best.certificate.upper_bound
            assert row.rate <= best.rate * (1 + 2e-6)


@settings(max_examples=15)
@given(smoothness_matrices(min_d=2, max_d=7, max_condition=1e4))
def test_rate_grows_with_k(L) -> None:
    """P_k − P_{k+1} ⪰ 0, so a D that is feasible for rand-k is feasible for rand-(k+1)."""
    d = len(L)
    rates = []
    for k in range(1, d + 1):
        sketch = RandK(d, k)
        if k < d:
            assert np.linalg.eigvalsh(sketch.second_moment_matrix - RandK(d, k + 1).second_moment_matrix)[0] >= -1e-12
        rates.append(optimal_stepsize(L, sketch).rate)
    assert all(a <= b * (1 + 2e-6) for a, b in pairwise(rates))


@settings(max_examples=20)
@given(smoothness_matrices(max_d=6, max_condition=1e4))
def test_no_compression_gives_the_inverse(L) -> None:
    d = len(L)
    for sketch in (RandK(d, d), BernQ(1.0, d)):
        np.testing.assert_allclose(optimal_stepsize(L, sketch).D @ L, np.eye(d), atol=1e-9)


@settings(max_examples=20)
@given(problems(max_d=5))
def test_kkt_conditions_hold_at_the_optimum(problem) -> None:
    """D⁻¹ + Z = LDR + RDL and ⟨Z, F(D)⟩ = 0, to the accuracy of the gap."""
    L, sketch = problem
    result = optimal_stepsize(L, sketch, tol=1e-8)
    D, Z = result.D, result.dual
    R = sketch.adjoint(Z)
    t = len(L) / np.sum(R * (D @ L @ D))  # the best scale of the multiplier
    Z, R = t * Z, t * R
    root = np.linalg.cholesky(D)
    residual = root.T @ (L @ D @ R + R @ D @ L - Z) @ root - np.eye(len(L))
    assert np.linalg.norm(residual) <= 2e-3 * len(L)  # second order in the gap: √(2·1e-8·d) and the scale of F
    assert abs(np.sum(Z * (D - sketch.second_moment(D @ L @ D)))) <= 1e-3 * len(L)


def test_the_paper_s_directions_are_strictly_worse() -> None:
    L = random_smoothness(20, 1e3, 0)
    table = compare(L, RandK(20, 5))
    optimal, _, free, *directions = table.rows
    assert free.rate > optimal.descent > optimal.rate
    assert all(row.rate < 0.95 * optimal.rate for row in directions)
    own = optimal_stepsize(L, RandK(20, 5), structure=Direction(optimal.result.D))
    assert own.rate == pytest.approx(optimal.rate, rel=1e-9)


def test_evaluation_sees_the_boundary() -> None:
    L = random_smoothness(5, 1e2, 0)
    result = optimal_stepsize(L, RandK(5, 2))
    program = Program.single(L, RandK(5, 2).map)
    assert Evaluation(program, result.D).feasible
    assert not Evaluation(program, result.D * (1 + 1e-6)).feasible
