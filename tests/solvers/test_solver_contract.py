"""What every solver of the registry must do; a new solver is tested here by being registered."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.linalg import block_diag

from shared.lagrangian import bound
from shared.reference_problems import random_smoothness
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    optimal_stepsize,
)
from stepsize_opt.proofs.repairs import repair
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.conic.backends import BACKENDS
from stepsize_solvers.conic.model import Lift, choose_lift
from stepsize_solvers.programs import Pattern
from stepsize_solvers.programs.contract import Settings, SolverUnavailable, Status, UnsupportedProgram
from stepsize_solvers.programs.program import Family, Program
from stepsize_solvers.registry import available_solvers, choose_solver, get_solver

RUNNING = [entry.name for entry in available_solvers() if entry.available]
# Two that run as cvxpy sets them up, each time in a new process.
OTHERS = ["cvxopt", "sdpa"]
L = random_smoothness(5, 1e2, 0)
PROGRAM = Program.single(L, RandK(5, 2).map)
B4, Q4 = random_smoothness(4, 10, 1), RandK(4, 2).map
SKETCHES: dict[str, Sketch] = {
    "rand-1": RandK(5, 1),
    "rand-2": RandK(5, 2),
    "rand-4": RandK(5, 4),
    "bern": BernQ(0.4, 5),
    "bern layers": BernQ([0.5, 0.25], [2, 3]),
    "independent": IndependentSampling([0.2, 0.4, 0.6, 0.8, 1.0]),
    "finite": FiniteSketch([np.diag([2.0, 2, 0, 0, 0]) + 0.0, np.diag([0, 0, 2.0, 2, 2])], [0.5, 0.5]),
    "gaussian": Gaussian(5, 2),
    "layers": LayerWise([RandK(2, 1), RandK(3, 2)]),
    "mixed layers": LayerWise([RandK(2, 1), Gaussian(3, 1)]),
}
STRUCTURES = ["diagonal", BlockDiagonal((2, 3)), Direction(block_diag(L[:2, :2], L[2:, 2:]), (2, 3))]
LIFTED = [
    (sketch, lift)
    for sketch in SKETCHES.values()
    for lift in Lift
    if lift is Lift.COMPACT or sketch.map.diagonal_plus_scaled is not None
]


def assert_agree(result: StepsizeResult, reference: StepsizeResult) -> None:
    """Optimal, with certified intervals that have a point in common."""
    assert result.status == "optimal"
    assert result.gap <= 1e-5
    assert result.log_det <= reference.certificate.upper_bound
    assert reference.log_det <= result.certificate.upper_bound


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES.keys())
def test_every_solver_agrees_with_clarabel(name: str, sketch: Sketch) -> None:
    result = optimal_stepsize(L, sketch, solver=name, tol=1e-5)
    assert_agree(result, optimal_stepsize(L, sketch, solver="clarabel", tol=1e-7))
    assert result.solver_stats.solver_name in (name, "closed form")


@pytest.mark.parametrize(
    ("name", "structure"), [*product(RUNNING, STRUCTURES), *((name, STRUCTURES[2]) for name in OTHERS)], ids=str
)
def test_structures_on_every_solver(name: str, structure: Any) -> None:
    result = optimal_unreduced(L, RandK(5, 2), structure=structure, solver=name, tol=1e-5)
    assert_agree(result, optimal_unreduced(L, RandK(5, 2), structure=structure, solver="clarabel", tol=1e-6))


@pytest.mark.parametrize("name", RUNNING)
def test_duals_are_symmetric_psd_and_prove_the_bound(name: str) -> None:
    outcome = get_solver(name).solve(PROGRAM, Settings(tol=1e-6))
    assert outcome.status in (Status.OPTIMAL, Status.INACCURATE) and outcome.stats.solve_time is not None
    ((Z,),) = outcome.duals
    np.testing.assert_array_equal(Z, Z.T)
    assert np.linalg.eigvalsh(Z)[0] >= -1e-5 * np.linalg.norm(Z)
    at = repair(PROGRAM, outcome.X)
    assert at is not None
    assert at.certificate(Z, 1e-5, (outcome.X,)).gap <= 1e-5


@pytest.mark.parametrize("name", ["cvxopt", *(name for name in RUNNING if name != "native")])
def test_every_back_end_takes_the_metric(name: str) -> None:
    program = Program.descent(B4, Q4)
    native = get_solver("native").solve(program, Settings(tol=1e-9))
    outcome = get_solver(name).solve(program, Settings())
    best, G = (2.0 * X - Q4.apply(X @ B4 @ X) for X in (native.X, outcome.X) if X is not None)
    assert np.linalg.slogdet(G)[1] == pytest.approx(np.linalg.slogdet(best)[1], abs=1e-4)
    multiple = outcome.duals[-1][0] @ G  # the multiplier is a multiple of G⁻¹
    np.testing.assert_allclose(multiple / multiple[0, 0], np.eye(4), atol=1e-2)


def test_a_solver_that_fails_is_named_and_not_taken_for_a_limit() -> None:
    with pytest.raises(RuntimeError, match=r"no solver returned a stepsize.*cvxopt"):
        optimal_stepsize(L, RandK(5, 2), solver="cvxopt", options={"objective": "log_det"}, time_limit=100.0)


# ---------------------------------------------------------------- conic forms


@pytest.mark.parametrize("objective", ["log_det", "root_det"])
@pytest.mark.parametrize(("sketch", "lift"), LIFTED, ids=str)
def test_every_lift_and_objective_is_optimal(sketch: Sketch, lift: Lift, objective: str) -> None:
    options = {"lift": lift.value, "objective": objective}
    result = optimal_unreduced(L, sketch, solver="clarabel", tol=1e-7, options=options)
    assert result.gap <= 1e-6
    assert result.solver_stats.extra_stats["lift"] == lift.value


FAMILY = Program((Family(Q4, B4, c=0.5, e=1.0),), Pattern.full(4))
FACTORED = Program((Family(Q4, B4, np.eye(4)[None], c=0.5, e=1.0),), Pattern.full(4))


@pytest.mark.parametrize(
    ("program", "lift"), [(FAMILY, "compact"), (FAMILY, "quadratic"), (FACTORED, "compact")], ids=str
)
def test_families_in_conic_form(program: Program, lift: str) -> None:
    """𝒬(XBX) ⪯ (c + eτ) I in both lifts and beside factors: Clarabel and native find the same, and prove it."""
    native = get_solver("native").solve(FACTORED, Settings(tol=1e-8))
    # On some processors the quadratic lift leaves Clarabel at 1e-7 without the last digit.
    found = get_solver("clarabel").solve(program, Settings(tol=3e-7, extra={"lift": lift}))
    assert found.stats.extra_stats["lift"] == lift
    assert native.status is found.status is Status.OPTIMAL and native.X is not None and found.X is not None
    value = float(np.linalg.slogdet(native.X)[1])
    assert float(np.linalg.slogdet(found.X)[1]) == pytest.approx(value, abs=1e-6)
    for X, duals in ((native.X, found.duals), (found.X, native.duals)):
        assert value - 1e-9 <= bound(program, X, duals) <= value + 1e-5


@pytest.mark.parametrize("program", [FACTORED, Program.single(L, SKETCHES["finite"].map)])
def test_the_quadratic_lift_refuses_other_programs(program: Program) -> None:
    with pytest.raises(UnsupportedProgram, match="use lift='compact'"):
        choose_lift(program, "quadratic")


# ---------------------------------------------------------------- the registry


def test_names_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = available_solvers()
    assert [e.name for e in entries] == ["native", "clarabel", "mosek", "scs"]
    assert all(e.available == (e.reason is None) for e in entries)
    assert {"native", "clarabel", "scs"} <= set(RUNNING)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert all("not installed: pip install" in str(backend.unavailable()) for backend in BACKENDS)


@pytest.mark.parametrize("name", ["gurobi", "osqp", "scipy", "highs", "ecos", "no such solver"])
def test_a_solver_without_a_matrix_cone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=rf"solver '{name}' (has no cone|is unknown).*native, clarabel.*cvxopt"):
        optimal_stepsize(L, RandK(5, 2), solver=name)


@pytest.mark.parametrize(("name", "own"), [("Cvxopt", "max_iters"), ("SDPA", "maxIteration")])
def test_another_solver_of_cvxpys_runs_in_silence_by_its_name_in_any_case(
    name: str, own: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own word for a number of steps is passed on, and the certificate, from its dual, judges; ours is refused."""
    result = optimal_stepsize(L, RandK(5, 2), solver=name, options={own: 60})
    assert result.status == "optimal" and result.solver_stats.solver_name == name.lower()
    assert result.solver_stats.extra_stats["objective"] == "root_det"
    assert capfd.readouterr() == ("", "")
    with pytest.raises(ValueError, match="max_iters"):
        optimal_stepsize(L, RandK(5, 2), solver=name, max_iters=3)
    with pytest.raises(ValueError, match="max_iters"):
        get_solver(name).solve(PROGRAM, Settings(max_iters=3))


def test_what_another_solver_prints_is_shown_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    get_solver("sdpa").solve(PROGRAM, Settings(verbose=True))
    assert capfd.readouterr().out


def test_a_solver_that_cvxpy_does_not_find_is_unavailable() -> None:
    with pytest.raises(SolverUnavailable, match="solver 'copt' cannot run"):
        get_solver("copt")


def test_listing_imports_no_solver() -> None:
    code = (
        "import sys; from stepsize_solvers.registry import available_solvers; available_solvers();"
        "print([m for m in ('cvxpy','scs','clarabel','mosek','cvxopt','sdpap','coptpy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert out.stdout.strip() == "[]"


def test_the_automatic_choice_is_native_where_it_applies_and_cvxpy_for_small_programs_only() -> None:
    """What the own methods do not take goes to cvxpy while its form is small; then the error names the fix."""

    def beside(d: int) -> Program:
        law = RandK(d, 2).map
        families = Program.single(np.eye(d), law).families
        return Program((*families, Family(law, None, np.eye(d)[None], c=1.0)), Pattern.full(d))

    native = get_solver("native")
    assert choose_solver(PROGRAM) == (native, "first choice") and native.unsupported(PROGRAM) is None
    assert optimal_stepsize(L, RandK(5, 2)).solver_stats.extra_stats["why"] == "first choice"
    with pytest.raises(UnsupportedProgram, match="families with factors only"):
        native.solve(beside(5), Settings())
    solver, why = choose_solver(beside(5))
    assert solver in BACKENDS and "native: beside other inequalities" in why
    with pytest.raises(SolverUnavailable, match=r"d = 61 may take gigabytes; solver='clarabel' asks for it"):
        choose_solver(beside(61))
