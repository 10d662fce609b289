"""One table for every comparison of methods: cases are solved to rows with the same words, the best first.

A table is text, HTML, records or a plot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from statistics import median
from typing import Any, TypeVar

from stepsize_opt.plots import STYLES, axes_or_new, log_axes
from stepsize_opt.proofs import Unproved
from stepsize_opt.smoothness import NeedsDense
from stepsize_solvers.programs import Tabled, html_row, html_table

Limits = Mapping[str, tuple[tuple[float, float], ...]]
Progress = Callable[[int, int, str], None]
T = TypeVar("T")
# A row to be made: its name while it is solved, and what solves it.
Case = tuple[str, Callable[[], T]]
# A plot shows rows up to this multiple of the median floats.
_SPREAD = 4.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Row(Tabled):
    """One method with a stepsize, and what it takes until the accuracy is guaranteed.

    Attributes
    ----------
    goal
        What is guaranteed, as in ``optimal_stepsize``.
    method
        The name of the method.
    stepsize
        Which of its stepsizes.
    sketch
        The distribution of the sketch, as text.
    seeds
        ``"one node"``; with clients ``"shared"``, all draw the same sketch, or ``"independent"``.
    k
        Floats that each sender sends per round, on average; an int where the number is whole.
    rate
        The proved rate of the goal.
    rounds
        Rounds that the guarantee needs; in the unit of the table where no accuracy was given.
    floats
        Floats sent by all senders in all rounds, on average; in the same unit.
    share_of_limit
        The rate over that of the best method without memory for the same k, at most 1; None where there is no limit.
    gap
        The certified gap of the stepsize; None for a row without a certificate.
    status
        That of ``result``: ``"optimal"`` for a rate that is proved to be the best of its kind within the tolerance.
    within_budget
        Whether the row stays within the limits that were given.
    result : StepsizeResult, DistributedResult, SubspaceMethod or None
        The answer behind the row, with D, rate and certificate; None for a formula of the literature.
    compressor : Compressor or None
        The ``Compressor`` that runs it; None in tables that are not made for running.
    more
        Other columns, by name.
    """

    goal: str
    method: str
    stepsize: str
    sketch: str
    k: float
    rate: float
    rounds: float
    floats: float
    seeds: str = "one node"
    share_of_limit: float | None = None
    gap: float | None = None
    status: str = "optimal"
    within_budget: bool = True
    result: Any = field(default=None, repr=False)
    compressor: Any = field(default=None, repr=False)
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if float(self.k).is_integer():
            object.__setattr__(self, "k", int(self.k))  # two floats are no 2.0 floats

    @property
    def label(self) -> str:
        """The name of the row in a plot."""
        return ", ".join([self.method, self.stepsize, *(["independent seeds"] if self.seeds == "independent" else [])])

    def record(self) -> dict[str, Any]:
        """Return the numbers and words of the row."""
        left_out = ("result", "compressor", "more")
        return {**{name: value for name, value in vars(self).items() if name not in left_out}, **self.more}

    def _shown(self) -> list[tuple[str, str]]:
        names = [name.replace("_", " ") for name in self.record()]
        return [(name, cell(self, name)) for name in names if cell(self, name)]


@dataclass(frozen=True, eq=False, kw_only=True)
class Measured:
    """A method whose rounds are counted in runs: they are far fewer than its proved worst case, which ranks nothing.

    Attributes
    ----------
    method
        The name of the method.
    sketch
        What it sends, as text.
    seeds
        As in ``Row``.
    k
        Floats that each sender sends per round, at most.
    compressor : Feedback
        The ``Feedback`` that runs it.
    more
        Other columns, by name, as in ``Row``.
    """

    method: str
    sketch: str
    seeds: str
    k: float
    compressor: Any = field(repr=False)
    more: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return the numbers and words of the row."""
        named = {name: value for name, value in vars(self).items() if name not in ("compressor", "more")}
        return {**named, "status": "measured", "best": False, **self.more}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of methods for one or several goals, the best of each goal first.

    Attributes
    ----------
    rows
        All methods that were looked at.
    columns
        The names of the columns that the text shows.
    title
        What the table is about.
    unit
        What rounds and floats are multiples of; empty where they are numbers of rounds and floats.
    limits
        For each goal, pairs of k and the rounds at the limit: no method without memory guarantees fewer.
    notes
        What the table leaves out, and why; which rows are not optimal.
    measured
        Methods that are shown below the rows and never ranked: no useful number of rounds is proved for them.
    """

    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    title: str
    unit: str = ""
    limits: Limits = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = ()

    @property
    def goals(self) -> tuple[str, ...]:
        """The goals, in the order they were asked for."""
        return tuple(dict.fromkeys([*self.limits, *(row.goal for row in self.rows)]))

    def of_goal(self, goal: str) -> tuple[Row, ...]:
        """Return the rows of a goal, the best first."""
        return tuple(row for row in self.rows if row.goal == goal)

    def best_for(self, goal: str) -> Row | None:
        """Return the row to take for a goal; None when none stays within the budget."""
        return next((row for row in self.of_goal(goal) if row.within_budget), None)

    @property
    def best(self) -> Row:
        """The row to take for the first goal; raises ValueError when none stays within the budget."""
        goal = self.goals[0]
        row = self.best_for(goal)
        if row is not None:
            return row
        rows = self.of_goal(goal)
        if not rows:
            msg = f"no method has a proved rate for the goal {goal}: {'; '.join(self.notes)}"
            raise ValueError(msg)
        fewest = min(rows, key=lambda one: one.floats)
        msg = (
            f"no method stays within the budget: {fewest.method} with k = {fewest.k:g} needs {fewest.rounds:.0f} "
            f"rounds and {fewest.floats:.6g} floats in all; allow more, or ask for less accuracy"
        )
        raise ValueError(msg)

    def to_records(self) -> list[dict[str, Any]]:
        """Return plain dictionaries, ready for pandas or JSON.

        Those of ``measured`` come last: their status is ``"measured"``, and None stands for what is not proved of them.
        """
        best = [self.best_for(goal) for goal in self.goals]
        ranked = [{**row.record(), "best": any(row is one for one in best)} for row in self.rows]
        unknown = dict.fromkeys(name for record in ranked for name in record)
        return [*ranked, *({**unknown, **row.record()} for row in self.measured)]

    def to_pandas(self) -> Any:
        """Return the records as a ``pandas.DataFrame``; pandas is not among the dependencies."""
        from pandas import DataFrame

        return DataFrame(self.to_records())

    def __repr__(self) -> str:
        lines = [self.title]
        for caption, cells in self._parts():
            shown = len(self.goals) > 1 or caption == _MEASURED_TITLE
            lines += ["", *([caption] if shown else []), *_lines(cells)]
        return "\n".join([*lines, "", *self._legend()])

    def _repr_html_(self) -> str:
        tables = [_html_table(caption, cells) for caption, cells in self._parts()]
        return "".join([f"<p>{escape(self.title)}</p>", *tables, *(f"<p>{escape(one)}</p>" for one in self._legend())])

    def _legend(self) -> list[str]:
        words = ["* best"]
        if not all(row.within_budget for row in self.rows):
            words.append("! outside the budget")
        if "share of limit" in self.columns:
            words.append("share of limit: rate over the best rate without memory for as many floats")
        unit = [f"rounds and floats in units of {self.unit}"] if self.unit else []
        return ["; ".join(words), *unit, *self.notes]

    def _cells(self, goal: str) -> list[list[str]]:
        """Return the header and the rows of a goal as text, the mark first."""
        best = self.best_for(goal)
        marks = ["*" if row is best else " " if row.within_budget else "!" for row in self.of_goal(goal)]
        return _cells(self.columns, self.of_goal(goal), marks)

    def _parts(self) -> list[tuple[str, list[list[str]]]]:
        """Return the caption and the cells of each goal, and of the measured methods."""
        parts = [(f"goal {goal}", self._cells(goal)) for goal in self.goals]
        if self.measured:
            parts.append((_MEASURED_TITLE, _cells(_MEASURED_COLUMNS, self.measured, " " * len(self.measured))))
        return parts

    def _edge(self, goal: str) -> float:
        """Return the most floats that a plot shows."""
        floats = [row.floats for row in self.of_goal(goal)]
        best = self.best_for(goal)
        return max(_SPREAD * median(floats or [0.0]), 0.0 if best is None else best.floats)

    def plot(self, ax: Any = None, *, goal: str | None = None) -> Any:
        """Draw rounds against floats sent, the limit as a line, the best circled, hollow what is outside the budget.

        Rows that send many times the floats of the others would squeeze these into a corner: the legend has their
        floats instead.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.
        goal
            The goal whose rows are drawn; the first by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        ax, goal = axes_or_new(ax), self.goals[0] if goal is None else goal
        limit = sorted(self.limits.get(goal, ()))
        if limit:
            sent_once = ((row.floats, row.k * row.rounds) for row in self.of_goal(goal) if row.k * row.rounds > 0.0)
            senders = next((floats / each for floats, each in sent_once), 1.0)
            sent = [senders * k * rounds for k, rounds in limit]
            ax.plot(sent, [rounds for _, rounds in limit], color="0.4", linewidth=1, label="limit", zorder=1)
        best = self.best_for(goal)
        edge = self._edge(goal)
        for i, label in enumerate(dict.fromkeys(row.label for row in self.of_goal(goal))):
            style = STYLES[i % len(STYLES)]
            rows = [row for row in self.of_goal(goal) if row.label == label]
            drawn = [row for row in rows if row.floats <= edge]
            faces = [style.colour if row.within_budget else "none" for row in drawn]
            points = [row.floats for row in drawn], [row.rounds for row in drawn]
            ax.scatter(*points, c=faces, edgecolors=style.colour, marker=style.marker, s=28, zorder=2)
            # The legend's entry.
            face = style.colour if any(row.within_budget for row in rows) else "none"
            words = label if drawn else f"{label}: {_short(min(row.floats for row in rows))} floats"
            ax.scatter([], [], c=face, edgecolors=style.colour, marker=style.marker, s=28, label=words)
        if best is not None:
            ring = {"s": 120, "facecolors": "none", "edgecolors": "black"}
            ax.scatter([best.floats], [best.rounds], **ring, label="best", zorder=3)
        unit = f" [{self.unit}]" if self.unit else ""
        log_axes(ax, f"floats sent{unit}", f"guaranteed rounds{unit}", f"goal {goal}")
        ax.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return ax


def solve_cases(cases: Sequence[Case[T]], on_progress: Progress | None = None) -> tuple[list[T], list[str]]:
    """Solve cases one after the other; return their rows, and why others have none.

    ``on_progress`` is called with the number of rows done, of all rows, and the name of the next before each is solved.
    An L that is not formed has no row where only a dense matrix answers.  Raises TypeError unless it is a function.
    """
    if on_progress is not None and not callable(on_progress):
        msg = f"on_progress must be a function, got {on_progress!r}"
        raise TypeError(msg)
    report = on_progress or (lambda done, total, name: None)
    rows: list[T] = []
    left_out: list[str] = []
    for done, (name, make) in enumerate(cases):
        report(done, len(cases), name)
        try:
            rows.append(make())
        except NeedsDense:
            continue
        except Unproved as error:  # the other methods have an answer all the same
            left_out.append(f"{name} is left out: {error}")
    report(len(cases), len(cases), "")
    return rows, left_out


def best_first(rows: Iterable[Row], key: Callable[[Row], Any]) -> list[Row]:
    """Sort rows: those within the budget first, then by the key."""
    return sorted(rows, key=lambda row: (not row.within_budget, key(row)))


def _short(value: float) -> str:
    """Format whole numbers as they are up to 10⁶, anything else by six digits, or three beyond 10⁶."""
    if value >= 1e6:
        return f"{value:.2e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:.0f}" if value == round(value) or value >= 1e4 else f"{value:.6g}"


_MEASURED_TITLE = "measured, not ranked: runs need far fewer rounds than the proved worst case"
_MEASURED_COLUMNS = ("method", "seeds", "sketch", "k", "setup", "client", "server")
# Columns of words, aligned to the left; all others are numbers.
_WORDS = ("method", "stepsize", "seeds", "sketch", "status", "note")
_FORMATS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("rate", "descent rate"), "{:.6g}".format),
    **dict.fromkeys(("rounds", "floats", "descent", "printed", "client", "server", "setup"), _short),
    "share of limit": "{:.1%}".format,
    "gap": "{:.0e}".format,
    "times the rounds": "{:.3f}x".format,
}


def cell(row: Row | Measured, name: str) -> str:
    """Return a cell of the text: empty for None."""
    value = row.more[name] if name in row.more else getattr(row, name.replace(" ", "_"))
    return "" if value is None else _FORMATS.get(name, str)(value)


def _cells(columns: Sequence[str], rows: Sequence[Row | Measured], marks: Sequence[str]) -> list[list[str]]:
    """Return the header and the rows as text, the mark first."""
    marked = zip(marks, rows, strict=True)
    return [[" ", *columns], *([mark, *(cell(row, name) for name in columns)] for mark, row in marked)]


def _lines(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, the header first and the mark in the first column."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [_aligned(row, widths, _left(cells)) for row in cells]


def _left(cells: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns are aligned to the left: the mark and words."""
    return [True, *(name in _WORDS for name in cells[0][1:])]


def _aligned(row: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    parts = zip(row, widths, left, strict=True)
    return " ".join(f"{text:<{width}}" if to_left else f"{text:>{width}}" for text, width, to_left in parts).rstrip()


def _html_table(caption: str, cells: Sequence[Sequence[str]]) -> str:
    header, *rows = cells
    left = _left(cells)
    return html_table([html_row(header, left, heads=len(header)), *(html_row(row, left) for row in rows)], caption)
