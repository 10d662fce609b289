"""How a result shows itself, in a terminal and in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod


class Shown(ABC):
    """Text and HTML made of the names and values in ``rows``, under the name of the class."""

    @abstractmethod
    def rows(self) -> list[tuple[str, str]]:
        """Names and values for people to read."""

    def __repr__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([type(self).__name__, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for name, value in self.rows()
        )
        return f"<table><caption>{type(self).__name__}</caption>{cells}</table>"
