"""The method for families: its derivatives, its two linear solvers, its bound, and agreement with cvxpy."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from shared.lagrangian import bound
from stepsize_opt.sketches import Gaussian, RandK, Sketch
from stepsize_solvers.families import solve_families
from stepsize_solvers.families.agreement import agreement
from stepsize_solvers.families.cuts import worth_cutting
from stepsize_solvers.families.dense import dense_solver
from stepsize_solvers.families.newton import OutOfTime, newton_system, solve_by_cg
from stepsize_solvers.families.pairs import active_pairs
from stepsize_solvers.families.point import Model
from stepsize_solvers.programs.contract import Settings
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Matrix
from stepsize_solvers.programs.outcome import Status
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Metric, Program
from stepsize_solvers.registry import get_solver


def _clients(d: int, n: int, seed: int = 0) -> list[Matrix]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(n):
        A = rng.standard_normal((4, d))
        out.append(A.T @ A / 16.0 + 0.05 * np.eye(d))
    return out


def _factors(matrices: list[Matrix]) -> Matrix:
    return np.array([np.linalg.cholesky(L) for L in matrices], dtype=np.float64)


def _program(
    kind: str, sketch: Sketch, matrices: list[Matrix], c: float, e: float, pattern: Pattern | None = None
) -> Program:
    """Distributed conditions in A (linear), in D with a constant matrix (plain) or with the map outside (outer)."""
    d = sketch.d
    L = np.mean(matrices, axis=0)
    identity = DiagonalPlusScaled.identity(d)
    descent = Family(identity, None, np.linalg.cholesky(L)[None], c=1.0)
    centred = sketch.map.centered()
    if kind == "linear":
        families = (Family(centred, None, _factors(matrices), c=c, e=e), descent)
        return Program(families, Pattern.full(d), 2.0 * d, float(np.linalg.slogdet(L)[1]))
    Q, B = (identity, centred.apply(L)) if kind == "plain" else (centred, L)
    families = (Family(Q, B, _factors(matrices), c=c, e=e), descent)
    return Program(families, pattern or Pattern.full(d))


CASES = [
    ("linear", RandK(5, 2), 2.0, 0.0, None),
    ("linear", RandK(5, 1), 0.0, 1.5, None),
    ("plain", RandK(5, 1), 2.0, 0.0, None),
    ("plain", RandK(5, 1), 0.0, 1.5, Pattern((1,) * 5)),
    ("plain", RandK(5, 2), 1.0, 1.0, Pattern((2, 3))),
    ("plain", RandK(5, 2), 0.0, 1.5, Pattern((2, 3), np.diag([1.0, 2.0, 1.0, 3.0, 1.0]))),
    ("outer", RandK(5, 2), 2.0, 0.0, Pattern((2, 3))),
    ("outer", Gaussian(5, 3), 0.0, 1.5, Pattern.full(5)),
]


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES)
def test_native_and_clarabel_agree(kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None) -> None:
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    native = solve_families(program, Settings(tol=1e-8))
    reference = get_solver("clarabel").solve(program, Settings(tol=1e-8))
    assert native.status is Status.OPTIMAL and native.X is not None and reference.X is not None
    value = float(np.linalg.slogdet(native.X)[1])
    assert value == pytest.approx(float(np.linalg.slogdet(reference.X)[1]), abs=2e-6)  # Clarabel's own accuracy
    model = Model(program)
    point = model.point(native.X, native.duals)
    assert point is not None
    assert model.upper_bound(point) == pytest.approx(bound(program, native.X, native.duals), abs=1e-7)
    # Each solver's multipliers prove the optimum at the point of the other, and no others do.
    for X, duals in ((reference.X, native.duals), (native.X, reference.duals)):
        assert value - 1e-9 <= bound(program, X, duals) <= value + 1e-5
        size = max(float(np.trace(M)) for Z in duals for M in Z)
        moved = tuple(Z + 0.1 * size * np.eye(Z.shape[1]) for Z in duals)
        assert bound(program, X, moved) > value + 1e-3


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES)
def test_the_system_is_the_hessian(kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None) -> None:
    """With Z = F⁻¹ the Newton operator is the Hessian of −log det X − Σ log det F_j."""
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    model = Model(program)
    solved = solve_families(program, Settings(tol=1e-1))
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
    assert np.sum(Y * system(Y)) == pytest.approx(curvature, rel=1e-3)
    gradient = (barrier(h) - barrier(-h)) / (2.0 * h)
    exact = -np.trace(Y) + sum(
        float(np.sum(Y * model.minus_adjoint(f, s, p.C, s.Z, s.Rt)))
        for f, s in zip(program.families, p.states, strict=True)
    )
    assert gradient == pytest.approx(exact, rel=1e-4, abs=1e-6)


METRIC_CASES = [
    ("outer", RandK(5, 2), 2.0, Pattern.full(5)),
    ("outer", Gaussian(5, 3), 0.3, Pattern((2, 3))),
    ("plain", RandK(5, 1), 0.3, None),
    ("plain", RandK(5, 1), 50.0, Pattern((1,) * 5)),
    ("plain", RandK(5, 2), 0.3, Pattern((2, 3), np.diag([1.0, 2.0, 1.0, 3.0, 1.0]))),
]


@pytest.mark.slow
@pytest.mark.parametrize("n", [3, 14])
@pytest.mark.parametrize(("kind", "sketch", "c", "pattern"), METRIC_CASES)
def test_a_metric_beside_families(kind: str, sketch: Sketch, c: float, pattern: Pattern | None, n: int) -> None:
    """log det(2X − XBX) under inequalities, whole (n = 3) and by cuts: against cvxpy, and its own bound."""
    clients = _clients(5, n)
    L = np.mean(clients, axis=0)
    base = _program(kind, sketch, clients, c, 0.0, pattern)
    program = replace(base, objective=Metric(Family(DiagonalPlusScaled.identity(5), L, a=2.0)))
    native = get_solver("native").solve(program, Settings(tol=1e-8))
    reference = get_solver("clarabel").solve(program, Settings(tol=1e-8))
    assert native.status is Status.OPTIMAL and native.X is not None and reference.X is not None
    H = 2.0 * native.X - native.X @ L @ native.X
    value = float(np.linalg.slogdet(H)[1])
    other = 2.0 * reference.X - reference.X @ L @ reference.X
    assert value == pytest.approx(float(np.linalg.slogdet(other)[1]), abs=1e-4)  # Clarabel's own accuracy
    np.testing.assert_allclose(native.duals[-1][0] @ H, np.eye(5), atol=1e-8)
    model = Model.of(program)
    # Cuts leave multipliers of low rank, which no interior point has.
    regular = tuple(Z + 1e-10 * np.eye(Z.shape[1]) for Z in native.duals[:-1])
    point = model.point(native.X, (np.zeros((1, 5, 5)), *regular))
    assert point is not None and point.value == pytest.approx(value, abs=1e-9)
    assert value - 1e-9 <= model.upper_bound(point) <= value + 1e-6
    # Other multipliers prove less.
    moved = tuple(Z + 0.1 * float(np.trace(Z.sum(axis=0))) * np.eye(Z.shape[1]) + 1e-3 for Z in native.duals[:-1])
    away = model.point(native.X, (np.zeros((1, 5, 5)), *moved))
    assert away is None or model.upper_bound(away) > value + 1e-5


def _direction(d: int) -> Matrix:
    Y = np.random.default_rng(3).standard_normal((d, d))
    Y = 0.5 * (Y + Y.T)
    return 0.1 * Y / np.linalg.norm(Y, 2)


def test_diagonals_below_zero_by_rounding_leave_a_preconditioner() -> None:
    """Where matrices of clients lie far apart, a diagonal entry of R̃ ⪰ 0 may come out negative."""
    program = _program("outer", RandK(5, 2), _clients(5, 3), 2.0, 0.0)
    model = Model(program)
    solved = solve_families(program, Settings(tol=1e-3))
    assert solved.X is not None
    p = model.point(solved.X, solved.duals)
    assert p is not None
    state = p.states[0]
    assert state.Lam is not None
    rounded = replace(state, Rt=state.Rt - np.diag([2.0 * state.Rt[0, 0] + 1e3, 0.0, 0.0, 0.0, 0.0]))
    system = newton_system(model, replace(p, states=[rounded, *p.states[1:]]), slow=True)
    assert np.isfinite(system.precondition(_direction(5))).all()


@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), CASES[:5])
def test_factorisation_and_conjugate_gradients_agree(
    kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None
) -> None:
    program = _program(kind, sketch, _clients(5, 3), c, e, pattern)
    model = Model(program)
    solved = solve_families(program, Settings(tol=1e-3))
    assert solved.X is not None
    p = model.point(solved.X, solved.duals)
    assert p is not None
    rhs = model.project(_direction(5))
    dense = dense_solver(model, p)
    assert dense is not None
    Y, _ = solve_by_cg(newton_system(model, p), rhs, 1e-10, 500)
    np.testing.assert_allclose(dense(rhs), Y, rtol=1e-5, atol=1e-7 * np.abs(Y).max())
    with pytest.raises(OutOfTime):
        solve_by_cg(newton_system(model, p), rhs, 1e-10, 500, deadline=0.0)


def test_a_time_limit_ends_inside_a_linear_solve() -> None:
    """The whole solve takes seconds; a limit of 0.2 s returns a feasible point soon after."""
    program = _program("linear", RandK(60, 1), _clients(60, 4), 1.0, 0.0)
    began = time.perf_counter()
    stopped = solve_families(program, Settings(tol=1e-12, time_limit=0.2))
    # Far more than one step takes on a busy machine, far less than a solve to this tolerance.
    assert time.perf_counter() - began < 10.0
    assert stopped.status is Status.USER_LIMIT
    assert stopped.X is not None


def test_large_problems_take_the_iterative_path() -> None:
    """d = 60 has 1830 unknowns, beyond the size that is always factorised."""
    sketch = RandK(60, 1)
    program = _program("linear", sketch, _clients(60, 4), 1.0, 0.0)
    outcome = solve_families(program, Settings(tol=1e-6))
    assert outcome.status is Status.OPTIMAL
    assert outcome.stats.extra_stats["cg_iterations"] > 0


def test_limits_and_wrong_options() -> None:
    program = _program("linear", RandK(5, 1), _clients(5, 3), 1.0, 0.0)
    stopped = solve_families(program, Settings(tol=1e-9, max_iters=2))
    assert stopped.status is Status.USER_LIMIT and stopped.X is not None
    many = solve_families(
        _program("linear", RandK(12, 1), _clients(12, 20), 1.0, 0.0), Settings(tol=1e-9, max_iters=20)
    )
    assert many.status is Status.USER_LIMIT and many.X is not None and many.stats.num_iters == 20
    with pytest.raises(ValueError, match="unknown native option"):
        get_solver("native").solve(program, Settings(extra={"no_such": 1}))


MANY = [
    ("linear", RandK(12, 1), 2.0, 0.0, None),
    ("linear", RandK(12, 3), 0.0, 1.5, None),
    ("plain", RandK(12, 1), 1.0, 0.0, Pattern((1,) * 12)),
    ("plain", RandK(12, 1), 0.0, 1.5, Pattern((4, 8))),
    ("outer", RandK(12, 2), 1.0, 1.0, Pattern((4, 8))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sketch", "c", "e", "pattern"), MANY)
def test_cuts_solve_the_whole_program(
    kind: str, sketch: Sketch, c: float, e: float, pattern: Pattern | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program(kind, sketch, _clients(12, 20), c, e, pattern)
    assert worth_cutting(program)
    cut = solve_families(program, Settings(tol=1e-7))
    assert cut.status is Status.OPTIMAL and cut.X is not None
    assert cut.stats.extra_stats["rounds"] >= 2  # the first relaxation is not enough
    # Feasible for every constraint, and the lifted multipliers prove the optimum of the whole program.
    assert Model(program).point(cut.X, None) is not None
    value = float(np.linalg.slogdet(cut.X)[1])
    assert value <= bound(program, cut.X, cut.duals) <= value + 12 * 2e-7
    monkeypatch.setattr("stepsize_solvers.families.solve.worth_cutting", lambda program: False)
    whole = solve_families(program, Settings(tol=1e-7))
    assert whole.status is Status.OPTIMAL and whole.X is not None
    assert value == pytest.approx(float(np.linalg.slogdet(whole.X)[1]), abs=12 * 2e-7)


@pytest.mark.parametrize("c", [1.0, 0.3])
def test_directions_that_agree_are_solved_apart(c: float) -> None:
    """X ⪯ cL_j⁻¹ where the L_j differ in 4 of 9 dimensions, in no coordinate's direction."""
    rng = np.random.default_rng(5)
    A, U = rng.standard_normal((9, 9)), rng.standard_normal((9, 4))
    common = A @ A.T / 9.0 + 0.1 * np.eye(9)
    matrices = [common + U @ np.diag(rng.uniform(0.0, 2.0, 4)) @ U.T for _ in range(5)]
    family = Family(DiagonalPlusScaled.identity(9), None, _factors(matrices), c=c)
    program = Program((family,), Pattern.full(9), 18.0)
    split = agreement(program)
    assert split is not None and split.U.shape[1] == 5
    outcome = solve_families(program, Settings(tol=1e-8))
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    assert Model(program).point(outcome.X, None) is not None
    value = float(np.linalg.slogdet(outcome.X)[1])
    assert value <= bound(program, outcome.X, outcome.duals) <= value + 9 * 2e-8
    # Without any common direction there is nothing to split, and with equal matrices nothing else.
    assert agreement(_program("plain", RandK(5, 1), _clients(5, 3), 1.0, 0.0)) is None
    assert agreement(Program((Family(family.Q, None, _factors(_clients(9, 3)), c=1.0),), Pattern.full(9), 18.0)) is None


@pytest.mark.parametrize(("c", "e"), [(2.0, 0.0), (0.0, 1.5)])
def test_pairs_invert_the_heavy_part_of_the_system(c: float, e: float) -> None:
    """The Gram matrix made of products of inner products is that of the functionals that T and Tᵀ apply."""
    program = _program("linear", RandK(5, 2), _clients(5, 3), c, e)
    model = Model(program)
    solved = solve_families(program, Settings(tol=1e-2))
    assert solved.X is not None
    p = model.point(solved.X, solved.duals)
    assert p is not None
    pairs = active_pairs(model, p)
    assert pairs is not None and pairs.beta.size > 0
    Y, W = _direction(5), np.eye(5)
    # T and Tᵀ are adjoint, and αI + TᵀT undoes the solve (close to the optimum only up to rounding of its weights).
    coefficients = np.arange(1.0, 1.0 + pairs.beta.size)
    assert coefficients @ pairs.functionals(Y) == pytest.approx(float(np.sum(Y * pairs.combination(coefficients))))
    for direction in (Y, W):
        solution = pairs.solve(direction)
        back = pairs.alpha * solution + pairs.combination(pairs.functionals(solution))
        np.testing.assert_allclose(back, direction, rtol=1e-6, atol=1e-6 * np.abs(direction).max())
