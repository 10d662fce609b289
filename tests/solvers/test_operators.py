"""Every model of the own methods against definitions: adjoint, derivatives, second order, bounds, Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.lagrangian import bound, inequalities
from shared.native_problems import all_maps, all_patterns, rand_k, spectrum
from stepsize_solvers.metric.newton import DenseSystem, KrylovSystem, listed
from stepsize_solvers.metric.patterned import Patterned
from stepsize_solvers.metric.point import MetricPoint, curvature_loss
from stepsize_solvers.metric.starts import best_multiple, start
from stepsize_solvers.metric.whitened import Whitening
from stepsize_solvers.numerics import Counters, Limits, Progress, nesterov_todd, sym
from stepsize_solvers.programs import CongruenceSum, DiagonalPlusScaled, Family, Metric, Pattern, PositiveMap, Program
from stepsize_solvers.single import small, starts
from stepsize_solvers.single.blocks import BlockModel, block_start
from stepsize_solvers.single.closed_forms import ClosedForm
from stepsize_solvers.single.diagonal import DiagonalPoint, _Newton
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.inverse import Curvature
from stepsize_solvers.single.iteration import Tuning
from stepsize_solvers.single.layers import LayeredProblem
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.schur import Gram, Jacobian

Matrix = NDArray[np.float64]
Map = Callable[[Matrix], Matrix]
D = 6
EYE = np.eye(D)
B = spectrum(D, 50.0)
MAPS = all_maps(D)
PATTERNS = all_patterns(D)
every_map = pytest.mark.parametrize("name", MAPS)
every_pattern = pytest.mark.parametrize("shape", PATTERNS)
every_condition = pytest.mark.parametrize("kind", ["full", "blocks"])


def symmetric(seed: int, d: int = D) -> Matrix:
    return sym(np.random.default_rng(seed).standard_normal((d, d)))


def definite(seed: int, d: int = D) -> Matrix:
    A = np.random.default_rng(seed).standard_normal((d, d + 2))
    return sym(A @ A.T)


def assert_is_derivative(f: Callable[[float], Any], first: Any, second: Any, h: float = 1e-3) -> None:
    """Check the first two derivatives of f at 0 against central differences."""
    low, middle, high = (np.asarray(f(t)) for t in (-h, 0.0, h))
    slope, bend = (high - low) / (2.0 * h), (high - 2.0 * middle + low) / h**2
    np.testing.assert_allclose(first, slope, rtol=0, atol=1e-5 * (1.0 + np.abs(slope).max()))
    np.testing.assert_allclose(second, bend, rtol=0, atol=1e-4 * np.abs(bend).max())


@dataclass(frozen=True, eq=False)
class Local:
    """F(D) = aD − 𝒬(DBD) around one D as a solver has it: F̃ = C⁻¹FC⁻ᵀ and its derivatives at D = C(I + X)Cᵀ."""

    Q: PositiveMap
    a: float
    C: Matrix
    value: Matrix
    slope: Map
    adjoint: Map
    bend: Map
    project: Map

    def moved(self, X: Matrix) -> Matrix:
        return self.C @ (EYE + X) @ self.C.T

    def constraint(self, X: Matrix) -> Matrix:
        """F̃ by its definition."""
        moved, inverse = self.moved(X), np.linalg.inv(self.C)
        return np.asarray(inverse @ (self.a * moved - self.Q.apply(moved @ B @ moved)) @ inverse.T)


@dataclass(frozen=True, eq=False)
class Condition:
    """𝒬(DBD) ⪯ D with a multiplier: the model of the iteration, its point, K of the Lagrangian, and B̃."""

    local: Local
    model: Any
    p: Any
    K: Map
    Bt: Matrix

    @property
    def program(self) -> Program:
        pattern = self.model.pattern if isinstance(self.model, BlockModel) else None
        return Program.single(B, self.model.Q, pattern)


def full(Q: PositiveMap) -> Condition:
    """A strictly feasible point of a full D, not central."""
    model = FullModel.of(B, Q)
    D0 = 0.6 * starts.power_start(B, Q).D
    return full_at(model, model.point(D0, np.linalg.inv(D0) + 0.3 * definite(1)))


def full_at(model: FullModel, p: Point | None) -> Condition:
    assert p is not None
    jacobian = Jacobian(model.Q, Gram(p.C), Gram(p.C_inverse.T), EYE, p.lam[:, None] + p.lam, D)
    slope, bend = partial(model.slope, p), partial(model.bend, p)
    local = Local(model.Q, 1.0, p.C, p.Ft, slope, lambda Z: jacobian.adjoint(Z)[0], bend, sym)
    return Condition(local, model, p, Curvature(p.lam, p.Rt), np.diag(p.lam))


def blocks(Q: PositiveMap) -> Condition:
    """A central point of a block-diagonal D."""
    model = BlockModel(B, Q, Pattern((2, 3, 1)))
    return blocks_at(model, block_start(model, 0.7))


def blocks_at(model: BlockModel, p: Any) -> Condition:
    assert p is not None
    slope, adjoint, bend = (partial(f, p) for f in (model.slope, model.adjoint, model.bend))
    local = Local(model.Q, 1.0, p.C, p.Ft, slope, adjoint, bend, model.pattern.blocks)
    return Condition(local, model, p, partial(model.curvature, p), p.Bt)


CONDITIONS = {"full": full, "blocks": blocks}


def metric_point(shape: str, Q: PositiveMap) -> MetricPoint:
    """A point of the metric 2D − 𝒬(DBD) away from its optimum."""
    left = Family(Q, B, a=2.0)
    X = start(Metric(left), PATTERNS[shape], None)
    assert X is not None
    p = MetricPoint.of(left, PATTERNS[shape], 0.8 * X)
    assert p is not None
    return p


def metric(shape: str, Q: PositiveMap) -> Local:
    f = metric_point(shape, Q).frame
    return Local(Q, 2.0, f.C.A, f.value, f.slope, f.coslope, f.bend, f.project)


LOCALS: dict[str, Callable[[PositiveMap], Local]] = {
    "full": lambda Q: full(Q).local,
    "blocks": lambda Q: blocks(Q).local,
    **{f"metric, {shape}": partial(metric, shape) for shape in PATTERNS},
}


@every_map
@pytest.mark.parametrize("kind", LOCALS)
def test_a_constraint_is_its_quadratic_and_has_its_adjoint(kind: str, name: str) -> None:
    at = LOCALS[kind](MAPS[name])
    X, Y = at.project(0.1 * symmetric(3)), symmetric(4)
    first, second = at.slope(X), at.bend(X)
    for t in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(at.value + t * first + t * t * second, at.constraint(t * X), atol=1e-10)
    adjoint = at.adjoint(Y)
    np.testing.assert_allclose(adjoint, at.project(adjoint), atol=1e-12 * np.abs(adjoint).max())
    assert np.vdot(first, Y) == pytest.approx(np.vdot(X, adjoint), rel=1e-9)


# ---------------------------------------------------------------- the condition 𝒬(DBD) ⪯ D


def residual(Q: PositiveMap, C: Matrix, X: Matrix, Zt: Matrix) -> Matrix:
    """Cᵀ(D⁻¹ + Z − BDR − RDB)C, R = 𝒬*(Z), at D = C(I + X)Cᵀ and Z = C⁻ᵀZ̃C⁻¹."""
    inverse, moved = np.linalg.inv(C), C @ (EYE + X) @ C.T
    Z = inverse.T @ Zt @ inverse
    half = B @ moved @ Q.adjoint(Z)
    return np.asarray(C.T @ (np.linalg.inv(moved) + Z - half - half.T) @ C)


@every_map
@every_condition
def test_residual_and_curvature_are_derivatives_of_the_lagrangian(kind: str, name: str) -> None:
    at = CONDITIONS[kind](MAPS[name])
    X, dZt = at.local.project(0.5 * symmetric(3)), 0.5 * symmetric(4)

    def lagrangian(t: float) -> float:
        return float(np.linalg.slogdet(at.local.moved(t * X))[1] + np.vdot(at.p.Zt, at.local.constraint(t * X)))

    assert_is_derivative(lagrangian, np.vdot(at.model.dual_residual(at.p), X), -np.vdot(X, at.K(X)), h=1e-4)
    assert_is_derivative(
        lambda t: at.local.project(residual(at.local.Q, at.local.C, t * X, at.p.Zt + t * dZt)),
        at.local.adjoint(dZt) - at.K(X),
        2.0 * at.model.curvature_of_residual(at.p, X, dZt),
    )


def assert_consistent(at: Condition) -> None:
    """The parts of a point, and the interval that it proves, are those of its D and Z."""
    p, inverse = at.p, at.p.C_inverse
    np.testing.assert_allclose(inverse @ p.C, EYE, atol=1e-11)
    np.testing.assert_allclose(p.C.T @ B @ p.C, at.Bt, atol=1e-11)
    np.testing.assert_allclose(p.C @ p.Ft @ p.C.T, p.D - at.local.Q.apply(p.D @ B @ p.D), atol=1e-11)
    np.testing.assert_allclose(p.Rt, p.C.T @ at.local.Q.adjoint(p.Z) @ p.C, atol=1e-9)
    assert p.log_det == pytest.approx(np.linalg.slogdet(p.D)[1], abs=1e-10)
    for near in (True, False):
        assert_bounds(at.program, at.model.bounds(p, None, near), p.D, p.Z, near)
    np.testing.assert_allclose(at.model.confirmed(p), at.model.bounds(p, None), rtol=1e-8)


def assert_bounds(program: Program, found: Any, D: Matrix, Z: Matrix, near: bool = True) -> None:
    """The interval is that of the multiple of D on the boundary, or of D itself, by the formula of the theory."""
    (F,) = inequalities(program, program.families[0], found.scale * D)
    assert abs(np.linalg.eigvalsh(F)[0]) < 1e-12 if near else found.scale == 1.0
    assert found.lower == pytest.approx(np.linalg.slogdet(found.scale * D)[1], abs=1e-10)
    assert found.upper == pytest.approx(bound(program, found.scale * D, (Z[None],)), abs=1e-8)


@every_map
@every_condition
def test_points_are_consistent_and_stay_so_after_a_step(kind: str, name: str) -> None:
    at = CONDITIONS[kind](MAPS[name])
    assert_consistent(at)
    X, dZt = at.local.project(0.1 * symmetric(3)), 0.1 * symmetric(4)
    moved = at.model.advance(at.p, X, dZt)
    np.testing.assert_allclose(moved.D, at.local.moved(X), atol=1e-11)
    np.testing.assert_allclose(moved.Z, at.p.C_inverse.T @ (at.p.Zt + dZt) @ at.p.C_inverse, atol=1e-8)
    assert_consistent(full_at(at.model, moved) if kind == "full" else blocks_at(at.model, moved))
    assert at.model.advance(at.p, -2.0 * EYE, dZt) is None


@every_map
@every_condition
def test_a_newton_step_solves_both_equations(kind: str, name: str) -> None:
    """X = p(K)(r₁ + F′*dZ) and F′X + W dZ W = r₂."""
    at = CONDITIONS[kind](MAPS[name])
    scaling = nesterov_todd(at.p.Ft, at.p.Zt)
    assert scaling is not None
    r1, r2, V = at.local.project(symmetric(1)), symmetric(2), scaling.V
    system = at.model.system(at.p, scaling, np.float64, Counters())
    step, S = system.solve(r1, r2, 1e-12, 1000), (V * scaling.t) @ V.T
    np.testing.assert_allclose(at.local.slope(step.X) + S @ step.dZt @ S, V @ r2 @ V.T, atol=1e-7)
    np.testing.assert_allclose(step.X, system.inverse(r1 + at.local.adjoint(step.dZt)), atol=1e-9)


@every_map
@pytest.mark.parametrize("rows", [D, 2])
def test_the_jacobian_of_active_rows(name: str, rows: int) -> None:
    at = full(MAPS[name])
    scaling = nesterov_todd(at.p.Ft, at.p.Zt)
    assert scaling is not None
    V, X, hat = scaling.V, symmetric(6), symmetric(8)
    jacobian = Jacobian(at.local.Q, Gram(at.p.C), Gram(at.p.C_inverse.T @ V), V, at.p.lam[:, None] + at.p.lam, rows)
    np.testing.assert_allclose(jacobian.forward(X), (V.T @ at.local.slope(X) @ V)[:rows], atol=1e-10)
    hat[rows:, rows:] = 0.0
    image, Zt = jacobian.adjoint(hat[:rows])
    np.testing.assert_allclose(Zt, V @ hat @ V.T, atol=1e-11)
    assert np.vdot(image, X) == pytest.approx(np.vdot(Zt, at.local.slope(X)), rel=1e-9)


@every_map
def test_single_precision_follows_double(name: str) -> None:
    at = full(MAPS[name])
    model, p, low = at.model, at.p, at.p.single()
    X, dZt = 0.1 * symmetric(3), 0.1 * symmetric(4)
    X32, dZt32 = X.astype(np.float32), dZt.astype(np.float32)
    for derivative in (model.slope, model.bend):
        assert derivative(low, X32).dtype == np.float32
        np.testing.assert_allclose(derivative(low, X32), derivative(p, X), atol=1e-4)
    moved, exact = model.advance(low, X32, dZt32), model.advance(p, X, dZt)
    assert {moved.C.dtype, moved.Zt.dtype, moved.Rt.dtype, moved.Ft.dtype} == {np.dtype(np.float32)}
    np.testing.assert_allclose(moved.D, exact.D, rtol=1e-4, atol=1e-5)
    assert model.bounds(moved, None).lower == pytest.approx(model.bounds(exact, None).lower, abs=1e-3)
    # A point that moves on to double is consistent to double.
    assert_consistent(full_at(model, model.advance(low, X32, dZt32, to_double=True)))
    # Only the cheap map and a well-conditioned basis are lowered.
    assert (model.lowered(p) is not None) == isinstance(at.local.Q, DiagonalPlusScaled)
    assert model.lowered(model.point(np.diag(np.geomspace(1e-15, 1e-3, D)), EYE)) is None


def small_point(Q: PositiveMap) -> tuple[small.SmallIteration, small.SmallPoint]:
    """The dense iteration of a problem and its first point."""
    dense = small.SmallIteration(B, Q, Tuning(), Progress(D, Limits(1e-6, 100), 1.0, 100))
    point = dense.start(starts.boundary_start(B, Q).D)
    assert point is not None
    return dense, point


@every_map
def test_dense_points_and_their_bounds(name: str) -> None:
    Q = MAPS[name]
    dense, p = small_point(Q)
    F = p.D - Q.apply(p.D @ B @ p.D)
    np.testing.assert_allclose(p.C @ p.C.T, p.D, atol=1e-12)
    np.testing.assert_allclose(p.C.T @ B @ p.C, np.diag(p.lam), atol=1e-12)
    np.testing.assert_allclose(p.E @ F @ p.E.T, np.diag(p.v), atol=1e-11)
    np.testing.assert_allclose(p.E.T @ np.diag(p.v) @ p.E, p.Z, rtol=1e-9, atol=1e-9 * np.abs(p.Z).max())
    for near in (True, False):
        assert_bounds(Program.single(B, Q), dense.bounds(p, near), p.D, p.Z, near)
    for D0, Z in ((-p.D, p.Z), (4.0 * p.D, p.Z), (p.D, -p.Z)):  # indefinite, infeasible, indefinite
        assert dense.point(D0, Z) is None


@every_map
def test_a_dense_direction_solves_both_equations(name: str) -> None:
    """K X − F′*dZ = r₁ and F′X + W dZ W = r₂, checked with the maps themselves."""
    Q = MAPS[name]
    dense, p = small_point(Q)
    r1, r2, N = symmetric(1), symmetric(2), dense.jacobian(p)
    factor = dense.factor(p, N)
    assert factor is not None
    found = dense.direction(p, N, factor, dense.at.svec(r1), r2)
    dD, inverse = p.C @ found.X @ p.C.T, np.linalg.inv(p.D)
    R, dR = Q.adjoint(p.Z), Q.adjoint(found.dZ)
    K = inverse @ dD @ inverse + B @ dD @ R + R @ dD @ B
    adjoint = found.dZ - (B @ p.D @ dR + dR @ p.D @ B)
    np.testing.assert_allclose(p.C.T @ (K - adjoint) @ p.C, r1, atol=1e-9)
    change = dD - Q.apply(dD @ B @ p.D + p.D @ B @ dD)
    np.testing.assert_allclose(p.E @ change @ p.E.T + found.zeta, r2, atol=1e-9)
    np.testing.assert_allclose(found.first, p.E @ change @ p.E.T, atol=1e-9)
    np.testing.assert_allclose(found.second, -p.E @ Q.apply(dD @ B @ dD) @ p.E.T, atol=1e-9)
    np.testing.assert_allclose(p.E.T @ found.zeta @ p.E, found.dZ, atol=1e-9)
    # The second-order part of the first equation, which correctors take away.
    X, dZt = found.X / np.abs(found.X).max(), p.C.T @ found.dZ @ p.C / np.abs(found.X).max()
    unit = found._replace(X=X, dZ=found.dZ / np.abs(found.X).max())
    assert_is_derivative(
        lambda t: residual(Q, p.C, t * X, p.Zt + t * dZt),
        -r1 / np.abs(found.X).max(),
        2.0 * dense.at.smat(dense.second_order(p, unit)[0]),
    )


def as_congruences(Q: PositiveMap) -> PositiveMap:
    """𝒬(M) = P∘M as Σ_r w_r S_r M S_r with diagonal S_r, from the eigenvectors of P; others as they are."""
    if Q.hadamard_matrix is None:
        return Q
    w, V = np.linalg.eigh(Q.hadamard_matrix)
    return CongruenceSum(np.maximum(w, 0.0), np.array([np.diag(v) for v in V.T]))


@every_map
def test_the_start_is_the_best_power_on_the_boundary(name: str) -> None:
    """The same for 𝒬(M) = P∘M as for a sum of congruences, which takes another way."""
    Q = MAPS[name]
    found = starts.power_start(B, Q)
    (F,) = inequalities(Program.single(B, Q), Program.single(B, Q).families[0], found.D)
    assert np.linalg.eigvalsh(F)[0] == pytest.approx(0.0, abs=1e-9)
    assert np.linalg.slogdet(found.D)[1] == pytest.approx(found.log_det, abs=1e-9)
    other = starts.power_start(B, as_congruences(Q))
    assert found.log_det == pytest.approx(other.log_det, abs=1e-9)
    np.testing.assert_allclose(found.D, other.D, rtol=1e-8, atol=1e-10 * np.abs(other.D).max())
    for change in (1.0, -1.0):  # a closed form is taken where it is better
        form = ClosedForm(found.D, EYE, False, np.inf, found.log_det + change, "another")
        assert starts.boundary_start(B, Q, form).log_det == found.log_det + max(change, 0.0)


def test_a_power_knows_its_working_basis_unless_eigenvalues_were_raised() -> None:
    B9, Q = spectrum(9, 1e3), as_congruences(rand_k(9, 3))
    power = starts.power_start(B9, Q)
    assert power.basis is not None and starts.power_start(spectrum(9, 1e17), Q).basis is None
    known, plain = (
        starts.inside(FullModel.of(B9, Q), start, 0.9) for start in (power, starts.Start(power.D, power.log_det))
    )
    assert known is not None and plain is not None
    np.testing.assert_allclose(known.C_inverse @ known.C, np.eye(9), atol=1e-12)
    np.testing.assert_allclose(known.C.T @ B9 @ known.C, np.diag(known.lam), atol=1e-12)
    assert known.log_det == pytest.approx(plain.log_det, abs=1e-10)
    np.testing.assert_allclose(known.D, plain.D, atol=1e-10 * np.abs(plain.D).max())
    np.testing.assert_allclose(known.Z, plain.Z, rtol=1e-6, atol=1e-8 * np.abs(plain.Z).max())


@every_map
def test_factors_by_layers_have_the_derivatives_of_their_barrier(name: str) -> None:
    """The Newton step against differences of Σ dᵢ log γᵢ + ν log det(D − 𝒬(DBD))."""
    sizes, nu, Q = (1, 2, 3), 0.3, MAPS[name]
    pattern = Pattern(sizes, Pattern(sizes).blocks(spectrum(D, 20.0, 7)))
    problem, program = LayeredProblem.of(B, Q, pattern), Program.single(B, Q, pattern)
    assert problem is not None
    first = problem.first_factors()
    p = problem.inside(0.8 * problem.largest_multiple(first) * first)
    assert p is not None
    assert p.bounds.lower == pytest.approx(np.linalg.slogdet(p.bounds.scale * p.D)[1], abs=1e-10)
    assert p.bounds.upper == pytest.approx(bound(program, p.D, (p.Z[None],)), abs=1e-8)
    step = p.newton(nu)
    assert step is not None

    def barrier(h: Matrix) -> float:
        (F,) = inequalities(program, program.families[0], np.repeat(1.0 + h, sizes)[:, None] * p.D)
        sign, value = np.linalg.slogdet(F)
        assert sign == 1.0
        return float(np.array(sizes) @ np.log1p(h) + nu * value)

    t = 1e-4
    e = t * np.eye(3)
    gradient = np.array([barrier(x) - barrier(-x) for x in e]) / (2.0 * t)
    hessian = np.array([[barrier(x + y) - barrier(x - y) - barrier(y - x) + barrier(-x - y) for x in e] for y in e])
    np.testing.assert_allclose(step.h, -np.linalg.solve(hessian / (4.0 * t * t), gradient), rtol=1e-4, atol=1e-6)
    assert step.decrement == pytest.approx(np.sqrt(gradient @ step.h / nu), rel=1e-4)


def test_a_step_of_a_diagonal_solves_the_linearised_equations() -> None:
    M = spectrum(8, 100.0)
    centre = DiagonalPoint.central(M, 0.1 / np.diagonal(M))
    assert centre is not None
    Y = centre.Y * np.outer(*(np.linspace(0.9, 1.1, 8),) * 2)
    point = DiagonalPoint(centre.x, centre.N, centre.K, Y)
    newton, nu = _Newton.of(point), 0.3 * point.mu
    assert newton is not None
    step = newton.step(nu)
    assert np.diagonal(Y) * step.h + np.diagonal(Y + step.dY) == pytest.approx(np.ones(8))
    slack = np.linalg.inv(point.N) - np.eye(8)
    change = np.linalg.solve(slack, nu * np.eye(8) - slack @ Y + step.h[:, None] * Y)
    assert step.dY == pytest.approx(0.5 * (change + change.T))


# ---------------------------------------------------------------- the metric 2D − 𝒬(DBD)


@every_map
@every_pattern
def test_gradient_and_newton_systems_of_the_metric_are_derivatives(shape: str, name: str) -> None:
    p, pattern, Q = metric_point(shape, MAPS[name]), PATTERNS[shape], MAPS[name]
    at = metric(shape, Q)
    X = p.frame.project(np.diag(np.linspace(0.5, 1.5, D)) + 0.3)
    krylov = KrylovSystem(p, 1.0, False, 0.0, Counters())
    assert_is_derivative(
        lambda t: np.linalg.slogdet(at.constraint(t * X))[1], np.vdot(p.gradient, X), -np.vdot(X, krylov(X)), h=1e-4
    )
    over = listed(Q, pattern, 100)
    rotated = MetricPoint.of(Family(Q, B, a=2.0), pattern, p.D, rotated=pattern.is_full)
    assert over is not None and rotated is not None
    dense = DenseSystem.of(rotated, over)
    assert dense is not None
    image = KrylovSystem(rotated, 1.0, False, 0.0, Counters())(dense.solve(rotated.gradient))
    np.testing.assert_allclose(image, rotated.gradient, rtol=0, atol=1e-7 * np.abs(rotated.gradient).max())


def bases(shape: str, Q: PositiveMap) -> tuple[Any, Any]:
    """Both bases of the path to the largest t at one point: for conjugate gradients and for a dense system."""
    p, left, over = metric_point(shape, Q), Family(Q, B, a=2.0), listed(Q, PATTERNS[shape], 100)
    assert over is not None
    makers = (Whitening(left, PATTERNS[shape], single=False), Patterned(left, PATTERNS[shape], over))
    whitened, dense = (maker(p.D, p.Y) for maker in makers)
    assert whitened is not None and dense is not None
    return whitened, dense


@every_map
@every_pattern
def test_a_step_to_the_largest_t_solves_its_equations(shape: str, name: str) -> None:
    """K X − G′*[dZ] = r, G′[X] − E dt + W dZ W = c and ⟨E, dZ⟩ = 0, in both bases."""
    scaling = nesterov_todd(definite(1), definite(2))
    assert scaling is not None
    S, E = scaling.G @ scaling.G.T, definite(3)
    whitened, dense = bases(shape, MAPS[name])
    K = dense.over.curvature(dense.frame, dense.Rt)
    inverses = (whitened.K.solve, lambda M: dense.over.matrix(np.linalg.solve(K, dense.over.vector(M))))
    for basis, inverse in zip((whitened, dense), inverses, strict=True):
        frame, system = basis.frame, basis.system(scaling, E, Counters())
        for seed in (4, 6):
            r, c = frame.project(symmetric(seed)), symmetric(seed + 1)
            X, dZ, dt = system.solve(r, c, 1e-9)
            left = frame.slope(X) - E * dt + S @ dZ @ S - c
            assert np.abs(left).max() <= 1e-6 * np.abs(c).max()
            assert np.abs(X - inverse(r + frame.coslope(dZ))).max() <= 1e-6 * np.abs(X).max()
            assert abs(float(np.vdot(E, dZ))) <= 1e-6 * np.abs(dZ).max() * np.abs(E).sum()


@every_map
@every_pattern
def test_the_loss_of_the_bound_is_that_over_the_pattern(shape: str, name: str) -> None:
    """½⟨g, K⁻¹g⟩ is the largest ⟨g, X⟩ − ½⟨X, BXR + RXB⟩ over the X of the pattern, at most that over all matrices."""
    whitened, basis = bases(shape, MAPS[name])
    frame, over, rng = basis.frame, basis.over, np.random.default_rng(3)

    def gradient(frame: Any) -> Matrix:
        return np.asarray(frame.project(frame.C.A.T @ symmetric(9) @ frame.C.A))

    g = gradient(frame)
    loss = basis.loss(g)
    assert whitened.loss(gradient(whitened.frame)) == pytest.approx(loss, rel=1e-6)

    def gain(X: Matrix) -> float:
        return float(np.vdot(g, X)) - float(np.vdot(X, frame.left(X) @ basis.Rt))

    best = over.matrix(np.linalg.solve(over.curvature(frame, basis.Rt), over.vector(g)))
    assert gain(best) == pytest.approx(loss, rel=1e-9)
    for t in (1e-3, 1e-1, 1.0):
        assert gain(best + t * frame.project(sym(rng.standard_normal((D, D))))) < loss
    assert loss <= curvature_loss(frame, basis.Rt, g) * (1.0 + 1e-9)


def test_the_best_multiple_is_the_best() -> None:
    m = np.geomspace(1e-3, 2.0, 7)
    around = best_multiple(m, 2.0) * (1.0 + np.array([-1e-4, 0.0, 1e-4]))
    values = [float(np.log(g * (2.0 - g * m)).sum()) for g in around]
    assert max(values) == values[1]
