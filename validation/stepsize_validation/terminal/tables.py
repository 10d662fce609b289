"""Tables that keep every figure whole: too wide, their columns move together or become several tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_REASON = 24


class Terminal(Console):
    """Standard output; a reader that went away ends the command as it ends any other."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def show(*things: Any) -> None:
    """Print tables and lines on standard output."""
    console = Terminal()
    for thing in things:
        for part in folded(thing, console) if isinstance(thing, Table) else [thing]:
            # Wider than the terminal only where a single figure with its words is: the terminal breaks such lines.
            console.print(part, highlight=False, crop=False)


def empty_table(title: str, words: Sequence[str], figures: Sequence[str] = (), caption: str | None = None) -> Table:
    """A table with columns of words, which may wrap, and then of figures, which ``show`` never cuts."""
    table = Table(title=title, caption=caption)
    for column in words:
        table.add_column(column, overflow="fold")
    for column in figures:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def key_value_table(title: str, rows: list[tuple[str, str]]) -> Table:
    """Names on the left, values on the right."""
    table = Table(title=title, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for left, right in rows:
        table.add_row(left, escape(right))
    return table


def folded(table: Table, console: Console) -> list[Any]:
    """The table; or with less room between its columns; or tables that share its columns before the first figure.

    The caption of several tables is a paragraph below them.
    """
    sizes = [_sizes(column, console) for column in table.columns]
    figures = [i for i, column in enumerate(table.columns) if column.justify == "right"]
    # A cell has a blank on either side and a line; one blank has to do where there is no room.
    if not figures or 1 + sum(most + 3 for _, most in sizes) <= console.width:
        return [table]
    table.padding = (0, 1, 0, 0)
    if 1 + sum(most + 2 for _, most in sizes) <= console.width:
        return [table]
    words = list(range(figures[0]))
    room = console.width - 1 - sum(sizes[i][0] + 2 for i in words)
    parts: list[list[int]] = [[]]
    for i in figures:
        if parts[-1] and sum(sizes[j][0] + 2 for j in [*parts[-1], i]) > room:
            parts.append([])
        parts[-1].append(i)
    out: list[Any] = []
    for part in parts:
        spare = room - sum(sizes[i][0] + 2 for i in part)
        out.append(_part(table, [*words, *part], sizes, spare))
        out[-1].title = None if len(out) > 1 else table.title
        out[-1].width = console.width - spare if spare < 0 else None
    return [*out, Text.from_markup(str(table.caption), style="italic")] if table.caption else out


def _sizes(column: Any, console: Console) -> tuple[int, int]:
    """The least width of a column, that of its longest figure or word, and the width of its longest line."""
    unlimited = console.options.update(width=10_000)
    found = [Measurement.get(console, unlimited, one) for one in (column.header, *column.cells)]
    most = max(one.maximum for one in found)
    if column.no_wrap:
        return most, most
    # Words among the figures are reasons: a few of them belong on a line.
    least = max(one.minimum for one in found)
    return (max(least, min(most, _REASON)) if column.justify == "right" else least), most


def _part(table: Table, chosen: Sequence[int], sizes: Sequence[tuple[int, int]], spare: int) -> Table:
    """Some of the columns, made wider while there is room to spare."""
    part = Table(padding=table.padding)
    for i in chosen:
        least, most = sizes[i]
        width = least + max(0, min(spare, most - least))
        spare -= width - least
        column = table.columns[i]
        part.add_column(column.header, justify=column.justify, no_wrap=column.no_wrap, overflow="fold", width=width)
    cells = [list(table.columns[i].cells) for i in chosen]
    for row, line in zip(table.rows, zip(*cells, strict=True), strict=True):
        part.add_row(*line, style=row.style, end_section=row.end_section)
    return part
