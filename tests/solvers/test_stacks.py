"""Many problems of one size at once: the same formulas and answers as for each alone, whoever else is in the stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.strategies import seeds
from stepsize_solvers import get_solver
from stepsize_solvers.numerics import Counters, Limits, Progress, nesterov_todd, sym
from stepsize_solvers.programs import Hadamard, Pattern, Program, Settings, Status
from stepsize_solvers.single.blocks import BlockModel, central_point
from stepsize_solvers.single.iteration import MOST_STEPS, PATIENCE, TARGET_MARGIN
from stepsize_solvers.single.stacks import Member, iterate_stack
from stepsize_solvers.single.starts import powers_in_stacks
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]


def problems(m: int, d: int, seed: int, condition: float = 100.0) -> tuple[Matrix, Matrix]:
    """Stacks of matrices B of unit diagonal and of second moments P of independent and other diagonal sketches."""
    rng = np.random.default_rng(seed)
    B = np.array([random_smoothness(rng, d, condition) for _ in range(m)])
    root = 1.0 / np.sqrt(B.diagonal(0, -2, -1))
    kept = rng.random((m, 40, d)) < rng.uniform(0.2, 0.9, (m, 1, d))
    kept[:, :d] |= np.eye(d, dtype=bool)  # every coordinate at least once
    rate = kept.mean(axis=1)
    P = np.einsum("rki,rkj->rij", kept, kept) / 40.0 / (rate[:, :, None] * rate[:, None, :])
    return sym(B * root[:, :, None] * root[:, None, :]), P


def iterate(B: Matrix, P: Matrix) -> tuple[list[Status], list[Progress[Member]]]:
    runs: list[Progress[Any]] = [
        Progress(B.shape[-1], Limits(1e-6, MOST_STEPS), TARGET_MARGIN, PATIENCE) for _ in range(len(B))
    ]
    return iterate_stack(B, P, runs), runs


def test_every_quantity_of_a_stack_is_that_of_its_members() -> None:
    B, P = problems(3, 5, 0)
    D, log_dets = powers_in_stacks(B, P)
    model = BlockModel(B, Hadamard(P), Pattern((5,)))
    p = central_point(model, 0.8 * D)
    assert p is not None
    X, near = sym(np.random.default_rng(1).standard_normal((3, 5, 5))), np.array([True, False, True])
    bounds = model.bounds_of_each(p, near)
    for i in range(3):
        alone, log_det = powers_in_stacks(B[i], P[i])
        np.testing.assert_allclose(D[i], alone, rtol=1e-12, atol=1e-14)
        assert log_dets[i] == pytest.approx(log_det, rel=1e-12)
        one, q = BlockModel(B[i], Hadamard(P[i]), model.pattern), p.members(i)
        for name in ("slope", "adjoint", "curvature", "bend"):
            whole, single = getattr(model, name)(p, X)[i], getattr(one, name)(q, X[i])
            np.testing.assert_allclose(whole, single, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(model.dual_residual(p)[i], one.dual_residual(q), atol=1e-12)
        assert bounds[i] == pytest.approx(one.bounds(q, None, bool(near[i])), rel=1e-12)
        fresh = one.point(q.D, q.Z)
        assert fresh is not None
        np.testing.assert_allclose(fresh.Ft, q.Ft, atol=1e-9)


def test_members_of_a_newton_system_have_tolerances_of_their_own() -> None:
    """The members finish one after the other, and the first ones must not drift."""
    B, P = problems(3, 5, 0)
    model = BlockModel(B, Hadamard(P), Pattern((5,)))
    p = central_point(model, 0.8 * powers_in_stacks(B, P)[0])
    assert p is not None
    scaling = nesterov_todd(p.Ft, p.Zt)
    assert scaling is not None
    r1, r2 = sym(np.random.default_rng(2).standard_normal((2, 3, 5, 5)))
    system = model.system(p, scaling, np.float64, Counters())
    step = system.solve(r1, r2, np.array([1e-3, 1e-11, 1e-8])[:, None, None], 1000)
    W = (scaling.V * scaling.t[:, None, :]) @ scaling.V.swapaxes(1, 2)
    left = model.slope(p, step.X) + W @ step.dZt @ W - scaling.V @ r2 @ scaling.V.swapaxes(1, 2)
    size = np.abs(left).max(axis=(1, 2))
    assert size[1] < 1e-9 < size[0] < 1e-1 and size[2] < 1e-6
    np.testing.assert_allclose(step.X, system.inverse(r1 + model.adjoint(p, step.dZt)), atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(seed=seeds, d=st.integers(2, 9), m=st.integers(1, 6), decades=st.floats(0.0, 4.0))
def test_the_answers_are_those_of_each_alone(seed: int, d: int, m: int, decades: float) -> None:
    native, (B, P) = get_solver("native"), problems(m, d, seed, 10.0**decades)
    programs = [Program.single(one, Hadamard(moments)) for one, moments in zip(B, P, strict=True)]
    assert all(native.stacks(program) for program in programs)
    for program, outcome in zip(programs, native.solve_stack(programs, Settings()), strict=True):
        alone = native.solve(program, Settings())
        assert outcome.status is alone.status is Status.OPTIMAL
        difference = np.linalg.slogdet(outcome.X)[1] - np.linalg.slogdet(alone.X)[1]
        assert abs(difference) <= 1.1e-6 * d  # both within the tolerance of the optimum, for each dimension


@pytest.mark.parametrize("bad", [np.diag([1.0, 1.0, 1.0, -1.0]), np.full((4, 4), np.nan)], ids=["indefinite", "nan"])
def test_a_member_that_breaks_down_leaves_the_others_alone(bad: Matrix) -> None:
    B, P = problems(5, 4, 3)
    statuses, alone = iterate(B, P)
    assert statuses == [Status.OPTIMAL] * 5
    B[2] = bad
    statuses, together = iterate(B, P)
    assert statuses == [Status.OPTIMAL, Status.OPTIMAL, Status.INACCURATE, Status.OPTIMAL, Status.OPTIMAL]
    for i in (0, 1, 3, 4):
        assert together[i].best is not None and alone[i].best is not None
        # Both intervals hold the optimum and are at most d·tol long; the steps need not be the same.
        ours, theirs = together[i].best.bounds, alone[i].best.bounds
        assert (ours.lower, ours.upper) == pytest.approx((theirs.lower, theirs.upper), abs=4e-6)


def test_numbers_that_lapack_refuses_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    B, P = problems(3, 4, 4)
    assert iterate(np.full_like(B, np.nan), P)[0] == [Status.INACCURATE] * 3

    def refused(*_: object) -> None:
        raise np.linalg.LinAlgError

    monkeypatch.setattr("stepsize_solvers.single.stacks.longest", refused)
    assert iterate(B, P)[0] == [Status.INACCURATE] * 3


def test_only_small_full_programs_with_moderate_moments_stack() -> None:
    native, (B, P) = get_solver("native"), problems(1, 4, 7)
    assert native.stacks(Program.single(B[0], Hadamard(P[0])))
    assert not native.stacks(Program.single(B[0], Hadamard(P[0]), Pattern((2, 2))))
    assert not native.stacks(Program.single(B[0], Hadamard(np.diag([1.0, 1.0, 1.0, 1e12]))))
    assert not get_solver("scs").stacks(Program.single(B[0], Hadamard(P[0])))
