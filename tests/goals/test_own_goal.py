"""A goal defined outside the package, by one class, is solved, certified, shown and saved."""

from __future__ import annotations

import runpy
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from stepsize_opt import IndependentSampling, LowRankPlusDiagonal, RandK, certify, optimal_stepsize
from stepsize_opt.goals import base
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import combine, descent_metric, is_positive_semidefinite, rational

L = random_smoothness(np.random.default_rng(3), 5, 100.0)
SKETCH = RandK(5, 2)
WEIGHTS = np.array([1.0, 2.0, 1.0, 4.0, 1.0])


# The goal of docs/contributing.md, which belongs to no package.
Weighted: Any = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "examples" / "own_goal.py"))["Weighted"]
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


def test_equal_weights_are_the_goal_euclidean() -> None:
    own, known = (optimal_stepsize(L, SKETCH, goal=goal) for goal in (Weighted(), "euclidean"))
    assert own.rate == known.rate and own.limit == known.limit
    np.testing.assert_array_equal(own.D, known.D)


def test_coordinates_that_stand_alone_have_it_too() -> None:
    sketch = IndependentSampling(np.full(5, 0.5))
    result = optimal_stepsize(np.diag(1.0 + np.arange(5.0)), sketch, goal=GOAL)
    assert result.solver_stats.solver_name == "closed form"
    # H_jj = p/L_jj, and t is the least H_jj/w_j.
    assert result.rate == pytest.approx(min(0.5 / (1.0 + np.arange(5.0)) / WEIGHTS), rel=1e-9)


def test_a_large_smoothness_matrix_takes_it_with_a_number() -> None:
    large = LowRankPlusDiagonal(np.ones((5, 1)), 1.0)
    own, known = (
        optimal_stepsize(large, SKETCH, algorithm="det-CGD2", goal=goal) for goal in (Weighted(), "euclidean")
    )
    assert own.rate == known.rate and own.status == "optimal"


def test_it_has_a_name_only_where_it_was_declared_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unknown: Any = "weighted"
    with pytest.raises(ValueError, match="goal must be one of"):
        optimal_stepsize(L, SKETCH, goal=unknown)
    path = optimal_stepsize(L, SKETCH, goal=GOAL).save(tmp_path / "own")
    with pytest.raises(ValueError, match="weighted"):
        StepsizeResult.load(path)
    monkeypatch.setattr(base, "_GOALS", {kind: dict(names) for kind, names in base._GOALS.items()})

    class Named(Weighted):  # type: ignore[misc]
        name: ClassVar[str] = "weighted"

    assert optimal_stepsize(L, SKETCH, goal=unknown).goal_class is Named
    assert StepsizeResult.load(path).goal_class is Named


@pytest.mark.parametrize("wrong", [{"strong_convexity": 1.0}, {"momentum": True}], ids=str)
def test_arguments_that_do_not_go_with_it(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="goal"):
        optimal_stepsize(L, SKETCH, **{"goal": GOAL, **wrong})


@pytest.mark.parametrize("M", [np.eye(4), -np.eye(5), np.ones((5, 5)), np.triu(np.ones((5, 5))), 0.0, -1.0], ids=str)
def test_an_M_that_proves_nothing_is_refused(M: Any) -> None:
    for call in (
        lambda: optimal_stepsize(L, SKETCH, goal=Weighted(M)),
        lambda: certify(L, L, SKETCH, goal=Weighted(M)),
    ):
        with pytest.raises(ValueError, match=r"\bM\b"):
            call()
