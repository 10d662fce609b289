"""The goals of a stepsize by name, with the arguments that ask for each."""

from __future__ import annotations

from typing import Any

GOALS: dict[str, dict[str, str]] = {
    "paper": {"guarantee": "condition", "criterion": "det"},
    "descent": {"guarantee": "descent", "criterion": "det"},
    "euclidean": {"guarantee": "descent", "criterion": "euclidean"},
    "linear": {"guarantee": "descent", "criterion": "linear"},
    "convex": {"guarantee": "condition", "criterion": "convex"},
}


def arguments_of(goal: str, M: Any) -> dict[str, Any]:
    """Return the arguments of ``optimal_stepsize`` for a goal; only ``linear`` uses M."""
    return {**GOALS[goal], "lower": M if goal == "linear" else None}
