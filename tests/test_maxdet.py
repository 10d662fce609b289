"""The max-det solver: its derivatives, its two linear solvers, its bound, and agreement with cvxpy."""

from __future__ import annotations

import numpy as np
import pytest

from solvers.base import Settings
from solvers.cvxpy_backends import CvxpySolver
from solvers.maps import DiagonalPlusScaled, Matrix
from solvers.maxdet import Family, MaxDetProgram, solve_maxdet, solve_with_cvxpy
from solvers.maxdet.dense import dense_solver
from solvers.maxdet.newton import newton_system, solve_by_cg
from solvers.maxdet.point import Model
from solvers.outcome import Status
from solvers.program import BlockPattern, Pattern, ScaledPattern
from solvers.registry import get_solver
from stepsize_opt.sketches import Gaussian, RandK, Sketch


def _clients(d: int, n: int, seed: int = 0) -> list[Matrix]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        A = rng.standard_normal((4, d))
        out.append(A.T @ A / 16.0 + 0.05 * np.eye(d))
    return out


def _factors(matrices: list[Matrix]) -> Matrix:
    return np.array([np.linalg.cholesky(L) for L in matrices])


def _program(
    kind: str, sketch: Sketch, matrices: list[Matrix], c: float, e: float, pattern: Pattern | None = None
) -> MaxDetProgram:
    """Distributed conditions in A (linear), in D with a constant matrix (plain) or with the map outside (outer)."""
    d = sketch.d
    L = np.mean(matrices, axis=0)
    identity = DiagonalPlusScaled.identity(d)
    descent = Family(identity, np.linalg.cholesky(L)[None])
    centred = sketch.map.centered()
    if kind == "linear":
        families = (Family(centred, _factors(matrices), None, c, e), descent)
        return MaxDetProgram(families, BlockPattern((d,)), 2.0 * d, float(np.linalg.slogdet(L)[1]))
    Q, B = (identity, centred.apply(L)) if kind == "plain" else (centred, L)
    families = (Family(Q, _factors(matrices), B, c, e), descent)
    return MaxDetProgram(families, pattern or BlockPattern((d,)), float(d))


CASES = [
    ("linear", RandK(5, 2), 2.0, 0.0, None),
    ("linear", RandK(5, 1), 0.0, 1.5, None),
    ("plain", RandK(5, 1), 2.0, 0.0, None),
    ("plain", RandK(5, 1), 0.0, 1.5, BlockPattern((1,) * 5)),
    ("plain", RandK(5, 2), 1.0, 1.0, BlockPattern((2, 3))),
    ("plain", RandK(5, 2), 0.0, 1.5, ScaledPattern((2, 3), np.diag([1.0, 2.0, 1.0, 3.0, 1.0]))),
    ("outer", RandK(5, 2), 2.0, 0.0, BlockPattern((2, 3))),
    ("outer", Gaussian(5, 3), 0.0, 1.5, BlockPattern((5,))),
]


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES)
def test_native_and_clarabel_agree(kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None) -> None:
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    native = solve_maxdet(program, Settings(tol=1e-8))
    backend = get_solver("clarabel")
    assert isinstance(backend, CvxpySolver)
    reference = solve_with_cvxpy(backend, program, Settings(tol=1e-8))
    assert native.status is Status.OPTIMAL and native.X is not None and reference.X is not None
    difference = np.linalg.slogdet(native.X)[1] - np.linalg.slogdet(reference.X)[1]
    assert abs(difference) < 2e-6  # Clarabel's own accuracy on these lifts
    # The multipliers are those of the same problem: their bound holds at the point of the other solver.
    model = Model(program)
    point = model.point(native.X, native.duals)
    assert point is not None
    assert model.upper_bound(point) >= np.linalg.slogdet(native.X)[1]


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES)
def test_the_system_is_the_hessian(kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None) -> None:
    """With Z = F⁻¹ the Newton operator is the Hessian of −log det X − Σ log det F_j."""
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    model = Model(program)
    solved = solve_maxdet(program, Settings(tol=1e-1))
    assert solved.X is not None
    p = model.point(0.7 * solved.X, None, 1.0)
    assert p is not None
    system = newton_system(model, p)
    Y = model.project(_direction(5))

    def barrier(t: float) -> float:
        X = p.C @ (np.eye(5) + t * Y) @ p.C.T
        basis = model.basis(0.5 * (X + X.T))
        assert basis is not None
        values = model.values(*basis)
        assert values is not None
        return -basis[1] - sum(float(np.sum(np.linalg.slogdet(F)[1])) for F in values)

    h = 1e-3
    curvature = (barrier(h) - 2.0 * barrier(0.0) + barrier(-h)) / h**2
    assert np.sum(Y * system.apply(Y)) == pytest.approx(curvature, rel=1e-3)
    gradient = (barrier(h) - barrier(-h)) / (2.0 * h)
    exact = -np.trace(Y) + sum(
        float(np.sum(Y * model.minus_adjoint(f, s, p.C, s.Z, s.Rt)))
        for f, s in zip(program.families, p.states, strict=True)
    )
    assert gradient == pytest.approx(exact, rel=1e-4, abs=1e-6)


def _direction(d: int) -> Matrix:
    Y = np.random.default_rng(3).standard_normal((d, d))
    Y = 0.5 * (Y + Y.T)
    return 0.1 * Y / np.linalg.norm(Y, 2)


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES[:5])
def test_factorisation_and_conjugate_gradients_agree(
    kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None
) -> None:
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    model = Model(program)
    solved = solve_maxdet(program, Settings(tol=1e-3))
    assert solved.X is not None
    p = model.point(solved.X, solved.duals)
    assert p is not None
    rhs = model.project(_direction(5))
    dense = dense_solver(model, p)
    assert dense is not None
    Y, _ = solve_by_cg(newton_system(model, p), rhs, 1e-10, 500)
    np.testing.assert_allclose(dense(rhs), Y, rtol=1e-5, atol=1e-7 * np.abs(Y).max())


def test_large_problems_take_the_iterative_path() -> None:
    """d = 60 has 1830 unknowns, beyond the size that is always factorised."""
    sketch = RandK(60, 1)
    program = _program("linear", sketch, _clients(60, 4), 1.0, 0.0)
    outcome = solve_maxdet(program, Settings(tol=1e-6))
    assert outcome.status is Status.OPTIMAL
    assert outcome.stats.extra_stats["cg_iterations"] > 0


def test_limits_and_wrong_options() -> None:
    program = _program("linear", RandK(5, 1), _clients(5, 3), 1.0, 0.0)
    stopped = solve_maxdet(program, Settings(tol=1e-9, max_iters=2))
    assert stopped.status is Status.USER_LIMIT and stopped.X is not None
    with pytest.raises(ValueError, match="unknown native option"):
        solve_maxdet(program, Settings(extra={"no_such": 1}))


def test_wrong_programs_are_refused() -> None:
    identity = DiagonalPlusScaled.identity(3)
    with pytest.raises(ValueError, match=r"shape \(n, 3, r\)"):
        Family(identity, np.eye(3))
    with pytest.raises(ValueError, match="nonnegative"):
        Family(identity, np.eye(3)[None], c=-1.0)
    with pytest.raises(ValueError, match="unbounded"):
        MaxDetProgram((), BlockPattern((3,)), 3.0)
    with pytest.raises(ValueError, match="root must be at least"):
        MaxDetProgram((Family(identity, np.eye(3)[None]),), BlockPattern((3,)), 2.0)
    with pytest.raises(ValueError, match="d=3 but the pattern is for d=2"):
        MaxDetProgram((Family(identity, np.eye(3)[None]),), BlockPattern((2,)), 2.0)
