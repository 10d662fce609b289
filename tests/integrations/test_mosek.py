"""MOSEK without a licence: everything up to the solve.

It has an environment of its own, because cvxpy's ``problem.solve()`` prefers an installed MOSEK and fails without a
licence.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from shared.reference_problems import random_smoothness
from stepsize_opt import RandK, optimal_stepsize
from stepsize_solvers.conic.model import Lift, Objective, conic_model
from stepsize_solvers.programs.contract import SolverUnavailable
from stepsize_solvers.programs.program import Program
from stepsize_solvers.registry import available_solvers

L = random_smoothness(5, 1e2, 0)
PROGRAM = Program.single(L, RandK(5, 2).map)


def from_triple(triple: Any, size: int) -> np.ndarray:
    """MOSEK's sparse symmetric matrix: rows, columns and values of its lower triangle."""
    out = np.zeros((size, size))
    for i, j, value in zip(*triple, strict=True):
        out[i, j] = out[j, i] = value
    return out


@pytest.mark.parametrize("lift", list(Lift))
def test_the_conic_data_sent_to_mosek_have_the_same_optimum(lift: Lift) -> None:
    """cvxpy sends MOSEK the dual: max cᵀx + Σ⟨C_j, X_j⟩ s.t. Ax + Σ⟨A_ij, X_j⟩ = b, x in cones, X_j ⪰ 0.

    The same numbers, read as MOSEK reads them (a triple of the lower triangle stands for both entries; the dual
    exponential cone is s₁ ≥ −s₃ e^{−1} exp(s₂/s₃)), are solved here with Clarabel.
    """
    model = conic_model(PROGRAM, lift, Objective.LOG_DET)
    data = model.problem.get_problem_data(cp.MOSEK)[0]
    A, b, c, cones = data["A"], data["b"], data["c"], data["K_dir"]
    assert data["dualized"]
    x = cp.Variable(A.shape[1])
    X = [cp.Variable((size, size), PSD=True) for size in cones["s"]]

    def inner(j: int, triple: Any) -> Any:
        return cp.sum(cp.multiply(from_triple(triple, cones["s"][j]), X[j]))

    rows: list[Any] = [0.0] * A.shape[0]
    for i, j, triple in data["A_bar_data"]:
        rows[i] = rows[i] + inner(j, triple)
    objective = c @ x + sum(inner(j, triple) for j, triple in data["c_bar_data"])
    constraints, start = [A @ x + cp.hstack(rows) == b], cones["fr"]
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


@pytest.mark.parametrize("licence", [None, "not a licence\n"])
def test_a_missing_or_invalid_licence_is_explained(licence: str | None, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MOSEKLM_LICENSE_FILE", raising=False)
    if licence is not None:
        (tmp_path / "mosek.lic").write_text(licence)
        monkeypatch.setenv("MOSEKLM_LICENSE_FILE", str(tmp_path / "mosek.lic"))
    (entry,) = [e for e in available_solvers() if e.name == "mosek"]
    # Where a file is there, only the solve can tell that it is worthless.
    assert entry.available == (licence is not None)
    assert entry.available or "mosek.com/license" in str(entry.reason)
    with pytest.raises(SolverUnavailable, match=r"(?i)no licence|mosek cannot run.*licen[cs]e"):
        optimal_stepsize(L, RandK(5, 2), solver="mosek")
