"""The method for families: agreement with cvxpy, its derivatives, its linear solvers, its cuts and its splits."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pytest

from shared.lagrangian import bound
from stepsize_opt import Gaussian, RandK, Sketch
from stepsize_solvers.families import solve_families
from stepsize_solvers.families.newton import newton_system
from stepsize_solvers.families.point import Model, Point
from stepsize_solvers.families.solve import agreement, worth_cutting
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Matrix,
    Outcome,
    Pattern,
    Program,
    Settings,
    Status,
)
from stepsize_solvers.registry import get_solver


def clients(d: int, n: int) -> Matrix:
    rng = np.random.default_rng(0)
    A = rng.standard_normal((n, 4, d))
    return A.swapaxes(1, 2) @ A / 16.0 + 0.05 * np.eye(d)


class Case(NamedTuple):
    """Distributed conditions in A (linear), in D with a constant matrix (plain) or with the map outside (outer)."""

    kind: str
    sketch: Sketch
    c: float
    e: float
    pattern: Pattern | None = None

    def program(self, n: int = 3) -> Program:
        d = self.sketch.d
        Ls = clients(d, n)
        L, H = Ls.mean(axis=0), np.linalg.cholesky(Ls)
        identity, centred = DiagonalPlusScaled.identity(d), self.sketch.map.centered()
        descent = Family(identity, None, np.linalg.cholesky(L)[None], c=1.0)
        if self.kind == "linear":
            families = (Family(centred, None, H, c=self.c, e=self.e), descent)
            return Program(families, Pattern.full(d), 2.0 * d, float(np.linalg.slogdet(L)[1]))
        Q, B = (identity, centred.apply(L)) if self.kind == "plain" else (centred, L)
        return Program((Family(Q, B, H, c=self.c, e=self.e), descent), self.pattern or Pattern.full(d))


DIRECTIONS = Pattern((2, 3), np.diag([1.0, 2.0, 1.0, 3.0, 1.0]))
CASES = [
    Case("linear", RandK(5, 2), 2.0, 0.0),
    Case("linear", RandK(5, 1), 0.0, 1.5),
    Case("plain", RandK(5, 1), 2.0, 0.0),
    Case("plain", RandK(5, 1), 0.0, 1.5, Pattern((1,) * 5)),
    Case("plain", RandK(5, 2), 1.0, 1.0, Pattern((2, 3))),
    Case("plain", RandK(5, 2), 0.0, 1.5, DIRECTIONS),
    Case("outer", RandK(5, 2), 2.0, 0.0, Pattern((2, 3))),
    Case("outer", Gaussian(5, 3), 0.0, 1.5),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.sketch}")


def log_det(M: Matrix | None) -> float:
    assert M is not None
    return float(np.linalg.slogdet(M)[1])


def both(program: Program) -> tuple[Outcome, Outcome]:
    """The answers of the native solver, optimal, and of Clarabel."""
    native, reference = (get_solver(name).solve(program, Settings(tol=1e-8)) for name in ("native", "clarabel"))
    assert native.status is Status.OPTIMAL and native.X is not None and reference.X is not None
    return native, reference


def near(program: Program, tol: float) -> tuple[Model, Point]:
    """A point near the optimum."""
    solved = solve_families(program, Settings(tol=tol))
    assert solved.X is not None
    model = Model(program)
    p = model.point(solved.X, solved.duals)
    assert p is not None
    return model, p


def direction() -> Matrix:
    Y = sym(np.random.default_rng(3).standard_normal((5, 5)))
    return 0.1 * Y / np.linalg.norm(Y, 2)


@every_case
def test_native_and_clarabel_agree(case: Case) -> None:
    program = case.program()
    native, reference = both(program)
    value = log_det(native.X)
    assert native.stats.num_iters is not None and native.stats.num_iters <= 30
    assert value == pytest.approx(log_det(reference.X), abs=2e-6)  # Clarabel's own accuracy
    point = Model(program).point(native.X, native.duals)
    assert point is not None
    assert Model(program).upper_bound(point) == pytest.approx(bound(program, native.X, native.duals), abs=1e-7)
    # Each solver's multipliers prove the optimum at the point of the other, and no others do.
    for X, duals in ((reference.X, native.duals), (native.X, reference.duals)):
        assert value - 1e-9 <= bound(program, X, duals) <= value + 1e-5
        size = max(float(np.trace(M)) for Z in duals for M in Z)
        moved = tuple(Z + 0.1 * size * np.eye(Z.shape[1]) for Z in duals)
        assert bound(program, X, moved) > value + 1e-3


# ---------------------------------------------------------------- Newton systems


@every_case
def test_the_system_is_the_hessian(case: Case) -> None:
    """With Z = F⁻¹ the Newton operator is the Hessian of −log det X − Σ log det F_j."""
    program = case.program()
    model = Model(program)
    solved = solve_families(program, Settings(tol=1e-1))
    assert solved.X is not None
    p = model.point(0.7 * solved.X, None, 1.0)
    assert p is not None
    Y = model.project(direction())

    def barrier(t: float) -> float:
        basis = model.basis(sym(p.C @ (np.eye(5) + t * Y) @ p.C.T))
        assert basis is not None
        values = model.values(*basis)
        assert values is not None
        return -basis[1] - sum(float(np.sum(np.linalg.slogdet(F)[1])) for F in values)

    h = 1e-3
    curvature = (barrier(h) - 2.0 * barrier(0.0) + barrier(-h)) / h**2
    assert np.sum(Y * newton_system(model, p)(Y)) == pytest.approx(curvature, rel=1e-3)
    adjoints = [state.minus_adjoint(state.Z) for state in p.states]
    gradient = -np.trace(Y) + sum(float(np.sum(Y * adjoint)) for adjoint in adjoints)
    assert gradient == pytest.approx((barrier(h) - barrier(-h)) / (2.0 * h), rel=1e-4, abs=1e-6)


# ---------------------------------------------------------------- large programs, cuts, splits


def test_large_problems_take_the_iterative_path_and_end_inside_a_linear_solve() -> None:
    """d = 60 has 1830 unknowns, beyond the size that is always factorised; the last digits take seconds."""
    program = Case("linear", RandK(60, 1), 1.0, 0.0).program(4)
    outcome = solve_families(program, Settings(tol=1e-6))
    assert outcome.status is Status.OPTIMAL
    assert 0 < outcome.stats.extra_stats["cg_iterations"] <= 250 and (outcome.stats.num_iters or 0) <= 26
    began = time.perf_counter()
    stopped = solve_families(program, Settings(tol=1e-12, time_limit=0.2))
    # Far more than one step takes on a busy machine, far less than a solve to this tolerance.
    assert time.perf_counter() - began < 10.0
    assert stopped.status is Status.USER_LIMIT and stopped.X is not None


MANY = [
    Case("linear", RandK(12, 1), 2.0, 0.0),
    Case("linear", RandK(12, 3), 0.0, 1.5),
    Case("plain", RandK(12, 1), 1.0, 0.0, Pattern((1,) * 12)),
    Case("plain", RandK(12, 1), 0.0, 1.5, Pattern((4, 8))),
    Case("outer", RandK(12, 2), 1.0, 1.0, Pattern((4, 8))),
]


def assert_proved(program: Program, outcome: Outcome, slack: float) -> None:
    """Feasible for every constraint, and the lifted multipliers prove the optimum of the whole program."""
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    assert Model(program).point(outcome.X, None) is not None
    value = log_det(outcome.X)
    assert value <= bound(program, outcome.X, outcome.duals) <= value + slack


@pytest.mark.slow
@pytest.mark.parametrize("case", MANY, ids=lambda case: f"{case.kind} {case.sketch}")
def test_cuts_solve_the_whole_program(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    program = case.program(20)
    assert not worth_cutting(program)  # d is too small
    monkeypatch.setattr(Sizes, "CUTS", program.d)
    assert worth_cutting(program)
    cut = solve_families(program, Settings(tol=1e-7))
    assert cut.stats.extra_stats["rounds"] >= 2  # the first relaxation is not enough
    assert_proved(program, cut, 12 * 2e-7)
    monkeypatch.setattr("stepsize_solvers.families.solve.worth_cutting", lambda program: False)
    whole = solve_families(program, Settings(tol=1e-7))
    assert whole.status is Status.OPTIMAL
    assert log_det(cut.X) == pytest.approx(log_det(whole.X), abs=12 * 2e-7)


@pytest.mark.parametrize("c", [1.0, 0.3])
def test_directions_that_agree_are_solved_apart(c: float) -> None:
    """X ⪯ cL_j⁻¹ where the L_j differ in 4 of 9 dimensions, in no coordinate's direction."""
    rng = np.random.default_rng(5)
    A, U = rng.standard_normal((9, 9)), rng.standard_normal((9, 4))
    matrices = A @ A.T / 9.0 + 0.1 * np.eye(9) + (U * rng.uniform(0.0, 2.0, (5, 1, 4))) @ U.T

    def program(matrices: Any, c: float) -> Program:
        family = Family(DiagonalPlusScaled.identity(9), None, np.linalg.cholesky(matrices), c=c)
        return Program((family,), Pattern.full(9), 18.0)

    split = agreement(program(matrices, c))
    assert split is not None and split.U.shape[1] == 5
    assert_proved(program(matrices, c), solve_families(program(matrices, c), Settings(tol=1e-8)), 9 * 2e-8)
    # Without a common direction, or with a quadratic family, there is nothing to split.
    assert agreement(program(clients(9, 3), 1.0)) is None and agreement(CASES[2].program()) is None
