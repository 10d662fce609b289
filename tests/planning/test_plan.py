"""The planner: its rows are those of the functions behind it, its budget holds, its best row is the cheapest."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.goals import arguments_of
from stepsize_opt import (
    Budget,
    Feedback,
    Identity,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    compare,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    parse_sketch,
    plan,
)
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.planning import questions
from stepsize_opt.problems import Federated, Layered, LogisticRegression, Quadratic
from stepsize_opt.results import StepsizeResult
from stepsize_opt.tables import Table
from stepsize_validation import run, run_feedback
from stepsize_validation.data import federated_logistic, load_dataset, random_smoothness, split
from stepsize_validation.properties.exact import (
    combine,
    condition_slack,
    is_positive_semidefinite,
    product,
    rational,
    transpose,
)
from stepsize_validation.properties.strategies import Matrix, problems

L = np.array([[2.0, 1.0, 0.3], [1.0, 3.0, -0.5], [0.3, -0.5, 1.0]])
ASKED: dict[str, Any] = {"epsilon2": 1e-2, "initial_gap": 1.0}
LINEAR: dict[str, Any] = {"accuracy": 1e-3, "strong_convexity": 0.1, "initial_gap": 1.0}


A = np.array([[0.5], [0.5], [0.5], [0.5], [-0.5]])
SIGNS = np.array([1.0, 1.0, 1.0, 1.0, -1.0])


def _row(answer: Table, method: str, stepsize: str, k: float = 1.0) -> Any:
    (row,) = [r for r in answer.rows if (r.method, r.stepsize, r.k) == (method, stepsize, k)]
    return row


def test_rows_are_those_of_the_functions_behind_them() -> None:
    answer = plan(L, 1, **ASKED)
    assert all(isinstance(row.k, int) for row in answer.rows)
    asked: dict[tuple[str, str, float], dict[str, Any]] = {
        ("det-CGD1", "γI", 1.0): {"structure": "scalar"},
        ("det-CGD1", "paper", 1.0): {},
        ("det-CGD1", "descent", 1.0): {"goal": "descent"},
        ("det-CGD2", "optimal", 1.0): {"algorithm": "det-CGD2"},
        ("det-CGD2", "L⁻¹, uncompressed", 3.0): {},
    }
    for (method, stepsize, k), options in asked.items():
        result = optimal_stepsize(L, RandK(3, int(k)), **options)
        assert _row(answer, method, stepsize, k).rounds == result.iterations(1e-2, 1.0)
    assert answer.best is _row(answer, "subspace", "optimal")
    assert answer.best.rounds == int(np.ceil(2.0 / (optimal_method(L, 1).rate * 1e-2)))


def test_work_is_counted_for_each_side() -> None:
    answer = plan(L, 2, **ASKED)
    sides = {(r.method, r.stepsize): (r.more["client"], r.more["server"]) for r in answer.rows if r.k == 2}
    assert sides == {
        ("det-CGD1", "γI"): (0, 2),
        ("det-CGD1", "paper"): (0, 6),
        ("det-CGD1", "descent"): (0, 6),
        ("det-CGD2", "optimal"): (6, 0),
        ("subspace", "optimal"): (6, 6),
    }


@pytest.mark.parametrize("goal", METRIC_GOALS)
def test_no_row_needs_fewer_rounds_than_the_limit(goal: str) -> None:
    answer = plan(L, goal=goal, **(LINEAR if goal == "linear" else ASKED))
    rounds = dict(answer.limits[goal])
    assert len(answer.rows) >= 8
    for row in answer.rows:
        if row.stepsize == "momentum":  # it has memory
            assert row.share_of_limit is None and row.result.momentum
            continue
        assert row.rounds >= rounds[row.k]
        assert row.share_of_limit is not None and 0.0 < row.share_of_limit <= 1.0


def test_progress_and_records() -> None:
    seen: list[tuple[int, int, str]] = []
    answer = plan(L, 1, on_progress=lambda *now: seen.append(now), goal=("descent", "euclidean"), **ASKED)
    assert [now[:2] for now in seen] == [(done, len(answer.rows)) for done in range(len(answer.rows) + 1)]
    best = [record for record in answer.to_records() if record["best"]]
    assert [(one["goal"], one["method"]) for one in best] == [("descent", "subspace"), ("euclidean", "subspace")]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), budget=st.sampled_from([0.5, 1.0, 1.7, 3.0]))
def test_the_best_row_is_the_cheapest_within_the_budget(seed: int, budget: float) -> None:
    A = np.random.default_rng(seed).standard_normal((3, 5))
    answer = plan(A @ A.T + 0.1 * np.eye(3), budget, **ASKED)
    inside = [row for row in answer.rows if row.k <= budget]
    fewest = min(row.floats for row in inside)
    assert answer.best in inside
    # Equal up to its last round, which is a whole one.
    assert answer.best.floats - answer.best.k <= fewest
    assert all(row.rounds >= answer.best.rounds for row in inside if row.floats == fewest)


def test_a_limit_of_rounds_gives_the_smallest_k_that_keeps_it() -> None:
    A = np.random.default_rng(0).standard_normal((9, 20))
    matrix = A @ A.T
    needed = int(np.ceil(2.0 / (compression_limit(matrix, 7).value * 1e-2))) + 1
    answer = plan(matrix, Budget(rounds=needed), **ASKED)
    kept = [row.k for row in answer.rows if row.method == "subspace" and row.rounds <= needed]
    assert min(kept) == 7.0  # which is none of 1, d/4, d/2, d
    assert answer.best.rounds <= needed


def test_a_budget_that_nothing_keeps_is_said() -> None:
    answer = plan(L, Budget(total=1.0), **ASKED)
    assert answer.best_for("descent") is None
    with pytest.raises(ValueError, match="no method"):
        _ = answer.best


def test_clients_with_shared_seeds_are_one_node_and_independent_ones_stand_beside() -> None:
    clients = [L, np.diag([1.0, 2.0, 3.0])]
    answer = plan(clients, 1, delta_inf=0.1, **ASKED)
    mean = 0.5 * (clients[0] + clients[1])
    alone = plan(mean, 1, **ASKED)
    assert answer.best.seeds == "shared"
    assert answer.best.rounds == alone.best.rounds
    assert answer.best.floats == 2 * alone.best.floats
    full = [row for row in answer.rows if row.seeds == "independent" and row.stepsize == "full"]
    expected = optimal_distributed_stepsize(
        clients, RandK(3, 1), delta_inf=0.1, algorithm="det-CGD2", epsilon2=1e-2, initial_gap=1.0
    )
    assert [row.rounds for row in full] == [expected.K]
    assert "need" in plan(clients, 1, **ASKED).notes[1]


def test_an_objective_knows_the_rest_and_the_best_row_runs() -> None:
    """The recommended method keeps its promise, and its messages are those that the runner sends."""
    parts = split(load_dataset("breast_cancer"), 3, np.random.default_rng(0))
    objective = federated_logistic(parts, 0.1)
    answer = plan(objective, 5, epsilon2=1e-2, goal="euclidean")
    best = answer.best
    record = run(objective, best.result, iterations=best.rounds, seeds=8, client_seeds="shared")
    assert record.euclidean.mean() <= 1e-2
    assert record.sent.sum(axis=1).mean() == pytest.approx(best.floats, rel=1e-3)
    draw = best.compressor.draw(np.random.default_rng(0))
    numbers = best.compressor.encode(np.ones(objective.d), draw)
    assert abs(numbers.size - best.k) < 1.0
    assert best.compressor.decode(numbers, draw).shape == (objective.d,)


@pytest.mark.parametrize("form", ["matrices", "objective"])
@pytest.mark.parametrize("scales", [(0.76, 0.8, 1.31), (0.69, 0.58, 1.36, 1.36, 1.38)])
def test_what_is_planned_for_clients_holds_for_their_exact_mean(scales: tuple[float, ...], form: str) -> None:
    """L is singular to 1e-7, so that the rounding of a mean decides whether (3) and AᵀLA ⪯ I hold for L."""
    clients = [x * np.array([[1.0, 1.0 - 1e-7], [1.0 - 1e-7, 1.0]]) for x in scales]
    problem = clients if form == "matrices" else Federated(tuple(Quadratic(M, np.zeros(2)) for M in clients))
    mean = combine(*[(Fraction(1, len(clients)), rational(M)) for M in clients])
    answer = plan(problem, 1, sketches=[RandK(2, 1)], **ASKED)
    proved = [r for r in answer.rows if isinstance(r.result, StepsizeResult) and r.result.satisfies_condition]
    assert len(proved) >= 3
    for row in proved:
        slack = condition_slack(rational(row.result.D), mean, parse_sketch(row.sketch, 2), row.result.algorithm)
        assert is_positive_semidefinite(slack)
    A = rational(_row(answer, "subspace", "optimal").result.directions)
    squares = product(product(transpose(A), mean), A)
    assert is_positive_semidefinite(combine((1, rational(np.eye(2))), (-1, squares)))


def _thin(d: int = 40, r: int = 3) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(0)
    return LowRankPlusDiagonal(rng.standard_normal((d, r)), rng.uniform(0.1, 1.0, d))


# Besides the rows that every goal has.
ROWS_OF = {"descent": {("det-CGD2", "optimal")}, "euclidean": set(), "linear": {("subspace", "momentum")}}


@pytest.mark.parametrize("goal", METRIC_GOALS)
def test_an_l_that_is_not_formed_has_the_rows_of_the_dense_one(goal: str) -> None:
    thin = _thin() if goal == "descent" else LowRankPlusDiagonal(_thin().U, 0.2)
    asked = LINEAR if goal == "linear" else ASKED
    large, small = (plan(one, 10, goal=goal, **asked) for one in (thin, thin.todense()))
    shared = {("GD", "γI"), ("det-CGD1", "diagonal"), ("subspace", "optimal")}
    assert {(r.method, r.stepsize) for r in large.rows} == shared | ROWS_OF[goal]
    for row in large.rows:
        if row.method != "det-CGD1":
            assert row.rounds == pytest.approx(_row(small, row.method, row.stepsize, row.k).rounds, rel=1e-5)
    assert dict(large.limits[goal]) == pytest.approx(dict(small.limits[goal]), rel=1e-6)
    known = arguments_of("paper" if goal == "descent" else goal, 0.1)  # a large diagonal D is that of the condition
    dense = optimal_stepsize(thin.todense(), RandK(40, 10), structure="diagonal", **known)
    assert _row(large, "det-CGD1", "diagonal", 10.0).result.rate == pytest.approx(dense.rate, rel=1e-6)
    assert large.best.method == "subspace"
    if goal == "descent":  # the two products with a factor of rank 3, and a diagonal
        assert {(r.more["client"], r.more["server"]) for r in large.rows if r.method == "subspace"} == {(240.0, 240.0)}


@pytest.mark.slow
def test_every_row_of_a_large_plan_runs() -> None:
    answer, rng = plan(_thin(), 10, **ASKED), np.random.default_rng(0)
    g = rng.standard_normal(40)
    f = Quadratic(_thin().todense(), g)
    for row in answer.rows:
        compressor, total = row.compressor, np.zeros(40)
        for _ in range(1000):
            draw = compressor.draw(rng)
            total += compressor.decode(compressor.encode(g, draw), draw)
        if row.k == 10:
            D = row.result.D
            # The mean of 1000 draws, whose deviation is about √((d/k − 1)/1000) of each coordinate.
            assert np.linalg.norm(total / 1000 - D @ g) < 0.5 * np.linalg.norm(D @ g)
    (feedback,) = answer.measured
    assert run_feedback(f, feedback.compressor, rounds=400).values[-1] < 1e-6


def test_feedback_is_shown_below_the_rows_and_never_ranked() -> None:
    clients = [_thin().todense(), np.eye(40)]
    answer = plan(clients, Budget(10, total=1e12), goal=("descent", "euclidean"), **ASKED)
    (feedback,) = answer.measured
    assert isinstance(feedback.compressor, Feedback) and feedback.compressor.clients == 2
    assert (feedback.sketch, feedback.k, feedback.seeds, feedback.more["setup"]) == ("top-2", 4.0, "shared", 820.0)
    assert "feedback" not in {row.method for row in answer.rows}
    *_, record = answer.to_records()
    assert (record["method"], record["status"], record["best"]) == ("feedback", "measured", False)
    assert all(record[name] is None for name in ("goal", "rate", "rounds", "floats", "within_budget"))
    block = repr(answer).split("\n\n")[3].splitlines()
    assert block[0].startswith("measured, not ranked") and block[2].split()[0] == "feedback"
    assert plan(clients, 3, **ASKED).measured[0].sketch == "top-1"
    assert plan(clients, 2, **ASKED).measured == ()  # one entry with its place and a value of f are 2.5 floats


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 3])
def test_a_large_objective_is_planned_without_a_dense_matrix(clients: int) -> None:
    rng = np.random.default_rng(0)
    m, d = 300, 6000
    X = sparse.csr_array((np.ones(5 * m), (np.repeat(np.arange(m), 5), rng.integers(0, d, 5 * m))), shape=(m, d))
    b = np.where(rng.random(m) < 0.5, 1.0, -1.0)
    parts = tuple(LogisticRegression(X[i::clients], b[i::clients], 1e-2, "ridge") for i in range(clients))
    tracemalloc.start()
    answer = plan(parts[0] if clients == 1 else Federated(parts), 100, epsilon2=1e-4)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * d * d / 4
    assert {r.method for r in answer.rows} == {"GD", "det-CGD1"}
    assert answer.limits == {"descent": ()}
    assert all(row.floats == clients * row.k * row.rounds for row in answer.rows)
    assert {r.seeds for r in answer.rows} == {"one node" if clients == 1 else "shared"}
    assert any("sparse factor" in note for note in answer.notes)
    linear = plan(parts[0], 100, goal=("euclidean", "linear"), epsilon2=1e-4, accuracy=1e-3, initial_gap=0.7)
    for row in linear.rows:
        assert row.rounds >= dict(linear.limits[row.goal]).get(row.k, 0)


def test_layers_of_a_large_objective_are_planned_by_their_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size up to which matrices are formed, here 4."""
    rows = np.random.default_rng(0).standard_normal((5, 3))
    layers = tuple(LogisticRegression(rows, SIGNS, reg) for reg in (0.5, 0.1))
    formed = plan(Layered(layers), 2, epsilon2=1e-3)
    monkeypatch.setattr(questions, "LARGE", 4)
    answer = plan(Layered(layers), 2, epsilon2=1e-3)
    rounds = {(row.method, row.stepsize, row.sketch): row.rounds for row in formed.rows}
    assert {row.method for row in answer.rows} == {"GD", "det-CGD1", "det-CGD2", "subspace"}
    for row in answer.rows:
        if row.stepsize != "diagonal":  # the table of a matrix that is formed has the full D of det-CGD1
            assert row.rounds == pytest.approx(rounds[row.method, row.stepsize, row.sketch], abs=1)
    with pytest.raises(ValueError, match=r"above 4, must have factors.*one by one"):
        plan(Layered((*layers, Quadratic(np.eye(1), np.zeros(1)))), 2, epsilon2=1e-3)


@pytest.mark.parametrize(
    ("f", "M"),
    [
        (LogisticRegression(A, SIGNS, 0.6), 0.5),
        (LogisticRegression(A, SIGNS, 0.6), None),
        (LogisticRegression(A, SIGNS, 0.1, "ridge"), 0.11),
        (LogisticRegression(A, SIGNS, 0.1, "ridge"), np.eye(3)),
        # Relative to the M that is known, however small: 10⁻⁹ of the second layer, beside 1 of the first.
        (Layered([LogisticRegression(A, SIGNS, reg, "ridge") for reg in (1.0, 1e-9)]), 5e-7),
    ],
    ids=["not convex", "no M", "too large", "another size", "layers"],
)
def test_no_linear_rate_that_the_objective_contradicts(f: Any, M: Any) -> None:
    """strong_convexity=0.5 of a non-convex f promised 10⁻³ after 7 rounds; a run was at 0.07 after 700."""
    with pytest.raises(ValueError, match=r"\bM\b|\bstrong_convexity\b"):
        plan(f, goal="linear", accuracy=1e-3, strong_convexity=M)
    known = partial(plan, LogisticRegression(A, SIGNS, 0.1, "ridge"), goal="linear", accuracy=1e-3)
    assert known(strong_convexity=0.1).best.rounds == known().best.rounds


def test_notes_name_a_gap_that_was_found_and_rows_that_are_not_finished() -> None:
    A = np.random.default_rng(0).standard_normal((30, 4))
    f = LogisticRegression(A, np.where(A[:, 0] > 0, 1.0, -1.0), 0.1)
    _, note = plan(f, 2, epsilon2=1e-3).notes
    assert note.startswith("Δ⁰ = 0.") and "proved is only Δ⁰ ≤ 0.693147" in note
    ridge = LogisticRegression(A, f.b, 0.1, "ridge")
    _, note = plan(ridge, 2, epsilon2=1e-3).notes
    assert note.endswith("is f(0) minus the smallest value found")
    assert len(plan(f, 2, epsilon2=1e-3, initial_gap=1.0).notes) == 1  # what the columns of work count
    big = random_smoothness(np.random.default_rng(1), 12, 1e4)
    _, feedback, note = plan(big, 6, solving={"time_limit": 1e-9}, **ASKED).notes
    assert feedback.startswith("k, setup: floats of each client")
    assert "rows rest on a D above the tolerance (user_limit): their rounds hold" in note


def test_a_method_without_directions_is_left_out() -> None:
    """One that refuses must not take the others with it."""
    U = (np.random.default_rng(64).random((64, 64)) < 0.3) / 8.0
    answer = plan(LowRankPlusDiagonal(U, 1e-12), 16, goal="euclidean", **ASKED)
    assert {row.method for row in answer.rows} == {"GD", "det-CGD1"} and answer.measured == ()
    assert any(note.startswith("feedback, k = 3 is left out: ") for note in answer.notes)
    assert any("subspace method, k = 16 is left out: L, or the columns of U" in note for note in answer.notes)


def _nearly_singular(e: float) -> Any:
    return np.array([[1.0, 1.0 - e], [1.0 - e, 1.0]])


def test_a_row_of_the_subspace_method_is_optimal_only_within_the_tolerance() -> None:
    """Rounding leaves the subspace method a gap of 0.05 here, which is no optimum within 1e-6."""
    near, gap = _nearly_singular(1e-13), optimal_method(_nearly_singular(1e-13), 1).certificate.gap
    assert 0.01 < gap < 0.1
    answer = plan(near, 1, **ASKED)
    assert _row(answer, "subspace", "optimal").status == "optimal_inaccurate"
    unfinished = sum(row.status != "optimal" for row in answer.rows)
    assert any(note.startswith(f"{unfinished} of {len(answer.rows)} rows rest on a D") for note in answer.notes)
    assert _row(plan(near, 1, solving={"tol": 0.1}, **ASKED), "subspace", "optimal").status == "optimal"
    assert _row(plan(L, 1, **ASKED), "subspace", "optimal").status == "optimal"


@pytest.mark.parametrize("goal", ["descent", "euclidean"])
def test_a_method_that_float64_does_not_prove_leaves_the_others(goal: str) -> None:
    answer = plan(_nearly_singular(1e-14), Budget(rounds=300), goal=goal, **ASKED)
    assert any(note.startswith("subspace method, k = 2 is left out: ") for note in answer.notes)
    assert not any(row.method == "subspace" and row.k == 2 for row in answer.rows)
    assert {"GD", "det-CGD1"} <= {row.method for row in answer.rows}
    # The limit is a bound for every method, also where no method is proved to attain it.
    limits = dict(answer.limits[goal])
    assert set(limits) == {1.0, 2.0}
    assert all(limits[row.k] <= row.rounds for row in answer.rows)


@pytest.mark.parametrize("problem", [L, [L, L]])
def test_less_than_one_float_per_round_leaves_rand_k_out(problem: Any) -> None:
    clients: dict[str, Any] = {} if problem is L else {"delta_inf": 0.0}
    answer = plan(problem, 0.5, **ASKED, **clients)
    assert {(row.method, row.stepsize) for row in answer.rows} == {
        ("GD", "γI"),
        ("det-CGD2", "L⁻¹, uncompressed"),
        ("subspace", "optimal"),
    }
    assert answer.best.method == "subspace"
    assert any(note.startswith("det-CGD1 and det-CGD2 with rand-k are left out") for note in answer.notes)
    own = plan(problem, 0.5, sketches=[IndependentSampling([1.0 / 6.0] * 3)], **ASKED, **clients)
    assert {"det-CGD1", "det-CGD2"} <= {row.method for row in own.rows}
    assert {row.sketch for row in own.rows if row.method.startswith("det") and row.within_budget} == {
        "independent:0.16666666666666666"
    }


# ---------------------------------------------------------------- the table of stepsizes for one node beside its limit


@pytest.mark.parametrize("goal", ["paper", "descent", "euclidean", "linear"])
@given(problem=problems(3, 1e3), share=st.floats(0.05, 1.0))
@settings(max_examples=10, deadline=None)
def test_no_row_is_better_than_its_limit(goal: str, problem: tuple[Matrix, Sketch], share: float) -> None:
    L, sketch = problem
    table = compare(L, sketch, **arguments_of(goal, share * (1.0 - 1e-9) * L))
    for floats, least in table.limits[goal]:
        without_memory = [row for row in table.rows if not row.result.momentum]
        assert all(row.k == floats and row.rounds >= least for row in without_memory)


@pytest.mark.parametrize("share", [0.9, 1e-3])
def test_a_linear_row_without_compression_is_at_the_limit(share: float) -> None:
    L = np.diag([1.0, 4.0])
    table = compare(L, Identity(2), goal="linear", strong_convexity=share * L)
    ((_, least),) = table.limits["linear"]
    best = min(row.rounds for row in table.rows if not row.result.momentum)
    assert best == pytest.approx(least, rel=1e-6) == pytest.approx(-1.0 / np.log1p(-share), rel=1e-6)


def test_rounds_are_those_of_iterations_in_the_unit_of_the_table() -> None:
    """For a small accuracy K of ``iterations`` is the rounds of the row times log(Δ⁰/accuracy)."""
    L, M = np.diag([1.0, 3.0]), 0.5
    row = next(r for r in compare(L, RandK(2, 1), goal="linear", strong_convexity=M).rows if r.stepsize == "optimal")
    result = optimal_stepsize(L, RandK(2, 1), algorithm=row.method, goal="linear", strong_convexity=M)
    K = result.iterations(accuracy=1e-100, initial_gap=1.0)
    assert K == pytest.approx(row.rounds * 100.0 * np.log(10.0), rel=1e-3)
