"""Theorems A and B: optimality conditions where they are exact, valid bounds where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.native_problems import one_direction, rand_k
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs.contract import Settings
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Hadamard, PositiveMap, ScaledPlusTrace, hadamard
from stepsize_solvers.programs.program import Program
from stepsize_solvers.single.closed_forms import Balanced, balanced_vector, sign_pattern, uncoupled

Matrix = NDArray[np.float64]


def correlation(d: int, seed: int) -> Matrix:
    A = np.random.default_rng(seed).standard_normal((3 * d, d))
    B = A.T @ A
    s = 1.0 / np.sqrt(np.diagonal(B))
    return sym(B * np.multiply.outer(s, s))


def with_smallest_eigenvalue(C: Matrix, smallest: float) -> Matrix:
    """(1 − t) C + t I, t chosen so that the smallest eigenvalue is as asked: still a correlation matrix."""
    w = float(np.linalg.eigvalsh(C)[0])
    t = (smallest - w) / (1.0 - w)
    return sym((1.0 - t) * C + t * np.eye(len(C)))


def iterate(B: Matrix, Q: PositiveMap, tol: float = 1e-8) -> float:
    """log det of the iteration's answer, without closed forms."""
    settings = Settings(tol=tol, extra={"closed_forms": False})
    outcome = NativeSolver().solve(Program.single(B, Q), settings)
    assert outcome.status.value == "optimal" and outcome.X is not None
    return float(np.linalg.slogdet(outcome.X)[1])


def stationarity(B: Matrix, Q: PositiveMap, D: Matrix, Z: Matrix) -> float:
    """Largest entry of D^½(D⁻¹ + Z − BDR − RDB)D^½, relative to the identity that D⁻¹ becomes."""
    R = Q.adjoint(Z)
    half = B @ D @ R
    root = np.linalg.cholesky(D)
    return float(np.abs(root.T @ (np.linalg.inv(D) + Z - half - half.T) @ root).max())


class TestUncoupled:
    @given(st.integers(2, 8), st.integers(0, 10_000), st.floats(0.51, 0.95))
    @settings(max_examples=20)
    def test_exact_above_one_half(self, d: int, seed: int, smallest: float) -> None:
        C = with_smallest_eigenvalue(correlation(d, seed), smallest)
        s = np.exp(np.random.default_rng(seed).uniform(-2, 2, d))
        B = sym(C * np.multiply.outer(s, s))
        Q = rand_k(d, 1)
        form = uncoupled(B, Q)
        assert form is not None and form.exact
        np.testing.assert_allclose(form.D, np.diag(1.0 / (d * np.diagonal(B))))
        assert stationarity(B, Q, form.D, form.Z) < 1e-10
        assert np.linalg.eigvalsh(form.Z)[0] > -1e-9 * np.abs(form.Z).max()
        assert form.gap == 0.0

    @given(st.integers(3, 8), st.integers(0, 10_000), st.floats(0.05, 0.4))
    @settings(max_examples=15)
    def test_not_optimal_below_one_half(self, d: int, seed: int, smallest: float) -> None:
        B = with_smallest_eigenvalue(correlation(d, seed), smallest)
        assert uncoupled(B, rand_k(d, 1)) is None
        assert iterate(B, rand_k(d, 1)) > -d * np.log(d) + 1e-7  # the log det of D = Diag(1/(d Bⱼⱼ))

    @pytest.mark.parametrize(("smallest", "gains"), [(0.501, False), (0.45, True)])
    def test_both_sides_of_one_half(self, smallest: float, gains: bool) -> None:
        B = with_smallest_eigenvalue(correlation(6, 1), smallest)
        gain = iterate(B, rand_k(6, 1), 1e-9) + 6 * np.log(6.0)
        assert (gain > 1e-6) == gains

    def test_unequal_alpha(self) -> None:
        alpha = np.array([2.0, 3.0, 5.0, 4.0])
        B = with_smallest_eigenvalue(correlation(4, 3), 0.8)
        Q = DiagonalPlusScaled(alpha, 0.0)
        form = uncoupled(B, Q)
        assert form is not None and form.exact
        assert stationarity(B, Q, form.D, form.Z) < 1e-12
        assert iterate(B, Q, 1e-9) == pytest.approx(form.log_det, abs=1e-7)

    def test_does_not_apply(self) -> None:
        assert uncoupled(np.eye(3), rand_k(3, 2)) is None
        assert uncoupled(np.eye(3), ScaledPlusTrace(3, 1.0, 1.0)) is None


class TestOneDirection:
    @given(st.integers(2, 12), st.integers(0, 10_000))
    @settings(max_examples=20)
    def test_balanced_vector(self, d: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        B, w = correlation(d, seed), rng.uniform(0.5, 4.0, d)
        u = balanced_vector(B, w)
        assert np.all(u > 0.0)
        np.testing.assert_allclose(u * (B @ u), w, rtol=1e-9)

    @given(st.integers(2, 10), st.integers(0, 10_000), st.data())
    @settings(max_examples=40)
    def test_bound_is_valid_and_stationary(self, d: int, seed: int, data: st.DataObject) -> None:
        B = correlation(d, seed)
        Q = rand_k(d, data.draw(st.integers(1, d - 1)))
        form = one_direction(B, Q)
        assert form is not None
        best = iterate(B, Q)
        assert form.upper_bound >= best - 1e-7
        assert form.log_det <= best + 1e-7
        # Before the repair D_s has the log det of the bound, and satisfies the first optimality condition.
        scale = np.exp((form.upper_bound - form.log_det) / d)
        assert stationarity(B, Q, form.D * scale, form.Z) < 1e-7
        if form.exact:
            assert form.log_det == pytest.approx(best, abs=1e-6)

    @given(st.integers(3, 10), st.integers(0, 10_000))
    @settings(max_examples=20)
    def test_exact_for_nonnegative_matrices_at_half(self, half: int, seed: int) -> None:
        d = 2 * half - 1
        rng = np.random.default_rng(seed)
        A = rng.uniform(0.0, 1.0, (2 * d, d))
        signs = rng.choice([-1.0, 1.0], d)
        B = sym(A.T @ A * np.multiply.outer(signs, signs) + 0.1 * np.eye(d))
        form = one_direction(B, rand_k(d, half))
        assert form is not None and form.exact
        assert abs(form.gap) < 1e-9
        np.testing.assert_array_equal(np.abs(sign_pattern(B) @ signs), d)

    @given(st.integers(0, 10_000), st.integers(2, 6))
    @settings(max_examples=20)
    def test_unequal_row_sums(self, seed: int, d: int) -> None:
        """Independent sampling with unequal probabilities: q is not constant and the bound still holds."""
        rng = np.random.default_rng(seed)
        f = rng.uniform(0.7, 1.3, d)
        B = np.multiply.outer(f, f) + np.diag(rng.uniform(0.2, 1.0, d))
        Q = DiagonalPlusScaled(1.0 / rng.uniform(0.2, 0.8, d) - 1.0, 1.0)
        form = one_direction(B, Q)
        assert form is not None
        scale = np.exp((form.upper_bound - form.log_det) / d)
        assert stationarity(B, Q, form.D * scale, form.Z) < 1e-8
        best = iterate(B, Q)
        assert form.upper_bound >= best - 1e-7
        if form.exact:
            assert form.log_det == pytest.approx(best, abs=1e-6)

    def test_exact_for_a_factor_model(self) -> None:
        d = 40
        rng = np.random.default_rng(0)
        f = rng.uniform(0.8, 1.2, d)
        B = np.multiply.outer(f, f) + np.diag(rng.uniform(0.02, 0.06, d))
        for k in (1, 10, 30):
            Q = rand_k(d, k)
            form = one_direction(B, Q)
            assert form is not None and form.exact
            outcome = NativeSolver().solve(Program.single(B, Q), Settings(tol=1e-10, extra={"closed_forms": False}))
            assert outcome.X is not None
            np.testing.assert_allclose(outcome.X, form.D, atol=1e-4 * np.abs(form.D).max())
            reported = NativeSolver().solve(Program.single(B, Q), Settings())
            assert reported.stats.extra_stats["closed_form"] and reported.stats.num_iters == 0

    def test_signs_at_odds_are_not_worked_out(self) -> None:
        """A frustrated pattern still gives its bound; none of these is exact, so the solver iterates."""
        seen = {True: 0, False: 0}
        for seed in range(60):
            d = 3 + seed % 8
            B, Q = correlation(d, seed), rand_k(d, 1 + seed % (d - 1))
            balanced, form = Balanced.of(B, Q), one_direction(B, Q)
            assert balanced is not None and form is not None
            assert balanced.upper_bound == form.upper_bound
            seen[balanced.frustrated] += 1
            if balanced.frustrated:
                assert not form.exact
        assert min(seen.values()) >= 10

    def test_signs_of_a_larger_matrix_come_from_power_steps(self) -> None:
        rng = np.random.default_rng(0)
        f = rng.choice([-1.0, 1.0], 50) * rng.uniform(0.5, 1.5, 50)
        B = np.multiply.outer(f, f) + np.eye(50) + 0.02 * sym(rng.standard_normal((50, 50)))
        assert abs(sign_pattern(B) @ np.sign(f)) == 50

    def test_does_not_apply(self) -> None:
        B = correlation(3, 0)
        assert one_direction(B, ScaledPlusTrace(3, 1.0, 1.0)) is None
        assert one_direction(B, hadamard(np.ones((3, 3)))) is None  # P singular
        assert one_direction(np.ones((3, 3)), rand_k(3, 2)) is None  # B singular
        # P ≻ 0 whose P⁻¹1 has a negative entry
        P = np.array([[1.0, 0.9, 0.2], [0.9, 1.0, 0.7], [0.2, 0.7, 1.0]])
        assert np.linalg.solve(P, np.ones(3)).min() < 0.0
        assert one_direction(B, Hadamard(P)) is None
