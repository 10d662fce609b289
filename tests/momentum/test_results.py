"""Results with momentum: structures, certificates, messages, files, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shared.goals import arguments_of
from shared.momentum import rounds_of
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    BlockDiagonal,
    IndependentSampling,
    RandK,
    certify,
    compare,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import MOMENTUM_GOALS
from stepsize_opt.results import StepsizeResult
from stepsize_validation.cli import main
from stepsize_validation.data import random_smoothness

L = random_smoothness(np.random.default_rng(1), 6, 50.0)
MU = 0.5 * float(np.linalg.eigvalsh(L)[0])
SKETCH = RandK(6, 2)
every_goal = pytest.mark.parametrize("goal", MOMENTUM_GOALS)


def solved(goal: str = "linear", **arguments: Any) -> StepsizeResult:
    asked = {**arguments_of(goal, MU), "momentum": True, **arguments}
    return optimal_stepsize(L, asked.pop("sketch", SKETCH), **asked)


@every_goal
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((2, 4))], ids=str)
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_structures(goal: str, structure: Any, algorithm: str) -> None:
    """A smaller set has no better t, and the root of τ is that of the program of linear with M′."""
    result = solved(goal, structure=structure, algorithm=algorithm)
    assert result.status == "optimal" and result.momentum
    assert result.rate <= solved(goal, algorithm=algorithm).rate * (1 + 2e-6)
    # For rand-k 𝒫(I/μ) = (d/k)I/μ, so that M′ = μk/d.
    number = MU if goal == "linear" else 1.0
    plain = optimal_stepsize(L / number, SKETCH, structure=structure, algorithm=algorithm, goal="euclidean")
    assert result.rate == pytest.approx(np.sqrt(plain.rate * 2 / 6), rel=2e-6)


def test_components_are_solved_alone() -> None:
    whole = np.zeros((6, 6))
    whole[:3, :3], whole[3:, 3:] = random_smoothness(np.random.default_rng(2), 3, 10.0), 5.0 * np.eye(3)
    sketch = IndependentSampling([0.5, 0.2, 1.0, 0.5, 0.3, 0.9])
    M = 0.1 * np.diag([1.0, 2.0, 1.0, 3.0, 1.0, 2.0]) * np.linalg.eigvalsh(whole)[0]
    asked: dict[str, Any] = {"goal": "linear", "strong_convexity": M, "momentum": True}
    split, together = (solve(whole, sketch, **asked) for solve in (optimal_stepsize, optimal_unreduced))
    assert "splits" in " ".join(split.reductions)
    assert split.rate == pytest.approx(together.rate, rel=2e-6)


@every_goal
def test_certify_agrees(goal: str) -> None:
    result = solved(goal)
    M = MU if goal == "linear" else None
    check = certify(result, L, strong_convexity=M)
    assert check.momentum and check.rate == pytest.approx(result.rate, rel=1e-9) and check.gap <= 1e-6
    assert "with momentum" in repr(check)
    worse = certify(0.3 * result.D, L, SKETCH, goal=goal, strong_convexity=M, momentum=True, optimum=result)
    assert worse.rate < result.rate and worse.gap > 1e-2


@every_goal
def test_iterations(goal: str) -> None:
    result = solved(goal)
    if goal == "linear":
        K = result.iterations(accuracy=1e-4, initial_gap=3.0)
        assert 6.0 * (1 - result.rate) ** K <= 1e-4 < 6.0 * (1 - result.rate) ** (K - 1)
        assert result.communication(accuracy=1e-4, initial_gap=3.0) == 2 * K
        return
    away = np.arange(6.0)
    K = result.iterations(accuracy=1e-4, initial_distance=away)
    squared = float(away @ away)
    assert 2 * squared / (result.rate**2 * K * (K + 3)) <= 1e-4 < 2 * squared / (result.rate**2 * (K - 1) * (K + 2))
    assert result.iterations(accuracy=1e-4, initial_distance=float(np.sqrt(squared))) == pytest.approx(K, abs=1)


@pytest.mark.parametrize(
    ("algorithm", "structure", "messages"),
    [("det-CGD1", "full", 1), ("det-CGD2", "full", 2), ("det-CGD2", "diagonal", 1), ("subspace", "", 1)],
)
@every_goal
def test_messages_of_clients(goal: str, algorithm: str, structure: Any, messages: int) -> None:
    """The mean of the clients' messages makes the round of one node; both updates use what was sent."""
    if algorithm == "subspace":
        result: Any = optimal_method(L, 2, **arguments_of(goal, MU), momentum=True)
    else:
        result = solved(goal, algorithm=algorithm, structure=structure)
        assert result.expected_nonzeros == 2 * messages
    rounds, rng = rounds_of(result), np.random.default_rng(0)
    assert rounds.messages == messages and rounds.memory is not None
    states = [rounds.start(np.ones(6))] * 2
    for number in range(1, 4):
        gradients = rng.standard_normal((3, 6))
        draw = rounds.draw(np.random.default_rng(number))
        sent = [rounds.encode(g, draw) for g in gradients]
        assert {len(one) for one in sent} == {2 * messages}
        ways = (np.mean(sent, axis=0), rounds.encode(gradients.mean(axis=0), draw))
        states = [rounds.advance(state, numbers, draw) for state, numbers in zip(states, ways, strict=True)]
        np.testing.assert_allclose(states[0].x, states[1].x, rtol=1e-12)
        np.testing.assert_allclose(states[0].z, states[1].z, rtol=1e-12)
        assert states[0].rounds == number


def test_the_update_is_the_formula() -> None:
    result = solved(strong_convexity=0.3 * L)
    rounds, t = rounds_of(result), result.rate
    x, z, g = np.random.default_rng(0).standard_normal((3, 6))
    state = type(rounds.start(x))(x, z, 4)
    y = (x + t * z) / (1 + t)
    np.testing.assert_allclose(rounds.point(state), y, rtol=1e-12)
    draw = rounds.draw(np.random.default_rng(0))
    S = draw.decode(draw.encode(np.eye(6))).T
    after = rounds.advance(state, rounds.encode(g, draw), draw)
    np.testing.assert_allclose(after.x, y - result.D @ S @ g, rtol=1e-9)
    expected = (1 - t) * z + t * y - t * result.inverse_curvature @ S @ g
    np.testing.assert_allclose(after.z, expected, rtol=1e-9)


def test_what_is_refused() -> None:
    for call in (optimal_stepsize, compression_limit, optimal_method):
        second: Any = SKETCH if call is optimal_stepsize else 2
        for goal in ("paper", "descent", "euclidean"):
            with pytest.raises(ValueError, match="convex f only"):
                call(L, second, goal=goal, momentum=True)  # type: ignore[operator]
        with pytest.raises(ValueError, match="strong_convexity"):
            call(L, second, goal="linear", momentum=True)  # type: ignore[operator]
        with pytest.raises(ValueError, match="M ⪯ L"):
            call(L, second, goal="linear", strong_convexity=2 * L, momentum=True)  # type: ignore[operator]
        with pytest.raises(TypeError, match="True or False"):
            call(L, second, goal="convex", momentum=0.9)  # type: ignore[operator]
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 6)))[0]
    with pytest.raises(ValueError, match="strong_convexity"):
        solved(strong_convexity=(Q * np.geomspace(1e-19, 1e-3, 6)) @ Q.T)
    method = optimal_method(L, 2, goal="convex", momentum=True)
    with pytest.raises(ValueError, match="two updates"):
        method.decode(np.ones(2), np.array([0, 1]))
    with pytest.raises(ValueError, match="shape"):
        rounds_of(method).start(np.ones(3))


def test_rows_of_compare() -> None:
    """Rows with momentum are those of optimal_stepsize; the limit shown stays the one without memory."""
    table = compare(L, SKETCH, goal="linear", strong_convexity=MU)
    rows = {row.method: row for row in table.rows if row.stepsize == "optimal, momentum"}
    assert rows["det-CGD1"].rate == pytest.approx(solved().rate, rel=1e-5)
    assert rows["det-CGD1"].share_of_limit is None and rows["det-CGD2"].k == 4.0
    ((_, rounds),) = table.limits["linear"]
    limit = compression_limit(L, 2, goal="linear", strong_convexity=MU)
    assert rounds == pytest.approx(-1.0 / math.log1p(-limit.value), rel=1e-5)
    assert 2 * rounds == pytest.approx(limit.floats_sent, rel=1e-5)


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.npz"
    data = ["--data", "breast_cancer", "--reg", "0.1", "--penalty", "ridge"]
    asked = ["--sketch", "randk:7", "--goal", "linear", "--momentum"]
    assert main(["solve", *data, *asked, "--output", str(saved)]) == 0
    assert "momentum, linear" in capsys.readouterr().out
    assert main(["certify", str(saved), *data]) == 0
    assert "linear with momentum" in capsys.readouterr().out
    assert main(["solve", "--data", "breast_cancer", "--reg", "0.1", "--sketch", "randk:7", "--momentum"]) != 0
    assert "not convex" in capsys.readouterr().err
