"""What a plan may spend."""

from __future__ import annotations

from dataclasses import dataclass

from stepsize_opt.inputs import positive_number, whole_number
from stepsize_opt.tables import Row


@dataclass(frozen=True)
class Budget:
    """What may be spent; None is no limit.

    Attributes
    ----------
    per_round
        Floats that a client (or the node) may send per round, on average.
    total
        Floats that all of them may send in all.
    rounds
        Rounds.

    Examples
    --------
    >>> from stepsize_opt import Budget
    >>> print(Budget(8, rounds=1000))
    at most 8 floats per round, 1000 rounds
    """

    per_round: float | None = None
    total: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        for name in ("per_round", "total"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if self.rounds is not None:
            object.__setattr__(self, "rounds", whole_number("rounds", self.rounds))

    def holds(self, row: Row) -> bool:
        """Return whether a row stays within all limits."""
        limits = ((self.per_round, row.k), (self.total, row.floats))
        # k N per round, N whole: one rounding error of k is no excess.
        within = all(limit is None or spent <= limit * (1.0 + 1e-12) for limit, spent in limits)
        return within and (self.rounds is None or row.rounds <= self.rounds)

    def __str__(self) -> str:
        named = ((self.per_round, "floats per round"), (self.total, "floats in all"))
        words = [f"{limit:g} {name}" for limit, name in named if limit is not None]
        words += [] if self.rounds is None else [f"{self.rounds} rounds"]
        return "at most " + ", ".join(words) if words else "no limit"
