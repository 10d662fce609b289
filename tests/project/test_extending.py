"""A sketch, a method and a goal defined outside the packages work: the examples of docs/contributing.md."""

from __future__ import annotations

import json
import runpy
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shared.moments import second_moment, variance
from shared.small_data import small_data
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    Gaussian,
    IndependentSampling,
    LayerWise,
    LowRankPlusDiagonal,
    Method,
    RandK,
    Sketch,
    certify,
    compare,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    plan,
    write_certificate,
)
from stepsize_opt.goals import FloorGoal, LinearGoal, LinearMomentum, PaperGoal, base
from stepsize_opt.problems import Quadratic, find_infimum
from stepsize_opt.results import DistributedResult, StepsizeResult
from stepsize_opt.saving import json_text
from stepsize_opt.sketches.base import plain_sketch, sketch_of_plain
from stepsize_opt.verify import verify
from stepsize_validation import check_rate, distributed_lambda, run
from stepsize_validation.data import federated_logistic, logistic_regression, random_smoothness, split
from stepsize_validation.properties import check_sketch
from stepsize_validation.properties.exact import (
    combine,
    descent_metric,
    is_positive_semidefinite,
    log_det,
    rational,
    satisfies_condition,
)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str) -> Any:
    """A class of the examples of docs/contributing.md, which belongs to no package."""
    file = {"OwnSubspace": "own_method", "OneBlock": "own_sketch", "Weighted": "own_goal"}[name]
    return runpy.run_path(str(EXAMPLES / f"{file}.py"))[name]


OWN_METHOD: Method = example("OwnSubspace")()
OneBlock: Any = example("OneBlock")
Weighted: Any = example("Weighted")


def assert_proved_optimal(
    result: StepsizeResult, L: np.ndarray, sketch: Sketch, algorithm: str | Method, gap: float
) -> None:
    """Check the certificate in rational arithmetic, and that a slightly larger D is outside the condition."""
    assert result.status == "optimal"
    assert satisfies_condition(result.D, L, sketch, algorithm)
    assert not satisfies_condition(1.001 * result.D, L, sketch, algorithm)
    assert Decimal(result.log_det) <= log_det(rational(result.D)) <= Decimal(result.certificate.upper_bound)
    assert certify(result.D, L, sketch, algorithm=algorithm, dual=result.dual).gap <= gap


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_method_from_outside_is_solved_and_certified(k: int) -> None:
    L, sketch = random_smoothness(np.random.default_rng(k), 5, 1e4), RandK(5, k)
    result = optimal_stepsize(L, sketch, algorithm="OWN-subspace")
    assert result.algorithm == "own-subspace"
    assert_proved_optimal(result, L, sketch, OWN_METHOD, gap=1e-9)
    np.testing.assert_allclose(result.D, k / 5 * np.linalg.inv(L), rtol=1e-8)
    diagonal = optimal_stepsize(L, sketch, algorithm=OWN_METHOD, structure="diagonal")
    assert diagonal.status == "optimal" and satisfies_condition(diagonal.D, L, sketch, OWN_METHOD)
    assert diagonal.rate < result.rate


def test_formulas_of_a_method_from_outside_by_enumeration() -> None:
    rng = np.random.default_rng(0)
    L, D, sketch = random_smoothness(rng, 4, 10.0), random_smoothness(rng, 4, 10.0), RandK(4, 2)
    weights, diagonals = sketch.support()
    factors = OWN_METHOD.factors(D, lambda: L)
    G = (factors.left * diagonals[:, None, :]) @ factors.right
    np.testing.assert_allclose(np.tensordot(weights, G, axes=1), D, rtol=1e-10)
    T = np.tensordot(weights, G.transpose(0, 2, 1) @ L @ G, axes=1)
    np.testing.assert_allclose(second_moment(OWN_METHOD, D, L, sketch), T, rtol=1e-10)
    np.testing.assert_allclose(variance(OWN_METHOD, D, L, sketch), T - D @ L @ D, rtol=1e-10)


def test_a_method_from_outside_runs_on_a_node_and_on_clients() -> None:
    node = logistic_regression(small_data(), 0.1)
    clients = federated_logistic(split(small_data(), 3, np.random.default_rng(0)), 0.1)
    sketch = RandK(node.d, 2)
    result = optimal_stepsize(node.smoothness(), sketch, algorithm="own-subspace")
    with pytest.raises(ValueError, match="L=L"):
        result.compressor()
    D = result.D
    for objective in (node, clients):  # the clients have equal shares of the rows, so L is the same
        record = run(objective, D, sketch, algorithm="own-subspace", iterations=200, start=np.ones(node.d))
        assert record.algorithm == "own-subspace"
        assert record.values[:, -1].mean() < record.start_value
        if objective is node:
            assert check_rate(record, find_infimum(node)).verdict == "holds"
    assert distributed_lambda(D, clients.smoothness(), clients.client_smoothness(), sketch, OWN_METHOD) > 0.0
    with pytest.raises(ValueError, match="own-subspace needs"):
        optimal_stepsize(np.eye(4), Gaussian(4, 2), algorithm="own-subspace")


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize(("d", "m"), [(1, 1), (4, 2), (6, 3)])
def test_a_sketch_from_outside_is_solved_and_certified(algorithm: str, d: int, m: int) -> None:
    L, sketch = random_smoothness(np.random.default_rng(d), d, 1e3), OneBlock(d, m)
    result = optimal_stepsize(L, sketch, algorithm=algorithm)
    assert_proved_optimal(result, L, sketch, algorithm, gap=1e-6)
    other = optimal_unreduced(L, sketch, algorithm=algorithm, solver="clarabel", tol=1e-5)
    assert other.log_det == pytest.approx(result.log_det, abs=2e-5 * d)


def test_a_sketch_from_outside_is_saved_loaded_and_written_as_a_certificate(tmp_path: Path) -> None:
    L = random_smoothness(np.random.default_rng(0), 4, 10.0)
    for sketch in (OneBlock(4, 2), LayerWise([OneBlock(2, 1), OneBlock(2, 2)])):
        result = optimal_stepsize(L, sketch)
        again = StepsizeResult.load(result.save(tmp_path / "result"))
        assert again.sketch == sketch and json_text(again.summary()) == json_text(result.summary())
        clients = optimal_distributed_stepsize([L, 2.0 * L], sketch, epsilon2=1.0, initial_gap=1.0, delta_inf=0.1)
        assert DistributedResult.load(clients.save(tmp_path / "clients")).sketches == (sketch, sketch)
        document = json.loads(write_certificate(result, L, tmp_path / "file.json").read_text(encoding="utf-8"))
        assert verify(document) == document["statement"]
    with pytest.raises(ValueError, match="Unknown"):
        sketch_of_plain({"kind": "Unknown", "d": 3})
    with_function = dataclass(frozen=True, eq=False)(type("WithFunction", (RandK,), {"__annotations__": {"f": Any}}))
    with pytest.raises(TypeError, match="print"):
        plain_sketch(with_function(3, 1, print))


def test_a_sketch_from_outside_has_its_declared_distribution_and_runs() -> None:
    node = logistic_regression(small_data(), 0.1)
    sketch = OneBlock(node.d, node.d // 2)
    check_sketch(sketch)
    D = optimal_stepsize(node.smoothness(), sketch).D
    assert check_rate(run(node, D, sketch, iterations=200), find_infimum(node)).verdict == "holds"


# ----------------------------------------------------------------
# a goal defined outside the package, by one class, is solved, certified, shown and saved


L = random_smoothness(np.random.default_rng(3), 5, 100.0)
SKETCH = RandK(5, 2)
WEIGHTS = np.array([1.0, 2.0, 1.0, 4.0, 1.0])


GOAL = Weighted(np.diag(1.0 / WEIGHTS))


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_it_is_solved_certified_and_shown(algorithm: str) -> None:
    result = optimal_stepsize(L, SKETCH, algorithm=algorithm, goal=GOAL)
    assert result.status == "optimal" and result.goal == "weighted" and result.rate <= result.limit
    assert "t with H ⪰ tW" in repr(result) and "H ⪰ tW with t > 0" in repr(result)
    H = descent_metric(rational(result.D), rational(L), SKETCH, algorithm)
    floor = (Fraction(result.rate), rational(np.diag(WEIGHTS)))
    assert is_positive_semidefinite(combine((1, H), (-floor[0], floor[1])))
    check = certify(result, L, goal=GOAL)
    assert check.feasible and check.rate == pytest.approx(result.rate, rel=1e-9) and check.gap <= 1e-6
    worse = certify(0.9 * result.D, L, SKETCH, algorithm=algorithm, goal=GOAL, optimum=result)
    assert worse.rate < result.rate and worse.gap > 1e-3
    K = result.iterations(epsilon2=1e-3, initial_gap=2.0)
    assert K - 1 < 4.0 / (result.rate * 1e-3) <= K


@pytest.mark.parametrize("L", [L, LowRankPlusDiagonal(np.ones((5, 1)), 1.0)], ids=["dense", "large"])
def test_equal_weights_are_the_goal_euclidean(L: Any) -> None:
    own, known = (optimal_stepsize(L, SKETCH, algorithm="det-CGD2", goal=goal) for goal in (Weighted(), "euclidean"))
    assert own.rate == known.rate and own.limit == known.limit and own.status == "optimal"


def test_coordinates_that_stand_alone_have_it_too() -> None:
    sketch = IndependentSampling(np.full(5, 0.5))
    result = optimal_stepsize(np.diag(1.0 + np.arange(5.0)), sketch, goal=GOAL)
    assert result.solver_stats.solver_name == "closed form"
    # H_jj = p/L_jj, and t is the least H_jj/w_j.
    assert result.rate == pytest.approx(min(0.5 / (1.0 + np.arange(5.0)) / WEIGHTS), rel=1e-9)


def weighted_sum(D: Any, rounds: int) -> float:
    """Σ E‖∇f(xᵏ)‖² of so many rounds in the norm of W, for f = ½xᵀLx from ones, over the seeds."""
    f, start = Quadratic(L, np.zeros(5)), np.ones(5)
    first = run(f, D, SKETCH, start=start, iterations=rounds, seeds=200)
    points = [run(f, D, SKETCH, start=start, iterations=k, seeds=200).final_points for k in range(1, rounds)]
    gradients = [f.gradient(x) for x in (start[None], *points)]
    assert [np.sum(g * g, axis=1).mean() for g in gradients] == pytest.approx(first.euclidean.mean(axis=0))
    return float(sum((g * g @ WEIGHTS).mean() for g in gradients))


def test_it_is_run_and_its_guarantee_holds() -> None:
    result, start, rounds = optimal_stepsize(L, SKETCH, goal=GOAL), np.ones(5), 30
    f = Quadratic(L, np.zeros(5))
    record = run(f, result, start=start, iterations=rounds, seeds=200)
    means = record.values.mean(axis=0)
    assert np.all(np.diff(means) < 0.0)
    assert check_rate(record, find_infimum(f), goal="descent").verdict == "holds"
    promised = 2.0 * record.start_value / result.rate  # f^inf = 0
    assert weighted_sum(result.D, rounds) <= promised < weighted_sum(0.1 * result.D, rounds)
    for goal in (GOAL, "weighted"):
        with pytest.raises(ValueError, match="goal"):
            check_rate(record, goal=goal)


ASKED: dict[str, Any] = {"epsilon2": 1e-3, "initial_gap": 1.0}


def test_it_is_compared_and_planned_for() -> None:
    result, limit = optimal_stepsize(L, SKETCH, goal=GOAL), compression_limit(L, 2, goal=GOAL)
    table = compare(L, SKETCH, goal=GOAL)
    assert table.goals == ("weighted",) and table.best.rate == pytest.approx(result.rate, rel=1e-6)
    assert limit.goal == "weighted" and limit.value == pytest.approx(result.limit, rel=1e-9)
    answer = plan(L, 2, goal=[GOAL, "euclidean"], sketches=[SKETCH], **ASKED)
    rounds = {(row.method, row.stepsize): row.rounds for row in answer.of_goal("weighted") if row.k == 2}
    assert rounds["det-CGD1", "weighted"] == result.iterations(**ASKED)
    method = optimal_method(L, 2, goal=GOAL)
    assert rounds["subspace", "optimal"] == method.iterations(**ASKED) and "weighted" in repr(method)
    assert dict(answer.limits["weighted"])[2.0] <= rounds["subspace", "optimal"] < rounds["det-CGD1", "weighted"]


def test_a_goal_of_the_library_may_be_an_object() -> None:
    own, named = (
        plan(L, 2, goal=goal, accuracy=1e-3, initial_gap=1.0, **M)
        for goal, M in ((LinearGoal(0.01), {}), ("linear", {"strong_convexity": 0.01}))
    )
    assert repr(own) == repr(named) and "momentum" in {row.stepsize for row in own.rows}
    assert repr(compare(L, SKETCH, goal=LinearGoal(0.01))) == repr(
        compare(L, SKETCH, goal="linear", strong_convexity=0.01)
    )


def test_it_has_a_name_only_where_it_was_declared_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unknown: Any = "weighted"
    with pytest.raises(ValueError, match="goal"):
        optimal_stepsize(L, SKETCH, goal=unknown)
    result = optimal_stepsize(L, SKETCH, goal=GOAL)
    path = result.save(tmp_path / "own")
    with pytest.raises(ValueError, match="weighted"):
        StepsizeResult.load(path)
    monkeypatch.setattr(base, "_GOALS", {kind: dict(names) for kind, names in base._GOALS.items()})

    class Named(Weighted):  # type: ignore[misc]
        name: ClassVar[str] = "weighted"

    assert optimal_stepsize(L, SKETCH, goal=unknown).goal_class is Named
    loaded = StepsizeResult.load(path)
    assert loaded.goal_class is Named
    again, record = (run(Quadratic(L, np.zeros(5)), D, start=np.ones(5), iterations=10) for D in (loaded, result))
    np.testing.assert_array_equal(again.values, record.values)
    assert again.values[:, -1].mean() < 0.9 * again.start_value


WRONG_M = [np.eye(4), -np.eye(5), np.ones((5, 5)), np.triu(np.ones((5, 5))), 0.0, -1.0]
F = Quadratic(np.diag([1.0, 2.0]), np.ones(2))
REFUSED: list[tuple[str, Any]] = [
    *(("goal", partial(plan, L, 2, goal=goal, **ASKED)) for goal in (PaperGoal(), LinearMomentum(0.01), [GOAL, GOAL])),
    ("without memory", partial(compare, L, SKETCH, goal=LinearMomentum(0.01))),
    ("limits are known", partial(compression_limit, L, 2, goal=PaperGoal())),
    ("below the Hessian", partial(plan, F, goal=LinearGoal(1.5), accuracy=1e-3)),
    ("goal", partial(optimal_stepsize, L, SKETCH, goal=GOAL, strong_convexity=1.0)),
    ("goal", partial(optimal_stepsize, L, SKETCH, goal=GOAL, momentum=True)),
    *((r"\bM\b", lambda M=M: optimal_stepsize(L, SKETCH, goal=Weighted(M))) for M in WRONG_M),
    *((r"\bM\b", lambda M=M: certify(L, L, SKETCH, goal=Weighted(M))) for M in WRONG_M),
]


@pytest.mark.parametrize(("message", "call"), REFUSED)
def test_goals_and_arguments_that_do_not_go_together_are_refused(message: str, call: Any) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    with pytest.raises(TypeError, match="FloorGoal"):
        FloorGoal(1.0)
