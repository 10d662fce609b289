"""How many examples a property runs, and how a property of one node is checked."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from hypothesis import currently_in_test_context, event, settings

from stepsize_opt import optimal_stepsize
from stepsize_opt.results import StepsizeResult
from stepsize_validation.properties.judges import Node, Refused, ask, judge

# ``make study`` sets the number of examples of all properties together; the tests run a sample.
COUNT = int(os.environ.get("STUDY_COUNT", "0"))
# A problem takes seconds of one core; one that runs for so long hangs, even on a busy machine.
SECONDS_FOR_ONE_PROBLEM = 600
# A rival is solved to this gap, so that a false bound shows when it is off by more.
RIVAL_TOL = 1e-9
# A program for t is solved to a tenth of a millionth; beyond, its solvers stall on flat optima.
RIVAL_TOL_FOR_T = 1e-7


def examples(sample: int, *, share: float) -> Callable[[Any], Any]:
    """Run ``sample`` examples in the tests, and this share of the count in a study."""
    return settings(max_examples=round(share * COUNT) or sample)


@contextmanager
def deadline(seconds: int = SECONDS_FOR_ONE_PROBLEM) -> Iterator[None]:
    """Raise TimeoutError after so many seconds."""

    def stop(*_: Any) -> None:
        msg = f"no answer after {seconds} s"
        raise TimeoutError(msg)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def note(what: str) -> None:
    """Count what became of an example, for ``--hypothesis-show-statistics``."""
    if currently_in_test_context():
        event(what)


def check_node(node: Node, *, may_refuse: bool = False) -> StepsizeResult | None:
    """Solve and check every claim; None where the library declined a problem that it may decline."""
    with deadline():
        try:
            result = ask(lambda: optimal_stepsize(**node.arguments), may_refuse=may_refuse)
        except Refused:
            note("refused")
            return None
        note(f"status {result.status}")
        judge(node, result, rivals(node, result))
    return result


def rivals(node: Node, result: StepsizeResult) -> list[Any]:
    """Other stepsizes of the same structure: a finer solve of the same goal, and the optimum of the paper's problem."""
    tol = RIVAL_TOL if node.floor is None else RIVAL_TOL_FOR_T
    paper = Node(node.L, node.sketch, node.algorithm, node.structure)
    calls = [{**node.arguments, "tol": tol, "warm_start": result}]
    if node.goal != "paper":
        calls.append(paper.arguments)
    found = []
    for arguments in calls:
        try:
            found.append(np.array(optimal_stepsize(**arguments).D))
        except (ValueError, RuntimeError):
            continue
    return found
