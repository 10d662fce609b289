"""The native solver as a whole: optimality conditions, planted optima, oracles, limits, patterns, hard inputs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import stepsize_solvers.single.iteration as iteration_module
from shared.lagrangian import gap, inequalities, lifted_optimum
from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs.contract import Settings, UnsupportedProgram, WarmStart
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Hadamard, PositiveMap
from stepsize_solvers.programs.outcome import Outcome, Status
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Program
from stepsize_solvers.single.layers import LayeredProblem

Matrix = NDArray[np.float64]


def solve(B: Matrix, Q: PositiveMap, pattern: Pattern | None = None, **options: Any) -> Outcome:
    extra = options.pop("extra", {"closed_forms": False})
    return NativeSolver().solve(Program.single(B, Q, pattern), Settings(extra=extra, **options))


PATTERNS: dict[str, Pattern] = {
    "full": Pattern.full(6),
    "blocks": Pattern((2, 3, 1)),
    "diagonal": Pattern((1,) * 6),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", all_maps(6))
def test_agrees_with_the_compact_lift(name: str, pattern: str) -> None:
    program = Program.single(spectrum(6, 30.0, 4), all_maps(6)[name], PATTERNS[pattern])
    outcome = NativeSolver().solve(program, Settings(tol=1e-8))
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    assert gap(program, outcome) <= 1e-8
    assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(lifted_optimum(program), abs=6e-6)


@pytest.mark.parametrize("name", all_maps(9))
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
def test_meets_the_tolerance(name: str, tol: float) -> None:
    B, Q = spectrum(9, 1e3), all_maps(9)[name]
    outcome = solve(B, Q, tol=tol)
    assert outcome.status is Status.OPTIMAL
    assert gap(Program.single(B, Q), outcome) <= tol


def test_optimality_conditions_at_the_answer() -> None:
    B, Q = spectrum(12, 1e3), rand_k(12, 4)
    outcome = solve(B, Q, tol=1e-9)
    D = outcome.X
    assert D is not None
    ((Z,),) = outcome.duals
    R = Q.adjoint(Z)
    half = B @ D @ R
    root = np.linalg.cholesky(D)
    residual = root.T @ (np.linalg.inv(D) + Z - half - half.T) @ root
    assert np.abs(residual).max() < 1e-3
    assert np.vdot(Z, D - Q.apply(D @ B @ D)) / 12 < 1e-8
    assert np.vdot(Z, D) == pytest.approx(12.0, rel=1e-6)


@given(st.integers(2, 10), st.integers(0, 10_000), st.data())
@settings(max_examples=20)
def test_planted_optimum(d: int, seed: int, data: st.DataObject) -> None:
    """Choose D with D1 = 1; theorem B run backwards gives the B that makes it optimal with the multiplier 11ᵀ.

    With P1 = ρ1, c = ρ/(d+1) and DBD = A = ½(P − c11ᵀ)⁻¹ the first condition is AP = ½(I + 11ᵀ), and F1 = D1 − (P∘A)1
    = 0.  On vectors orthogonal to 1 P∘A has one eigenvalue κ for rand-k, so F ⪰ 0 when D has none below κ there.
    """
    rng = np.random.default_rng(seed)
    P = rand_k(d, data.draw(st.integers(1, d - 1))).hadamard_matrix
    A = 0.5 * np.linalg.inv(P - P[0].sum() / (d + 1.0))
    first = np.eye(d)[0] - np.eye(d)[1]
    kappa = float(first @ (P * A) @ first) / 2.0
    V = np.linalg.qr(np.column_stack([np.ones(d), rng.standard_normal((d, d - 1))]))[0][:, 1:]
    D = np.full((d, d), 1.0 / d) + (V * (max(kappa, 0.0) + rng.uniform(0.1, 2.0, d - 1))) @ V.T
    F = D - P * A
    assert np.linalg.eigvalsh(F)[0] > -1e-12
    np.testing.assert_allclose(F @ np.ones(d), 0.0, atol=1e-10)
    inverse = np.linalg.inv(D)
    outcome = solve(sym(inverse @ A @ inverse), Hadamard(P), tol=1e-8)
    assert outcome.X is not None
    assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(np.linalg.slogdet(D)[1], abs=2e-8 * d)
    np.testing.assert_allclose(outcome.X, D, atol=1e-3)


@given(st.integers(1, 25), st.integers(0, 10_000), st.floats(0.0, 8.0), st.data())
@settings(max_examples=40)
def test_random_problems(d: int, seed: int, decades: float, data: st.DataObject) -> None:
    B = spectrum(d, 10.0**decades, seed)
    Q = rand_k(d, data.draw(st.integers(1, d)))
    outcome = solve(B, Q, extra={})
    assert outcome.status is Status.OPTIMAL
    assert gap(Program.single(B, Q), outcome) <= 1e-6


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_size_one(scale: float) -> None:
    outcome = solve(np.array([[3.0 * scale]]), DiagonalPlusScaled(np.array([1.0]), 1.0), tol=1e-9)
    assert outcome.X is not None
    assert outcome.X[0, 0] == pytest.approx(1.0 / (6.0 * scale), rel=1e-8)


def test_size_two_against_a_scan() -> None:
    """rand-1 with correlation 0.8: by symmetry D = [[x, y], [y, x]], so a scan over y/x finds the optimum."""
    B = np.array([[1.0, 0.8], [0.8, 1.0]])
    Q = rand_k(2, 1)
    best = -np.inf
    for r in np.linspace(-0.9, 0.9, 20001):
        W = np.array([[1.0, r], [r, 1.0]])
        top = max(np.diagonal(W @ B @ W)[0] * 2.0 / (1.0 + r), np.diagonal(W @ B @ W)[0] * 2.0 / (1.0 - r))
        best = max(best, np.log1p(-r * r) - 2.0 * np.log(top))
    outcome = solve(B, Q, tol=1e-9)
    assert outcome.X is not None
    assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(best, abs=1e-6)


def test_identity_map_is_closed_form() -> None:
    B = spectrum(7, 1e4)
    outcome = solve(B, DiagonalPlusScaled(np.zeros(7), 2.0))
    assert outcome.X is not None and outcome.stats.num_iters == 0
    np.testing.assert_allclose(outcome.X @ B, 0.5 * np.eye(7), atol=1e-9)
    assert abs(gap(Program.single(B, DiagonalPlusScaled(np.zeros(7), 2.0)), outcome)) < 1e-12


class TestHardInputs:
    @pytest.mark.parametrize("k", [1, 5, 15])
    def test_duplicate_columns(self, k: int) -> None:
        rng = np.random.default_rng(0)
        A = (rng.random((60, 20)) < 0.3).astype(float)
        A[:, 10:13] = A[:, :3]
        B = A.T @ A / 240.0 + 2e-3 * np.eye(20)
        outcome = solve(B, rand_k(20, k))
        assert outcome.status is Status.OPTIMAL
        assert gap(Program.single(B, rand_k(20, k)), outcome) <= 1e-6

    @pytest.mark.parametrize("k", [1, 4, 12])
    def test_nearly_singular(self, k: int) -> None:
        A = np.random.default_rng(1).standard_normal((6, 16))
        B = A.T @ A + 1e-8 * np.eye(16)
        outcome = solve(B, rand_k(16, k))
        assert outcome.status is Status.OPTIMAL

    @pytest.mark.parametrize("k", [1, 10])
    def test_scale_differences(self, k: int) -> None:
        s = np.geomspace(1.0, 1e4, 12)
        B = sym(spectrum(12, 100.0) * np.multiply.outer(s, s))
        outcome = solve(B, rand_k(12, k))
        plain = solve(spectrum(12, 100.0), rand_k(12, k))
        assert outcome.X is not None and plain.X is not None
        shift = -2.0 * np.sum(np.log(s))
        expected = np.linalg.slogdet(plain.X)[1] + shift
        assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(expected, abs=2e-5)

    def test_permutation_symmetry(self) -> None:
        B = 0.7 * np.ones((8, 8)) + 0.3 * np.eye(8)
        outcome = solve(B, rand_k(8, 2), tol=1e-9)
        assert outcome.X is not None
        off = outcome.X[~np.eye(8, dtype=bool)]
        np.testing.assert_allclose(off, off.mean(), atol=1e-4)

    def test_single_precision_agrees_with_double(self) -> None:
        B, Q = spectrum(30, 1e4), rand_k(30, 8)
        values = []
        for size in (1, 1000):
            outcome = solve(B, Q, tol=1e-8, extra={"closed_forms": False, "single_precision_from": size})
            assert outcome.status is Status.OPTIMAL and outcome.X is not None
            values.append(np.linalg.slogdet(outcome.X)[1])
        assert values[0] == pytest.approx(values[1], abs=1e-6)

    def test_second_attempt_after_a_breakdown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A first attempt that breaks down far from the optimum is followed by a careful one."""
        original = iteration_module.Iteration._step
        calls = 0

        def broken(self: Any, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return None if calls == 3 else original(self, *arguments)

        monkeypatch.setattr(iteration_module.Iteration, "_step", broken)
        outcome = solve(spectrum(30, 1e3), rand_k(30, 9))
        assert outcome.status is Status.OPTIMAL and outcome.stats.extra_stats["restarted"]

    @pytest.mark.parametrize(("d", "k"), [(120, 90), (150, 30)])
    def test_larger_sizes_in_single_precision(self, d: int, k: int) -> None:
        B = spectrum(d, 1e3)
        outcome = solve(B, rand_k(d, k))
        assert outcome.status is Status.OPTIMAL
        assert gap(Program.single(B, rand_k(d, k)), outcome) <= 1e-6


class TestPatterns:
    @pytest.mark.parametrize("d", [1, 2, 60])
    def test_diagonal_pattern(self, d: int) -> None:
        B, Q = spectrum(d, 1e3), rand_k(d, max(1, d // 3))
        program = Program.single(B, Q, Pattern((1,) * d))
        if d == 1:
            program = Program.single(B, Q)
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.X is not None
        np.testing.assert_array_equal(outcome.X, np.diag(np.diagonal(outcome.X)))
        assert gap(program, outcome) <= 1e-8

    def test_blocks_without_coupling_split(self) -> None:
        B = np.zeros((9, 9))
        B[:4, :4], B[4:, 4:] = spectrum(4, 50.0), spectrum(5, 50.0, 1)
        Q = rand_k(9, 3)
        whole = NativeSolver().solve(Program.single(B, Q, Pattern((4, 5))), Settings(tol=1e-8))
        assert whole.X is not None
        parts = 0.0
        for s in (slice(0, 4), slice(4, 9)):
            part = solve(B[s, s], Q.restrict(np.arange(s.start, s.stop)), tol=1e-8)
            assert part.X is not None
            parts += float(np.linalg.slogdet(part.X)[1])
        assert np.linalg.slogdet(whole.X)[1] == pytest.approx(parts, abs=1e-6)

    def test_scaled_pattern(self) -> None:
        B, Q, W = spectrum(5, 50.0), rand_k(5, 2), spectrum(5, 10.0, 2)
        program = Program.single(B, Q, Pattern((5,), W))
        outcome = NativeSolver().solve(program, Settings())
        assert outcome.X is not None
        gamma = outcome.X[0, 0] / W[0, 0]
        np.testing.assert_allclose(outcome.X, gamma * W)
        (F,) = inequalities(program, program.families[0], outcome.X)
        assert abs(np.linalg.eigvalsh(F)[0]) < 1e-12
        ((Z,),) = outcome.duals
        assert np.vdot(Z, F) == pytest.approx(0.0, abs=1e-10)
        assert np.vdot(Z, outcome.X) == pytest.approx(5.0)

    @pytest.mark.parametrize("name", all_maps(6))
    def test_factors_by_layers_have_the_derivatives_of_their_barrier(self, name: str) -> None:
        """The Newton step against differences of Σ dᵢ log γᵢ + ν log det(D − 𝒬(DBD))."""
        sizes, nu = (1, 2, 3), 0.3
        pattern = Pattern(sizes, Pattern(sizes).blocks(spectrum(6, 20.0, 7)))
        B, Q = spectrum(6, 50.0), all_maps(6)[name]
        problem = LayeredProblem.of(B, Q, pattern)
        assert problem is not None
        first = problem.first_factors()
        factors = 0.5 * problem.largest_multiple(first) * first
        p = problem.inside(factors)
        assert p is not None
        program = Program.single(B, Q, pattern)
        assert pattern.W is not None
        W = pattern.W

        def barrier(h: NDArray[np.float64]) -> float:
            gamma = np.repeat(factors * (1.0 + h), sizes)
            (F,) = inequalities(program, program.families[0], gamma[:, None] * W)
            value, sign = np.linalg.slogdet(F)[::-1]
            assert sign == 1.0
            return float(np.array(sizes) @ np.log1p(h) + nu * value)

        step, t = p.newton(nu), 1e-4
        assert step is not None
        e = t * np.eye(3)
        gradient = np.array([barrier(x) - barrier(-x) for x in e]) / (2.0 * t)
        hessian = np.array(
            [[barrier(x + y) - barrier(x - y) - barrier(y - x) + barrier(-x - y) for x in e] for y in e]
        ) / (4.0 * t * t)
        np.testing.assert_allclose(step.h, -np.linalg.solve(hessian, gradient), rtol=1e-4, atol=1e-6)
        assert step.decrement == pytest.approx(np.sqrt(gradient @ step.h / nu), rel=1e-4)

    def test_factors_by_layers_without_coupling_are_those_of_theorem_2(self) -> None:
        B = np.zeros((9, 9))
        B[:4, :4], B[4:, 4:] = spectrum(4, 50.0), spectrum(5, 50.0, 1)
        W, Q = Pattern((4, 5)).blocks(spectrum(9, 10.0, 2)), rand_k(9, 3)
        whole = NativeSolver().solve(Program.single(B, Q, Pattern((4, 5), W)), Settings(tol=1e-9))
        assert whole.status is Status.OPTIMAL and whole.X is not None
        for s in (slice(0, 4), slice(4, 9)):
            part = Q.restrict(np.arange(s.start, s.stop))
            alone = solve(B[s, s], part, Pattern((s.stop - s.start,), W[s, s]))
            np.testing.assert_allclose(whole.X[s, s], alone.X, rtol=1e-7)

    def test_factors_by_layers_start_from_a_nearby_answer(self) -> None:
        pattern = Pattern((4, 5), Pattern((4, 5)).blocks(spectrum(9, 10.0, 2)))
        cold = NativeSolver().solve(Program.single(spectrum(9, 1e3), rand_k(9, 3), pattern), Settings())
        assert cold.X is not None and cold.stats.num_iters is not None
        near = Program.single(1.01 * spectrum(9, 1e3), rand_k(9, 3), pattern)
        warm = NativeSolver().solve(near, Settings(warm_start=WarmStart(cold.X, cold.duals)))
        assert warm.status is Status.OPTIMAL and warm.stats.num_iters is not None
        assert warm.stats.num_iters < cold.stats.num_iters
        for useless in (np.eye(3), -np.eye(9)):
            other = NativeSolver().solve(near, Settings(warm_start=WarmStart(useless, (useless[None],))))
            assert other.status is Status.OPTIMAL


class TestFamilies:
    """Several clients, as families with factors: λ_D ≤ c, or λ_D ≤ cτ, beside D ⪯ L⁻¹."""

    @staticmethod
    def clients(d: int, **right: float) -> Program:
        Ls = [spectrum(d, 20.0, i) for i in range(3)]
        L = sym(sum(Ls, np.zeros((d, d))) / 3.0)
        variance = Family(rand_k(d, 2).centered(), L, np.linalg.cholesky(np.array(Ls)), **right)
        descent = Family(DiagonalPlusScaled.identity(d), None, np.linalg.cholesky(L)[None], c=1.0)
        return Program((variance, descent), Pattern.full(d))

    @pytest.mark.parametrize("c", [10.0, 0.5, 0.01])
    def test_against_the_lift(self, c: float) -> None:
        program = self.clients(5, c=c)
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.X is not None
        assert gap(program, outcome) <= 1e-8
        # With the bounds far below 1 the lift is badly scaled: Clarabel's own error reaches 3·10⁻⁵.
        assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(lifted_optimum(program), abs=5e-5)

    def test_determinant_term(self) -> None:
        """At the optimum eτ plays the part of the constant bound."""
        e = 1e-2
        program = self.clients(5, e=e)
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.X is not None
        assert gap(program, outcome) <= 1e-8
        tau = float(np.exp(np.linalg.slogdet(outcome.X)[1] / 5))
        same = NativeSolver().solve(self.clients(5, c=e * tau), Settings(tol=1e-8))
        assert same.X is not None
        assert np.linalg.slogdet(same.X)[1] == pytest.approx(np.linalg.slogdet(outcome.X)[1], abs=1e-6)

    def test_without_factors_only_the_one_condition_is_taken(self) -> None:
        condition = Program.single(np.eye(2), rand_k(2, 1))
        assert NativeSolver().unsupported(condition) is None
        beside = Program((*condition.families, Family(rand_k(2, 1), None, np.eye(2)[None], c=1.0)), Pattern.full(2))
        assert beside.condition is None and "families with factors only" in str(NativeSolver().unsupported(beside))
        with pytest.raises(UnsupportedProgram, match="families with factors only"):
            NativeSolver().solve(beside, Settings())


class TestLimitsAndReports:
    B = spectrum(20, 1e3)
    Q = rand_k(20, 5)

    def test_warm_start_saves_steps(self) -> None:
        cold = solve(self.B, self.Q)
        assert cold.X is not None
        nearby = solve(self.B, rand_k(20, 6))
        warm = solve(self.B, rand_k(20, 6), warm_start=WarmStart(cold.X, cold.duals))
        assert warm.status is Status.OPTIMAL
        assert warm.stats.num_iters is not None and nearby.stats.num_iters is not None
        assert warm.stats.num_iters <= nearby.stats.num_iters
        same = solve(self.B, self.Q, warm_start=WarmStart(cold.X, cold.duals))
        assert same.stats.num_iters is not None and same.stats.num_iters < 0.8 * (cold.stats.num_iters or 0)

    def test_warm_start_of_another_size_is_ignored(self) -> None:
        outcome = solve(self.B, self.Q, warm_start=WarmStart(np.eye(3), (np.eye(3)[None],)))
        assert outcome.status is Status.OPTIMAL

    def test_iteration_limit(self) -> None:
        outcome = solve(self.B, self.Q, max_iters=3)
        assert outcome.status is Status.USER_LIMIT and outcome.stats.num_iters == 3
        assert gap(Program.single(self.B, self.Q), outcome) < 10.0

    def test_time_limit(self) -> None:
        began = time.perf_counter()
        outcome = solve(spectrum(150, 1e3), rand_k(150, 40), time_limit=0.05)
        assert outcome.status is Status.USER_LIMIT and outcome.X is not None
        assert time.perf_counter() - began < 20.0

    def test_interrupt_returns_the_best_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = 0
        original = iteration_module.nesterov_todd

        def interrupted(F: Matrix, Z: Matrix) -> Any:
            nonlocal calls
            calls += 1
            if calls > 4:
                raise KeyboardInterrupt
            return original(F, Z)

        monkeypatch.setattr(iteration_module, "nesterov_todd", interrupted)
        outcome = solve(self.B, self.Q)
        assert outcome.status is Status.INTERRUPTED and outcome.X is not None
        assert np.linalg.eigvalsh(outcome.X - self.Q.apply(outcome.X @ self.B @ outcome.X))[0] > -1e-10

    def test_statistics_and_log(self, capsys: pytest.CaptureFixture[str]) -> None:
        outcome = solve(self.B, self.Q, verbose=True)
        lines = capsys.readouterr().out.strip().splitlines()
        steps = outcome.stats.num_iters
        assert steps is not None and len(lines) == steps + 2
        extra = outcome.stats.extra_stats
        assert {"steps", "cg_iterations", "products", "eigendecompositions", "history", "gap"} <= set(extra)
        lower = [low for low, _ in extra["history"]]
        upper = [high for _, high in extra["history"]]
        assert lower == sorted(lower) and upper == sorted(upper, reverse=True)
        assert lower[-1] <= upper[-1]
        assert outcome.stats.solver_name == "native" and outcome.stats.solve_time is not None

    def test_unknown_option(self) -> None:
        with pytest.raises(ValueError, match="unknown native option sigma"):
            solve(self.B, self.Q, extra={"sigma": 1.0})

    def test_impossible_tolerance_is_reported(self) -> None:
        outcome = solve(self.B, self.Q, tol=1e-18)
        assert outcome.status in (Status.INACCURATE, Status.USER_LIMIT)
        assert gap(Program.single(self.B, self.Q), outcome) < 1e-8
