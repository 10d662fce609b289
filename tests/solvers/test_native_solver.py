"""The native solver as a whole: optimality conditions, planted optima, oracles, limits, patterns, hard inputs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from stepsize_solvers.single.solver import NativeSolver
from stepsize_validation.bench.native import Problem, plain_gap

import stepsize_solvers.single.iteration as iteration_module
from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs.contract import Settings, UnsupportedProgram
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Hadamard, PositiveMap
from stepsize_solvers.programs.outcome import Outcome, Status
from stepsize_solvers.programs.program import BlockPattern, Constraint, LogDetProgram, Pattern, ScaledPattern
from stepsize_solvers.single.layers import LayeredProblem

Matrix = NDArray[np.float64]


def solve(B: Matrix, Q: PositiveMap, pattern: Pattern | None = None, **options: Any) -> Outcome:
    extra = options.pop("extra", {"closed_forms": False})
    return NativeSolver().solve(LogDetProgram.single_node(B, Q, pattern), Settings(extra=extra, **options))


def gap(program: LogDetProgram, outcome: Outcome) -> float:
    """The bound of the theory at the returned pair, in plain arithmetic, after checking feasibility."""
    D = outcome.D
    assert D is not None
    d = program.d
    Q = np.zeros((d, d))
    linear = 0.0
    tau = float(np.exp(np.linalg.slogdet(D)[1] / d))
    for con, Z in zip(program.constraints, outcome.duals, strict=True):
        G = con.evaluate(D)
        root = np.linalg.cholesky(D)
        inside = np.linalg.solve(root, np.linalg.solve(root, G).T)
        # D B D is evaluated with an error of up to 10⁻¹⁴ cond(D) relative to D.
        assert np.linalg.eigvalsh(inside)[0] > -1e-9 - 1e-14 * np.linalg.cond(D)
        assert np.linalg.eigvalsh(Z)[0] > -1e-9 * np.abs(Z).max()
        Q -= con.a * Z
        if con.C is not None:
            linear += float(np.vdot(con.C, Z))
        if con.E is not None:
            Q -= con.c * float(np.vdot(con.E, Z)) * tau / d * np.linalg.inv(D)
        if con.Q is not None and con.B is not None:
            R = con.Q.adjoint(Z)
            half = R @ D @ con.B
            Q += half + half.T
            linear += float(np.vdot(R, D @ con.B @ D))
    if isinstance(program.pattern, BlockPattern):
        Q = program.pattern.project(Q)
    sign, log_det = np.linalg.slogdet(Q)
    assert sign > 0
    return float((d * np.log(linear / d) - log_det - np.linalg.slogdet(D)[1]) / d)


def oracle(program: LogDetProgram) -> float:
    """The compact lift [Y, DH; HᵀD, I] ⪰ 0, 𝒬(Y) ⪯ C + aD, HHᵀ = B, by Clarabel."""
    d = program.d
    D = cp.Variable((d, d), symmetric=True)
    conditions = []
    if isinstance(program.pattern, BlockPattern) and not program.pattern.is_full:
        conditions.append(cp.multiply(1.0 - program.pattern.project(np.ones((d, d))), D) == 0)
    for con in program.constraints:
        G = con.a * D
        if con.C is not None:
            G = G + con.C
        if con.Q is not None and con.B is not None:
            Y = cp.Variable((d, d), symmetric=True)
            H = np.linalg.cholesky(con.B)
            conditions.append(cp.bmat([[Y, D @ H], [H.T @ D, np.eye(d)]]) >> 0)
            T = np.array([con.Q.apply(E).ravel() for E in np.eye(d * d).reshape(-1, d, d)]).T
            image = cp.reshape(T @ cp.reshape(Y, (d * d,), order="C"), (d, d), order="C")
            G = G - image
        conditions.append((G + G.T) / 2 >> 0)
    problem = cp.Problem(cp.Maximize(cp.log_det(D)), conditions)
    problem.solve(solver=cp.CLARABEL)
    return float(problem.value)


PATTERNS: dict[str, Pattern] = {
    "full": BlockPattern((6,)),
    "blocks": BlockPattern((2, 3, 1)),
    "diagonal": BlockPattern((1,) * 6),
}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", all_maps(6))
def test_agrees_with_the_compact_lift(name: str, pattern: str) -> None:
    program = LogDetProgram.single_node(spectrum(6, 30.0, 4), all_maps(6)[name], PATTERNS[pattern])
    outcome = NativeSolver().solve(program, Settings(tol=1e-8))
    assert outcome.status is Status.OPTIMAL and outcome.D is not None
    assert gap(program, outcome) <= 1e-8
    assert np.linalg.slogdet(outcome.D)[1] == pytest.approx(oracle(program), abs=6e-6)


@pytest.mark.parametrize("name", all_maps(9))
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-9])
def test_meets_the_tolerance(name: str, tol: float) -> None:
    B, Q = spectrum(9, 1e3), all_maps(9)[name]
    outcome = solve(B, Q, tol=tol)
    assert outcome.status is Status.OPTIMAL
    assert gap(LogDetProgram.single_node(B, Q), outcome) <= tol


def test_optimality_conditions_at_the_answer() -> None:
    B, Q = spectrum(12, 1e3), rand_k(12, 4)
    outcome = solve(B, Q, tol=1e-9)
    D = outcome.D
    assert D is not None
    (Z,) = outcome.duals
    R = Q.adjoint(Z)
    half = B @ D @ R
    root = np.linalg.cholesky(D)
    residual = root.T @ (np.linalg.inv(D) + Z - half - half.T) @ root
    assert np.abs(residual).max() < 1e-3
    assert np.vdot(Z, D - Q.apply(D @ B @ D)) / 12 < 1e-8
    assert np.vdot(Z, D) == pytest.approx(12.0, rel=1e-6)


@given(st.integers(2, 10), st.integers(0, 10_000))
@settings(max_examples=20)
def test_planted_optimum(d: int, seed: int) -> None:
    """Choose D, a sampling and one active direction; theorem B run backwards gives the B that makes D optimal.

    With z = 1, P1 = ρ1 and c = ρ/(d+1): D B D = ½(P − c11ᵀ)⁻¹ is the first condition, and D1 = y must satisfy
    y∘(By) = 1/(2c), which holds for D = Y W Y with W1 = 1/y … so D is taken as a positive matrix with row sums 1.
    """
    rng = np.random.default_rng(seed)
    P = rand_k(d, max(1, (d + 1) // 2)).hadamard_matrix
    # A doubly stochastic symmetric positive definite D: a mixture of I and of permutation symmetrisations.
    D = 0.6 * np.eye(d)
    for _ in range(4):
        M = np.eye(d)[rng.permutation(d)]
        D += 0.05 * (M + M.T)
    rho = float(P[0].sum())
    A = 0.5 * np.linalg.inv(P - rho / (d + 1.0))
    inverse = np.linalg.inv(D)
    B = sym(inverse @ A @ inverse)
    Q = Hadamard(P)
    F = D - Q.apply(A)
    np.testing.assert_allclose(F @ np.ones(d), 0.0, atol=1e-10)
    outcome = solve(B, Q, tol=1e-8)
    assert outcome.D is not None
    best = np.linalg.slogdet(outcome.D)[1]
    planted = np.linalg.slogdet(D)[1]
    assert best <= planted + 1e-7  # the Lagrangian of zzᵀ is maximised at D
    if np.linalg.eigvalsh(F)[0] > -1e-12:
        assert best == pytest.approx(planted, abs=1e-6)


@given(st.integers(1, 25), st.integers(0, 10_000), st.floats(0.0, 8.0), st.data())
@settings(max_examples=40)
def test_random_problems(d: int, seed: int, decades: float, data: st.DataObject) -> None:
    B = spectrum(d, 10.0**decades, seed)
    Q = rand_k(d, data.draw(st.integers(1, d)))
    outcome = solve(B, Q, extra={})
    assert outcome.status is Status.OPTIMAL
    assert gap(LogDetProgram.single_node(B, Q), outcome) <= 1e-6


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_size_one(scale: float) -> None:
    outcome = solve(np.array([[3.0 * scale]]), DiagonalPlusScaled(np.array([1.0]), 1.0), tol=1e-9)
    assert outcome.D is not None
    assert outcome.D[0, 0] == pytest.approx(1.0 / (6.0 * scale), rel=1e-8)


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
    assert outcome.D is not None
    assert np.linalg.slogdet(outcome.D)[1] == pytest.approx(best, abs=1e-6)


def test_identity_map_is_closed_form() -> None:
    B = spectrum(7, 1e4)
    outcome = solve(B, DiagonalPlusScaled(np.zeros(7), 2.0))
    assert outcome.D is not None and outcome.stats.num_iters == 0
    np.testing.assert_allclose(outcome.D @ B, 0.5 * np.eye(7), atol=1e-9)
    assert abs(gap(LogDetProgram.single_node(B, DiagonalPlusScaled(np.zeros(7), 2.0)), outcome)) < 1e-12


class TestHardInputs:
    @pytest.mark.parametrize("k", [1, 5, 15])
    def test_duplicate_columns(self, k: int) -> None:
        rng = np.random.default_rng(0)
        A = (rng.random((60, 20)) < 0.3).astype(float)
        A[:, 10:13] = A[:, :3]
        B = A.T @ A / 240.0 + 2e-3 * np.eye(20)
        outcome = solve(B, rand_k(20, k))
        assert outcome.status is Status.OPTIMAL
        assert gap(LogDetProgram.single_node(B, rand_k(20, k)), outcome) <= 1e-6

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
        assert outcome.D is not None and plain.D is not None
        shift = -2.0 * np.sum(np.log(s))
        expected = np.linalg.slogdet(plain.D)[1] + shift
        assert np.linalg.slogdet(outcome.D)[1] == pytest.approx(expected, abs=2e-5)

    def test_permutation_symmetry(self) -> None:
        B = 0.7 * np.ones((8, 8)) + 0.3 * np.eye(8)
        outcome = solve(B, rand_k(8, 2), tol=1e-9)
        assert outcome.D is not None
        off = outcome.D[~np.eye(8, dtype=bool)]
        np.testing.assert_allclose(off, off.mean(), atol=1e-4)

    def test_single_precision_agrees_with_double(self) -> None:
        B, Q = spectrum(30, 1e4), rand_k(30, 8)
        values = []
        for size in (1, 1000):
            outcome = solve(B, Q, tol=1e-8, extra={"closed_forms": False, "single_precision_from": size})
            assert outcome.status is Status.OPTIMAL and outcome.D is not None
            values.append(np.linalg.slogdet(outcome.D)[1])
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
        assert gap(LogDetProgram.single_node(B, rand_k(d, k)), outcome) <= 1e-6


class TestPatterns:
    @pytest.mark.parametrize("d", [1, 2, 60])
    def test_diagonal_pattern(self, d: int) -> None:
        B, Q = spectrum(d, 1e3), rand_k(d, max(1, d // 3))
        program = LogDetProgram.single_node(B, Q, BlockPattern((1,) * d))
        if d == 1:
            program = LogDetProgram.single_node(B, Q)
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.D is not None
        np.testing.assert_array_equal(outcome.D, np.diag(np.diagonal(outcome.D)))
        assert gap(program, outcome) <= 1e-8

    def test_blocks_without_coupling_split(self) -> None:
        B = np.zeros((9, 9))
        B[:4, :4], B[4:, 4:] = spectrum(4, 50.0), spectrum(5, 50.0, 1)
        Q = rand_k(9, 3)
        whole = NativeSolver().solve(LogDetProgram.single_node(B, Q, BlockPattern((4, 5))), Settings(tol=1e-8))
        assert whole.D is not None
        parts = 0.0
        for s in (slice(0, 4), slice(4, 9)):
            part = solve(B[s, s], Q.restrict(np.arange(s.start, s.stop)), tol=1e-8)
            assert part.D is not None
            parts += float(np.linalg.slogdet(part.D)[1])
        assert np.linalg.slogdet(whole.D)[1] == pytest.approx(parts, abs=1e-6)

    def test_scaled_pattern(self) -> None:
        B, Q, W = spectrum(5, 50.0), rand_k(5, 2), spectrum(5, 10.0, 2)
        program = LogDetProgram.single_node(B, Q, ScaledPattern((5,), W))
        outcome = NativeSolver().solve(program, Settings())
        assert outcome.D is not None
        gamma = outcome.D[0, 0] / W[0, 0]
        np.testing.assert_allclose(outcome.D, gamma * W)
        slack = np.linalg.eigvalsh(program.constraints[0].evaluate(outcome.D))
        assert abs(slack[0]) < 1e-12
        x_Z = outcome.duals[0]
        assert np.vdot(x_Z, program.constraints[0].evaluate(outcome.D)) == pytest.approx(0.0, abs=1e-10)
        assert np.vdot(x_Z, outcome.D) == pytest.approx(5.0)

    def test_factors_by_layers_need_the_one_constraint(self) -> None:
        pattern = ScaledPattern((2, 2), np.eye(4))
        program = LogDetProgram((Constraint(a=-1.0, C=np.eye(4)),), pattern)
        assert "one constraint" in str(NativeSolver().unsupported(program))
        with pytest.raises(UnsupportedProgram):
            NativeSolver().solve(program, Settings())

    @pytest.mark.parametrize("name", all_maps(6))
    def test_factors_by_layers_have_the_derivatives_of_their_barrier(self, name: str) -> None:
        """The Newton step against differences of Σ dᵢ log γᵢ + ν log det(D − 𝒬(DBD))."""
        sizes, nu = (1, 2, 3), 0.3
        pattern = ScaledPattern(sizes, BlockPattern(sizes).project(spectrum(6, 20.0, 7)))
        B, Q = spectrum(6, 50.0), all_maps(6)[name]
        problem = LayeredProblem.of(B, Q, pattern)
        assert problem is not None
        first = problem.first_factors()
        factors = 0.5 * problem.largest_multiple(first) * first
        p = problem.inside(factors)
        assert p is not None
        constraint = Constraint(Q=Q, B=B)

        def barrier(h: NDArray[np.float64]) -> float:
            gamma = np.repeat(factors * (1.0 + h), sizes)
            value, sign = np.linalg.slogdet(constraint.evaluate(gamma[:, None] * pattern.W))[::-1]
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
        W, Q = BlockPattern((4, 5)).project(spectrum(9, 10.0, 2)), rand_k(9, 3)
        whole = NativeSolver().solve(LogDetProgram.single_node(B, Q, ScaledPattern((4, 5), W)), Settings(tol=1e-9))
        assert whole.status is Status.OPTIMAL and whole.D is not None
        for s in (slice(0, 4), slice(4, 9)):
            part = Q.restrict(np.arange(s.start, s.stop))
            alone = solve(B[s, s], part, ScaledPattern((s.stop - s.start,), W[s, s]))
            np.testing.assert_allclose(whole.D[s, s], alone.D, rtol=1e-7)

    def test_factors_by_layers_start_from_a_nearby_answer(self) -> None:
        pattern = ScaledPattern((4, 5), BlockPattern((4, 5)).project(spectrum(9, 10.0, 2)))
        cold = NativeSolver().solve(LogDetProgram.single_node(spectrum(9, 1e3), rand_k(9, 3), pattern), Settings())
        assert cold.D is not None and cold.stats.num_iters is not None
        near = LogDetProgram.single_node(1.01 * spectrum(9, 1e3), rand_k(9, 3), pattern)
        warm = NativeSolver().solve(near, Settings(warm_start=(cold.D, cold.duals)))
        assert warm.status is Status.OPTIMAL and warm.stats.num_iters is not None
        assert warm.stats.num_iters < cold.stats.num_iters
        for useless in (np.eye(3), -np.eye(9)):
            other = NativeSolver().solve(near, Settings(warm_start=(useless, (useless,))))
            assert other.status is Status.OPTIMAL


class TestSeveralConstraints:
    @staticmethod
    def clients(d: int, scale: float) -> LogDetProgram:
        Ls = [spectrum(d, 20.0, i) for i in range(3)]
        L = sym(sum(Ls, np.zeros((d, d))) / 3.0)
        centred = rand_k(d, 2).centered()
        first = Constraint(a=-1.0, C=np.linalg.inv(L))
        rest = [Constraint(Q=centred, B=L, a=0.0, C=scale * np.linalg.inv(Li)) for Li in Ls]
        return LogDetProgram((first, *rest), BlockPattern((d,)))

    @pytest.mark.parametrize("scale", [10.0, 0.5, 0.01])
    def test_against_the_lift(self, scale: float) -> None:
        program = self.clients(5, scale)
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.D is not None
        assert gap(program, outcome) <= 1e-8
        # With the bounds far below 1 the lift is badly scaled: Clarabel's own error reaches 3·10⁻⁵.
        assert np.linalg.slogdet(outcome.D)[1] == pytest.approx(oracle(program), abs=5e-5)

    def test_determinant_term(self) -> None:
        """While D ⪯ L⁻¹ is slack the scale is free: at the optimum c τ plays the part of the constant bound."""
        d = 5
        Ls = [spectrum(d, 20.0, i) for i in range(2)]
        L = sym((Ls[0] + Ls[1]) / 2.0)
        centred = rand_k(d, 2).centered()
        c = 1e-2
        rest = [Constraint(Q=centred, B=L, a=0.0, c=c, E=np.linalg.inv(Li)) for Li in Ls]
        program = LogDetProgram((Constraint(a=-1.0, C=np.linalg.inv(L)), *rest), BlockPattern((d,)))
        outcome = NativeSolver().solve(program, Settings(tol=1e-8))
        assert outcome.status is Status.OPTIMAL and outcome.D is not None
        assert gap(program, outcome) <= 1e-8
        tau = float(np.exp(np.linalg.slogdet(outcome.D)[1] / d))
        fixed = [Constraint(Q=centred, B=L, a=0.0, C=c * tau * np.linalg.inv(Li)) for Li in Ls]
        same = NativeSolver().solve(
            LogDetProgram((Constraint(a=-1.0, C=np.linalg.inv(L)), *fixed), BlockPattern((d,))), Settings(tol=1e-8)
        )
        assert same.D is not None
        assert np.linalg.slogdet(same.D)[1] == pytest.approx(np.linalg.slogdet(outcome.D)[1], abs=1e-6)

    def test_warm_start(self) -> None:
        cold = NativeSolver().solve(self.clients(5, 0.5), Settings())
        assert cold.D is not None
        warm = NativeSolver().solve(self.clients(5, 0.45), Settings(warm_start=(cold.D, cold.duals)))
        assert warm.status is Status.OPTIMAL
        assert gap(self.clients(5, 0.45), warm) <= 1e-6

    def test_refuses_what_has_no_answer(self) -> None:
        unbounded = LogDetProgram((Constraint(a=1.0, C=np.eye(2)),), BlockPattern((2,)))
        assert "unbounded" in str(NativeSolver().unsupported(unbounded))
        hopeless = LogDetProgram((Constraint(Q=rand_k(2, 1), B=np.eye(2), a=0.0),), BlockPattern((2,)))
        assert "strictly feasible" in str(NativeSolver().unsupported(hopeless))


class TestLimitsAndReports:
    B = spectrum(20, 1e3)
    Q = rand_k(20, 5)

    def test_warm_start_saves_steps(self) -> None:
        cold = solve(self.B, self.Q)
        assert cold.D is not None
        nearby = solve(self.B, rand_k(20, 6))
        warm = solve(self.B, rand_k(20, 6), warm_start=(cold.D, cold.duals))
        assert warm.status is Status.OPTIMAL
        assert warm.stats.num_iters is not None and nearby.stats.num_iters is not None
        assert warm.stats.num_iters <= nearby.stats.num_iters
        same = solve(self.B, self.Q, warm_start=(cold.D, cold.duals))
        assert same.stats.num_iters is not None and same.stats.num_iters < 0.8 * (cold.stats.num_iters or 0)

    def test_warm_start_of_another_size_is_ignored(self) -> None:
        outcome = solve(self.B, self.Q, warm_start=(np.eye(3), (np.eye(3),)))
        assert outcome.status is Status.OPTIMAL

    def test_iteration_limit(self) -> None:
        outcome = solve(self.B, self.Q, max_iters=3)
        assert outcome.status is Status.USER_LIMIT and outcome.stats.num_iters == 3
        assert gap(LogDetProgram.single_node(self.B, self.Q), outcome) < 10.0

    def test_time_limit(self) -> None:
        began = time.perf_counter()
        outcome = solve(spectrum(150, 1e3), rand_k(150, 40), time_limit=0.05)
        assert outcome.status is Status.USER_LIMIT and outcome.D is not None
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
        assert outcome.status is Status.INTERRUPTED and outcome.D is not None
        assert np.linalg.eigvalsh(outcome.D - self.Q.apply(outcome.D @ self.B @ outcome.D))[0] > -1e-10

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
        assert gap(LogDetProgram.single_node(self.B, self.Q), outcome) < 1e-8


def test_the_benchmark_takes_no_gap_from_numbers_that_are_none() -> None:
    problem = Problem("", spectrum(3, 1), 1)
    outcome = NativeSolver().solve(problem.program, Settings())
    assert plain_gap(problem, outcome) <= 1e-6
    for broken in (np.full((3, 3), np.nan), np.diag([1.0, 1.0, np.inf])):
        assert plain_gap(problem, replace(outcome, duals=(broken,))) == np.inf
        assert plain_gap(problem, replace(outcome, D=broken)) == np.inf
