"""Laws of the descent metric H = 2D − T(D), and when its optimum beats that of det-CGD2 (docs/theory.md)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import block_diag

from shared.strategies import problems, smoothness_matrices
from stepsize_opt import (
    BernQ,
    Direction,
    IndependentSampling,
    RandK,
    Sketch,
    StepsizeResult,
    get_method,
    optimal_stepsize,
)
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]
METHODS = st.sampled_from(["det-CGD1", "det-CGD2"])
# Two certified gaps of 10⁻⁶ may lie between two rates that are equal.
APART = 2e-6


def best(L: Matrix, sketch: Sketch, tol: float = 1e-6) -> StepsizeResult:
    return optimal_stepsize(L, sketch, guarantee="descent", tol=tol)


def second(L: Matrix, sketch: Sketch) -> StepsizeResult:
    return optimal_stepsize(L, sketch, algorithm="det-CGD2")


def random_stepsize(rng: np.random.Generator, L: Matrix) -> Matrix:
    root = rng.standard_normal(L.shape)
    return np.asarray((root @ root.T + 0.1 * np.eye(len(L))) / np.trace(L))


@settings(max_examples=60)
@given(problems(max_d=6), METHODS, st.floats(0.0, 1.0), st.integers(0, 2**32 - 1))
def test_the_metric_is_matrix_concave(problem: tuple[Matrix, Sketch], algorithm: str, share: float, seed: int) -> None:
    """H(sA + (1 − s)B) ⪰ s H(A) + (1 − s) H(B)."""
    L, sketch = problem
    rng, method = np.random.default_rng(seed), get_method(algorithm)
    A, B = random_stepsize(rng, L), random_stepsize(rng, L)
    H = [method.descent_metric(D, L, sketch) for D in (share * A + (1.0 - share) * B, A, B)]
    rounding = 1e-12 * max(float(np.abs(M).max()) for M in H)
    assert np.linalg.eigvalsh(H[0] - share * H[1] - (1.0 - share) * H[2])[0] >= -rounding


@settings(max_examples=25)
@given(problems(max_d=5), METHODS)
def test_under_the_condition_the_metric_is_at_least_the_stepsize(
    problem: tuple[Matrix, Sketch], algorithm: str
) -> None:
    """H ⪰ D, and H ⪯ L⁻¹ for every D: no sketch beats the uncompressed step."""
    L, sketch = problem
    D = optimal_stepsize(L, sketch, algorithm=algorithm).D
    H = get_method(algorithm).descent_metric(D, L, sketch)
    # In the coordinates in which L is the identity both sides are at most of size one.
    root = np.linalg.cholesky(L)
    assert np.linalg.eigvalsh(root.T @ (H - D) @ root)[0] >= -1e-8
    assert np.linalg.eigvalsh(np.eye(len(L)) - root.T @ H @ root)[0] >= -1e-8


@settings(max_examples=15)
@given(problems(max_d=4))
def test_the_optima_are_ordered(problem: tuple[Matrix, Sketch]) -> None:
    """Optimum of the descent metric ≥ optimum of (3) ≥ every γW, and the same for the best γ of both guarantees."""
    L, sketch = problem
    inverse = np.linalg.inv(L)
    free, inside = best(L, sketch).rate, optimal_stepsize(L, sketch).rate
    assert free >= inside * (1.0 - APART)
    for W in (np.eye(len(L)), np.diag(1.0 / np.diagonal(L)), 0.5 * (inverse + inverse.T)):
        rates = [
            optimal_stepsize(L, sketch, structure=Direction(W), guarantee=g).rate for g in ("condition", "descent")
        ]
        assert inside >= rates[0] * (1.0 - APART)
        assert free >= rates[1] * (1.0 - APART) and rates[1] >= rates[0] * (1.0 - APART)


@settings(max_examples=15)
@given(smoothness_matrices(min_d=2, max_d=5, max_condition=1e4), st.integers(0, 2**32 - 1), st.integers(-40, 40))
def test_invariances(L: Matrix, seed: int, power: int) -> None:
    """rand-k does not see an order or signs of coordinates; D*(cL) = D*(L)/c; a diagonal Λ acts by Λ⁻¹DΛ⁻¹."""
    rng, d = np.random.default_rng(seed), len(L)
    sketch = RandK(d, 1 + int(rng.integers(d)))
    plain = best(L, sketch)
    order, signs = rng.permutation(d), rng.choice([-1.0, 1.0], d)
    turned = (signs[:, None] * L * signs)[np.ix_(order, order)]
    assert best(turned, sketch).rate == pytest.approx(plain.rate, rel=APART)
    assert best(2.0**power * L, sketch).rate * 2.0**power == pytest.approx(plain.rate, rel=APART)
    scale = 2.0 ** rng.integers(-10, 11, d)
    scaled = best(scale[:, None] * L * scale, sketch)
    assert scaled.certificate.log_det == pytest.approx(
        plain.certificate.log_det - 2 * np.log(scale).sum(), abs=d * APART
    )


# ---------------------------------------------------------------- against det-CGD2


@settings(max_examples=25)
@given(smoothness_matrices(min_d=2, max_d=6, max_condition=1e4))
def test_for_rand_1_the_descent_metric_is_never_worse_than_det_CGD2(L: Matrix) -> None:
    """(E[TLT])⁻¹ is diagonal and commutes with the sketch.  It is stationary only for a diagonal L."""
    d, sketch = len(L), RandK(len(L), 1)
    ratio = best(L, sketch).rate / second(L, sketch).rate
    assert ratio >= 1.0 - APART
    correlations = L / np.sqrt(np.outer(np.diagonal(L), np.diagonal(L))) - np.eye(d)
    assert np.abs(correlations).max() < 0.05 or ratio > 1.0
    diagonal = np.diag(np.diagonal(L))
    assert best(diagonal, sketch).rate == pytest.approx(second(diagonal, sketch).rate, rel=APART)


@pytest.mark.parametrize("d", [3, 5])
@pytest.mark.parametrize(
    ("law", "derivative"),
    [
        (lambda d, delta: IndependentSampling(np.full(d, 1.0 / (1.0 + delta))), lambda M: np.diag(np.diagonal(M))),
        (
            lambda d, delta: BernQ(np.full(3, 1.0 / (1.0 + delta)), (1, 1, d - 2)),
            lambda M: block_diag(M[:1, :1], M[1:2, 1:2], M[2:, 2:]),
        ),
    ],
    ids=["independent", "blocks"],
)
def test_weak_compression_is_decided_by_the_second_order(
    law: Callable[[int, float], Sketch], derivative: Callable[[Matrix], Matrix], d: int
) -> None:
    """For 𝒫 = id + δ𝒜 the difference of the optima is ½δ²(‖L^{−½}𝒜(L)L^{−½}‖² − ‖L^½𝒜(L⁻¹)L^½‖²) + O(δ³), which
    changes its sign with L and L⁻¹: one of the two has det-CGD2 as its better method."""
    L = random_smoothness(np.random.default_rng(d), d, 5.0)
    inverse = np.linalg.inv(L)
    inverse = 0.5 * (inverse + inverse.T)
    found = []
    for A, B in ((L, inverse), (inverse, L)):
        first, other = np.linalg.solve(A, derivative(A)), A @ derivative(B)
        expected = 0.5 * float(np.trace(first @ first) - np.trace(other @ other))
        slopes = []
        for delta in (1e-3, 5e-4):
            free, fixed = best(A, law(d, delta), tol=1e-12), second(A, law(d, delta))
            slopes.append((free.certificate.log_det - fixed.certificate.log_det) / delta**2)
        # Richardson's extrapolation takes the next order away.
        assert 2.0 * slopes[1] - slopes[0] == pytest.approx(expected, rel=0.02)
        found.append(slopes[1])
    assert found[0] * found[1] < 0.0


def test_common_positive_correlations_favour_det_CGD2() -> None:
    """rand-k with most coordinates sent: correlations against partial correlations, weighted alike here."""
    d, rho = 8, 0.6
    L = (1.0 - rho) * np.eye(d) + rho * np.ones((d, d))
    inverse = np.linalg.inv(L)
    assert best(L, RandK(d, 7)).rate < 0.999 * second(L, RandK(d, 7)).rate
    assert best(inverse, RandK(d, 7)).rate > 1.001 * second(inverse, RandK(d, 7)).rate
