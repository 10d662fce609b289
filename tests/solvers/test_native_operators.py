"""Operators of the native solver against dense matrices, adjoints, finite differences and dense solves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.native_problems import rand_k
from stepsize_solvers.numerics.cg import conjugate_gradients, within_scaled_tolerance
from stepsize_solvers.numerics.linalg import (
    cholesky,
    congruence_diagonal,
    eigh,
    largest_eigenvalue,
    lower_congruence,
    lower_product,
    lower_solve,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
    triangular_inverse,
)
from stepsize_solvers.numerics.progress import Counters
from stepsize_solvers.numerics.scaling import nesterov_todd
from stepsize_solvers.numerics.steps import largest_step
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    PositiveMap,
    ScaledPlusTrace,
)
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.single.blocks import BlockModel, BlockPoint, block_start
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.inverse import ChebyshevInverse, Curvature, chebyshev_inverse, spectrum_bounds
from stepsize_solvers.single.newton import newton_system
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.schur import Gram, Images, Jacobian
from stepsize_solvers.single.starts import power_start
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]
D = 6


def spd(d: int, seed: int, condition: float = 50.0) -> Matrix:
    return random_smoothness(np.random.default_rng(seed), d, condition)


def symmetric(d: int, seed: int) -> Matrix:
    return sym(np.random.default_rng(seed).standard_normal((d, d)))


def maps(d: int) -> dict[str, PositiveMap]:
    rng = np.random.default_rng(7)
    draws = rng.uniform(0.2, 2.0, (5, d))
    return {
        "rand-1": rand_k(d, 1),
        "rand-k": rand_k(d, 2),
        "independent": DiagonalPlusScaled(1.0 / rng.uniform(0.2, 0.9, d) - 1.0, 1.0),
        "hadamard": Hadamard(draws.T @ draws / 5.0),
        "congruence": CongruenceSum(np.full(3, 1.0 / 3.0), 0.4 * rng.standard_normal((3, d, d)) + np.eye(d)),
        "gaussian": ScaledPlusTrace(d, 1.5, 0.5),
        "layered": Layered((rand_k(2, 1), ScaledPlusTrace(d - 2, 1.5, 0.5))),
    }


MAPS = maps(D)


def interior_point(Q: PositiveMap, seed: int = 0) -> tuple[FullModel, Point]:
    """A strictly feasible, not central point."""
    model = FullModel.of(spd(D, seed), Q)
    start = 0.6 * power_start(model.B, Q).D
    p = model.point(start, np.linalg.inv(start) + 0.3 * spd(D, seed + 1))
    assert p is not None
    return model, p


class TestLinearAlgebra:
    def test_factorisations(self) -> None:
        M = spd(9, 0)
        K = cholesky(M)
        assert K is not None
        np.testing.assert_allclose(K @ K.T, M, atol=1e-14)
        np.testing.assert_allclose(triangular_inverse(K) @ K, np.eye(9), atol=1e-10)
        w, V = eigh(M)
        np.testing.assert_allclose((V * w) @ V.T, M, atol=1e-14)
        assert cholesky(-M) is None
        stack = np.stack([M, 2.0 * M])
        factors = cholesky(stack)
        assert factors is not None
        np.testing.assert_allclose(factors @ factors.swapaxes(-1, -2), stack, atol=1e-14)
        assert cholesky(np.stack([M, -M])) is None

    @pytest.mark.parametrize("d", [5, 150])
    def test_extreme_eigenvalues(self, d: int) -> None:
        M = spd(d, 1)
        w = np.linalg.eigvalsh(M)
        K = cholesky(M)
        assert K is not None
        assert smallest_eigenvalue(M) == pytest.approx(w[0], rel=1e-10)
        assert w[-1] * (1.0 - 1e-12) <= largest_eigenvalue(M) <= 1.05 * w[-1]
        assert 0.8 * w[0] <= smallest_eigenvalue_from_factor(K, steps=5 if d == 5 else 30) <= w[0] * (1.0 + 1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
class TestPrecisions:
    """Every helper works in the precision of its argument and returns it."""

    def test_factorisations_and_triangular_products(self, dtype: type[np.floating[Any]]) -> None:
        d, close = 9, 40.0 * float(np.finfo(dtype).eps)
        M, A = spd(d, 0).astype(dtype), np.random.default_rng(1).standard_normal((d, d)).astype(dtype)
        K = cholesky(M)
        assert K is not None
        w, V = eigh(M)
        results = {
            "cholesky": (K @ K.T, M),
            "eigh": ((V * w) @ V.T, M),
            "product": (lower_product(K, A), K @ A),
            "transposed": (lower_transposed_product(K, A), K.T @ A),
            "congruence": (lower_congruence(K, M), K.T @ M @ K),
            "solve": (K @ lower_solve(K, A), A),
        }
        for name, (computed, expected) in results.items():
            assert computed.dtype == dtype, name
            np.testing.assert_allclose(computed, expected, atol=50.0 * close, err_msg=name)
        assert smallest_eigenvalue(M) == pytest.approx(float(w[0]), abs=close)
        assert smallest_eigenvalue_from_factor(K, steps=d) == pytest.approx(float(w[0]), rel=1e3 * close)

    def test_congruence_diagonal(self, dtype: type[np.floating[Any]]) -> None:
        M, A = symmetric(7, 2).astype(dtype), np.random.default_rng(3).standard_normal((7, 7)).astype(dtype)
        diagonal = congruence_diagonal(A, M)
        assert diagonal.dtype == dtype
        np.testing.assert_allclose(diagonal, np.diagonal(A @ M @ A.T), atol=100.0 * float(np.finfo(dtype).eps))

    @pytest.mark.parametrize("low", [0.0, -1.0])
    def test_gram_for_weights_of_any_sign(self, dtype: type[np.floating[Any]], low: float) -> None:
        rng = np.random.default_rng(4)
        A, w = rng.standard_normal((7, 7)).astype(dtype), rng.uniform(low, 1.0, 7).astype(dtype)
        G = Gram(A)(w)
        assert G.dtype == dtype
        np.testing.assert_array_equal(G, G.T)
        np.testing.assert_allclose(G, A.T @ np.diag(w) @ A, atol=100.0 * float(np.finfo(dtype).eps))


def test_images_are_the_sum_of_the_steps_taken() -> None:
    X, Zt = np.zeros((2, 2)), np.ones((2, 2))
    images = Images(X.copy(), Zt.copy())
    for step, value in ((0.5, 1.0), (-2.0, 3.0)):
        images.of_direction(np.full((2, 2), value), np.full((2, 2), 10.0 * value))
        images.add_step(step, np.zeros((2, 2)))
    np.testing.assert_array_equal(images.X, np.full((2, 2), 0.5 - 6.0))
    np.testing.assert_array_equal(images.Zt, np.full((2, 2), 1.0 + 10.0 * (0.5 - 6.0)))


@pytest.mark.parametrize("name", MAPS)
class TestSinglePrecision:
    """Points and directions in float32 follow those in float64."""

    def test_slope_and_bend(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        X = 0.1 * symmetric(D, 3)
        for derivative in (model.slope, model.bend):
            single = derivative(p.single(), X.astype(np.float32))
            assert single.dtype == np.float32
            np.testing.assert_allclose(single, derivative(p, X), atol=1e-4)

    def test_a_lowered_point_moves_in_single_precision(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        low = model.lowered(p)
        assert (low is not None) == isinstance(MAPS[name], DiagonalPlusScaled)
        low = p.single()
        X, dZt = 0.1 * symmetric(D, 3), 0.1 * symmetric(D, 4)
        moved = model.advance(low, X.astype(np.float32), dZt.astype(np.float32))
        exact = model.advance(p, X, dZt)
        assert moved is not None and exact is not None
        assert {moved.C.dtype, moved.Zt.dtype, moved.Rt.dtype, moved.Ft.dtype} == {np.dtype(np.float32)}
        np.testing.assert_allclose(moved.D, exact.D, rtol=1e-4, atol=1e-5)
        assert model.bounds(moved, None).lower == pytest.approx(model.bounds(exact, None).lower, abs=1e-3)

    def test_a_point_raised_to_double_is_consistent_to_double(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        X, dZt = 0.1 * symmetric(D, 3), 0.1 * symmetric(D, 4)
        raised = model.advance(p.single(), X.astype(np.float32), dZt.astype(np.float32), to_double=True)
        assert raised is not None
        fresh = model.point(raised.D, raised.Z)
        assert fresh is not None
        np.testing.assert_allclose(raised.C_inverse @ raised.C, np.eye(D), atol=1e-11)
        np.testing.assert_allclose(raised.C.T @ model.B @ raised.C, np.diag(raised.lam), atol=1e-11)
        assert raised.log_det == pytest.approx(fresh.log_det, abs=1e-10)
        assert model.bounds(raised, None).lower == pytest.approx(model.bounds(fresh, None).lower, abs=1e-9)

    def test_a_badly_conditioned_point_is_not_lowered(self, name: str) -> None:
        model = FullModel.of(spd(D, 0), MAPS[name])
        p = model.point(1e-3 * spd(D, 1, condition=1e12), np.eye(D))
        assert p is not None
        assert model.lowered(p) is None


def test_scaling_of_a_large_moderate_pair_is_good_to_single_precision() -> None:
    """WZW = F relative to F, though F itself has condition 10⁸."""
    d = 70
    F = spd(d, 0, condition=1e8)
    K = cholesky(F)
    assert K is not None
    inverse = triangular_inverse(K)
    Z = inverse.T @ spd(d, 1, condition=100.0) @ inverse
    scaling = nesterov_todd(F, sym(Z))
    assert scaling is not None
    W = scaling.G @ scaling.G.T
    np.testing.assert_allclose(inverse @ (W @ Z @ W) @ inverse.T, np.eye(d), atol=1e-4)
    np.testing.assert_allclose((scaling.V * scaling.t) @ scaling.V.T, W, rtol=1e-10, atol=1e-10 * float(scaling.t[-1]))


@pytest.mark.parametrize("name", MAPS)
class TestDerivatives:
    def test_point_agrees_with_its_definition(self, name: str) -> None:
        Q = MAPS[name]
        model, p = interior_point(Q)
        F = p.D - Q.apply(p.D @ model.B @ p.D)
        np.testing.assert_allclose(p.C @ p.Ft @ p.C.T, F, atol=1e-11)
        np.testing.assert_allclose(p.C.T @ model.B @ p.C, np.diag(p.lam), atol=1e-11)
        np.testing.assert_allclose(p.C_inverse @ p.C, np.eye(D), atol=1e-10)
        np.testing.assert_allclose(p.Rt, p.C.T @ Q.adjoint(p.Z) @ p.C, atol=1e-9)
        assert p.log_det == pytest.approx(np.linalg.slogdet(p.D)[1], abs=1e-10)

    def test_path_is_exact(self, name: str) -> None:
        Q = MAPS[name]
        model, p = interior_point(Q)
        X = 0.1 * symmetric(D, 3)
        F1, F2 = model.slope(p, X), model.bend(p, X)
        for a in (0.3, 1.0):
            new = p.C @ (np.eye(D) + a * X) @ p.C.T
            exact = p.C_inverse @ (new - Q.apply(new @ model.B @ new)) @ p.C_inverse.T
            np.testing.assert_allclose(p.Ft + a * F1 + a * a * F2, exact, atol=1e-10)

    def test_advance_agrees_with_a_fresh_point(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        X, dZt = 0.1 * symmetric(D, 3), 0.1 * symmetric(D, 4)
        moved = model.advance(p, X, dZt)
        assert moved is not None
        np.testing.assert_allclose(moved.D, p.C @ (np.eye(D) + X) @ p.C.T, atol=1e-11)
        np.testing.assert_allclose(moved.Z, p.C_inverse.T @ (p.Zt + dZt) @ p.C_inverse, atol=1e-8)
        fresh, confirmed = model.point(moved.D, moved.Z), model.confirmed(moved)
        assert fresh is not None and confirmed is not None
        np.testing.assert_allclose(fresh.lam, moved.lam, atol=1e-10)
        assert model.bounds(fresh, None).upper == pytest.approx(model.bounds(moved, None).upper, abs=1e-8)
        np.testing.assert_allclose(confirmed, model.bounds(fresh, None), rtol=1e-8)

    def test_residual_is_the_gradient_of_the_lagrangian(self, name: str) -> None:
        Q = MAPS[name]
        model, p = interior_point(Q)
        X = symmetric(D, 5)

        def lagrangian(a: float) -> float:
            new = p.C @ (np.eye(D) + a * X) @ p.C.T
            return float(np.linalg.slogdet(new)[1] + np.vdot(p.Z, new - Q.apply(new @ model.B @ new)))

        h = 1e-4
        difference = (lagrangian(h) - lagrangian(-h)) / (2 * h)
        assert float(np.vdot(model.dual_residual(p), X)) == pytest.approx(difference, abs=1e-5 * (1 + abs(difference)))
        second = (lagrangian(h) - 2 * lagrangian(0.0) + lagrangian(-h)) / h**2
        curvature = float(np.vdot(X, Curvature(p.lam, p.Rt)(X)))
        assert -second == pytest.approx(curvature, rel=1e-3)

    def test_second_order_part_of_the_residual(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        X, dZt = 0.5 * symmetric(D, 3), 0.5 * symmetric(D, 4)
        K = Curvature(p.lam, p.Rt)

        def residual(a: float) -> Matrix:
            """Residual at (I + aX, Z̃ + a dZ̃) in the basis of p."""
            M = np.eye(D) + a * X
            Zt = p.Zt + a * dZt
            R = model.adjoint(p.C, p.C_inverse, Zt)
            half = p.lam[:, None] * M @ R
            return np.linalg.inv(M) + Zt - half - half.T

        h = 1e-3
        second = (residual(h) - 2.0 * residual(0.0) + residual(-h)) / (2.0 * h * h)
        expected = model.curvature_of_residual(p, X, dZt)
        np.testing.assert_allclose(expected, second, atol=1e-4 * np.abs(second).max())
        first = (residual(h) - residual(-h)) / (2.0 * h)
        V = np.eye(D)
        jac = Jacobian(model.Q, Gram(p.C), Gram(p.C_inverse.T), V, p.lam[:, None] + p.lam, D)
        np.testing.assert_allclose(jac.adjoint(dZt)[0] - K(X), first, atol=1e-4 * np.abs(first).max())

    @pytest.mark.parametrize("rows", [D, 2])
    def test_jacobian_and_adjoint(self, name: str, rows: int) -> None:
        model, p = interior_point(MAPS[name])
        scaling = nesterov_todd(p.Ft, p.Zt)
        assert scaling is not None
        V = scaling.V
        jac = Jacobian(model.Q, Gram(p.C), Gram(p.C_inverse.T @ V), V, p.lam[:, None] + p.lam, rows)
        X = symmetric(D, 6)
        F1 = model.slope(p, X)
        np.testing.assert_allclose(jac.forward(X), (V.T @ F1 @ V)[:rows], atol=1e-10)
        hat = symmetric(D, 8)
        hat[rows:, rows:] = 0.0
        image, Zt = jac.adjoint(hat[:rows])
        np.testing.assert_allclose(Zt, V @ hat @ V.T, atol=1e-11)
        assert float(np.vdot(image, X)) == pytest.approx(float(np.vdot(Zt, F1)), rel=1e-9)

    def test_newton_system_against_a_dense_solve(self, name: str) -> None:
        model, p = interior_point(MAPS[name])
        scaling = nesterov_todd(p.Ft, p.Zt)
        assert scaling is not None
        system = newton_system(model.Q, model.beta, p, scaling, np.float64, Counters())
        r1, r2 = symmetric(D, 1), symmetric(D, 2)
        direction = system.solve(r1, r2, 1e-12, 500)
        # p(K)⁻¹ in place of K makes the two equations exact.
        assert system.rows == D
        n = D * D
        inverse = np.array([system.schur.inverse(sym(E)).ravel() for E in np.eye(n).reshape(n, D, D)])
        forward = np.array([model.slope(p, sym(E)).ravel() for E in np.eye(n).reshape(n, D, D)]).T
        W = (scaling.V * scaling.t) @ scaling.V.T
        S = forward @ inverse @ forward.T
        T = np.kron(W, W)
        rhs = (scaling.V @ r2 @ scaling.V.T).ravel() - forward @ inverse @ r1.ravel()
        dense = sym(np.linalg.solve(S + T, rhs).reshape(D, D))
        np.testing.assert_allclose(direction.dZt, dense, atol=1e-7 * np.abs(dense).max())
        X = (inverse @ (r1.ravel() + forward.T @ dense.ravel())).reshape(D, D)
        np.testing.assert_allclose(direction.X, X, atol=1e-6 * np.abs(X).max())


class TestScaling:
    def test_identities(self) -> None:
        F, Z = spd(7, 0), spd(7, 1, 1e4)
        s = nesterov_todd(F, Z)
        assert s is not None
        W = s.G @ s.G.T
        np.testing.assert_allclose(W @ Z @ W, F, atol=1e-11)
        np.testing.assert_allclose(s.G.T @ Z @ s.G, np.diag(s.v), atol=1e-11)
        np.testing.assert_allclose((s.V * s.t) @ s.V.T, W, atol=1e-10)
        np.testing.assert_allclose(np.sort(s.v**2), np.sort(np.linalg.eigvals(F @ Z).real), rtol=1e-7)

    def test_stack_and_failure(self) -> None:
        F, Z = np.stack([spd(4, 0), spd(4, 1)]), np.stack([spd(4, 2), spd(4, 3)])
        s = nesterov_todd(F, Z)
        single = nesterov_todd(F[1], Z[1])
        assert s is not None and single is not None
        np.testing.assert_allclose(s.v[1], single.v, rtol=1e-9)
        assert nesterov_todd(-F[0], Z[0]) is None
        assert nesterov_todd(F[0], -Z[0]) is None


class TestInverse:
    def test_polynomial_error(self) -> None:
        _, p = interior_point(MAPS["rand-k"])
        K = Curvature(p.lam, p.Rt)
        J = K.diagonal()
        n = D * D
        dense = np.array([K(sym(E)).ravel() for E in np.eye(n).reshape(n, D, D)])
        low, high = spectrum_bounds(K, J)
        basis = np.array([sym(E).ravel() for E in np.eye(n).reshape(n, D, D)])
        values = np.linalg.eigvals(np.diag(1.0 / J.ravel()) @ dense).real
        values = values[values > 1e-9]
        assert low >= values.min() * (1 - 1e-6)
        assert values.max() * (1 - 1e-6) <= high <= 1.2 * values.max()
        p_of_K = chebyshev_inverse(K, J)
        errors = np.linalg.eigvals(basis - np.array([p_of_K(K(sym(E))).ravel() for E in np.eye(n).reshape(n, D, D)]))
        assert np.abs(errors).max() < 0.35
        exact = ChebyshevInverse(K, J, 0.9 * low, 1.1 * high, 60)
        X = symmetric(D, 9)
        np.testing.assert_allclose(exact(K(X)), X, atol=1e-8)


class TestConjugateGradients:
    def test_solves_and_respects_the_cap(self) -> None:
        rng = np.random.default_rng(0)
        A = spd(12, 0) + np.eye(12)

        class Dense:
            def __call__(self, Y: Matrix) -> Matrix:
                return A @ Y

            def precondition(self, Y: Matrix) -> Matrix:
                return Y

            def inner(self, Y: Matrix, Y2: Matrix) -> float:
                return float(np.vdot(Y, Y2))

        def below(tolerance: float) -> Callable[[Matrix], bool]:
            return within_scaled_tolerance(Dense(), np.ones((12, 12)), tolerance)

        b = rng.standard_normal((12, 12))
        steps: list[Matrix] = []

        def take(step: float, direction: Matrix) -> None:
            steps.append(step * direction)

        assert conjugate_gradients(Dense(), b, below(1e-12), 100, take) == len(steps)
        np.testing.assert_allclose(A @ np.sum(steps, axis=0), b, atol=1e-10)
        assert conjugate_gradients(Dense(), b, below(1e-12), 2, take) == 2
        assert conjugate_gradients(Dense(), b, below(1e3), 5, take) == 0


def test_largest_step() -> None:
    eye = np.eye(3)
    assert largest_step([[eye, 0.5 * eye]]) == 1.0
    assert 0.45 <= largest_step([[eye, -2.0 * eye]]) < 0.5
    assert 0.6 < largest_step([[eye, 0.0 * eye, -2.0 * eye]]) < 0.7072
    assert largest_step([[-eye, 0.0 * eye]]) == 0.0


@pytest.mark.parametrize("name", MAPS)
class TestBlockModel:
    @staticmethod
    def inside(name: str) -> tuple[BlockModel, BlockPoint]:
        model = BlockModel(spd(D, 0), MAPS[name], Pattern((2, 3, 1)))
        p = block_start(model, 0.7)
        assert p is not None
        return model, p

    def test_derivatives(self, name: str) -> None:
        model, p = self.inside(name)
        X, Y = model.mask * symmetric(D, 3), symmetric(D, 4)
        assert np.vdot(model.slope(p, X), Y) == pytest.approx(np.vdot(X, model.adjoint(p, Y)), rel=1e-9)

        def constraint(a: float) -> Matrix:
            new = p.C @ (np.eye(D) + a * X) @ p.C.T
            return np.asarray(p.C_inverse @ (new - model.Q.apply(new @ model.B @ new)) @ p.C_inverse.T)

        np.testing.assert_allclose(constraint(0.0), p.Ft, atol=1e-10)
        h = 1e-4
        np.testing.assert_allclose(model.slope(p, X), (constraint(h) - constraint(-h)) / (2 * h), atol=1e-5)
        second = (constraint(h) - 2 * constraint(0.0) + constraint(-h)) / (2 * h * h)
        np.testing.assert_allclose(model.bend(p, X), second, atol=1e-5)

        def lagrangian(a: float) -> float:
            new = p.C @ (np.eye(D) + a * X) @ p.C.T
            return float(np.linalg.slogdet(new)[1] + np.vdot(p.Zt, constraint(a)))

        slope = (lagrangian(h) - lagrangian(-h)) / (2 * h)
        assert np.vdot(model.dual_residual(p), X) == pytest.approx(slope, abs=1e-5)
        bend = (lagrangian(h) - 2 * lagrangian(0.0) + lagrangian(-h)) / h**2
        assert np.vdot(X, model.curvature(p, X)) == pytest.approx(-bend, rel=1e-3)

    def test_newton_system_solves_both_equations(self, name: str) -> None:
        model, p = self.inside(name)
        scaling = nesterov_todd(p.Ft, p.Zt)
        assert scaling is not None
        system = model.system(p, scaling, np.float64, Counters())
        r1, r2 = model.mask * symmetric(D, 1), symmetric(D, 2)
        direction = system.solve(r1, r2, 1e-11, 1000)
        V = scaling.V
        W = (V * scaling.t) @ V.T
        np.testing.assert_allclose(model.slope(p, direction.X) + W @ direction.dZt @ W, V @ r2 @ V.T, atol=1e-7)
        np.testing.assert_allclose(direction.X, system.inverse(r1 + model.adjoint(p, direction.dZt)), atol=1e-9)
