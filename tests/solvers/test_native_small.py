"""The dense predictor-corrector for small problems: its coordinates, its Newton system, its answers, its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.numerics.progress import Limits, Progress
from stepsize_solvers.programs.contract import Settings, WarmStart
from stepsize_solvers.programs.maps import CongruenceSum, DiagonalPlusScaled, PositiveMap, ScaledPlusTrace
from stepsize_solvers.programs.outcome import Outcome, Status
from stepsize_solvers.programs.program import Program
from stepsize_solvers.single import small, starts
from stepsize_solvers.single.closed_forms import ClosedForm
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.iteration import Tuning

Matrix = NDArray[np.float64]


MAPS = tuple(all_maps(4))


def symmetric(rng: np.random.Generator, d: int) -> Matrix:
    return sym(rng.standard_normal((d, d)))


def positive(rng: np.random.Generator, d: int) -> Matrix:
    A = rng.standard_normal((d, d + 2))
    return sym(A @ A.T)


def solve(B: Matrix, Q: PositiveMap, **options: Any) -> Outcome:
    extra = options.pop("extra", {"closed_forms": False})
    return NativeSolver().solve(Program.single(B, Q), Settings(extra=extra, **options))


def as_congruences(Q: PositiveMap) -> CongruenceSum:
    """𝒬(M) = P∘M as Σ_r w_r S_r M S_r with diagonal S_r, from the eigenvectors of P."""
    P = Q.hadamard_matrix
    assert P is not None
    w, V = np.linalg.eigh(P)
    return CongruenceSum(np.maximum(w, 0.0), np.array([np.diag(v) for v in V.T]))


def iteration(B: Matrix, Q: PositiveMap, tol: float = 1e-6) -> tuple[small.SmallIteration, small.SmallPoint]:
    """The iteration of a problem and its first point."""
    dense = small.SmallIteration(B, Q, Tuning(), Progress(len(B), Limits(tol, 100), 1.0, 100))
    point = dense.start(starts.boundary_start(B, Q).D)
    assert point is not None
    return dense, point


def excess(B: Matrix, Q: PositiveMap, outcome: Outcome) -> float:
    """The gap of the returned pair by the formula of the theory, in plain arithmetic, after checking feasibility."""
    D = outcome.X
    assert D is not None
    ((Z,),) = outcome.duals
    d = D.shape[0]
    root = np.linalg.cholesky(D)
    inside = np.linalg.solve(root, np.linalg.solve(root, Q.apply(D @ B @ D)).T)
    # D and D B D are rounded, relative to D by up to 6·10⁻¹⁴ cond(D) in 1500 random problems of these sizes.
    assert np.linalg.eigvalsh(inside)[-1] < 1.0 + 1e-12 + 1e-13 * np.linalg.cond(D)
    assert np.linalg.eigvalsh(Z)[0] > -1e-12 * np.abs(Z).max()
    R = Q.adjoint(Z)
    half = R @ D @ B
    sign, log_det = np.linalg.slogdet(half + half.T - Z)
    assert sign > 0
    return float(np.log(np.vdot(R, D @ B @ D) / d) - (log_det + np.linalg.slogdet(D)[1]) / d)


class TestCoordinates:
    @given(st.integers(1, 7), st.integers(0, 1000))
    @settings(max_examples=25)
    def test_matrices_of_the_maps(self, d: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        at = small.coordinates(d)
        X, Y, R = symmetric(rng, d), symmetric(rng, d), symmetric(rng, d)
        A, lam = rng.standard_normal((d, d)), rng.random(d)
        x = at.svec(X)
        np.testing.assert_allclose(at.smat(x), X, atol=1e-14)
        assert x @ at.svec(Y) == pytest.approx(np.vdot(X, Y), abs=1e-12)
        np.testing.assert_allclose(at.smat(at.congruence(A) @ x), A @ X @ A.T, atol=1e-12)
        image = lam[:, None] * X @ R + R @ X * lam
        np.testing.assert_allclose(at.smat(at.curvature(lam, R) @ x), image, atol=1e-12)

    @pytest.mark.parametrize("name", MAPS)
    def test_matrix_of_the_sketch(self, name: str) -> None:
        Q, at = all_maps(6)[name], small.coordinates(6)
        X = symmetric(np.random.default_rng(0), 6)
        T = small.map_matrix(Q, at)
        image = T * at.svec(X) if T.ndim == 1 else T @ at.svec(X)
        np.testing.assert_allclose(at.smat(image), Q.apply(X), atol=1e-12)
        assert (T.ndim == 1) == (Q.hadamard_matrix is not None)


class TestNewtonSystem:
    @pytest.mark.parametrize("name", MAPS)
    def test_point(self, name: str) -> None:
        """The working basis, the scaling and the bounds are those of the general iteration."""
        B, Q = spectrum(6, 50.0), all_maps(6)[name]
        dense, p = iteration(B, Q)
        F = p.D - Q.apply(p.D @ B @ p.D)
        np.testing.assert_allclose(p.C @ p.C.T, p.D, atol=1e-12)
        np.testing.assert_allclose(p.C.T @ B @ p.C, np.diag(p.lam), atol=1e-12)
        np.testing.assert_allclose(p.E @ F @ p.E.T, np.diag(p.v), atol=1e-11)
        np.testing.assert_allclose(p.E.T @ np.diag(p.v) @ p.E, p.Z, rtol=1e-9, atol=1e-9 * np.abs(p.Z).max())
        model = FullModel.of(B, Q)
        same = model.point(p.D, p.Z)
        assert same is not None
        for near in (True, False):
            ours, theirs = dense.bounds(p, near), model.bounds(same, None, near)
            assert ours.lower == pytest.approx(theirs.lower, abs=1e-10)
            assert ours.scale == pytest.approx(theirs.scale, rel=1e-12)
            if np.isfinite(theirs.upper):
                assert ours.upper == pytest.approx(theirs.upper, abs=1e-9)
        # At D itself the interval is as valid as at its repaired multiple, with a lower end that is no better.
        assert (ours.scale, ours.lower) == (1.0, pytest.approx(float(np.linalg.slogdet(p.D)[1]), abs=1e-10))
        assert dense.bounds(p).lower >= ours.lower

    @pytest.mark.parametrize("name", MAPS)
    def test_jacobian_is_the_derivative(self, name: str) -> None:
        B, Q = spectrum(5, 50.0), all_maps(5)[name]
        dense, p = iteration(B, Q)
        X = symmetric(np.random.default_rng(1), 5)
        h = 1e-5
        values = []
        for step in (h, -h):  # F is quadratic, so the central difference is exact up to rounding
            D = p.C @ (np.eye(5) + step * X) @ p.C.T
            values.append(p.E @ (D - Q.apply(D @ B @ D)) @ p.E.T)
        derivative = (values[0] - values[1]) / (2.0 * h)
        at = dense.at
        np.testing.assert_allclose(at.smat(dense.jacobian(p) @ at.svec(X)), derivative, atol=1e-7)

    @pytest.mark.parametrize("name", MAPS)
    def test_direction_solves_both_equations(self, name: str) -> None:
        """K X − F′*dZ = r₁ and F′X + W dZ W = r₂, checked with the maps themselves."""
        B, Q = spectrum(5, 50.0), all_maps(5)[name]
        dense, p = iteration(B, Q)
        rng = np.random.default_rng(2)
        r1, r2 = symmetric(rng, 5), symmetric(rng, 5)
        N = dense.jacobian(p)
        factor = dense.factor(p, N)
        assert factor is not None
        found = dense.direction(p, N, factor, dense.at.svec(r1), r2)
        dD = p.C @ found.X @ p.C.T
        inverse = np.linalg.inv(p.D)
        R, dR = Q.adjoint(p.Z), Q.adjoint(found.dZ)
        K = inverse @ dD @ inverse + B @ dD @ R + R @ dD @ B
        adjoint = found.dZ - (B @ p.D @ dR + dR @ p.D @ B)
        np.testing.assert_allclose(p.C.T @ (K - adjoint) @ p.C, r1, atol=1e-9)
        change = dD - Q.apply(dD @ B @ p.D + p.D @ B @ dD)
        np.testing.assert_allclose(p.E @ change @ p.E.T + found.zeta, r2, atol=1e-9)
        np.testing.assert_allclose(found.first, p.E @ change @ p.E.T, atol=1e-9)
        np.testing.assert_allclose(found.second, -p.E @ Q.apply(dD @ B @ dD) @ p.E.T, atol=1e-9)
        np.testing.assert_allclose(p.E.T @ found.zeta @ p.E, found.dZ, atol=1e-9)

    @given(st.integers(1, 5), st.integers(0, 1000))
    @settings(max_examples=30)
    def test_step_length_stays_inside(self, d: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        v = rng.uniform(0.1, 1.0, d)
        second = -positive(rng, d)
        step = small.SmallStep(np.eye(d), symmetric(rng, d), second, symmetric(rng, d), np.eye(d))
        a = small.longest(step, 1.0 / np.sqrt(np.multiply.outer(v, v)), 2)
        assert a > 0.0
        for M in (np.diag(v) + a * step.zeta, np.diag(v) + a * step.first + a * a * second):
            assert np.linalg.eigvalsh(M)[0] >= -1e-12


class TestStarts:
    @pytest.mark.parametrize("name", ["rand-1", "rand-k", "independent", "hadamard", "diagonal layers"])
    def test_the_best_power(self, name: str) -> None:
        """The same for 𝒬(M) = P∘M given as P and as a sum of congruences, and the start lies on the boundary."""
        B, Q = spectrum(7, 1e3), all_maps(7)[name]
        ours, theirs = starts.power_start(B, Q), starts.power_start(B, as_congruences(Q))
        assert ours.log_det == pytest.approx(theirs.log_det, abs=1e-9)
        np.testing.assert_allclose(ours.D, theirs.D, rtol=1e-8, atol=1e-10 * np.abs(theirs.D).max())
        root = np.linalg.inv(np.linalg.cholesky(ours.D))
        assert np.linalg.eigvalsh(root @ Q.apply(ours.D @ B @ ours.D) @ root.T)[-1] == pytest.approx(1.0, abs=1e-9)
        assert np.linalg.slogdet(ours.D)[1] == pytest.approx(ours.log_det, abs=1e-9)

    @pytest.mark.parametrize(("condition", "singular"), [(1e3, False), (1e17, True)])
    def test_a_known_basis_is_the_working_basis(self, condition: float, singular: bool) -> None:
        """A power of B knows its basis; the point inside is the one computed from D, unless eigenvalues were raised."""
        B, Q = spectrum(9, condition), as_congruences(rand_k(9, 3))
        start = starts.power_start(B, Q)
        if singular:
            assert start.basis is None
            return
        assert start.basis is not None
        C, C_inverse, lam = start.basis
        np.testing.assert_allclose(C @ C.T, start.D, atol=1e-12 * np.abs(start.D).max())
        np.testing.assert_allclose(C_inverse @ C, np.eye(9), atol=1e-12)
        np.testing.assert_allclose(C.T @ B @ C, np.diag(lam), atol=1e-12)
        model = FullModel.of(B, Q)
        known = starts.inside(model, start, 0.9)
        plain = starts.inside(model, starts.Start(start.D, start.log_det), 0.9)
        assert known is not None and plain is not None
        assert known.log_det == pytest.approx(plain.log_det, abs=1e-10)
        np.testing.assert_allclose(known.D, plain.D, atol=1e-10 * np.abs(plain.D).max())
        np.testing.assert_allclose(known.Z, plain.Z, rtol=1e-6, atol=1e-8 * np.abs(plain.Z).max())

    def test_a_better_closed_form_is_taken(self) -> None:
        B, Q = spectrum(5, 1e3), rand_k(5, 2)
        power = starts.power_start(B, Q)
        better = ClosedForm(power.D, np.eye(5), False, np.inf, power.log_det + 1.0, "better")
        worse = ClosedForm(power.D, np.eye(5), False, np.inf, power.log_det - 1.0, "worse")
        assert starts.boundary_start(B, Q, worse).log_det == power.log_det
        assert starts.boundary_start(B, Q, better).log_det == better.log_det


class TestAnswers:
    @pytest.mark.parametrize("name", MAPS)
    @pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-8, 1e-9])
    def test_meets_the_tolerance(self, name: str, tol: float) -> None:
        B, Q = spectrum(8, 1e3), all_maps(8)[name]
        assert small.applies(Q)
        outcome = solve(B, Q, tol=tol)
        assert outcome.status is Status.OPTIMAL
        assert excess(B, Q, outcome) <= tol
        assert outcome.stats.extra_stats["gap"] <= tol
        assert outcome.stats.extra_stats["cg_iterations"] == 0  # the dense steps did it, not the general iteration

    @pytest.mark.parametrize("name", MAPS)
    def test_optimality_conditions(self, name: str) -> None:
        B, Q = spectrum(7, 100.0), all_maps(7)[name]
        outcome = solve(B, Q, tol=1e-9)
        D, ((Z,),) = outcome.X, outcome.duals
        assert D is not None
        half = B @ D @ Q.adjoint(Z)
        root = np.linalg.cholesky(D)
        # A gap g bounds the squared residual of the first equation, in the basis of D, by a multiple of d·g.
        assert np.abs(root.T @ (np.linalg.inv(D) + Z - half - half.T) @ root).max() < 1e-3
        assert 0.0 <= np.vdot(Z, D - Q.apply(D @ B @ D)) / 7 < 1e-8
        assert np.vdot(Z, D) == pytest.approx(7.0, rel=1e-6)

    @pytest.mark.parametrize("name", MAPS)
    @pytest.mark.parametrize("d", [3, 9, 16])
    def test_agrees_with_the_general_iteration(self, name: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
        B, Q = spectrum(d, 1e4, d), all_maps(d)[name]
        dense = solve(B, Q, tol=1e-7)
        monkeypatch.setattr(small, "applies", lambda Q: False)
        general = solve(B, Q, tol=1e-7)
        assert dense.X is not None and general.X is not None
        assert general.stats.extra_stats["cg_iterations"] > 0
        assert dense.stats.extra_stats["cg_iterations"] == 0
        assert np.linalg.slogdet(dense.X)[1] == pytest.approx(np.linalg.slogdet(general.X)[1], abs=1.1e-7 * d)

    @pytest.mark.parametrize("d", [2, 5, 12])
    def test_theorem_a(self, d: int) -> None:
        """rand-1 and a correlation matrix without eigenvalues below ½: the diagonal stepsize."""
        A = np.random.default_rng(d).standard_normal((d, 4 * d))
        C = 0.5 * np.eye(d) + 0.5 * np.corrcoef(A)
        outcome = solve(C, rand_k(d, 1), tol=1e-9)
        assert outcome.X is not None and outcome.stats.num_iters is not None and outcome.stats.num_iters > 0
        np.testing.assert_allclose(outcome.X, np.eye(d) / d, atol=1e-4 / d)

    @pytest.mark.parametrize("d", [3, 7, 13])
    def test_theorem_b(self, d: int) -> None:
        """A nonnegative B and k = (d + 1)/2: the value of the closed form."""
        A = np.random.default_rng(d).random((2 * d, d))
        B, Q = A.T @ A / d + 0.1 * np.eye(d), rand_k(d, (d + 1) // 2)
        exact = solve(B, Q, extra={})
        assert exact.stats.num_iters == 0
        outcome = solve(B, Q, tol=1e-9)
        assert outcome.X is not None and exact.X is not None
        assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(np.linalg.slogdet(exact.X)[1], abs=1e-8 * d)

    @given(st.integers(1, 14), st.integers(0, 10_000), st.floats(0.0, 8.0), st.data())
    @settings(max_examples=60)
    def test_random_problems(self, d: int, seed: int, decades: float, data: st.DataObject) -> None:
        B = spectrum(d, 10.0**decades, seed)
        Q = rand_k(d, data.draw(st.integers(1, d)))
        outcome = solve(B, Q)
        assert outcome.status is Status.OPTIMAL
        assert excess(B, Q, outcome) <= 1e-6

    def test_few_steps(self) -> None:
        """The point of the method: about six steps to 10⁻⁶, whatever the map and the spectrum."""
        steps = [
            solve(spectrum(8, condition, 1), Q).stats.num_iters or 0
            for condition in (10.0, 1e3, 1e6)
            for Q in all_maps(8).values()
        ]
        assert max(steps) <= 12 and np.mean(steps) < 8.0


class TestDegenerate:
    @pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
    def test_size_one(self, scale: float) -> None:
        outcome = solve(np.array([[3.0 * scale]]), DiagonalPlusScaled(np.array([1.0]), 1.0), tol=1e-9)
        assert outcome.X is not None and outcome.status is Status.OPTIMAL
        assert outcome.X[0, 0] == pytest.approx(1.0 / (6.0 * scale), rel=1e-8)

    @pytest.mark.parametrize("k", [1, 3, 8])
    def test_nearly_singular(self, k: int) -> None:
        A = np.random.default_rng(1).standard_normal((4, 10))
        B = A.T @ A + 1e-8 * np.eye(10)
        assert solve(B, rand_k(10, k)).status is Status.OPTIMAL

    @pytest.mark.parametrize("k", [1, 4, 9])
    def test_exact_duplicates(self, k: int) -> None:
        A = (np.random.default_rng(0).random((60, 12)) < 0.3).astype(float)
        A[:, 8:11] = A[:, :3]
        B, Q = A.T @ A / 240.0 + 2e-3 * np.eye(12), rand_k(12, k)
        outcome = solve(B, Q)
        assert outcome.status is Status.OPTIMAL
        assert excess(B, Q, outcome) <= 1e-6

    @pytest.mark.parametrize("k", [1, 6])
    def test_scale_differences(self, k: int) -> None:
        s = np.geomspace(1.0, 1e4, 8)
        B = spectrum(8, 100.0)
        outcome, plain = solve(sym(B * np.multiply.outer(s, s)), rand_k(8, k)), solve(B, rand_k(8, k))
        assert outcome.X is not None and plain.X is not None
        expected = np.linalg.slogdet(plain.X)[1] - 2.0 * np.sum(np.log(s))
        assert np.linalg.slogdet(outcome.X)[1] == pytest.approx(expected, abs=2e-5)

    def test_orthogonal_problem(self) -> None:
        """B = I: every direction is active and D = I·k/d (F = 0 at the optimum)."""
        outcome = solve(np.eye(6), rand_k(6, 2), tol=1e-8)
        assert outcome.X is not None and outcome.status is Status.OPTIMAL
        np.testing.assert_allclose(outcome.X, np.eye(6) / 3.0, atol=1e-4)

    def test_singular_matrix_is_reported(self) -> None:
        v = np.ones(5)
        outcome = solve(np.multiply.outer(v, v), rand_k(5, 5))
        assert outcome.status is not Status.OPTIMAL


class TestLimitsAndReports:
    B = spectrum(10, 1e3)
    Q = rand_k(10, 3)

    def test_sizes(self) -> None:
        assert small.applies(rand_k(small.LARGEST_HADAMARD, 2))
        assert not small.applies(rand_k(small.LARGEST_HADAMARD + 1, 2))
        assert small.applies(ScaledPlusTrace(small.LARGEST, 1.5, 0.5))
        assert not small.applies(ScaledPlusTrace(small.LARGEST + 1, 1.5, 0.5))

    @pytest.mark.parametrize("limit", [0, 3])
    def test_iteration_limit(self, limit: int) -> None:
        outcome = solve(self.B, self.Q, max_iters=limit)
        assert outcome.status is Status.USER_LIMIT and outcome.stats.num_iters == limit
        assert outcome.X is not None and len(outcome.stats.extra_stats["history"]) == limit + 1
        if limit:
            assert excess(self.B, self.Q, outcome) < 1.0

    def test_time_limit(self) -> None:
        outcome = solve(self.B, self.Q, time_limit=0.0)
        assert outcome.status is Status.USER_LIMIT and outcome.X is not None

    def test_interrupt_returns_the_best_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = small.SmallIteration.step

        def interrupted(self: small.SmallIteration, *arguments: Any) -> Any:
            if self.progress.steps == 3:
                raise KeyboardInterrupt
            return original(self, *arguments)

        monkeypatch.setattr(small.SmallIteration, "step", interrupted)
        outcome = solve(self.B, self.Q)
        assert outcome.status is Status.INTERRUPTED and outcome.stats.num_iters == 3
        assert excess(self.B, self.Q, outcome) == pytest.approx(outcome.stats.extra_stats["gap"], rel=1e-3)

    @pytest.mark.parametrize("calls", [0, 2])
    def test_breakdown_falls_back(self, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
        original = small.SmallIteration.step

        def broken(self: small.SmallIteration, *arguments: Any) -> Any:
            return original(self, *arguments) if self.progress.steps < calls else (None, 0.0)

        monkeypatch.setattr(small.SmallIteration, "step", broken)
        outcome = solve(self.B, self.Q)
        assert outcome.status is Status.OPTIMAL and outcome.stats.extra_stats["cg_iterations"] > 0
        assert excess(self.B, self.Q, outcome) <= 1e-6
        limited = solve(self.B, self.Q, max_iters=4)
        assert limited.status is Status.USER_LIMIT and limited.stats.num_iters == 4

    def test_unusable_start_falls_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(small.SmallIteration, "start", lambda *_: None)
        outcome = solve(self.B, self.Q)
        assert outcome.status is Status.OPTIMAL and outcome.stats.extra_stats["cg_iterations"] > 0

    def test_indefinite_point_is_refused(self) -> None:
        dense, p = iteration(self.B, self.Q)
        assert dense.point(-p.D, p.Z) is None
        assert dense.point(4.0 * p.D, p.Z) is None  # outside the constraint
        assert dense.point(p.D, -p.Z) is None

    def test_warm_start(self) -> None:
        cold = solve(self.B, self.Q)
        assert cold.X is not None
        near = solve(self.B, rand_k(10, 4), warm_start=WarmStart(cold.X, cold.duals))
        assert near.status is Status.OPTIMAL and excess(self.B, rand_k(10, 4), near) <= 1e-6
        same = solve(self.B, self.Q, warm_start=WarmStart(cold.X, cold.duals))
        assert same.status is Status.OPTIMAL
        assert (same.stats.num_iters or 0) < (cold.stats.num_iters or 0)
        other = solve(self.B, self.Q, warm_start=WarmStart(np.eye(3), (np.eye(3)[None],)))
        assert other.status is Status.OPTIMAL

    def test_history_and_verbose(self, capsys: pytest.CaptureFixture[str]) -> None:
        outcome = solve(self.B, self.Q, verbose=True)
        history = outcome.stats.extra_stats["history"]
        lower, upper = np.array(history).T
        assert np.all(lower[1:] >= lower[:-1]) and np.all(upper[1:] <= upper[:-1]) and np.all(lower <= upper)
        assert outcome.stats.num_iters == len(history) - 1
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(history) + 1 and "gap" in lines[0]
