"""The answer of ``stepsize_opt.plan``: a table of methods, what each costs, and which to take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepsize_opt.inputs import positive_number, whole_number
from stepsize_opt.methods import Compressor

# The columns of the table; the first WORDS are words, the others numbers.
COLUMNS = ("method", "stepsize", "seeds", "sketch", "rounds", "numbers", "client", "server", "limit")
WORDS = 4
LEGEND = (
    "* best, ! outside the budget; limit: share of the best memoryless rate",
    "client, server: multiplications a round beyond the gradient",
)


@dataclass(frozen=True)
class Budget:
    """What may be spent; None is no limit.

    Attributes
    ----------
    numbers
        Numbers that a client (or the node) may send a round, on average.
    total
        Numbers that all of them may send in all.
    rounds
        Rounds.

    Examples
    --------
    See ``plan``.
    """

    numbers: float | None = None
    total: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        for name in ("numbers", "total"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if self.rounds is not None:
            object.__setattr__(self, "rounds", whole_number("rounds", self.rounds))

    def holds(self, row: PlanRow) -> bool:
        """Whether a row stays within all limits."""
        limits = ((self.numbers, row.k), (self.total, row.numbers))
        # k N a round, N whole: one rounding error of k is no excess.
        within = all(limit is None or spent <= limit * (1.0 + 1e-12) for limit, spent in limits)
        return within and (self.rounds is None or row.rounds <= self.rounds)

    def __str__(self) -> str:
        named = ((self.numbers, "numbers a round"), (self.total, "numbers in all"))
        words = [f"{limit:g} {name}" for limit, name in named if limit is not None]
        words += [] if self.rounds is None else [f"{self.rounds} rounds"]
        return "at most " + ", ".join(words) if words else "no limit"


@dataclass(frozen=True, eq=False)
class PlanRow:
    """One method for the problem, and what it takes until the accuracy is guaranteed.

    Attributes
    ----------
    goal
        What is guaranteed: ``"descent"``, ``"euclidean"`` or ``"linear"``.
    method
        The name of the method.
    stepsize
        Which of its stepsizes.
    seeds
        ``"one node"``; with clients ``"shared"``, all draw the same, or ``"independent"``.
    sketch
        The law of the draws, as text.
    k
        Numbers that each sender sends a round, on average.
    rounds
        K that the guarantee needs.
    numbers
        Numbers sent by all in all rounds, on average.
    client_work
        Multiplications a round on each sender, beyond the gradient.
    server_work
        Multiplications a round on the server.
    efficiency
        The rate over the limit for the same k, at most 1; None under conditions that have no such limit.
    status
        That of ``result``: ``"optimal"`` for a rate that is proved to be the best of its kind within the tolerance.
    result
        The answer behind the row, with D, rate and certificate.
    compressor
        The object that runs it: ``draw``, ``encode``, ``decode``.

    Examples
    --------
    See ``plan``.
    """

    goal: str
    method: str
    stepsize: str
    seeds: str
    sketch: str
    k: float
    rounds: int
    numbers: float
    client_work: float
    server_work: float
    efficiency: float | None
    status: str
    result: Any
    compressor: Compressor

    def record(self) -> dict[str, Any]:
        """The numbers and words of the row."""
        skipped = ("result", "compressor")
        return {name: value for name, value in vars(self).items() if name not in skipped}

    def cells(self) -> list[str]:
        """The row as text, one cell for each of ``COLUMNS``."""
        numbers = (self.rounds, self.numbers, self.client_work, self.server_work)
        efficiency = "" if self.efficiency is None else f"{100.0 * self.efficiency:.1f}%"
        return [self.method, self.stepsize, self.seeds, self.sketch, *map(_short, numbers), efficiency]


@dataclass(frozen=True, eq=False)
class Plan:
    """Rows of methods, sorted by what they send, and the best for each goal.

    Attributes
    ----------
    rows
        All methods that were looked at, those outside the budget, too.
    budget
        The limits.
    d
        Size of the problem.
    clients
        Number of senders.
    limits
        For each goal and each k of the table, the rounds at the limit: no method without memory guarantees fewer.
    notes
        What the table leaves out, and why.

    Examples
    --------
    See ``plan``.
    """

    rows: tuple[PlanRow, ...]
    budget: Budget
    d: int
    clients: int
    limits: dict[str, tuple[tuple[float, int], ...]]
    notes: tuple[str, ...] = ()

    @property
    def goals(self) -> tuple[str, ...]:
        """The goals, in the order they were asked for."""
        return tuple(self.limits)

    def best_for(self, goal: str) -> PlanRow | None:
        """The row to take: the fewest numbers sent within the budget, None when no row stays within it.

        Rounds are whole numbers.  Rows that without their last round send less than the fewest numbers count as equal
        to it, and the fewest rounds decide: the subspace method sends the same in all at every k.
        """
        rows = [row for row in self.table(goal) if self.budget.holds(row)]
        near = [row for row in rows if row.numbers - self.clients * row.k <= rows[0].numbers]
        return min(near, key=lambda row: (row.rounds, row.numbers), default=None)

    @property
    def best(self) -> PlanRow:
        """The row to take for the first goal; raises ValueError when none stays within the budget."""
        row = self.best_for(self.goals[0])
        if row is None:
            rows = self.table(self.goals[0])
            if not rows:
                msg = f"no method has a proved rate for the goal {self.goals[0]}: {'; '.join(self.notes)}"
                raise ValueError(msg)
            fewest = min(rows, key=lambda r: r.numbers)
            msg = (
                f"no method stays within {self.budget}: {fewest.method} with k = {fewest.k:g} needs {fewest.rounds} "
                f"rounds and {fewest.numbers:.6g} numbers in all; allow more, or ask for less accuracy"
            )
            raise ValueError(msg)
        return row

    def to_records(self) -> list[dict[str, Any]]:
        """Plain dictionaries, ready for pandas or JSON."""
        best = [self.best_for(goal) for goal in self.goals]
        return [
            {**row.record(), "within_budget": self.budget.holds(row), "best": any(row is one for one in best)}
            for row in self.rows
        ]

    def __repr__(self) -> str:
        lines = [f"Plan for d = {self.d}, {self.clients} sender{'s'[: self.clients > 1]}, {self.budget}"]
        for goal in self.goals:
            lines += ["", f"goal {goal}", *self._lines(goal)]
        lines += ["", *LEGEND, *self.notes]
        return "\n".join(lines)

    def _lines(self, goal: str) -> list[str]:
        rows, best = self.table(goal), self.best_for(goal)
        shown = [list(COLUMNS), *(row.cells() for row in rows)]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        marks = [" ", *("*" if row is best else " " if self.budget.holds(row) else "!" for row in rows)]
        return [f"{mark} {_aligned(row, widths)}" for mark, row in zip(marks, shown, strict=True)]

    def table(self, goal: str) -> list[PlanRow]:
        """The rows of a goal: those within the budget first, fewest numbers first."""
        rows = [row for row in self.rows if row.goal == goal]
        return sorted(rows, key=lambda row: (not self.budget.holds(row), row.numbers, row.rounds))


def _short(value: float) -> str:
    """At most six characters: whole numbers as they are up to 10⁶, three digits beyond."""
    return f"{value:.0f}" if value < 1e6 else f"{value:.2e}".replace("e+0", "e").replace("e+", "e")


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = enumerate(zip(row, widths, strict=True))
    parts = [f"{cell:<{w}}" if i < WORDS else f"{cell:>{w}}" for i, (cell, w) in cells]
    return " ".join(parts).rstrip()
