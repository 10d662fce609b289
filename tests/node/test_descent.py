"""The descent metric H = 2D − T(D) in the public functions: its rate, its optimum, its criteria."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import block_diag

from shared.exact import (
    combine,
    descent_metric,
    is_positive_semidefinite,
    log_det,
    product,
    rational,
)
from shared.strategies import problems, smoothness_matrices
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    Identity,
    RandK,
    Sketch,
    StepsizeResult,
    certify,
    optimal_stepsize,
)
from stepsize_opt.node.complexity import linear_iterations
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]
L = random_smoothness(np.random.default_rng(3), 6, 1e3)
SKETCH = RandK(6, 2)


def structures(L: Matrix) -> list[Any]:
    d = len(L)
    blocks = [BlockDiagonal((1, d - 1))] if d > 1 else []
    return ["full", "diagonal", "scalar", *blocks, Direction(symmetric(np.linalg.inv(L)))]


def symmetric(M: Matrix) -> Matrix:
    return np.asarray(0.5 * (M + M.T))


class TestRate:
    def test_components_and_coordinates_alone_add_up(self) -> None:
        whole = np.zeros((9, 9))
        whole[:4, :4], whole[4:6, 4:6] = L[:4, :4], L[4:, 4:]
        whole[6:, 6:] = np.diag([1.0, 1e-30, 1e30])
        r = optimal_stepsize(whole, RandK(9, 3))
        assert len(r.blocks) == 5
        exact = log_det(descent_metric(rational(r.D), rational(whole), RandK(9, 3)))
        assert r.descent_log_det <= exact
        assert r.descent_log_det == pytest.approx(float(exact), abs=1e-8)

    def test_is_saved_shown_and_used(self, tmp_path) -> None:
        r = optimal_stepsize(L, SKETCH)
        assert r.descent_rate > 1.1 * r.rate
        assert StepsizeResult.load(r.save(tmp_path / "r")).summary() == json.loads(json.dumps(r.summary()))
        assert r.summary()["descent_rate"] == r.descent_rate
        rows = dict(r.rows())
        assert f"{r.descent_rate:.9g}" in rows["descent rate det(H)^(1/d)"]
        assert rows["guarantee used"].startswith("descent")
        assert r.iterations(1e-3, 1.0) == math.ceil(2 / (Fraction(r.descent_rate) * Fraction(1e-3)))
        # H = D for det-CGD2's optimum, so nothing is won there.
        second = optimal_stepsize(L, SKETCH, algorithm="det-CGD2")
        assert second.descent_rate == pytest.approx(second.rate, rel=1e-9)


def best(L: Any, sketch: Sketch, **options: Any) -> StepsizeResult:
    return optimal_stepsize(L, sketch, guarantee="descent", **options)


class TestOptimum:
    @pytest.mark.parametrize("solver", ["clarabel", "scs"])
    @pytest.mark.parametrize(
        "goal",
        [{}, {"criterion": "euclidean"}, {"criterion": "linear", "lower": L}],
        ids=["det", "euclidean", "linear"],
    )
    def test_other_solvers_agree(self, solver: str, goal: dict[str, Any]) -> None:
        for structure in ("full", "diagonal"):
            native = best(L, SKETCH, structure=structure, **goal)
            other = best(L, SKETCH, structure=structure, solver=solver, **goal)
            assert other.solver_stats.solver_name == solver
            assert other.certificate.log_det <= native.certificate.upper_bound
            assert native.certificate.log_det <= other.certificate.upper_bound
            # A solver's multiplier of H ⪰ tM⁻¹ has a low rank, which proves less where D has a pattern.
            assert solver == "scs" or other.gap <= (1e-4 if goal and structure != "full" else 1e-5)

    def test_reductions_leave_the_optimum_where_it_is(self) -> None:
        whole = block_diag(L[:3, :3], L[3:5, 3:5], np.diag([2.0, 1e-3]))
        order = np.array([4, 0, 5, 2, 6, 1, 3])
        mixed = whole[np.ix_(order, order)]
        for sketch in (RandK(7, 2), BernQ([0.3, 0.6], (3, 4))):
            for goal in ({}, {"criterion": "euclidean"}, {"criterion": "linear", "lower": mixed}):
                for structure in ("full", "diagonal"):
                    parts = best(mixed, sketch, structure=structure, **goal)
                    one = best(mixed, sketch, structure=structure, reduce=False, **goal)
                    assert len(parts.blocks) > len(one.blocks) == 1
                    assert parts.status == one.status == "optimal"
                    assert parts.rate == pytest.approx(one.rate, rel=3e-6)

    def test_M_connects_what_L_does_not(self) -> None:
        diagonal, M = np.diag([1.0, 2.0, 3.0]), 0.5 * np.eye(3)
        M[0, 1] = M[1, 0] = 0.2
        r = best(diagonal, RandK(3, 1), criterion="linear", lower=M)
        assert sorted(block.indices.size for block in r.blocks) == [1, 2]
        H = descent_metric(rational(r.D), rational(diagonal), RandK(3, 1))
        exact = rational(M)
        assert is_positive_semidefinite(combine((1, product(product(exact, H), exact)), (-Fraction(r.rate), exact)))

    @pytest.mark.parametrize("power", [-200, 200])
    def test_any_scale(self, power: int) -> None:
        scale = 2.0**power
        plain, scaled = best(L, SKETCH), best(scale * L, SKETCH)
        assert scaled.status == "optimal"
        assert scaled.rate * scale == pytest.approx(plain.rate, rel=2e-6)
        for goal, factor in (({"criterion": "euclidean"}, scale), ({"criterion": "linear", "lower": L}, 1.0)):
            again = {**goal, "lower": scale * L} if "lower" in goal else goal
            expected = best(L, SKETCH, **goal).rate
            assert best(scale * L, SKETCH, **again).rate * factor == pytest.approx(expected, rel=2e-6)

    def test_saved_and_started_from(self, tmp_path) -> None:
        for goal in ({}, {"criterion": "linear", "lower": 1e-4}):
            r = best(L, SKETCH, **goal)
            again = StepsizeResult.load(r.save(tmp_path / "r"))
            assert all(again.summary()[name] == r.summary()[name] for name in r.summary() if name != "solver_stats")
            np.testing.assert_array_equal(again.dual, r.dual)
            assert (again.guarantee, again.criterion) == ("descent", goal.get("criterion", "det"))
            assert best(L, SKETCH, warm_start=again, **goal).status == "optimal"

    def test_a_limit_is_no_error(self) -> None:
        r = best(L, SKETCH, max_iters=1, tol=1e-12)
        assert r.status == "user_limit"
        assert r.certificate.feasible

    def test_which_guarantee_is_said(self) -> None:
        r = best(L, SKETCH)
        assert not r.satisfies_condition
        assert "not proved, not needed" in repr(r)
        assert dict(r.rows())["guarantee used"].startswith("descent")
        assert optimal_stepsize(L, SKETCH).satisfies_condition
        t = best(L, SKETCH, criterion="linear", lower=L)
        assert f"{t.rate:.9g}" in dict(t.rows())["rate t"]
        assert t.summary()["criterion"] == "linear"


class TestIterations:
    def test_linear(self) -> None:
        r = best(L, SKETCH, criterion="linear", lower=L)
        K = r.iterations(accuracy=1e-3, initial_gap=2.0)
        kept = 1 - Fraction(r.rate)
        assert kept**K * 2 <= Fraction(1e-3) < kept ** (K - 1) * 2
        assert r.communication(accuracy=1e-3, initial_gap=2.0) == 2.0 * K
        with pytest.raises(ValueError, match="takes accuracy and initial_gap, not epsilon2"):
            r.iterations(1e-3, 2.0)
        with pytest.raises(TypeError, match="needs initial_gap"):
            r.iterations(accuracy=1e-3)

    def test_euclidean(self) -> None:
        r = best(L, SKETCH, criterion="euclidean")
        assert r.iterations(1e-3, 2.0) == math.ceil(4 / (Fraction(r.rate) * Fraction(1e-3)))
        with pytest.raises(ValueError, match="takes epsilon2 and initial_gap, not accuracy"):
            r.iterations(accuracy=1e-3, initial_gap=1.0)

    def test_smallest_K(self) -> None:
        assert linear_iterations(0.5, 2.0**-20, 1.0) == 20
        assert linear_iterations(0.5, 2.0**-20 * (1 - 2**-53), 1.0) == 21
        assert linear_iterations(1.0, 1e-9, 1.0) == 1
        assert linear_iterations(0.1, 1.0, 1.0) == 0
        assert linear_iterations(1e-12, 1e-3, 1.0) == 6907755278979

    def test_no_K_without_a_rate(self) -> None:
        r = best(L, SKETCH, criterion="euclidean")
        nothing = replace(r.certificate, feasible=False, log_det=-math.inf)
        poor = replace(r, certificate=nothing, descent_t=0.0, status="optimal_inaccurate")
        with pytest.raises(ValueError, match="no rate above 0 is proved for this D"):
            poor.iterations(1e-3, 2.0)

    @pytest.mark.parametrize("t", [2.0**-150, 2.0**-250, 5e-324])
    def test_K_of_a_tiny_t(self, t: float) -> None:
        """1/t > −1/log(1 − t) > 1/t − 1, so with Δ⁰/accuracy = 2 K is next to log 2/t."""
        with localcontext(Context(prec=700)):
            log2 = Fraction(Decimal(2).ln())
        below = log2 * (1 / Fraction(t) - 1)
        assert below < linear_iterations(t, 0.5, 1.0) < below + 3


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"guarantee": "descend"}, "guarantee must be one of 'condition', 'descent', got 'descend'"),
            ({"guarantee": "descent", "criterion": "trace"}, "criterion must be one of"),
            ({"guarantee": "descent", "criterion": "convex"}, "guarantee='condition'"),
            ({"criterion": "convex", "lower": 1.0}, "takes none"),
            ({"criterion": "convex", "algorithm": "det-CGD2"}, "is proved for x⁺ = x − D S ∇f"),
            ({"criterion": "linear"}, "which it needs"),
            ({"guarantee": "descent", "criterion": "linear"}, "which it needs"),
            ({"guarantee": "descent", "lower": 1.0}, "criterion='det' takes none"),
            ({"guarantee": "descent", "criterion": "euclidean", "lower": 1.0}, "takes none"),
            ({"guarantee": "descent", "criterion": "linear", "lower": -1.0}, "lower must be a finite positive number"),
            ({"guarantee": "descent", "criterion": "linear", "lower": 1e9}, "lower must satisfy M ⪯ L"),
            ({"guarantee": "descent", "criterion": "linear", "lower": np.eye(2)}, "lower is 2×2 but L is 6×6"),
            ({"guarantee": "descent", "criterion": "linear", "lower": -L}, "lower is indefinite"),
        ],
    )
    def test_with_a_clear_error(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            optimal_stepsize(L, SKETCH, **options)


def test_certify_reports_both_guarantees() -> None:
    inside, free = optimal_stepsize(L, SKETCH), best(L, SKETCH)
    check = certify(inside.D, L, SKETCH)
    assert check.feasible and check.descent.feasible
    assert check.rate == pytest.approx(inside.rate, rel=1e-12)
    assert check.descent_rate == pytest.approx(inside.descent_rate, rel=1e-9)
    assert check.descent.gap == pytest.approx(math.log(free.rate / inside.descent_rate), abs=2e-6)
    check = certify(free.D, L, SKETCH)
    assert not check.feasible and check.rate == 0.0
    assert check.descent.feasible and check.descent_rate == pytest.approx(free.rate, rel=1e-9)
    assert check.descent.gap <= 1e-6
    assert certify(free.D, L, SKETCH, dual=free.dual).descent.gap <= 1e-6
    check = certify(10.0 * free.D, L, SKETCH)
    assert not check.feasible and not check.descent.feasible
    assert check.descent_rate == 0.0 and math.isinf(check.descent.gap)
    tiny = certify(2.0**-900 * inside.D, L, SKETCH)
    assert tiny.feasible and tiny.descent.feasible
    assert tiny.descent_rate >= tiny.rate and tiny.descent.margin == pytest.approx(2.0)


def test_certify_judges_by_the_guarantee_of_a_result() -> None:
    """A result knows what it is for, a matrix is told; both tell the rate that the result has."""
    free = best(L, SKETCH)
    for check in (
        certify(free, L, SKETCH),
        certify(free.D, L, SKETCH, guarantee="descent"),
        certify(free.D, L, SKETCH, guarantee="descent", dual=free.dual),
    ):
        assert (check.guarantee, check.criterion) == ("descent", "det")
        assert check.feasible and check.margin > 0.0 and check.gap <= 1e-6
        assert check.rate == check.descent_rate == pytest.approx(free.rate, rel=1e-9)
        assert not check.condition.feasible
        rows = dict(check.rows())
        assert rows["guarantee"] == "descent, H = 2D − T(D) ≻ 0"
        assert rows["condition T(D) ⪯ D"] == "no, not needed"
        assert rows["rate det(H)^(1/d)"] == f"{check.rate:.9g}"
    judged = certify(free, L, SKETCH, guarantee="condition")
    assert not judged.feasible and judged.rate == 0.0 and judged.descent_rate == pytest.approx(free.rate, rel=1e-9)
    assert dict(judged.rows())["rate det(D)^(1/d)"] == "none: the guarantee is not proved"


@pytest.mark.parametrize("structure", ["diagonal", BlockDiagonal((4, 2))])
def test_certify_takes_over_what_a_result_is_for(structure: Any) -> None:
    result = optimal_stepsize(L, SKETCH, algorithm="det-CGD2", structure=structure)
    check = certify(result, L, SKETCH)
    assert check.feasible and check.gap <= 1.5e-6 and check.rate == pytest.approx(result.rate, rel=1e-9)
    assert certify(result, L, SKETCH, structure="full").gap > 1e-3
    other = certify(result, L, SKETCH, algorithm="det-CGD1")
    assert (other.margin == pytest.approx(check.margin, abs=1e-3)) == (structure == "diagonal")  # SD = DS
    plain = optimal_stepsize(L, SKETCH, criterion="euclidean")
    assert certify(plain, L, SKETCH).rate == pytest.approx(plain.rate, rel=1e-9)
    assert certify(best(L, SKETCH), L, SKETCH, criterion="convex").guarantee == "condition"
    along = optimal_stepsize(L, SKETCH, structure=Direction(np.eye(6)))
    with pytest.raises(ValueError, match="structure must be given: the result holds no more than the name of its own"):
        certify(along, L, SKETCH)
    assert certify(along, L, SKETCH, structure="scalar").gap <= 1.5e-6


# ---------------------------------------------------------------- theory


@settings(max_examples=25)
@given(problems(max_d=5), st.sampled_from(["det-CGD1", "det-CGD2"]))
def test_the_descent_optimum_is_no_worse_than_the_condition_s(problem: tuple[Matrix, Sketch], algorithm: str) -> None:
    L, sketch = problem
    inside, free = optimal_stepsize(L, sketch, algorithm=algorithm), best(L, sketch, algorithm=algorithm)
    assert inside.descent_log_det >= inside.log_det - 1e-12 * (1 + abs(inside.log_det))
    assert free.certificate.upper_bound >= inside.descent_log_det
    assert free.rate >= inside.rate * (1 - 2e-6)
    if algorithm == "det-CGD2":
        assert free.rate == pytest.approx(inside.rate, rel=3e-6)


@settings(max_examples=15)
@given(smoothness_matrices(max_d=5, max_condition=1e4))
def test_no_compression_gives_the_inverse_and_one_step(L: Matrix) -> None:
    for sketch in (Identity(len(L)), RandK(len(L), len(L)), BernQ(1.0, len(L))):
        np.testing.assert_allclose(best(L, sketch).D @ L, np.eye(len(L)), atol=1e-6)
        assert best(L, sketch, criterion="linear", lower=L).rate == pytest.approx(1.0, abs=2e-6)


@settings(max_examples=10)
@given(smoothness_matrices(min_d=2, max_d=5, max_condition=1e4))
def test_rates_grow_with_k_and_t_is_at_most_one(L: Matrix) -> None:
    d = len(L)
    for goal in ({}, {"criterion": "euclidean"}, {"criterion": "linear", "lower": L}):
        rates = [best(L, RandK(d, k), **goal).rate for k in range(1, d + 1)]
        assert all(a <= b * (1 + 2e-6) for a, b in pairwise(rates))
        assert goal.get("criterion") != "linear" or max(rates) <= 1 + 1e-12
