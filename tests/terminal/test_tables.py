"""Tables for every width: no figure is cut, and no line is too long where that can be helped."""

from __future__ import annotations

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from stepsize_validation.terminal import empty_table, folded, key_value_table, show

WORD = st.text("abcdef", min_size=1, max_size=11)
FIGURE = st.floats(1e-9, 1e12).map(lambda value: f"{value:.5g}")


def lines(things: list[object], width: int) -> list[str]:
    console = Console(width=width, file=StringIO(), record=True)
    for thing in things:
        console.print(thing, crop=False)
    return console.export_text().splitlines()


@given(st.data(), st.integers(1, 2), st.integers(1, 7), st.integers(20, 120))
def test_no_figure_is_cut(data: st.DataObject, words: int, figures: int, width: int) -> None:
    sentence = st.lists(WORD, min_size=1, max_size=3).map(" ".join)
    rows = data.draw(st.lists(st.tuples(*[sentence] * words, *[FIGURE] * figures), min_size=1, max_size=3))
    table = empty_table("title", ["w"] * words, ["f"] * figures, "caption of several words")
    for row in rows:
        table.add_row(*row)
    shown = lines(folded(table, Console(width=width, file=StringIO())), width)
    text = "\n".join(shown)
    assert "…" not in text and "caption" in text
    cells = [cell.strip() for line in shown for cell in line.split("│")]
    for row in rows:
        for figure in row[words:]:
            assert figure in cells
        for cell in row[:words]:
            assert all(any(word in cell.split() for cell in cells) for word in cell.split())
    # The longest words with the longest figure, a blank and a line for each column.
    least = 1 + sum(2 + max(len(word) for row in rows for word in row[i].split()) for i in range(words))
    if width >= least + 2 + max(len(figure) for row in rows for figure in row[words:]):
        assert max(map(len, shown)) <= width


def test_what_fits_stays_as_it_is() -> None:
    table = empty_table("title", ["method"], ["rate"], "caption")
    table.add_row("det-CGD1", "1.5")
    assert folded(table, Console(width=80)) == [table]
    words = key_value_table("title", [("status", "a text " * 30)])
    assert folded(words, Console(width=40)) == [words]


def test_styles_and_sections_stay(capsys) -> None:
    table = empty_table("title", ["method"], ["rate", "descent"])
    table.add_row("det-CGD1", "1.25e-08", "1.5", style="bold", end_section=True)
    table.add_row("det-CGD2", "2.5", "2.75e-08")
    first, second = folded(table, Console(width=22))
    assert [row.style for row in first.rows] == ["bold", None] and first.rows[0].end_section
    assert (first.title, second.title) == ("title", None)
    show("a line", table)
    assert "1.25e-08" in capsys.readouterr().out
