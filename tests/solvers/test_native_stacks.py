"""Many problems of one size at once: the same formulas and answers as for each alone, whoever else is in the stack."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.strategies import seeds
from stepsize_solvers import get_solver
from stepsize_solvers.numerics import Counters, Limits, Progress, cholesky_of_each, nesterov_todd, sym
from stepsize_solvers.programs import Hadamard, Pattern, Program, Settings, Status
from stepsize_solvers.single.blocks import BlockModel, BlockPoint, central_point
from stepsize_solvers.single.iteration import MOST_STEPS, PATIENCE, TARGET_MARGIN
from stepsize_solvers.single.stacks import Member, iterate_stack, longest
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


def runs(m: int, d: int, **limits: Any) -> list[Progress[Member]]:
    values = {"tol": 1e-6, "max_iters": MOST_STEPS, **limits}
    return [Progress(d, Limits(**values), TARGET_MARGIN, PATIENCE) for _ in range(m)]


class TestFormulas:
    """Every quantity of a stack is that of its members."""

    @staticmethod
    def stack() -> tuple[BlockModel, BlockPoint]:
        B, P = problems(3, 5, 0)
        model = BlockModel(B, Hadamard(P), Pattern((5,)))
        p = central_point(model, 0.8 * powers_in_stacks(B, P)[0])
        assert p is not None
        return model, p

    def test_starts(self) -> None:
        B, P = problems(4, 6, 1)
        D, log_dets = powers_in_stacks(B, P)
        for i in range(4):
            alone, log_det = powers_in_stacks(B[i], P[i])
            np.testing.assert_allclose(D[i], alone, rtol=1e-12, atol=1e-14)
            assert log_dets[i] == pytest.approx(log_det, rel=1e-12)

    def test_points_slopes_and_bounds(self) -> None:
        model, p = self.stack()
        X = sym(np.random.default_rng(1).standard_normal((3, 5, 5)))
        near = np.array([True, False, True])
        bounds = model.bounds_of_each(p, near)
        for i in range(3):
            one, q = BlockModel(model.B[i], Hadamard(model.Q.apply(np.ones(1))[i]), model.pattern), p.members(i)
            for name in ("slope", "adjoint", "curvature", "bend"):
                whole, alone = getattr(model, name)(p, X)[i], getattr(one, name)(q, X[i])
                np.testing.assert_allclose(whole, alone, rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(model.dual_residual(p)[i], one.dual_residual(q), atol=1e-12)
            assert bounds[i] == pytest.approx(one.bounds(q, None, bool(near[i])), rel=1e-12)
            fresh = one.point(q.D, q.Z)
            assert fresh is not None
            np.testing.assert_allclose(fresh.Ft, q.Ft, atol=1e-9)

    def test_newton_system(self) -> None:
        model, p = self.stack()
        scaling = nesterov_todd(p.Ft, p.Zt)
        assert scaling is not None
        rng = np.random.default_rng(2)
        r1, r2 = sym(rng.standard_normal((3, 5, 5))), sym(rng.standard_normal((3, 5, 5)))
        system = model.system(p, scaling, np.float64, Counters())
        # Tolerances of their own: the members finish one after the other, and the first ones must not drift.
        step = system.solve(r1, r2, np.array([1e-3, 1e-11, 1e-8])[:, None, None], 1000)
        W = (scaling.V * scaling.t[:, None, :]) @ scaling.V.swapaxes(1, 2)
        left = model.slope(p, step.X) + W @ step.dZt @ W - scaling.V @ r2 @ scaling.V.swapaxes(1, 2)
        size = np.abs(left).max(axis=(1, 2))
        assert size[1] < 1e-9 < size[0] < 1e-1 and size[2] < 1e-6
        np.testing.assert_allclose(step.X, system.inverse(r1 + model.adjoint(p, step.dZt)), atol=1e-9)

    def test_longest_step(self) -> None:
        eye = np.eye(2)
        zeta = np.array([0.0 * eye, -2.0 * eye, 0.0 * eye, eye])
        first = np.array([-eye, 0.0 * eye, 0.0 * eye, eye])
        second = np.array([0.0 * eye, 0.0 * eye, -4.0 * eye, 0.0 * eye])
        lengths = longest(zeta, first, second)
        np.testing.assert_allclose(lengths[[0, 1, 3]], [1.0, 0.5, 1.1])
        assert 0.3 < lengths[2] <= 0.5  # the root of 1 = 4a², from below

    def test_factors_of_those_that_have_one(self) -> None:
        M = np.array([np.eye(3), -np.eye(3), 4.0 * np.eye(3)])
        K, found = cholesky_of_each(M)
        assert found.tolist() == [True, False, True]
        np.testing.assert_array_equal(K[[0, 2]], [np.eye(3), 2.0 * np.eye(3)])
        M[1, 2, 0] = np.nan
        assert cholesky_of_each(np.abs(M))[1].tolist() == [True, False, True]


@settings(max_examples=15, deadline=None)
@given(seed=seeds, d=st.integers(2, 9), m=st.integers(1, 6), decades=st.floats(0.0, 4.0))
def test_the_answers_are_those_of_each_alone(seed: int, d: int, m: int, decades: float) -> None:
    B, P = problems(m, d, seed, 10.0**decades)
    programs = [Program.single(one, Hadamard(moments)) for one, moments in zip(B, P, strict=True)]
    native = get_solver("native")
    assert all(native.stacks(program) for program in programs)
    for program, outcome in zip(programs, native.solve_stack(programs, Settings()), strict=True):
        alone = native.solve(program, Settings())
        assert outcome.status is alone.status is Status.OPTIMAL
        assert outcome.X is not None and alone.X is not None
        difference = np.linalg.slogdet(outcome.X)[1] - np.linalg.slogdet(alone.X)[1]
        assert abs(difference) <= 1.1e-6 * d  # both within the tolerance of the optimum, for each dimension


def test_a_member_that_breaks_down_leaves_the_others_alone() -> None:
    B, P = problems(5, 4, 3)
    alone = runs(5, 4)
    assert iterate_stack(B, P, alone) == [Status.OPTIMAL] * 5
    B[2] = np.diag([1.0, 1.0, 1.0, -1.0])
    together = runs(5, 4)
    statuses = iterate_stack(B, P, together)
    assert statuses[2] is Status.INACCURATE
    assert statuses[:2] + statuses[3:] == [Status.OPTIMAL] * 4
    for i in (0, 1, 3, 4):
        assert together[i].best is not None and alone[i].best is not None
        # Both intervals hold the optimum and are at most d·tol long; the steps need not be the same.
        ours, theirs = together[i].best.bounds, alone[i].best.bounds
        assert (ours.lower, ours.upper) == pytest.approx((theirs.lower, theirs.upper), abs=4e-6)


def test_numbers_that_lapack_refuses_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    B, P = problems(3, 4, 4)
    B[1, 0, 0] = np.nan
    assert iterate_stack(B, P, runs(3, 4)) == [Status.OPTIMAL, Status.INACCURATE, Status.OPTIMAL]
    B[:] = np.nan
    assert iterate_stack(B, P, runs(3, 4)) == [Status.INACCURATE] * 3

    def refused(*_: object) -> None:
        raise np.linalg.LinAlgError

    monkeypatch.setattr("stepsize_solvers.single.stacks.longest", refused)
    assert iterate_stack(*problems(3, 4, 4), runs(3, 4)) == [Status.INACCURATE] * 3


def test_limits_of_the_user() -> None:
    B, P = problems(3, 5, 5)
    few = runs(3, 5, max_iters=2, asked=True)
    assert iterate_stack(B, P, few) == [Status.USER_LIMIT] * 3
    assert [run.steps for run in few] == [2, 2, 2] and all(run.best is not None for run in few)
    assert iterate_stack(B, P, runs(3, 5, deadline=time.perf_counter())) == [Status.USER_LIMIT] * 3


def test_an_interruption_keeps_the_best_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    B, P = problems(3, 5, 6)
    some = runs(3, 5)
    slope, calls = BlockModel.slope, []

    def interrupted(self: BlockModel, p: BlockPoint, X: Matrix) -> Matrix:
        calls.append(1)
        if len(calls) == 20:
            raise KeyboardInterrupt
        return slope(self, p, X)

    monkeypatch.setattr(BlockModel, "slope", interrupted)
    assert iterate_stack(B, P, some) == [Status.INTERRUPTED] * 3
    assert all(run.best is not None and run.steps > 0 for run in some)


def test_what_does_not_stack() -> None:
    native = get_solver("native")
    B, P = problems(1, 4, 7)
    assert native.stacks(Program.single(B[0], Hadamard(P[0])))
    assert not native.stacks(Program.single(B[0], Hadamard(P[0]), Pattern((2, 2))))
    assert not native.stacks(Program.single(B[0], Hadamard(np.diag([1.0, 1.0, 1.0, 1e12]))))
    assert not get_solver("scs").stacks(Program.single(B[0], Hadamard(P[0])))
