"""What is shown of an object is short: a line of text, and a table in a notebook."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepsize_opt import Direction, Feedback, RandK, optimal_stepsize
from stepsize_opt.problems import Federated, Layered, LeastSquares, LogisticRegression, Quadratic, SoftmaxRegression
from stepsize_validation import check_rate, run, run_feedback

D = 12
L = np.diag(np.arange(1.0, D + 1.0))
ROWS = np.random.default_rng(0).standard_normal((40, D))
QUADRATIC = Quadratic(L, np.ones(D))
RESULT = optimal_stepsize(L, RandK(D, 3))
MOMENTUM: dict[str, Any] = {"goal": "linear", "strong_convexity": 1.0, "momentum": True}


@pytest.mark.parametrize(
    "thing",
    [
        QUADRATIC,
        LeastSquares(ROWS, np.ones(40), 0.1),
        LogisticRegression(ROWS, np.sign(ROWS[:, 0]), 0.1),
        SoftmaxRegression(ROWS, np.arange(40) % 3, 3, 0.1),
        Layered((QUADRATIC, QUADRATIC)),
        Federated((QUADRATIC,) * 30),
        Direction(L),
        Feedback(L, 2),
        RESULT.compressor(),
        optimal_stepsize(L, RandK(D, 3), **MOMENTUM).compressor(),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_no_matrix_is_printed(thing: Any) -> None:
    text = repr(thing)
    assert text.startswith(type(thing).__name__)
    assert len(text) < 300
    assert "[[" not in text


def test_runs_and_verdicts_are_tables_in_a_notebook() -> None:
    record = run(QUADRATIC, RESULT, iterations=20, seeds=4)
    check = check_rate(record)
    feedback = run_feedback(QUADRATIC, Feedback(L, 2), rounds=20)
    for shown, words in ((record, "4 seeds of K = 20 steps"), (check, check.verdict), (feedback, feedback.status)):
        page = shown._repr_html_()
        assert page.startswith("<table>") and words in page
        assert "\n" not in repr(shown)
