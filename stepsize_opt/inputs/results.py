"""What all answers share: a text for people, and a file."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from os import PathLike
from pathlib import Path
from typing import Any, Self

from stepsize_opt.inputs.checks import Immutable
from stepsize_opt.inputs.files import broken_is_value_error
from stepsize_opt.inputs.saved import load_result, result_path, save_result


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


class Saved(Immutable, ABC):
    """An answer that is kept in a file."""

    @abstractmethod
    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What is saved: fields that JSON holds, and arrays, by name."""

    @classmethod
    @abstractmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """The result whose ``_contents`` were read."""

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything to an npz file (arrays and JSON text, nothing pickled); returns its path.

        ``.npz`` is added to a path that does not end in it.  A file that is there is replaced once the new one is
        complete.  ``D`` is one of its arrays (on a single node up to d = 4096; larger ones are saved by blocks only).
        """
        return save_result(path, type(self).__name__, *self._contents())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what ``save`` wrote; ``.npz`` may be left out as there.

        Raises FileNotFoundError when there is no such file, ValueError for a file that is broken, of another kind, or
        was changed after it was written.  A digest ties D to its certificate, sketch and structure; it guards against
        accidents, not against someone who writes a false file on purpose.  Nothing is proved again, because the file
        does not hold L; for a single node, ``certify(result, L)`` proves it for yours.
        """
        file = result_path(path)
        with broken_is_value_error(file, f"a {cls.__name__}"):
            return cls._of_contents(*load_result(file, cls.__name__))
