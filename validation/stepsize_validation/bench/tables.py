"""Tables of the solver benchmark: built once, shown by rich or written as markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from stepsize_validation.bench.analysis import absent, competitors, default_grid, formulations, standings
from stepsize_validation.bench.records import DONE, BenchRun
from stepsize_validation.bench.store import Results

NOTHING = "–"
_WORDS = 24  # longer cells are words, which may wrap; numbers and names stay on one line


@dataclass(frozen=True)
class TextTable:
    """A table of text; the first column is aligned left, the others right.  Raises ValueError for ragged rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                msg = f"row {row} has {len(row)} cells, expected {len(self.columns)}"
                raise ValueError(msg)

    def rich(self) -> Table:
        """For a terminal; ``show`` makes several tables of it where it is too wide."""
        table = Table(title=self.title, caption=escape(self.note) or None)
        for i, name in enumerate(self.columns):
            words = any(len(row[i]) > _WORDS for row in self.rows)
            table.add_column(name, justify="right" if i else "left", no_wrap=not words, overflow="fold")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        lines = [
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join(["---", *["---:"] * (len(self.columns) - 1)]) + "|",
            *("| " + " | ".join(row) + " |" for row in self.rows),
        ]
        return "\n".join([*lines, "", self.note] if self.note else lines)


def time_table(results: Results) -> TextTable:
    """Seconds to the main target for every problem and every solver in its default formulation."""
    gap = results.settings.main_target
    grid = default_grid(results)
    columns = competitors(results)
    gone = [f"{label}: {status}" for label, status in absent(results).items()]
    rows = [
        (problem.name, *(time_cell(runs.get(label), gap) for label in columns))
        for problem, runs in sorted(grid.items(), key=lambda item: _order(item[0].family, item[0].d))
    ]
    note = "processor seconds; " + "; ".join(["– not run", *gone])
    return TextTable(f"time to certified gap {gap:.0e}", ("problem", *columns), tuple(rows), note)


def _order(family: str, d: int) -> tuple[int, int]:
    """Sizes first, then real data, then the rest."""
    return {"size": 0, "data": 1}.get(family, 2), d


def time_cell(run: BenchRun | None, gap: float) -> str:
    """Seconds to the gap, or why there are none: a status, or the gap that was reached."""
    if run is None:
        return NOTHING
    seconds = run.seconds_to(gap)
    if seconds is not None:
        return seconds_text(seconds)
    if run.status != DONE:
        return run.status
    return "no answer" if run.best_gap is None else f"gap {run.best_gap:.0e}"


def seconds_text(seconds: float) -> str:
    """Two significant digits, without an exponent."""
    return f"{seconds:.0f}" if seconds >= 10.0 else f"{seconds:.2g}" if seconds >= 0.001 else f"{seconds:.5f}"


def standing_table(results: Results) -> TextTable:
    """One row for each solver: how often it reached each target, its time against the native one, its raw points."""
    targets = results.settings.targets
    rows = []
    for row in standings(results):
        rows.append(
            (
                row.label,
                *(f"{count}/{row.problems}" for count in row.reached),
                NOTHING if row.ratio is None else f"{row.ratio:.3g}x",
                NOTHING if row.growth is None else f"d^{row.growth.slope:.1f}",
                NOTHING if row.violation is None else f"{row.violation:.0e}",
                f"{row.overclaimed}/{row.claimed}",
                f"{row.peak_mb:.0f}",
            )
        )
    for label, status in absent(results).items():
        rows.append((label, status, *[NOTHING] * (len(targets) + 4)))
    columns = ("solver", *(f"{t:.0e}" for t in targets), "time", "slope", "raw", ">tol", "MB")
    note = (
        "problems solved to each certified gap; time: over that of native at the middle gap (geometric mean); slope: "
        "growth over the three largest sizes; raw: how far the solver's point is outside (median); >tol: answers "
        "called optimal whose certified gap is above the tolerance; MB: peak memory beyond the libraries"
    )
    return TextTable("solvers at equal certified gap", columns, tuple(rows), note)


def formulation_table(results: Results) -> TextTable | None:
    """Seconds to the main target for every formulation and size; None when no formulation was varied."""
    found = {how: runs for how, runs in formulations(results).items() if how.solver not in absent(results)}
    sizes = sorted({d for runs in found.values() for d in runs})
    if not found:
        return None
    gap = results.settings.main_target
    rows = tuple(
        (how.label, *(time_cell(found[how].get(d), gap) for d in sizes)) for how in sorted(found, key=lambda h: h.label)
    )
    columns = ("formulation", *(f"d={d}" for d in sizes))
    return TextTable(f"formulations: time to certified gap {gap:.0e}", columns, rows)


def all_tables(results: Results) -> list[TextTable]:
    """Every table that the results support."""
    tables: Sequence[TextTable | None] = (time_table(results), standing_table(results), formulation_table(results))
    return [table for table in tables if table is not None]
