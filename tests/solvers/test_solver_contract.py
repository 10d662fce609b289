"""What every solver of the registry must do; a new solver is tested here by being registered."""

from __future__ import annotations

import os
import subprocess
import sys

import cvxpy as cp
import numpy as np
import pytest
from scipy.linalg import block_diag

from shared.lagrangian import bound
from shared.oracles import khatri_rao_optimum
from shared.reference_problems import random_smoothness
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LayerWise,
    RandK,
    optimal_stepsize,
)
from stepsize_opt.proofs.certificate import certify_point
from stepsize_opt.proofs.repairs import repair
from stepsize_solvers.conic import model as cvxpy_form
from stepsize_solvers.conic.backends import BACKENDS
from stepsize_solvers.conic.model import Lift, Objective, choose_lift, conic_model
from stepsize_solvers.programs.contract import Settings, SolverUnavailable, UnsupportedProgram
from stepsize_solvers.programs.outcome import Status
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Program
from stepsize_solvers.registry import available_solvers, choose_solver, get_solver

RUNNING = [entry.name for entry in available_solvers() if entry.available]
L = random_smoothness(5, 1e2, 0)
PROJECTIONS = FiniteSketch([np.diag([2.0, 2, 0, 0, 0]) + 0.0, np.diag([0, 0, 2.0, 2, 2])], [0.5, 0.5])
SKETCHES = {
    "rand-1": RandK(5, 1),
    "rand-2": RandK(5, 2),
    "rand-4": RandK(5, 4),
    "bern": BernQ(0.4, 5),
    "bern layers": BernQ([0.5, 0.25], [2, 3]),
    "independent": IndependentSampling([0.2, 0.4, 0.6, 0.8, 1.0]),
    "finite": PROJECTIONS,
    "gaussian": Gaussian(5, 2),
    "layers": LayerWise([RandK(2, 1), RandK(3, 2)]),
    "mixed layers": LayerWise([RandK(2, 1), Gaussian(3, 1)]),
}


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES.keys())
def test_every_solver_agrees_with_clarabel_within_its_certified_gap(name: str, sketch) -> None:
    reference = optimal_stepsize(L, sketch, solver="clarabel", tol=1e-7)
    result = optimal_stepsize(L, sketch, solver=name, tol=1e-5)
    assert result.status == "optimal"
    assert result.gap <= 1e-5
    assert result.log_det <= reference.certificate.upper_bound
    assert reference.log_det <= result.certificate.upper_bound
    assert result.solver_stats.solver_name in (name, "closed form")


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize(
    "structure",
    ["diagonal", BlockDiagonal((2, 3)), Direction(block_diag(L[:2, :2], L[2:, 2:]), (2, 3))],
    ids=["diagonal", "block", "direction by layers"],
)
def test_structures_on_every_solver(name: str, structure) -> None:
    sketch = RandK(5, 2)
    solver = get_solver(name)
    from stepsize_opt.inputs.structures import pattern_of

    program = Program.single(L, sketch.map, pattern_of(structure, 5))
    reason = solver.unsupported(program)
    if reason is not None:
        # A solver that cannot express a program says so, and the automatic choice passes it over.
        with pytest.raises(RuntimeError, match="no solver returned a stepsize"):
            optimal_stepsize(L, sketch, structure=structure, solver=name, reduce=False)
        assert choose_solver(program)[0].name != name
        return
    reference = optimal_stepsize(L, sketch, structure=structure, solver="clarabel", tol=1e-6, reduce=False)
    result = optimal_stepsize(L, sketch, structure=structure, solver=name, tol=1e-5, reduce=False)
    assert result.status == "optimal"
    assert result.log_det == pytest.approx(reference.log_det, abs=5e-5)


@pytest.mark.parametrize("lift", ["compact", "quadratic"])
@pytest.mark.parametrize("objective", ["log_det", "root_det"])
@pytest.mark.parametrize("sketch", SKETCHES.values(), ids=SKETCHES.keys())
def test_lifts_and_objectives_agree_with_khatri_rao(lift: str, objective: str, sketch) -> None:
    program = Program.single(L, sketch.map)
    if lift == "quadratic" and sketch.map.diagonal_plus_scaled is None:
        with pytest.raises(UnsupportedProgram, match="use lift='compact'"):
            choose_lift(program, lift)
        return
    result = optimal_stepsize(L, sketch, solver="clarabel", tol=1e-7, lift=lift, objective=objective, reduce=False)
    assert result.gap <= 1e-6
    assert result.solver_stats.extra_stats["lift"] == lift
    if not isinstance(sketch, Gaussian) and sketch is not SKETCHES["mixed layers"]:
        assert result.log_det / 5 == pytest.approx(khatri_rao_optimum(L, sketch) / 5, abs=1e-6)


@pytest.mark.parametrize("name", RUNNING)
def test_duals_are_symmetric_psd_and_prove_the_bound(name: str) -> None:
    program = Program.single(L, RandK(5, 2).map)
    outcome = get_solver(name).solve(program, Settings(tol=1e-6))
    ((Z,),) = outcome.duals
    np.testing.assert_array_equal(Z, Z.T)
    assert np.linalg.eigvalsh(Z)[0] >= -1e-5 * np.linalg.norm(Z)
    at = repair(program, outcome.X)
    assert at is not None
    assert certify_point(at, outcome.duals[0][0], (outcome.X,), 1e-5).gap <= 1e-5
    assert outcome.status in (Status.OPTIMAL, Status.INACCURATE)
    assert outcome.stats.solve_time is not None


@pytest.mark.parametrize("name", [name for name in RUNNING if name not in ("cvxopt", "sdpa", "copt", "native")])
def test_iteration_limit_returns_a_feasible_answer_that_is_not_called_optimal(name: str) -> None:
    result = optimal_stepsize(L, RandK(5, 2), solver=name, max_iters=2)
    assert result.status != "optimal"
    assert result.certificate.feasible


@pytest.mark.parametrize("with_factors", [True, False])
@pytest.mark.parametrize("lift", list(Lift))
def test_families_in_conic_form(lift: Lift, with_factors: bool) -> None:
    """𝒬(XBX) ⪯ (c + eτ) I in both lifts and beside factors: Clarabel and native find the same, and prove it."""
    B, Q = random_smoothness(4, 10, 1), RandK(4, 2).map
    program = Program((Family(Q, B, c=0.5, e=1.0),), Pattern.full(4))
    factored = Program((Family(Q, B, np.eye(4)[None], c=0.5, e=1.0),), Pattern.full(4))
    native = get_solver("native").solve(factored, Settings(tol=1e-8))
    posed = factored if with_factors else program
    if with_factors and lift is Lift.QUADRATIC:
        with pytest.raises(UnsupportedProgram, match="use lift='compact'"):
            choose_lift(posed, lift.value)
        return
    # On some processors the quadratic lift leaves Clarabel at 1e-7 without the last digit.
    found = get_solver("clarabel").solve(posed, Settings(tol=3e-7, extra={"lift": lift.value}))
    assert found.stats.extra_stats["lift"] == lift.value
    assert native.status is found.status is Status.OPTIMAL and native.X is not None and found.X is not None
    value = float(np.linalg.slogdet(native.X)[1])
    assert float(np.linalg.slogdet(found.X)[1]) == pytest.approx(value, abs=1e-6)
    for X, duals in ((native.X, found.duals), (found.X, native.duals)):
        assert value - 1e-9 <= bound(posed, X, duals) <= value + 1e-5


class TestCompileOnce:
    """Programs of one shape share a compiled model: B, α, β and P are parameters (DPP)."""

    def test_the_model_is_dpp(self) -> None:
        for sketch in (RandK(5, 2), BernQ([0.5, 0.25], [2, 3])):
            program = Program.single(L, sketch.map)
            for lift in Lift:
                if lift is Lift.QUADRATIC and sketch.map.diagonal_plus_scaled is None:
                    continue
                model, _ = conic_model(program, lift, Objective.LOG_DET)
                assert model.problem.is_dcp(dpp=True)

    def test_a_sweep_over_k_and_l_compiles_once(self) -> None:
        cvxpy_form.forget_models()
        reused = []
        for seed in range(2):
            for k in (2, 3, 4):
                matrix = random_smoothness(5, 1e2, seed)
                result = optimal_stepsize(matrix, RandK(5, k), solver="clarabel")
                fresh = optimal_stepsize(matrix, RandK(5, k), solver="clarabel", lift="compact")
                assert result.log_det == pytest.approx(fresh.log_det, abs=1e-5)
                reused.append(result.solver_stats.extra_stats["model_reused"])
        assert reused == [False, True, True, True, True, True]

    def test_the_cache_is_bounded(self) -> None:
        def known(d: int) -> bool:
            return conic_model(Program.single(np.eye(d), RandK(d, 1).map), Lift.QUADRATIC, Objective.LOG_DET)[1]

        cvxpy_form.forget_models()
        assert not any(known(d) for d in range(2, 20))
        assert known(19) and not known(2)


class TestMosek:
    """MOSEK without a licence: everything up to the solve."""

    @pytest.mark.parametrize("lift", list(Lift))
    def test_the_conic_data_sent_to_mosek_have_the_same_optimum(self, lift: Lift) -> None:
        """cvxpy sends MOSEK the dual: max cᵀx + Σ⟨C_j, X_j⟩ s.t. Ax + Σ⟨A_ij, X_j⟩ = b, x in cones, X_j ⪰ 0.

        The same numbers, read as MOSEK reads them (a triple of the lower triangle stands for both entries; the dual
        exponential cone is s₁ ≥ −s₃ e^{−1} exp(s₂/s₃)), are solved here with Clarabel.
        """
        model, _ = conic_model(Program.single(L, RandK(5, 2).map), lift, Objective.LOG_DET)
        data = model.problem.get_problem_data(cp.MOSEK)[0]
        A, b, c, cones = data["A"], data["b"], data["c"], data["K_dir"]
        assert data["dualized"]
        x = cp.Variable(A.shape[1])
        X = [cp.Variable((size, size), PSD=True) for size in cones["s"]]
        rows = [A @ x]
        operators: dict[int, list] = {}
        for i, j, triple in data["A_bar_data"]:
            operators.setdefault(i, []).append(cp.sum(cp.multiply(_from_triple(triple, cones["s"][j]), X[j])))
        bar = cp.hstack([sum(operators[i]) if i in operators else 0.0 for i in range(A.shape[0])])
        objective = c @ x + sum(
            cp.sum(cp.multiply(_from_triple(triple, cones["s"][j]), X[j])) for j, triple in data["c_bar_data"]
        )
        constraints = [rows[0] + bar == b]
        start = cones["fr"]
        if cones["+"]:
            constraints.append(x[start : start + cones["+"]] >= 0)
            start += cones["+"]
        for size in cones["q"]:
            constraints.append(cp.SOC(x[start], x[start + 1 : start + size]))
            start += size
        for _ in range(cones["de"]):
            s1, s2, s3 = x[start], x[start + 1], x[start + 2]
            constraints.append(cp.rel_entr(-s3, s1) <= s2 - s3)
            start += 3
        assert start == A.shape[1]
        problem = cp.Problem(cp.Maximize(objective), constraints)
        problem.solve(solver="CLARABEL")
        # cvxpy minimises −log det D.
        assert problem.value == pytest.approx(-optimal_stepsize(L, RandK(5, 2), tol=1e-8).log_det, abs=1e-5)

    def test_missing_licence_is_explained(self, monkeypatch, tmp_path) -> None:
        monkeypatch.delenv("MOSEKLM_LICENSE_FILE", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        (entry,) = [e for e in available_solvers() if e.name == "mosek"]
        assert not entry.available
        assert "mosek.com/license" in str(entry.reason)
        with pytest.raises(SolverUnavailable, match="no licence"):
            optimal_stepsize(L, RandK(5, 2), solver="mosek")

    def test_an_invalid_licence_is_explained_too(self, monkeypatch, tmp_path) -> None:
        licence = tmp_path / "mosek.lic"
        licence.write_text("not a licence\n")
        monkeypatch.setenv("MOSEKLM_LICENSE_FILE", str(licence))
        (entry,) = [e for e in available_solvers() if e.name == "mosek"]
        assert entry.available  # a file is there; only the solve can tell that it is worthless
        with pytest.raises(SolverUnavailable, match=r"(?i)mosek cannot run.*licen[cs]e"):
            optimal_stepsize(L, RandK(5, 2), solver="mosek")


def _from_triple(triple, size: int) -> np.ndarray:
    """MOSEK's sparse symmetric matrix: rows, columns and values of its lower triangle."""
    out = np.zeros((size, size))
    for i, j, value in zip(*triple, strict=True):
        out[i, j] = out[j, i] = value
    return out


class TestRegistry:
    def test_names_and_reasons(self) -> None:
        names = [entry.name for entry in available_solvers()]
        assert names == ["native", "clarabel", "mosek", "copt", "cvxopt", "sdpa", "scs"]
        assert all(entry.available == (entry.reason is None) for entry in available_solvers())
        assert {"native", "clarabel", "scs", "cvxopt", "sdpa"} <= set(RUNNING)

    def test_unknown_name(self) -> None:
        with pytest.raises(ValueError, match="unknown solver 'gurobi'; choose 'auto' or one of native, clarabel"):
            get_solver("gurobi")

    def test_listing_imports_no_solver(self) -> None:
        code = (
            "import sys; from stepsize_solvers.registry import available_solvers; available_solvers();"
            "print([m for m in ('cvxpy','scs','clarabel','mosek','cvxopt','sdpap','coptpy') if m in sys.modules])"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
        assert out.stdout.strip() == "[]"

    def test_not_installed(self, monkeypatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert all("not installed: pip install" in str(backend.unavailable()) for backend in BACKENDS)

    def test_automatic_choice_is_native_and_says_why(self) -> None:
        solver, why = choose_solver(Program.single(L, RandK(5, 2).map))
        assert (solver.name, why) == ("native", "first choice")
        result = optimal_stepsize(L, RandK(5, 2))
        assert result.solver_stats.extra_stats["why"] == "first choice"

    def test_cvxpy_is_no_silent_choice_for_large_programs(self) -> None:
        """What the own methods do not take goes to cvxpy while its form is small; then the error names the remedy."""

        def beside(d: int) -> Program:
            law = RandK(d, 2).map
            families = Program.single(np.eye(d), law).families
            return Program((*families, Family(law, None, np.eye(d)[None], c=1.0)), Pattern.full(d))

        solver, why = choose_solver(beside(5))
        assert solver in BACKENDS and "native: beside other inequalities" in why
        with pytest.raises(SolverUnavailable, match=r"d = 61 may take gigabytes; solver='clarabel' asks for it"):
            choose_solver(beside(61))


def test_a_solver_that_fails_is_a_status_not_an_exception() -> None:
    program = Program.single(L, RandK(5, 2).map)
    outcome = get_solver("cvxopt").solve(program, Settings(extra={"objective": "log_det"}))
    assert outcome.status is Status.SOLVER_ERROR
    assert "CVXOPT" in outcome.message
    with pytest.raises(RuntimeError, match=r"no solver returned a stepsize.*cvxopt"):
        optimal_stepsize(L, RandK(5, 2), solver="cvxopt", objective="log_det")
