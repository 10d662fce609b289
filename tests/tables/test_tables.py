"""Tables: the same rows as text, HTML, records and plot, with the best marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from stepsize_opt.tables import Row, Table, best_first

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
ROWS = (*best_first((BEYOND, FIRST, SECOND), lambda row: row.rounds), OTHER)
TABLE = Table(ROWS, COLUMNS, "A title", "2Δ⁰/ε²", LIMITS, ("a note",))


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
    assert text.count("<table>") == 2 and text.count("<tr>") == len(ROWS) + 2
    assert text.count("<td ") == len(ROWS) * (1 + len(COLUMNS))
    assert ">*</td><td style='text-align:left'>det-CGD2</td>" in text and ">D &lt; L</td>" in text
    assert text.startswith("<p>A title</p>") and text.endswith("<p>a note</p>")


def test_numbers_of_html_are_to_the_right_below_their_heads_with_grouped_digits() -> None:
    text = replace(TABLE, rows=(replace(FIRST, rounds=36048.0),))._repr_html_()
    assert "<th style='text-align:right'>rounds</th>" in text and "<th style='text-align:left'>method</th>" in text
    assert "<td style='text-align:right'>36\u202f048</td>" in text
    assert "<td style='text-align:right'>50.0%</td>" in text


def test_records_are_plain() -> None:
    records = TABLE.to_records()
    assert [record["best"] for record in records] == [True, False, False, True]
    assert records[1]["client"] == 3.0 and records[1]["gap"] == 2e-7
    assert not {"result", "compressor", "more"} & set(records[0])


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
    outside = replace(TABLE, rows=tuple(replace(row, within_budget=False) for row in ROWS))
    assert outside.best_for("descent") is None and "* det" not in repr(outside)
    with pytest.raises(ValueError, match="needs 8 rounds"):
        _ = outside.best
    with pytest.raises(ValueError, match="goal descent: a note"):
        _ = replace(TABLE, rows=()).best


def test_a_frame_has_the_records() -> None:
    assert TABLE.to_pandas().to_dict("records")[0]["method"] == TABLE.to_records()[0]["method"]
    assert len(TABLE.to_pandas()) == len(TABLE.rows)
