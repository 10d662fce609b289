"""What the answers to all problems share: a status that the certificate proves, a table for people, a file."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from stepsize_opt.inputs.checks import Immutable
from stepsize_opt.inputs.files import broken_is_value_error
from stepsize_opt.inputs.saved import load_result, result_path, save_result
from stepsize_solvers.programs import SolverStats, Status


class Proof(Protocol):
    """A certificate: a dataclass of proved numbers."""

    @property
    def gap(self) -> float: ...

    def is_optimal(self, tol: float) -> bool:
        """Whether the answer is proved feasible and within ``tol`` of the best possible."""
        ...


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
        was changed after it was written.  A digest ties D to its certificate and to the names of sketch and structure;
        it guards against accidents, not against someone who writes a false file on purpose.  Nothing is proved again,
        because the file holds neither L nor the law of the sketch; for a single node, ``certify(result, L, sketch)``
        proves it for yours.
        """
        file = result_path(path)
        with broken_is_value_error(file, f"a {cls.__name__}"):
            return cls._of_contents(*load_result(file, cls.__name__))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(Shown, Saved):
    """An answer with its proof; a subclass adds the answer itself and what it predicts."""

    status: str
    certificate: Proof
    solver_stats: SolverStats
    reductions: tuple[str, ...]
    algorithm: str
    sketch: str
    structure: str
    tol: float
    message: str = ""
    estimated: str = ""

    @property
    def certified(self) -> bool:
        """Whether L came as a proved smoothness matrix; if not, ``estimated`` and the table say what it is."""
        return not self.estimated

    @property
    @abstractmethod
    def d(self) -> int:
        """Size of D."""

    @property
    def gap(self) -> float:
        """The certified gap, as the certificate defines it."""
        return self.certificate.gap

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """What ``summary`` says about this answer alone."""

    def summary(self) -> dict[str, Any]:
        """Everything but the matrices, as plain numbers and strings (what ``--json`` prints)."""
        return {
            "status": self.status,
            "message": self.message,
            "d": self.d,
            "algorithm": self.algorithm,
            "sketch": self.sketch,
            "structure": self.structure,
            "tol": self.tol,
            "certified": self.certified,
            "estimated": self.estimated,
            **self._numbers(),
            "certificate": {**asdict(self.certificate), "gap": self.gap},  # type: ignore[call-overload]
            "solver_stats": asdict(self.solver_stats),
            "reductions": list(self.reductions),
        }

    @abstractmethod
    def _rows(self) -> list[tuple[str, str]]:
        """What ``rows`` says about this answer alone."""

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for people to read."""
        s = self.solver_stats
        seconds = "" if s.solve_time is None else f", {s.solve_time:.3g} s"
        iterations = "" if s.num_iters is None else f", {s.num_iters} iterations"
        rows = [
            ("status", self.status + (f" ({self.message})" if self.message else "")),
            *([("smoothness", self.estimated)] if self.estimated else []),
            *self._rows(),
            ("certified gap", f"{self.gap:.2e} (tolerance {self.tol:.0e})"),
            ("solver", f"{s.solver_name}{seconds}{iterations}"),
        ]
        if self.reductions:
            rows.append(("reductions", "; ".join(self.reductions)))
        return rows


R = TypeVar("R", bound=Result)


def completed(result: R) -> R:
    """The result, for an answer that is made of several: raises KeyboardInterrupt if Ctrl-C ended its solve."""
    if result.status == Status.INTERRUPTED.value:
        raise KeyboardInterrupt
    return result
