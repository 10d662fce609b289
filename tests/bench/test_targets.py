"""The harness of the targets: what holds, what is worst, times, the command; studies compare like with like."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from shared.small_data import small_data
from stepsize_opt.problems import DATA_VARIABLE, LogisticRegression
from stepsize_opt.sketches import RandK
from stepsize_validation.bench import __main__ as command
from stepsize_validation.bench.targets import STUDIES, Study, Target, chosen, worst
from stepsize_validation.bench.targets.harness import Found, at_hand, shortest
from stepsize_validation.bench.targets.native import certified_gap, synthetic, with_every_k
from stepsize_validation.bench.targets.plain_model import solve_plain_model
from stepsize_validation.bench.targets.runner import plain_loop
from stepsize_validation.runs import run

COST = Target("cost", "eigh", at_most=10.0)
SPEED = Target("speed", at_least=3.0)


def test_a_target_holds_within_its_bounds() -> None:
    assert COST.holds(10.0) and not COST.holds(10.1) and not COST.holds(math.inf)
    assert SPEED.holds(3.0) and not SPEED.holds(2.9)
    assert not any(target.holds(math.nan) for target in (COST, SPEED, Target("shown")))
    assert Target("shown").holds(1e9) and Target("shown").wanted == ""
    assert (COST.wanted, SPEED.wanted) == ("≤ 10 eigh", "≥ 3")
    assert str(COST.of("d = 5", 12.0, gap=1e-7, note="")) == "cost: d = 5: 12 eigh, gap 1e-07  MISSED"


def test_the_worst_case_of_each_target_is_shown() -> None:
    found = worst([COST.of("a", 1.0), COST.of("b", 7.0), COST.of("c", 2.0), SPEED.of("a", 4.0), SPEED.of("b", 9.0)])
    assert {name: one.case for name, one in found.items()} == {"cost": "b", "speed": "a"}
    assert worst([COST.of("a", math.nan), COST.of("b", 7.0)])["cost"].case == "a"


def test_the_shortest_call_counts_and_runs_take_turns() -> None:
    order: list[str] = []
    now = iter(np.cumsum([0, 5, 0, 1, 0, 2, 0, 4]).tolist())
    first, second = shortest(
        [lambda: order.append("first"), lambda: order.append("second")], 2, clock=lambda: next(now)
    )
    assert order == ["first", "second"] * 2
    assert (first.seconds, second.seconds) == (2, 1)


def test_studies_are_chosen_by_name_or_subject() -> None:
    assert len({study.name for study in STUDIES}) == len(STUDIES)
    assert all(study.summary for study in STUDIES)
    assert chosen(STUDIES, []) == list(STUDIES)
    assert {study.name for study in chosen(STUDIES, ["clients", "native.growth"])} == {
        "clients.forms",
        "clients.data",
        "native.growth",
    }
    with pytest.raises(ValueError, match="unknown study speed; choose from call"):
        chosen(STUDIES, ["speed"])


def toy(value: float) -> Study:
    def measure(quick: bool) -> Found:
        """A toy."""
        yield "not measured on the moon"
        yield COST.of(f"quick is {quick}", value, gap=math.inf)

    return Study("toy.cost", measure)


@pytest.mark.parametrize(("value", "code", "verdict"), [(3.0, 0, "yes"), (30.0, 1, "NO"), (math.inf, 1, "NO")])
def test_the_command(
    value: float,
    code: int,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "STUDIES", (toy(value),))
    path = tmp_path / "new" / "record.json"
    assert command.main(["--quick", "--record", str(path)]) == code
    out = capsys.readouterr().out
    assert "toy.cost: A toy." in out and verdict in out and "not measured on the moon" in out
    record = json.loads(path.read_text(encoding="utf-8"))
    (one,) = record["measurements"]
    assert one["case"] == "quick is True" and one["holds"] == (code == 0)
    assert float(one["value"]) == value and one["details"]["gap"] == "inf"
    assert record["environment"]["numpy"] and record["remarks"] == ["toy.cost: not measured on the moon"]


def test_the_list_and_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--only", "runner"]) == 0
    assert capsys.readouterr().out.startswith("runner.speed ")
    with pytest.raises(SystemExit) as stop:
        command.main(["--only", "speed"])
    assert stop.value.code == 2


def test_a_study_in_small(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--quick", "--only", "native.closed-form", "native.diagonal", "clients.forms", "runner", "scale"])
    out = capsys.readouterr().out
    for name in ("theorem B: cost", "diagonal D: gap", "lift: distance", "runner: times faster than plain numpy"):
        assert name in out


def test_data_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a1a").write_text("")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert at_hand(["a1a", "w1a"]) == (["a1a"], [f"not measured on w1a: no such file in {DATA_VARIABLE}"])


def test_plain_loop_runs_the_same_method() -> None:
    """The plain loop and the runner agree in the mean, so their times are of the same work."""
    data = small_data()
    D = 0.05 * np.eye(data.d)
    plain = np.mean([plain_loop(data, 0.1, D, 2, 60, seed) for seed in range(200)])
    by_index = np.mean([plain_loop(data, 0.1, D, 2, 60, seed, sketch_matrix=False) for seed in range(200)])
    np.testing.assert_allclose(by_index, plain, rtol=1e-12)
    ours = run(LogisticRegression.from_dataset(data, 0.1), D, RandK(data.d, 2), iterations=60, seeds=200)
    spread = ours.squared_norms.mean(axis=1).std() / np.sqrt(200)
    assert abs(plain - ours.squared_norms.mean()) < 6.0 * spread


def test_the_plain_model_and_the_native_solver_solve_the_same_problem() -> None:
    problem = list(with_every_k("plain", synthetic(5, 10.0)))[1]
    outcome = problem.solve(tol=1e-8)
    P = problem.map.hadamard_matrix
    assert outcome.X is not None and P is not None
    theirs = solve_plain_model(problem.B, P, "CLARABEL")
    assert theirs is not None
    assert np.linalg.slogdet(theirs)[1] == pytest.approx(np.linalg.slogdet(outcome.X)[1], abs=1e-5)
    assert 0.0 <= certified_gap(problem, outcome) <= 1e-8
