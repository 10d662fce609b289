"""The answers to the stored problems stay as they are."""

from __future__ import annotations

import math

import pytest

from golden.golden import CALLS, Answer, Case, read_matrix, stored

pytestmark = pytest.mark.slow

# What another BLAS may change in a number; one machine repeats every bit.
ROUNDING = 1e-9

PLAIN, CASES = stored()
GROUPS = sorted({(case["call"], case["goal"]) for case in CASES})


@pytest.mark.parametrize(("call", "goal"), GROUPS)
def test_answers_are_those_stored(call: str, goal: str) -> None:
    matrices = {name: read_matrix(plain) for name, plain in PLAIN.items()}
    cases = [case for case in CASES if (case["call"], case["goal"]) == (call, goal)]
    changed = [why for case in cases for why in differences(case, CALLS[call](case, matrices))]
    assert not changed, "\n".join(changed)


def differences(case: Case, answer: Answer) -> list[str]:
    """Sentences about what differs from the stored answer."""
    kept = case["answer"]
    what = f"{case['call']}, L = {case['L']}, {case.get('sketch', case.get('k'))}, {case.get('structure')}"
    found = [
        f"{what}: {name} {kept[name]} became {answer[name]}" for name in kept if not same(kept[name], answer[name])
    ]
    # Both intervals hold the optimum, whatever the code did to find it.
    if answer["lower"] > kept["upper"] or kept["lower"] > answer["upper"]:
        found.append(f"{what}: [{answer['lower']}, {answer['upper']}] and the stored interval have no common point")
    return found


def same(kept: float | str | None, now: float | str | None) -> bool:
    """Equal words, and equal numbers but for rounding."""
    if isinstance(kept, str) or isinstance(now, str) or kept is None or now is None:
        return kept == now
    return math.isclose(kept, now, rel_tol=ROUNDING, abs_tol=ROUNDING)


def test_a_changed_answer_is_told() -> None:
    case = CASES[0]
    answer = case["answer"]
    assert differences(case, answer) == []
    assert len(differences(case, {**answer, "status": "user_limit", "rate": answer["rate"] * (1 + 1e-8)})) == 2
    assert len(differences(case, {**answer, "lower": answer["upper"] + 1e-12})) == 1
