"""When the optimum of the descent metric beats that of det-CGD2 (docs/theory.md).

*Weak compression*, 𝒫 = id + δ𝒜 with 𝒜 self-adjoint: the largest log det H, G₁, and G₂ = −log det 𝒫(L) satisfy
G₁ − G₂ = ½δ²(‖L^{−½}𝒜(L)L^{−½}‖² − ‖L^½𝒜(L⁻¹)L^½‖²) + O(δ³).

Proof: at δ = 0 the maximiser is L⁻¹ and the second derivative there is −2 tr(LXLX) < 0, so the maximiser is
L⁻¹ + δX + O(δ²) by the implicit function theorem.  DLD = L⁻¹ + 2δX + δ²XLX gives
H = L⁻¹ − δ𝒜(L⁻¹) − δ²(XLX + 2𝒜(X)) up to O(δ³) and

    log det H = −log det L − δ⟨L, 𝒜(L⁻¹)⟩ − ½δ² tr(L𝒜(L⁻¹)L𝒜(L⁻¹)) − δ²(⟨L, XLX⟩ + 2⟨𝒜(L), X⟩) + O(δ³),

largest for X = −L⁻¹𝒜(L)L⁻¹, where the terms in X add up to δ² tr(L⁻¹𝒜(L)L⁻¹𝒜(L)).  G₂ = −log det(L + δ𝒜(L)) has the
same terms of first order, because 𝒜 is self-adjoint, and ½δ² tr(L⁻¹𝒜(L)L⁻¹𝒜(L)) of second order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.linalg import block_diag

from stepsize_opt import BernQ, IndependentSampling, RandK, Sketch, optimal_stepsize
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.strategies import Matrix, smoothness_matrices

# Two certified gaps of 10⁻⁶ may lie between two rates that are equal.
APART = 2e-6


def best(L: Matrix, sketch: Sketch, tol: float = 1e-6) -> StepsizeResult:
    return optimal_stepsize(L, sketch, goal="descent", tol=tol)


def second(L: Matrix, sketch: Sketch) -> StepsizeResult:
    return optimal_stepsize(L, sketch, algorithm="det-CGD2")


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
