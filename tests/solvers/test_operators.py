"""Every problem of the own methods against its definition: adjoint, derivatives, second order, bounds, Newton steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.lagrangian import bound, inequalities
from shared.native_problems import all_maps, all_patterns, spectrum
from stepsize_solvers.interior.condition import ActiveRows, Condition, ConditionPoint
from stepsize_solvers.interior.dense import listed
from stepsize_solvers.interior.diagonal import DiagonalPoint, _Newton
from stepsize_solvers.interior.floor import Factorised, Floor, FloorPoint
from stepsize_solvers.interior.frame import Frame, nesterov_todd
from stepsize_solvers.interior.metric import KrylovSystem, MetricPoint
from stepsize_solvers.interior.starts import (
    best_multiple,
    cold_start,
    given_start,
    metric_start,
    power_start,
    warm_start,
)
from stepsize_solvers.interior.whitened import Whitening
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.numerics.progress import Work
from stepsize_solvers.programs import CongruenceSum, Family, Pattern, PositiveMap, Program, WarmStart

Matrix = NDArray[np.float64]
D = 6
EYE = np.eye(D)
B = spectrum(D, 50.0)
MAPS = all_maps(D)
PATTERNS = all_patterns(D)
CONDITIONS = {
    "full": Pattern.full(D),
    "blocks": Pattern((2, 3, 1)),
    "given": Pattern((1, 2, 3), Pattern((1, 2, 3)).blocks(spectrum(D, 20.0, 7))),
}
every_map = pytest.mark.parametrize("name", MAPS)
every_pattern = pytest.mark.parametrize("shape", PATTERNS)
every_condition = pytest.mark.parametrize("shape", CONDITIONS)


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


# ---------------------------------------------------------------- one D: F(D) = aD − 𝒬(DBD) in a frame


def constraint(frame: Frame, X: Matrix) -> Matrix:
    """C⁻¹F(C(I + X)Cᵀ)C⁻ᵀ by its definition."""
    C, inverse = frame.C, np.linalg.inv(frame.C)
    moved = C @ (EYE + X) @ C.T
    return np.asarray(inverse @ (frame.a * moved - frame.Q.apply(moved @ B @ moved)) @ inverse.T)


def metric_point(shape: str, Q: PositiveMap) -> MetricPoint:
    """A point of the metric 2D − 𝒬(DBD) away from its optimum."""
    left = Family(Q, B, a=2.0)
    X = metric_start(left, PATTERNS[shape], None)
    assert X is not None
    p = MetricPoint.of(left, PATTERNS[shape], 0.8 * X)
    assert p is not None
    return p


@every_map
@every_pattern
@pytest.mark.parametrize("a", [1.0, 2.0])
def test_a_frame_has_the_quadratic_its_adjoint_and_moves(a: float, shape: str, name: str) -> None:
    frame = Frame.of(Family(MAPS[name], B, a=a), PATTERNS[shape], metric_point(shape, MAPS[name]).D)
    assert frame is not None
    X, Y = frame.project(0.1 * symmetric(3)), symmetric(4)
    first, second = frame.slope(X), frame.bend(X)
    for t in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(frame.value + t * first + t * t * second, constraint(frame, t * X), atol=1e-10)
    adjoint = frame.coslope(Y)
    np.testing.assert_allclose(adjoint, frame.project(adjoint), atol=1e-12 * np.abs(adjoint).max())
    assert np.vdot(first, Y) == pytest.approx(np.vdot(X, adjoint), rel=1e-9)
    for precise, rough in (
        (first, frame.single.slope(X.astype(np.float32))),
        (adjoint, frame.single.coslope(np.float32(Y))),
    ):
        assert rough.dtype == np.float32
        np.testing.assert_allclose(rough, precise, atol=1e-4 * np.abs(precise).max())
    found = frame.moved(X)
    assert found is not None and frame.moved(-2.0 * EYE) is None
    moved, T = found
    np.testing.assert_allclose(moved.D, frame.C @ (EYE + X) @ frame.C.T, atol=1e-11)
    np.testing.assert_allclose(frame.C @ T, moved.C, atol=1e-11)
    np.testing.assert_allclose(moved.E.T @ moved.C, EYE, atol=1e-11)
    np.testing.assert_allclose(moved.C.T @ B @ moved.C, moved.matrix(), atol=1e-11)
    assert moved.log_det == pytest.approx(np.linalg.slogdet(moved.D)[1], abs=1e-10)


# ---------------------------------------------------------------- problems with one inequality


def condition(shape: str, Q: PositiveMap, dense: bool) -> tuple[Condition, ConditionPoint]:
    """A strictly feasible point of the condition, not central."""
    pattern = CONDITIONS[shape]
    over = listed(Q, pattern, 100) if dense else None
    problem = Condition(Family(Q, B, a=1.0), pattern, 1e-6, Work(), over)
    start = cold_start(problem, fraction=0.6)
    assert start is not None
    p = problem.point(start.D, np.linalg.inv(start.D) + 0.3 * definite(1))
    assert p is not None
    return problem, p


def floor(shape: str, Q: PositiveMap, dense: bool) -> tuple[Floor, FloorPoint]:
    """A point of the largest t, not central."""
    p, left, over = metric_point(shape, Q), Family(Q, B, a=2.0), listed(Q, PATTERNS[shape], 100)
    assert over is not None
    basis = Factorised(left, PATTERNS[shape], over) if dense else Whitening(left, PATTERNS[shape])
    E = definite(3)
    problem = Floor(left, E, (basis,), 1e-6, Work())
    t = 0.5 / float(np.linalg.eigvalsh(np.linalg.solve(p.frame.C @ p.Gt @ p.frame.C.T, E) @ EYE)[-1].real)
    point = problem.point(p.D, t, p.Y + 0.1 * definite(1))
    assert point is not None
    return problem, point


PROBLEMS = [
    *(("condition", shape, True) for shape in CONDITIONS),
    *(("condition", shape, False) for shape in CONDITIONS if shape != "given"),
    *(("floor", shape, dense) for shape in PATTERNS for dense in (False, True)),
]
MAKERS: dict[str, Callable[[str, PositiveMap, bool], tuple[Any, Any]]] = {"condition": condition, "floor": floor}
every_problem = pytest.mark.parametrize(("kind", "shape", "dense"), PROBLEMS)


def frame_of(p: Any) -> Frame:
    return p.frame if isinstance(p, ConditionPoint) else p.basis


def residual(p: Any, problem: Any, X: Matrix, Zt: Matrix) -> Matrix:
    """The gradient of the Lagrangian at D + CXCᵀ and Z = C⁻ᵀZ̃C⁻¹, in the basis of p: Π(Cᵀ(D⁻¹ + aZ − BDR − RDB)C)."""
    frame, family = frame_of(p), problem.family
    D0, Z = p.D + frame.change(X), frame.dual(Zt)
    half = B @ D0 @ family.Q.adjoint(Z)
    gradient = family.a * Z - half - half.T
    if isinstance(p, ConditionPoint):
        gradient = gradient + np.linalg.inv(D0)
    return frame.project(frame.C.T @ gradient @ frame.C)


@every_map
@every_problem
def test_the_residual_of_a_point_is_the_gradient_of_its_lagrangian(
    kind: str, shape: str, dense: bool, name: str
) -> None:
    problem, p = MAKERS[kind](shape, MAPS[name], dense)
    X, dZ = frame_of(p).project(0.3 * symmetric(3)), 0.3 * symmetric(4)
    np.testing.assert_allclose(p.residual, residual(p, problem, 0.0 * X, p.Zt), atol=1e-7 * np.abs(p.Zt).max())
    h = 1e-3
    low, middle, high = (residual(p, problem, t * X, p.Zt + t * dZ) for t in (-h, 0.0, h))
    second = (high - 2.0 * middle + low) / (2.0 * h * h)
    np.testing.assert_allclose(p.residual_bend(X, dZ), second, atol=1e-4 * (1.0 + np.abs(second).max()))
    # F is exact to second order: p has its first and its second change.
    moved = p.D + frame_of(p).change(X)
    value = problem.family.a * moved - problem.family.Q.apply(moved @ B @ moved)
    t = getattr(p, "t", 0.0)
    expected = frame_of(p).stretched(value - t * problem.E if kind == "floor" else value)
    change = p.slope(X, 0.0) + p.bend(X)
    np.testing.assert_allclose(p.Ft + change, expected, atol=1e-8 * np.abs(change).max())


@every_map
@every_problem
def test_a_step_solves_its_equations(kind: str, shape: str, dense: bool, name: str) -> None:
    """K X − F′*[dZ] = r, F′[X] − E dt + W dZ W = c and ⟨E, dZ⟩ = 0, also with second-order terms."""
    problem, p = MAKERS[kind](shape, MAPS[name], dense)
    system = problem.system(p)
    assert system is not None
    if not dense:
        system = type(system)(p, system.equations, 1e-9)
    frame, W, h = frame_of(p), p.scaling.W, 1e-4
    step = system.step(0.1 * p.scaling.mu)
    for before in (None, step):
        s = 0.1 * p.scaling.mu
        found = system.step(s, before)
        dZ, c = found.dZ, p.scaling.aim(s)
        if before is not None:
            dF = p.slope(before.X, before.dt)
            c = c - p.bend(before.X) - p.scaling.second_order(dF, before.dZ)
        slope = p.slope(found.X, found.dt)
        np.testing.assert_allclose(slope + W @ dZ @ W, c, atol=1e-5 * np.abs(c).max())
        if kind == "floor":
            assert abs(float(np.vdot(p.Et, dZ))) <= 1e-6 * np.abs(dZ).max() * np.abs(p.Et).sum()
        if dense or kind == "floor":  # where K is inverted, not approximated
            along = [residual(p, problem, t * found.X, p.Zt + t * dZ) for t in (h, -h)]
            r = p.residual if before is None else p.residual + p.residual_bend(before.X, before.dZ)
            np.testing.assert_allclose((along[0] - along[1]) / (2.0 * h), -r, atol=1e-3 * (1.0 + np.abs(r).max()))
    assert 0.0 < system.longest(step)
    length = min(0.5, 0.5 * system.longest(step))
    new = problem.moved(p, step, length)
    assert new is not None
    np.testing.assert_allclose(new.D, p.D + length * frame.change(step.X), atol=1e-9 * np.abs(p.D).max())
    Z = p.Z + length * frame.dual(step.dZ)
    np.testing.assert_allclose(new.Z, Z, atol=1e-7 * np.abs(Z).max())
    # Of first order, a step of the length a towards s = 0 leaves the share 1 − a of ⟨Z, F⟩.
    aim = system.step(0.0)
    change = float(np.vdot(p.Zt, p.slope(aim.X, aim.dt)) + np.vdot(aim.dZ, p.Ft))
    assert change == pytest.approx(-float(np.vdot(p.Zt, p.Ft)), rel=1e-4)
    assert 1.0 - system.share_left(aim) == pytest.approx(min(1.0, system.longest(aim)), rel=0.5)


@every_map
@every_condition
def test_the_bounds_of_a_point_are_those_of_the_theory(shape: str, name: str) -> None:
    """The interval is that of the multiple of D on the boundary, or of D itself, by the formula of the theory."""
    problem, p = condition(shape, MAPS[name], dense=False)
    program = Program.single(B, MAPS[name], CONDITIONS[shape])
    for near in (True, False):
        found = problem.bounds(p, near)
        (F,) = inequalities(program, program.families[0], found.scale * p.D)
        assert abs(np.linalg.eigvalsh(F)[0]) < 1e-12 if near else found.scale == 1.0
        assert found.lower == pytest.approx(np.linalg.slogdet(found.scale * p.D)[1], abs=1e-10)
        assert found.upper == pytest.approx(bound(program, found.scale * p.D, (p.Z[None],)), abs=1e-8)
    for D0, Z in ((-p.D, p.Z), (p.D, -p.Z)):
        other = problem.point(D0, Z)
        assert other is None or other.scaling_or_none is None


@every_map
@every_pattern
def test_the_loss_of_the_bound_is_that_over_the_pattern(shape: str, name: str) -> None:
    """½⟨g, K⁻¹g⟩ is the largest ⟨g, X⟩ − ½⟨X, BXR + RXB⟩ over the X of the pattern, at most that over all matrices."""
    whitened, direct = (floor(shape, MAPS[name], dense)[1].formulation for dense in (False, True))
    frame, unknowns, rng = direct.basis, direct.unknowns, np.random.default_rng(3)

    def gradient(frame: Any) -> Matrix:
        return np.asarray(frame.project(frame.C.T @ symmetric(9) @ frame.C))

    g = gradient(frame)
    loss = direct.loss(g)
    assert whitened.loss(gradient(whitened.basis)) == pytest.approx(loss, rel=1e-6)

    def gain(X: Matrix) -> float:
        return float(np.vdot(g, X)) - float(np.vdot(X, frame.times_B(X) @ direct.Rt))

    best = unknowns.matrix(np.linalg.solve(unknowns.curvature(frame, direct.Rt), unknowns.vector(g)))
    assert gain(best) == pytest.approx(loss, rel=1e-9)
    for t in (1e-3, 1e-1, 1.0):
        assert gain(best + t * frame.project(sym(rng.standard_normal((D, D))))) < loss
    assert loss <= frame.loss(direct.Rt, g) * (1.0 + 1e-9)


@every_map
@pytest.mark.parametrize("rows", [4, 2])
def test_the_jacobian_of_active_rows(name: str, rows: int) -> None:
    _, p = condition("full", MAPS[name], dense=False)
    V, X, hat = p.scaling.V, symmetric(6), symmetric(8)
    jacobian = ActiveRows.of(p.frame, V, rows)
    np.testing.assert_allclose(jacobian.forward(X), (V.T @ p.frame.slope(X) @ V)[:rows], atol=1e-10)
    hat[rows:, rows:] = 0.0
    image, Zt = jacobian.adjoint(hat[:rows])
    np.testing.assert_allclose(Zt, V @ hat @ V.T, atol=1e-11)
    assert np.vdot(image, X) == pytest.approx(np.vdot(Zt, p.frame.slope(X)), rel=1e-9)


@every_map
@every_pattern
def test_gradient_and_newton_system_of_the_metric_are_derivatives(shape: str, name: str) -> None:
    p = metric_point(shape, MAPS[name])
    X = p.frame.project(np.diag(np.linspace(0.5, 1.5, D)) + 0.3)
    assert_is_derivative(
        lambda t: np.linalg.slogdet(constraint(p.frame, t * X))[1],
        np.vdot(p.gradient, X),
        -np.vdot(X, KrylovSystem(p, 1.0)(X)),
        h=1e-4,
    )


def test_a_direction_of_the_metric_is_one_however_small_the_gradient() -> None:
    p, work = metric_point("full", MAPS["rand-k"]), Work()
    X = KrylovSystem(p, 1.0).solve(p.gradient, 1e9, False, work)
    assert np.vdot(p.gradient, X) > 0.0 and work.cg_iterations == 1


# ---------------------------------------------------------------- starts


def as_congruences(Q: PositiveMap) -> PositiveMap:
    """𝒬(M) = P∘M as Σ_r w_r S_r M S_r with diagonal S_r, from the eigenvectors of P; others as they are."""
    if Q.hadamard_matrix is None:
        return Q
    w, V = np.linalg.eigh(Q.hadamard_matrix)
    return CongruenceSum(np.maximum(w, 0.0), np.array([np.diag(v) for v in V.T]))


@every_map
def test_the_start_is_the_best_power_on_the_boundary(name: str) -> None:
    """The same for 𝒬(M) = P∘M as for a sum of congruences, which takes another way."""
    Q, pattern = MAPS[name], Pattern.full(D)
    found, other = (power_start(Family(one, B, a=1.0), pattern) for one in (Q, as_congruences(Q)))
    assert found is not None and other is not None
    (F,) = inequalities(Program.single(B, Q), Program.single(B, Q).families[0], found.D)
    assert np.linalg.eigvalsh(F)[0] == pytest.approx(0.0, abs=1e-9)
    assert np.linalg.slogdet(found.D)[1] == pytest.approx(found.log_det, abs=1e-9)
    assert found.log_det == pytest.approx(other.log_det, abs=1e-9)
    np.testing.assert_allclose(found.D, other.D, rtol=1e-8, atol=1e-10 * np.abs(other.D).max())
    problem = Condition(Family(Q, B, a=1.0), pattern, 1e-6, Work())
    p = cold_start(problem, fraction=0.8)
    assert p is not None
    np.testing.assert_allclose(p.D, 0.8 * found.D, rtol=1e-9, atol=1e-12)
    assert np.trace(p.Zt) == pytest.approx(D)


@every_map
@every_condition
def test_a_warm_start_is_inside(shape: str, name: str) -> None:
    problem, p = condition(shape, MAPS[name], dense=False)
    found = warm_start(problem, WarmStart(3.0 * p.D, (p.Z[None],)))
    assert found is not None and nesterov_todd(found.Ft, found.Zt) is not None
    np.testing.assert_allclose(found.D / found.D[0, 0], p.D / p.D[0, 0], rtol=1e-6, atol=1e-9)
    assert warm_start(problem, WarmStart(EYE[:2, :2], (p.Z[None],))) is None


def test_the_best_multiple_is_the_best() -> None:
    m = np.geomspace(1e-3, 2.0, 7)
    around = best_multiple(m, 2.0) * (1.0 + np.array([-1e-4, 0.0, 1e-4]))
    values = [float(np.log(g * (2.0 - g * m)).sum()) for g in around]
    assert max(values) == values[1]


# ---------------------------------------------------------------- few unknowns


@every_map
def test_a_start_of_given_blocks_is_on_the_boundary(name: str) -> None:
    family, pattern = Family(MAPS[name], B, a=1.0), CONDITIONS["given"]
    start = given_start(family, pattern)
    assert start is not None and pattern.has_direction(start.D)
    assert start.log_det == pytest.approx(np.linalg.slogdet(start.D)[1], abs=1e-10)
    program = Program.single(B, MAPS[name], pattern)
    (F,) = inequalities(program, program.families[0], start.D)
    assert np.linalg.eigvalsh(F)[0] == pytest.approx(0.0, abs=1e-9)
    assert given_start(family, replace(pattern, W=-pattern.member)) is None


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
