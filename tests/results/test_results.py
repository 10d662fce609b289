"""Every kind of answer is shown, saved, read, copied and pickled with all that it holds."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.linalg import block_diag

from stepsize_opt import (
    BlockDiagonal,
    Direction,
    Feedback,
    FiniteSketch,
    LowRankPlusDiagonal,
    RandK,
    compare,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.problems import Federated, Layered, LeastSquares, LogisticRegression, Quadratic, SoftmaxRegression
from stepsize_opt.results import CompressionLimit, DistributedResult, StepsizeResult, SubspaceMethod
from stepsize_opt.saving import json_text
from stepsize_opt.tables import Measured, Row, Table, best_first
from stepsize_validation import check_rate, run, run_feedback

L = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
BLOCKS = block_diag(L, np.diag([1.0, 2.0]))[np.ix_([3, 0, 4, 1, 2], [3, 0, 4, 1, 2])]
LARGE = LowRankPlusDiagonal(np.ones((6, 1)), 0.5)
SKETCH = RandK(3, 1)
FINITE = FiniteSketch([np.diag([2.0, 0.0, 1.0]), np.diag([0.0, 2.0, 1.0])], [0.5, 0.5])
LINEAR: dict[str, Any] = {"goal": "linear", "strong_convexity": 0.3}
MOMENTUM: dict[str, Any] = {**LINEAR, "momentum": True}
MATRIX_MOMENTUM: dict[str, Any] = {"goal": "linear", "strong_convexity": 0.3 * L, "momentum": True}
CLIENTS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}

# How to make each kind, and words that it shows.
KINDS: dict[str, tuple[Callable[[], Any], str]] = {
    "one node": (lambda: optimal_stepsize(L, SKETCH), "randk:1"),
    "blocks": (lambda: optimal_stepsize(BLOCKS, RandK(5, 2)), "components"),
    "diagonal": (lambda: optimal_stepsize(L, SKETCH, structure="diagonal", algorithm="det-CGD2"), "diagonal D"),
    "layers": (lambda: optimal_stepsize(L, SKETCH, structure=BlockDiagonal([2, 1]), goal="descent"), "H = 2D"),
    "direction": (lambda: optimal_stepsize(L, FINITE, structure=Direction(L), goal="euclidean"), "tI"),
    "linear": (lambda: optimal_stepsize(L, SKETCH, **LINEAR), "tM⁻¹"),
    "momentum": (lambda: optimal_stepsize(L, SKETCH, **MOMENTUM), "momentum"),
    "momentum, matrix": (lambda: optimal_stepsize(L, SKETCH, **MATRIX_MOMENTUM), "momentum"),
    "large diagonal": (lambda: optimal_stepsize(LARGE, RandK(6, 2), structure="diagonal"), "d = 6"),
    "large inverse": (lambda: optimal_stepsize(LARGE, RandK(6, 2), algorithm="det-CGD2"), "det-CGD2"),
    "clients": (lambda: optimal_distributed_stepsize([L, 2.0 * L], SKETCH, **CLIENTS), "λ_D ≤ n/K"),
    "shared seeds": (lambda: optimal_distributed_stepsize([L, 2.0 * L], SKETCH, seeds="shared", **CLIENTS), "no λ_D"),
    "limit": (lambda: compression_limit(L, 1), "proved interval"),
    "limit, linear": (lambda: compression_limit(L, 1.5, **LINEAR), "tM⁻¹"),
    "limit, momentum": (lambda: compression_limit(L, 1.5, **MOMENTUM), "t²"),
    "large limit": (lambda: compression_limit(LARGE, 1), "proved interval"),
    "method": (lambda: optimal_method(L, 1.5), "systematic sampling"),
    "method, euclidean": (lambda: optimal_method(L, 1.5, goal="euclidean"), "systematic sampling"),
    "method, momentum": (lambda: optimal_method(L, 1, **MOMENTUM), "z⁺ ="),
    "large method": (lambda: optimal_method(LARGE, 1), "systematic sampling"),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def assert_same(one: Any, other: Any) -> None:
    """Both hold the same, to the last digit."""
    (ours, mine), (theirs, yours) = one._contents(), other._contents()
    assert type(one) is type(other) and json_text(ours) == json_text(theirs) and set(mine) == set(yours)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, yours[name])
    assert repr(one) == repr(other)
    assert json_text(one.summary()) == json_text(other.summary())


@every_kind
def test_an_answer_is_shown_saved_and_read(kind: str, tmp_path: Path) -> None:
    solve, words = KINDS[kind]
    answer = solve()
    assert words in repr(answer) and "<table>" in answer._repr_html_()
    assert json.loads(json_text(answer.summary()))
    path = answer.save(tmp_path / "answer")
    assert path.name == "answer.npz"
    again = type(answer).load(path)
    assert_same(again, answer)
    if isinstance(answer, StepsizeResult):
        assert again.method == answer.method and str(again.structure) == str(answer.structure)
        if isinstance(again.structure, Direction):
            np.testing.assert_array_equal(again.structure.W, answer.D)
    for one in (again, answer):
        arrays = dict(_arrays(kind, one))
        assert arrays and [name for name, array in arrays.items() if array.flags.writeable] == []
    for other in {StepsizeResult, DistributedResult, CompressionLimit, SubspaceMethod} - {type(answer)}:
        with pytest.raises(ValueError, match=f"it holds a {type(answer).__name__}, not a {other.__name__}"):
            other.load(path)


@pytest.mark.parametrize(
    "again",
    [copy.copy, copy.deepcopy, lambda answer: pickle.loads(pickle.dumps(answer))],
    ids=["copy", "deep", "pickle"],
)
@pytest.mark.parametrize(
    "kind", ["blocks", "momentum, matrix", "large inverse", "clients", "large limit", "large method"]
)
def test_copies_hold_the_same(kind: str, again: Callable[[Any], Any]) -> None:
    answer = KINDS[kind][0]()
    assert_same(again(answer), answer)


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every array that hangs on an object, by its path."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from _arrays(f"{name}[{i}]", one)
    elif type(value).__module__.startswith("stepsize_opt"):
        for key, one in vars(value).items():
            yield from _arrays(f"{name}.{key}", one)


# ----------------------------------------------------------------
# what is shown of an object is short: a line of text, and a table in a notebook


D = 12
LONG = np.diag(np.arange(1.0, D + 1.0))
ROWS = np.random.default_rng(0).standard_normal((40, D))
QUADRATIC = Quadratic(LONG, np.ones(D))
RESULT = optimal_stepsize(LONG, RandK(D, 3))
ROW = next(row for row in compare(LONG, RandK(D, 3)).rows if row.stepsize == "optimal")
LONG_MOMENTUM: dict[str, Any] = {"goal": "linear", "strong_convexity": 1.0, "momentum": True}


PRINTED = [
    QUADRATIC,
    LeastSquares(ROWS, np.ones(40), 0.1),
    LogisticRegression(ROWS, np.sign(ROWS[:, 0]), 0.1),
    SoftmaxRegression(ROWS, np.arange(40) % 3, 3, 0.1),
    Layered((QUADRATIC, QUADRATIC)),
    Federated((QUADRATIC,) * 30),
    Direction(LONG),
    RESULT.compressor(),
    optimal_stepsize(LONG, RandK(D, 3), **LONG_MOMENTUM).compressor(),
]
# Objects, and a line of the table that a notebook shows.
TABLED = [
    (RandK(10**6, 1000), "d", "1\u202f000\u202f000"),
    (Feedback(LONG, 2), "setup_floats.largest", str(D)),
    (RESULT.certificate, "feasible", "True"),
    (RESULT.solver_stats, "num_iters", "0"),
    (ROW, "stepsize", "optimal"),
]


@pytest.mark.parametrize("thing", [*PRINTED, *(thing for thing, *_ in TABLED[1:])], ids=lambda one: type(one).__name__)
def test_no_matrix_is_printed(thing: Any) -> None:
    text = repr(thing)
    assert text.startswith(type(thing).__name__) and "\n" not in text
    assert len(text) < 300 or thing is ROW
    assert "[[" not in text


@pytest.mark.parametrize(("thing", "name", "value"), TABLED, ids=lambda value: type(value).__name__)
def test_parts_of_an_answer_are_tables_in_a_notebook(thing: Any, name: str, value: str) -> None:
    page = thing._repr_html_()
    assert page.startswith(f"<table><caption>{type(thing).__name__}</caption>")
    side = "right" if value[0].isdigit() else "left"
    assert f">{name}</th><td style='text-align:{side}'>{value}</td></tr>" in page


def test_runs_and_verdicts_are_tables_in_a_notebook() -> None:
    record = run(QUADRATIC, RESULT, iterations=20, seeds=4)
    check = check_rate(record)
    feedback = run_feedback(QUADRATIC, Feedback(LONG, 2), rounds=20)
    for shown, words in ((record, ">steps<"), (check, check.verdict), (feedback, feedback.status)):
        page = shown._repr_html_()
        assert page.startswith("<table>") and words in page
        assert "\n" not in repr(shown)


# ----------------------------------------------------------------
# tables: the same rows as text, HTML, records and plot, with the best marked


FIRST = Row(
    goal="descent",
    method="det-CGD1",
    stepsize="D < L",
    sketch="rand-1",
    k=1.0,
    rate=0.25,
    rounds=8.0,
    floats=8.0,
    share_of_limit=0.5,
    gap=2e-7,
    more={"client": 3.0},
)
SECOND = replace(FIRST, method="det-CGD2", rounds=5.0, floats=10.0, k=2.0, share_of_limit=None)
BEYOND = replace(FIRST, method="GD", rounds=2.0, floats=4e6, within_budget=False)
NEAR = replace(BEYOND, floats=20.0)
OTHER = replace(FIRST, goal="euclidean", method="subspace")
COLUMNS = ("method", "stepsize", "rounds", "floats", "share of limit", "gap", "client")
LIMITS = {"descent": ((2.0, 3.0), (1.0, 4.0))}
TABLE_ROWS = (*best_first((BEYOND, FIRST, SECOND), lambda row: row.rounds), OTHER)
TABLE = Table(TABLE_ROWS, COLUMNS, "A title", "2Δ⁰/ε²", LIMITS, ("a note",))


def test_the_best_within_the_budget_comes_first() -> None:
    assert TABLE.of_goal("descent") == (SECOND, FIRST, BEYOND)
    assert TABLE.best is TABLE.best_for("descent") is SECOND
    assert TABLE.goals == ("descent", "euclidean") and TABLE.best_for("euclidean") is OTHER


def test_the_text_marks_the_best_and_what_is_outside_the_budget() -> None:
    lines = repr(TABLE).splitlines()
    assert lines[:3] == ["A title", "", "goal descent"] and "goal euclidean" in lines
    assert [line.split()[:2] for line in lines[4:7]] == [["*", "det-CGD2"], ["det-CGD1", "D"], ["!", "GD"]]
    assert lines[3].split() == " ".join(COLUMNS).split()
    assert lines[5].split()[1:] == ["D", "<", "L", "8", "8", "50.0%", "2e-07", "3"]
    assert "4.00e6" in lines[6] and "50.0%" not in lines[4]  # None is an empty cell
    assert len({line.index("2e-07") for line in lines[4:7]}) == 1
    assert "! outside the budget" in repr(TABLE)
    assert lines[-2:] == ["rounds and floats in units of 2Δ⁰/ε²", "a note"]


def test_html_has_a_cell_for_each_value_and_escapes_it() -> None:
    text = TABLE._repr_html_()
    assert text.count("<table>") == 2 and text.count("<tr>") == len(TABLE_ROWS) + 2
    assert text.count("<td ") == len(TABLE_ROWS) * (1 + len(COLUMNS))
    assert ">*</td><td style='text-align:left'>det-CGD2</td>" in text and ">D &lt; L</td>" in text
    assert text.startswith("<p>A title</p>") and text.endswith("<p>a note</p>")
    text = replace(TABLE, rows=(replace(FIRST, rounds=36048.0),))._repr_html_()
    assert "<th style='text-align:right'>rounds</th>" in text and "<th style='text-align:left'>method</th>" in text
    for cell in ("36\u202f048", "50.0%"):
        assert f"<td style='text-align:right'>{cell}</td>" in text


def test_records_are_plain() -> None:
    records = TABLE.to_records()
    assert [record["best"] for record in records] == [True, False, False, True]
    assert records[1]["client"] == 3.0 and records[1]["gap"] == 2e-7
    assert not {"result", "compressor", "more"} & set(records[0])
    frame = TABLE.to_pandas()
    assert frame.to_dict("records")[0]["method"] == records[0]["method"] and len(frame) == len(TABLE.rows)


@pytest.mark.parametrize(
    ("goal", "drawn", "limit"),
    [(None, (SECOND, FIRST, NEAR), [[[4.0, 4.0], [6.0, 3.0]]]), ("euclidean", (OTHER,), [])],
)
def test_a_plot_draws_the_limit_and_all_rows_and_rings_the_best(
    goal: str | None, drawn: tuple[Row, ...], limit: list[list[list[float]]]
) -> None:
    ax = Figure().subplots()
    assert replace(TABLE, rows=(SECOND, FIRST, NEAR, OTHER)).plot(ax, goal=goal) is ax
    points = [np.asarray(part.get_offsets()) for part in ax.collections]
    *rows, ring = [part for part in points if len(part)]  # the entries of the legend are empty
    np.testing.assert_array_equal(sorted(map(tuple, np.vstack(rows))), sorted((r.floats, r.rounds) for r in drawn))
    np.testing.assert_array_equal(ring, [(drawn[0].floats, drawn[0].rounds)])
    assert [np.asarray(line.get_xydata()).tolist() for line in ax.get_lines()] == limit
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_a_row_far_from_the_others_is_in_the_legend_of_a_plot_only() -> None:
    ax = TABLE.plot(Figure().subplots())
    assert ax.dataLim.xmax < BEYOND.floats
    assert f"{BEYOND.label}: 4.00e6 floats" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_no_best_row_names_what_the_cheapest_needs_or_why_there_is_none() -> None:
    outside = replace(TABLE, rows=tuple(replace(row, within_budget=False) for row in TABLE_ROWS))
    assert outside.best_for("descent") is None and "* det" not in repr(outside)
    with pytest.raises(ValueError, match="needs 8 rounds"):
        _ = outside.best
    with pytest.raises(ValueError, match="a note"):
        _ = replace(TABLE, rows=()).best


def test_measured_methods_have_a_block_of_their_own() -> None:
    work = {"setup": 3.0, "client": 9.0, "server": 9.0}
    measured = Measured(method="feed<", sketch="top-1", seeds="shared", k=2.5, compressor=0, more=work)
    table = replace(TABLE, measured=(measured,))
    assert table.best is TABLE.best and table.goals == TABLE.goals
    html = table._repr_html_()
    assert html.count("<table>") == 3 and "<caption>measured, not ranked" in html and ">feed&lt;</td>" in html
    *_, heading, header, row, _, legend, _, _ = repr(table).splitlines()
    assert heading.startswith("measured, not ranked") and legend.startswith("* best")
    assert header.split() == ["method", "seeds", "sketch", "k", "setup", "client", "server"]
    assert row.split() == ["feed<", "shared", "top-1", "2.5", "3", "9", "9"]
    frame = table.to_pandas()
    assert frame["status"].iloc[-1] == "measured" and frame["floats"].isna().sum() == frame["rate"].isna().sum() == 1
    assert list(frame["best"]) == [True, False, False, True, False]
