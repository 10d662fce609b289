"""The arguments that ask for each goal of a stepsize."""

from __future__ import annotations

from typing import Any

from stepsize_opt.goals import GOAL_NAMES

GOALS: dict[str, dict[str, Any]] = {name: {"goal": name} for name in GOAL_NAMES}


def arguments_of(goal: str, M: Any) -> dict[str, Any]:
    """Return the arguments of ``optimal_stepsize`` for a goal; only ``linear`` uses M."""
    return {"goal": goal, "strong_convexity": M if goal == "linear" else None}
