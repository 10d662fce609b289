"""Names and values as text and as the HTML table of a notebook; tables with columns use the same rows."""

from __future__ import annotations

import html
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

_NUMBER = re.compile(r"([-−]?)(\d+)((?:\.\d+)?(?:e[-+]?\d+)?[%x]?)")
_BETWEEN_GROUPS = "\u202f"  # a narrow space that does not break


class Tabled(ABC):
    """HTML made of names and values, under the name of the class."""

    @abstractmethod
    def _shown(self) -> list[tuple[str, str]]:
        """Return names and values for people to read."""

    def _repr_html_(self) -> str:
        rows = [html_row(pair, [True, _NUMBER.fullmatch(pair[1]) is None], heads=1) for pair in self._shown()]
        return html_table(rows, type(self).__name__)


def plain_rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return those values that are words or numbers as text, with their names."""
    known = {name: value for name, value in values.items() if isinstance(value, str | Real) and value != ""}
    return [(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in known.items()]


class Shown(Tabled):
    """Text as well: one line for each name."""

    def __repr__(self) -> str:
        rows = self._shown()
        width = max(len(name) for name, _ in rows)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in rows)])


def html_table(rows: Sequence[str], caption: str) -> str:
    """Return the table of rows that ``html_row`` made."""
    return f"<table><caption>{html.escape(caption)}</caption>{''.join(rows)}</table>"


def html_row(cells: Sequence[str], left: Sequence[bool], heads: int = 0) -> str:
    """Return a row with some of its cells aligned to the left; numbers have their digits in groups of three.

    The first ``heads`` cells name a row or a column.
    """
    tags = ["th"] * heads + ["td"] * (len(cells) - heads)
    sides = ["left" if one else "right" for one in left]
    parts = [
        f"<{tag} style='text-align:{side}'>{html.escape(_grouped(text))}</{tag}>"
        for text, side, tag in zip(cells, sides, tags, strict=True)
    ]
    return f"<tr>{''.join(parts)}</tr>"


def _grouped(text: str) -> str:
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    return f"{number[1]}{int(number[2]):,}{number[3]}".replace(",", _BETWEEN_GROUPS)
