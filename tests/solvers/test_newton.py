"""The derivatives of every problem, how many Newton steps it takes, and where a step is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.native_problems import all_maps, all_patterns, rand_k, spectrum
from stepsize_solvers.interior.condition import ActiveRows, Condition, ConditionPoint
from stepsize_solvers.interior.dense import listed
from stepsize_solvers.interior.driver import Drive
from stepsize_solvers.interior.floor import Factorised, Floor, FloorPoint
from stepsize_solvers.interior.frame import Frame
from stepsize_solvers.interior.metric import KrylovSystem, MetricPoint
from stepsize_solvers.interior.starts import (
    cold_start,
    metric_start,
)
from stepsize_solvers.interior.whitened import Whitening
from stepsize_solvers.numerics.curvature import Curvatures
from stepsize_solvers.numerics.linalg import cholesky, smallest_eigenvalue_from_factor, sym
from stepsize_solvers.numerics.progress import Work
from stepsize_solvers.programs import Family, Pattern, PositiveMap, Program, Settings, SolverStats, Status
from stepsize_solvers.registry import get_solver

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
@pytest.mark.parametrize("rows", [4, 2])
def test_the_jacobian_of_active_rows(name: str, rows: int) -> None:
    _, p = condition("full", MAPS[name], dense=False)
    V, X, hat = p.scaling.spectrum[1], symmetric(6), symmetric(8)
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
        -np.vdot(X, KrylovSystem(p)(X)),
        h=1e-4,
    )
    # The bound holds far from the optimum.
    outcome = get_solver("native").solve(Program.descent(B, MAPS[name], PATTERNS[shape]), Settings(tol=1e-7))
    best = MetricPoint.of(Family(MAPS[name], B, a=2.0), PATTERNS[shape], np.asarray(outcome.X))
    assert best is not None and p.bounds(p.loss).lower <= best.log_det <= p.bounds(p.loss).upper + 1e-9


@pytest.mark.parametrize("shape", all_patterns(12))
@pytest.mark.parametrize("seed", range(3))
def test_the_inverse_of_the_curvature_over_a_pattern(shape: str, seed: int) -> None:
    """The X of the pattern for which g − BXR − RXB is orthogonal to it."""
    pattern, rng, L = all_patterns(12)[shape], np.random.default_rng(seed), spectrum(12, 1e3)
    R, g = definite(seed, 12), symmetric(seed + 1, 12)
    K = Curvatures(L, pattern)(R)
    assert K is not None
    X = sym(K.C @ K.solve(K.C.T @ g @ K.C) @ K.C.T)
    np.testing.assert_allclose(X, pattern.nearest(X), rtol=1e-12, atol=1e-12 * np.abs(X).max())
    left = g - L @ X @ R - R @ X @ L
    for _ in range(5):
        member = pattern.blocks(sym(rng.standard_normal((12, 12))))
        if pattern.W is not None:
            member = np.diag(rng.standard_normal(len(pattern.sizes))[pattern.labels]) * pattern.W
        assert abs(np.vdot(left, member)) <= 1e-7 * abs(np.vdot(np.abs(g), np.abs(member)))
    assert Curvatures(L, pattern)(np.zeros((12, 12))) is None


# ---------------------------------------------------------------- steps


def iterated(program: Program) -> SolverStats:
    """The statistics of a solve to 10⁻⁶ without closed forms."""
    outcome = get_solver("native").solve(program, Settings(extra={"closed_forms": False}))
    assert outcome.status is Status.OPTIMAL
    return outcome.stats


def stats_of(kind: str, d: int, k: int) -> SolverStats:
    """The statistics of one problem under rand-k."""
    L, Q = spectrum(d, 1e3), rand_k(d, k)
    blocks = Pattern((d // 2, d - d // 2))
    program = {
        "condition": lambda: Program.single(L, Q),
        "blocks": lambda: Program.single(L, Q, blocks),
        "given": lambda: Program.single(L, Q, Pattern(blocks.sizes, blocks.blocks(np.linalg.inv(L)))),
        "diagonal": lambda: Program.single(L, Q, Pattern((1,) * d)),
        "log det": lambda: Program.descent(L, Q),
        "log det, direction": lambda: Program.descent(L, Q, all_patterns(d)["direction"]),
        "t": lambda: Program.descent(L, Q, floor=np.eye(d)),
    }[kind]()
    return iterated(program)


STEPS = {  # the most steps and iterations of conjugate gradients, with room for other machines
    ("condition", 5, 1): (6, 0),
    ("condition", 20, 5): (12, 60),
    ("condition", 60, 15): (13, 90),
    ("blocks", 20, 5): (12, 60),
    ("given", 20, 5): (6, 0),
    ("diagonal", 20, 5): (9, 0),
    ("log det", 20, 5): (6, 25),
    ("log det", 40, 10): (8, 40),
    ("log det, direction", 6, 2): (0, 0),
    ("t", 10, 2): (11, 0),
    ("t", 20, 5): (11, 170),
    ("t", 40, 10): (15, 200),
    **{("log det", 60, k): (8, 40) for k in (1, 15, 45, 54)},
    **{("t", 60, k): (15, 200) for k in (1, 15, 45, 54)},
}


@pytest.mark.parametrize(("kind", "d", "k"), STEPS)
def test_few_steps_and_iterations(kind: str, d: int, k: int) -> None:
    """A wrong derivative, system, length or preconditioner takes many, or ends in another formulation."""
    stats, (steps, iterations) = stats_of(kind, d, k), STEPS[kind, d, k]
    assert stats.num_iters is not None and stats.num_iters <= steps
    assert stats.extra_stats["cg_iterations"] <= iterations
    assert (stats.num_iters == 0) == (steps == 0) and (stats.extra_stats["cg_iterations"] == 0) == (iterations == 0)


def test_small_problems_take_about_six_steps() -> None:
    """Factorised systems, whatever the map and the spectrum."""
    steps = [
        iterated(Program.single(spectrum(8, condition, 1), Q)).num_iters or 0
        for condition in (10.0, 1e3, 1e6)
        for Q in all_maps(8).values()
    ]
    assert max(steps) <= 12 and np.mean(steps) < 8.0


@pytest.mark.parametrize("d", [9, 70])
def test_the_smallest_eigenvalue_is_estimated_from_below(d: int) -> None:
    M = spectrum(d, 50.0)
    K, least = cholesky(M), float(np.linalg.eigvalsh(M)[0])
    assert K is not None and 0.5 * least < smallest_eigenvalue_from_factor(K, steps=d) < (1.0 + 1e-11) * least


@pytest.mark.parametrize(("d", "system"), [(5, {"dense"}), (20, {"krylov"})])
def test_a_newton_step_is_read_in_the_files_that_contributing_names(
    d: int, system: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    visited: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "stepsize_solvers" in frame.f_code.co_filename:
            visited.add(Path(frame.f_code.co_filename).stem)

    original = Drive.next

    def traced(self: Any, p: Any) -> Any:
        sys.setprofile(note)
        try:
            return original(self, p)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(Drive, "next", traced)
    stats_of("condition", d, d // 4)
    text = (Path(__file__).parents[2] / "docs" / "contributing.md").read_text(encoding="utf-8")
    paragraph = next(part for part in text.split("\n\n") if "one interior-point loop" in part)
    named = {path.removesuffix(".py").rsplit("/", 1)[-1] for path in re.findall(r"`([\w/]+\.py)`", paragraph)}
    assert visited <= named
    assert {"driver", "condition", "frame", "linalg", "maps"} | system <= visited
