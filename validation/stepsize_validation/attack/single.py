"""What the attacks on one node share: solve, and judge the answer beside that of a rival run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepsize_opt import StepsizeResult, optimal_stepsize
from stepsize_validation.attack.protocol import Verdict, ask
from stepsize_validation.attack.referee import Node, judge_result

# A rival run is solved to this gap, so that a false bound shows when it is off by more.
RIVAL_TOL = 1e-9


@dataclass(frozen=True, eq=False)
class Solve:
    """``optimal_stepsize`` on a node; ``may_refuse`` when the problem lies at the edge of what float64 can hold."""

    node: Node
    may_refuse: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        options = "".join(f", {name} = {value}" for name, value in self.options.items())
        return f"{self.node}{options}{', ' if self.note else ''}{self.note}"

    def solve(self) -> StepsizeResult:
        """The answer; raises Refused or Wrong as ``ask`` does."""
        return ask(lambda: optimal_stepsize(**self.node.arguments, **self.options), may_refuse=self.may_refuse)

    def attack(self) -> Verdict:
        return judge_result(self.node, self.solve(), [rival] if (rival := self.rival()) is not None else [])

    def rival(self) -> Any:
        """A feasible D of the same problem from a run with a smaller tolerance, or None when that run gives up."""
        try:
            return np.array(optimal_stepsize(**self.node.arguments, tol=RIVAL_TOL).D)
        except (ValueError, RuntimeError):
            return None
