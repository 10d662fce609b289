"""The criteria euclidean and linear under the condition, and convex: both ends in rational arithmetic, laws, runs."""

from __future__ import annotations

import math
import tracemalloc
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from itertools import product as product_of
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.exact import (
    inverse,
    rational,
)
from shared.strategies import problems, smoothness_matrices
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    Identity,
    IndependentSampling,
    RandK,
    Sketch,
    StepsizeResult,
    certify,
    compare,
    optimal_stepsize,
)
from stepsize_opt.node.solve import weakest
from stepsize_opt.problems import LeastSquares, LogisticRegression, Objective
from stepsize_opt.proofs.certificate import Certificate
from stepsize_validation.data import load_dataset, random_smoothness

Matrix = NDArray[np.float64]
L = random_smoothness(np.random.default_rng(3), 6, 1e3)
SKETCH = RandK(6, 2)


A = np.asarray(load_dataset("breast_cancer").A)[:, :8]
B = np.asarray(load_dataset("breast_cancer").b)


def minimiser(objective: Objective) -> Matrix:
    """x* by steps with L⁻¹, until the gradient is zero to rounding."""
    x, inverted = np.zeros(objective.d), np.linalg.inv(objective.smoothness())
    for _ in range(5000):
        x = x - inverted @ objective.gradient(x[None])[0]
    assert np.abs(objective.gradient(x[None])).max() < 1e-9
    return np.asarray(x)


def structures(L: Matrix) -> list[Any]:
    inverse = np.linalg.inv(L)
    d = len(L)
    blocks = [BlockDiagonal((1, d - 1))] if d > 1 else []
    return ["full", "diagonal", *blocks, "scalar", Direction(0.5 * (inverse + inverse.T))]


def goals(L: Matrix) -> list[dict[str, Any]]:
    mu = 0.5 * float(np.linalg.eigvalsh(L)[0])
    return [{"criterion": "euclidean"}, {"criterion": "linear", "lower": L}, {"criterion": "linear", "lower": mu}]


class TestUnderTheCondition:
    def test_the_table_of_the_design(self) -> None:
        """breast_cancer, the first ten columns, k = 3, M = L: t through (3) is .0359, t of the descent metric .1123."""
        A = np.asarray(load_dataset("breast_cancer").A)[:, :10]
        L = A.T @ A / (4 * len(A)) + 0.01 * np.eye(10)
        goal: dict[str, Any] = {"criterion": "linear", "lower": L}
        assert optimal_stepsize(L, RandK(10, 3), **goal).rate == pytest.approx(0.0359, abs=5e-5)
        assert optimal_stepsize(L, RandK(10, 3), guarantee="descent", **goal).rate == pytest.approx(0.1123, abs=5e-5)
        second = optimal_stepsize(L, RandK(10, 3), algorithm="det-CGD2", **goal)
        assert second.rate == pytest.approx(0.0148, abs=5e-5)

    def test_solvers_agree(self) -> None:
        for structure in structures(L):
            for goal in goals(L)[:2]:
                first = optimal_stepsize(L, SKETCH, structure=structure, **goal)
                other = optimal_stepsize(L, SKETCH, structure=structure, solver="clarabel", **goal)
                assert other.certificate.log_det <= first.certificate.upper_bound
                assert first.certificate.log_det <= other.certificate.upper_bound

    def test_single_precision_keeps_to_the_equation_of_t(self) -> None:
        """d·diag(DLD) ⪯ D for rand-1 and diag L = 1: the best D ⪰ tI is I/d."""
        L = random_smoothness(np.random.default_rng(0), 300, 1e3)
        scale = 1.0 / np.sqrt(np.diagonal(L))
        result = optimal_stepsize(L * np.multiply.outer(scale, scale), RandK(300, 1), criterion="euclidean")
        assert result.status == "optimal"
        assert result.rate == pytest.approx(1.0 / 300.0, rel=2e-6)

    def test_coupled_inequalities_take_few_iterations(self) -> None:
        """Preconditioned one by one, the two inequalities take 3 260 of them."""
        L = random_smoothness(np.random.default_rng(0), 60, 1e3)
        result = optimal_stepsize(L, RandK(60, 1), criterion="euclidean")
        assert result.status == "optimal"
        assert result.solver_stats.extra_stats["cg_iterations"] <= 500

    def test_the_best_of_det_CGD2_and_of_a_direction_is_known(self) -> None:
        N = SKETCH.map.apply(L)
        for goal in goals(L):
            M = goal.get("lower", 1.0)
            M = M if isinstance(M, np.ndarray) else M * np.eye(6)
            top = float(np.linalg.eigvals(np.linalg.solve(M, N)).real.max())
            second = optimal_stepsize(L, SKETCH, algorithm="det-CGD2", **goal)
            assert second.rate == pytest.approx(1 / top, rel=1e-6)
            W = np.diag(1.0 / np.diagonal(L))
            det, t = (optimal_stepsize(L, SKETCH, structure=Direction(W), **g) for g in ({}, goal))
            np.testing.assert_allclose(t.D, det.D, rtol=1e-6)

    def test_texts_and_files(self, tmp_path) -> None:
        r = optimal_stepsize(L, SKETCH, criterion="linear", lower=L)
        assert r.satisfies_condition and r.descent_t is not None and r.descent_t > r.rate
        rows = dict(r.rows())
        assert "D ⪰ tM⁻¹" in rows["rate t"]
        assert rows["guarantee used"] == "descent, t with H ⪰ tM⁻¹"
        assert StepsizeResult.load(r.save(tmp_path / "r")).summary()["descent_t"] == r.descent_t
        kept, K = 1 - Fraction(r.descent_t), r.iterations(accuracy=1e-3, initial_gap=2.0)
        assert kept**K * 2 <= Fraction(1e-3) < kept ** (K - 1) * 2
        table = compare(L, SKETCH, criterion="linear", lower=L)
        assert table.best.stepsize == "optimal, descent"
        assert all(table.relative_iterations(row) >= 1.0 for row in table.rows)


def test_certify_judges_by_every_criterion() -> None:
    """The optima are optimal, others are not, and no number of one criterion is compared with another's."""
    for goal in [*goals(L), {"criterion": "convex"}]:
        r = optimal_stepsize(L, SKETCH, **goal)
        check = certify(r.D, L, SKETCH, **goal)
        assert check.feasible and check.gap <= 1.5e-6
        assert check.rate == pytest.approx(r.rate, rel=1e-9)
        expected = r.descent_rate if r.descent_t is None else r.descent_t
        assert check.descent_rate == pytest.approx(expected, rel=1e-9)
        assert check.largest_scale == pytest.approx(1.0, rel=1e-6)
        half = certify(0.5 * r.D, L, SKETCH, **goal)
        assert half.gap == pytest.approx(math.log(2.0), abs=1e-5)
        assert half.gap_when_scaled <= 1.5e-6
        over = certify(2.5 * r.D, L, SKETCH, **goal)
        assert not over.feasible and over.rate == 0.0
        assert over.gap_when_scaled <= 1.5e-6
        tiny = certify(2.0**-900 * r.D, L, SKETCH, **goal)
        assert tiny.feasible and tiny.margin == pytest.approx(1.0) and tiny.gap == pytest.approx(900 * math.log(2.0))
        assert goal["criterion"] == "convex" or tiny.descent.feasible
        if goal["criterion"] != "convex":
            free = optimal_stepsize(L, SKETCH, guarantee="descent", **goal)
            check = certify(free.D, L, SKETCH, **goal)
            assert check.descent.gap <= 1.5e-6
            assert check.descent_rate == pytest.approx(free.rate, rel=1e-9)
            with pytest.raises(ValueError, match="dual goes with criterion='det'"):
                certify(r.D, L, SKETCH, dual=r.dual, **goal)
            again = certify(free.D, L, SKETCH, guarantee="descent", **goal)
            assert again.feasible and again.gap <= 1.5e-6 and again.rate == check.descent_rate
    with pytest.raises(ValueError, match="criterion='convex' has a condition of its own"):
        certify(r.D, L, SKETCH, guarantee="descent", criterion="convex")
    with pytest.raises(ValueError, match="guarantee must be one of 'condition', 'descent', got 'both'"):
        certify(r.D, L, SKETCH, guarantee="both")
    with pytest.raises(ValueError, match="leave out tol or dual"):
        certify(r.D, L, SKETCH, dual=r.dual, tol=1e-3)


@settings(max_examples=8)
@given(problems(max_d=4), st.sampled_from(["det-CGD1", "det-CGD2"]))
def test_t_of_the_condition_lies_between_every_direction_and_the_descent_metric(
    problem: tuple[Matrix, Sketch], algorithm: str
) -> None:
    L, sketch = problem
    for goal in goals(L)[:2]:
        inside = optimal_stepsize(L, sketch, algorithm=algorithm, **goal)
        free = optimal_stepsize(L, sketch, algorithm=algorithm, guarantee="descent", **goal)
        assert inside.rate <= math.exp(free.certificate.upper_bound / len(L)) * (1 + 1e-14)
        assert inside.descent_t is not None and inside.rate <= inside.descent_t * (1 + 1e-9)
        upper = math.exp(inside.certificate.upper_bound / len(L)) * (1 + 1e-14)
        for structure in structures(L)[1:]:
            assert optimal_stepsize(L, sketch, algorithm=algorithm, structure=structure, **goal).rate <= upper
        if goal["criterion"] == "linear":
            assert inside.rate <= 1 + 1e-12


@settings(max_examples=6)
@given(smoothness_matrices(min_d=2, max_d=4, max_condition=1e4), st.sampled_from([-60, 60]))
def test_laws_of_t(L: Matrix, power: int) -> None:
    d = len(L)
    assert optimal_stepsize(L, Identity(d), criterion="linear", lower=L).rate == pytest.approx(1.0, abs=2e-6)
    for goal in goals(L)[:2]:
        rates = [optimal_stepsize(L, RandK(d, k), **goal).rate for k in range(1, d + 1)]
        assert all(a <= b * (1 + 2e-6) for a, b in pairwise(rates))
        scaled = {**goal, "lower": 2.0**power * L} if "lower" in goal else goal
        factor = 1.0 if "lower" in goal else 2.0**power
        again = optimal_stepsize(2.0**power * L, RandK(d, 1), **scaled)
        assert again.rate * factor == pytest.approx(rates[0], rel=3e-6)


class TestConvex:
    def test_solvers_and_reductions_agree(self) -> None:
        for structure in ("full", "diagonal"):
            first = optimal_stepsize(L, SKETCH, structure=structure, criterion="convex")
            other = optimal_stepsize(L, SKETCH, structure=structure, criterion="convex", solver="clarabel")
            whole = optimal_stepsize(L, SKETCH, structure=structure, criterion="convex", reduce=False)
            for r in (other, whole):
                assert r.certificate.log_det <= first.certificate.upper_bound
                assert first.certificate.log_det <= r.certificate.upper_bound
            assert other.gap <= 1e-5
        parts = np.zeros((6, 6))
        parts[:3, :3], parts[3:5, 3:5], parts[5, 5] = L[:3, :3], L[3:5, 3:5], 2.0
        split = optimal_stepsize(parts, SKETCH, criterion="convex")
        assert len(split.blocks) == 3
        assert split.rate == pytest.approx(
            optimal_stepsize(parts, SKETCH, criterion="convex", reduce=False).rate, rel=3e-6
        )

    def test_commuting_methods_are_the_same(self) -> None:
        first, second = (
            optimal_stepsize(L, SKETCH, structure="diagonal", criterion="convex", algorithm=name)
            for name in ("det-CGD1", "det-CGD2")
        )
        np.testing.assert_allclose(first.D, second.D, rtol=1e-12)

    def test_saved_and_read(self, tmp_path: Path) -> None:
        for matrix in ([[3.0, -0.25], [-0.25, 2.0]], [[7.25, -0.75], [-0.75, 2.25]]):
            r = optimal_stepsize(matrix, RandK(2, 1), criterion="convex")
            again = StepsizeResult.load(r.save(tmp_path / "r"))
            np.testing.assert_array_equal(again.dual, r.dual)

    def test_no_compression_gives_the_inverse(self) -> None:
        r = optimal_stepsize(L, Identity(6), criterion="convex")
        np.testing.assert_allclose(r.D @ L, np.eye(6), atol=1e-5)

    def test_iterations_are_honest_about_the_norm(self) -> None:
        r = optimal_stepsize(L, SKETCH, criterion="convex")
        v = np.arange(1.0, 7.0)
        squared = Fraction(0)
        exact, inverted = [Fraction(x) for x in v.tolist()], inverse(rational(r.D))
        squared = sum(exact[i] * inverted[i][j] * exact[j] for i in range(6) for j in range(6))
        K = r.iterations(accuracy=1e-3, initial_distance=v)
        assert squared / (2 * Fraction(1e-3)) <= K <= squared / (2 * Fraction(1e-3)) * Fraction(1 + 1e-9) + 1
        assert r.iterations(accuracy=1e-3, initial_distance=float(np.linalg.norm(v))) >= K
        assert r.communication(accuracy=1e-3, initial_distance=v) == 2.0 * K
        for wrong in (1j * v, ["a"] * 6):
            with pytest.raises(TypeError, match="initial_distance must hold real numbers"):
                r.iterations(accuracy=1e-3, initial_distance=wrong)
        with pytest.raises(ValueError, match="takes accuracy and initial_distance, not initial_gap"):
            r.iterations(accuracy=1e-3, initial_gap=1.0)
        with pytest.raises(ValueError, match="6 finite numbers"):
            r.iterations(accuracy=1e-3, initial_distance=np.ones(5))
        assert "in the norm of D⁻¹" in repr(r)

    @pytest.mark.parametrize("unit", [1e150, 1e-150])
    @pytest.mark.parametrize("shape", ["full", "diagonal"])
    def test_iterations_beyond_the_range_of_squares(self, unit: float, shape: Any) -> None:
        """Squares of x⁰ − x* that underflow gave K = 1, those that overflow an error."""
        r = optimal_stepsize(unit * L, SKETCH, criterion="convex", structure=shape)
        size, accuracy = (1e-165, 1e-185) if unit > 1.0 else (1e165, 1e175)
        v = [size, 0.0, -0.5 * size, 0.0, 0.0, 0.0]
        inverted = inverse(rational(np.array(r.D)))
        exact = sum(Fraction(v[i]) * inverted[i][j] * Fraction(v[j]) for i in range(6) for j in range(6))
        K, needed = r.iterations(accuracy=accuracy, initial_distance=v), exact / (2 * Fraction(accuracy))
        assert 1000 < needed <= K <= needed * Fraction(1 + 1e-9) + 1
        assert r.iterations(accuracy=accuracy, initial_distance=float(np.linalg.norm(np.array(v) / size)) * size) >= K

    @pytest.mark.parametrize(
        "objective", [LogisticRegression(A, B, 1e-3, "ridge"), LeastSquares(A, B)], ids=["logistic", "squares"]
    )
    def test_the_bound_holds_step_by_step_and_in_runs(self, objective: Objective) -> None:
        """Each step by enumeration of the sketch, then the mean of f(xᵏ) − f* over K steps of 300 runs."""
        d, sketch, rng = objective.d, RandK(objective.d, 2), np.random.default_rng(5)
        r = optimal_stepsize(objective.smoothness(), sketch, criterion="convex")
        start = 3.0 * rng.standard_normal(d)
        solution = minimiser(objective)
        least = float(objective.value(solution[None])[0])
        weights, diagonals = sketch.support()
        outcomes = diagonals[:, None, :] * np.eye(d)

        def distance(X: Matrix) -> Matrix:
            return np.einsum("...i,...i->...", X - solution, np.linalg.solve(r.D, (X - solution)[..., None])[..., 0])

        X = solution + rng.standard_normal((50, d)) * rng.choice([0.1, 1.0, 10.0], (50, 1))
        after = X - np.einsum("rij,sj->rsi", outcomes, objective.gradient(X)) @ r.D
        excess = weights @ distance(after) - distance(X) + 2.0 * (objective.value(X) - least)
        # The gradient at the minimiser is zero to 1e-9, and the distances are computed to rounding.
        assert np.all(excess <= 1e-7 * (1.0 + distance(X)))

        X, sums = np.tile(start, (300, 1)), np.zeros(300)
        first = float(distance(start))
        for k in range(1, 201):
            sums += objective.value(X) - least
            if k in (1, 10, 50, 200):
                error = 4.0 * float(np.std(sums / k)) / math.sqrt(300)
                assert float(np.mean(sums / k)) <= first / (2 * k) + error
            chosen = outcomes[rng.choice(len(weights), 300, p=weights)]
            X = X - np.einsum("sij,sj->si", chosen, objective.gradient(X)) @ r.D
        K = r.iterations(accuracy=float(np.mean(sums / 200)), initial_distance=start - solution)
        assert K >= 200 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("structure", "criterion", "guarantee"),
    [
        ("full", "euclidean", "condition"),
        ("full", "convex", "condition"),
        *(
            (structure, *goal)
            for structure in ("diagonal", "scalar")
            for goal in (("euclidean", "condition"), ("linear", "condition"), ("euclidean", "descent"))
        ),
    ],
)
def test_no_default_forms_matrices_of_all_pairs_of_entries(structure: str, criterion: str, guarantee: str) -> None:
    """d = 123: a matrix with a row and a column for every entry of D would take 1.8 GB, whatever the tolerance."""
    d = 123
    rng = np.random.default_rng(0)
    A = rng.standard_normal((2 * d, d)) * np.linspace(0.3, 3.0, d)
    L = A.T @ A / (2 * d) + 0.01 * np.eye(d)
    goal: dict[str, Any] = {"criterion": criterion, "guarantee": guarantee}
    if criterion == "linear":
        goal["lower"] = 0.5 * L
    tracemalloc.start()
    try:
        result = optimal_stepsize(L, RandK(d, 30), structure=structure, tol=1e-2, **goal)  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.status == "optimal" and result.solver_stats.solver_name == "native"
    assert peak < 8 * d**4 / 16


@given(st.lists(st.tuples(st.floats(-700.0, 700.0), st.integers(1, 9)), min_size=1, max_size=4))
def test_the_weakest_part_is_rounded_to_the_proved_side(ends: list[tuple[float, int]]) -> None:
    parts = [Certificate(True, 0.0, level * d, level * d, d) for level, d in ends]
    whole = weakest(parts)
    least = min(Fraction(part.log_det) / part.d for part in parts) * whole.d
    assert whole.log_det <= least <= whole.upper_bound
    assert float(abs(whole.upper_bound - least)) <= 1e-14 * abs(float(least))
    assert len(parts) > 1 or whole is parts[0]


@pytest.mark.parametrize("d", [14, 45])
def test_layers_of_coins_under_the_condition(d: int) -> None:
    """Conjugate gradients ran into their limit in every step, and from d = 45 on nothing else was tried."""
    smoothness = 0.9 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    result = optimal_stepsize(smoothness, BernQ([0.5, 0.25], [d // 2, d - d // 2]), criterion="euclidean")
    assert result.status == "optimal"
    # A step of the path takes a few dozen iterations, or gives way.
    assert result.solver_stats.extra_stats["cg_iterations"] < 4000


def test_a_residual_that_underflows_ends_conjugate_gradients() -> None:
    d = 44
    data = (np.random.default_rng(d).random((4 * d, d)) < 0.3) * 1.0
    smoothness = data.T @ data / (16 * d) + 1e-2 * np.eye(d)
    sketch = BernQ([0.9, 0.1, 0.5], [1, 22, 21])
    assert optimal_stepsize(smoothness, sketch, criterion="euclidean").status == "optimal"


@pytest.mark.parametrize("d", [16, 17, 18, 19])
def test_the_path_of_convex_does_not_go_round_in_a_circle(d: int) -> None:
    smoothness = 0.5 * np.eye(d) + 0.5
    sketch = IndependentSampling(np.linspace(0.1, 1.0, d))
    assert optimal_stepsize(smoothness, sketch, criterion="convex").status == "optimal"


@pytest.mark.parametrize(
    ("guarantee", "criterion"),
    [*product_of(("condition", "descent"), ("det", "euclidean", "linear")), ("condition", "convex")],
)
def test_rates_are_rounded_down_from_what_is_proved(guarantee: Any, criterion: Any) -> None:
    """The rate is at most e^(log_det/d), the number that the certificate proves, for every goal."""
    context = Context(prec=50)
    for seed in range(8):
        M = random_smoothness(np.random.default_rng(seed), 3, 10.0)
        lower = 0.1 if criterion == "linear" else None
        result = optimal_stepsize(M, BernQ(0.4, 3), guarantee=guarantee, criterion=criterion, lower=lower)
        proved = context.exp(context.divide(Decimal(result.log_det), Decimal(result.d)))
        assert Decimal(result.rate) <= proved
        assert Decimal(result.rate) >= proved * (1 - Decimal("1e-14"))
