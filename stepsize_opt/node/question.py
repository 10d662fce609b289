"""The question of one node: L, the sketch, the method, the structure of D and the goal, read and checked once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepsize_opt.goals import Goal
from stepsize_opt.inputs.structures import Structure, pattern_of
from stepsize_opt.limit import read_limit
from stepsize_opt.methods import Algorithm, Method, get_method
from stepsize_opt.sketches.base import Sketch, parse_sketch, read_sketch
from stepsize_opt.smoothness import NeedsDense, Smoothness, read_smoothness
from stepsize_solvers.programs import Indices, Pattern


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of one node."""

    L: Smoothness
    sketch: Sketch
    method: Method
    structure: Structure
    goal: Goal

    @staticmethod
    def read(
        L: Any,
        sketch: Any,
        algorithm: Algorithm,
        structure: Structure,
        goal: Any,
        strong_convexity: Any = None,
        momentum: bool = False,
    ) -> Question:
        """Raises TypeError or ValueError for what is not as ``optimal_stepsize`` describes it."""
        method = get_method(algorithm)
        smoothness, sketch = read_problem(L, sketch)
        aim = Goal.read(goal, strong_convexity, sketch.d, momentum=momentum).for_sketch(sketch.map)
        return Question(smoothness, sketch, method, structure, aim)

    @property
    def d(self) -> int:
        return self.L.d

    def pattern(self) -> Pattern:
        """Return the pattern of D; raises ValueError for a structure that does not go with the method or L."""
        pattern = pattern_of(self.structure, self.d)
        self.method.check([self.sketch])
        return pattern

    def log_limit(self, groups: Sequence[Indices]) -> float:
        """Return d log of the limit for samples as sparse as the sketch's, from above.

        groups: coordinates that L and M leave apart, where L is formed.  +∞ where E[S] = I is not exact, or where the
        eigenvalues of an L that is not formed are not known.
        """
        if not self.sketch.is_exactly_unbiased:
            return math.inf
        rank = self.sketch.expected_rank
        if self.L.is_formed:
            return self.goal.log_limit([self.goal.bounds(self.L.formed(), indices) for indices in groups], rank)
        L = self.L.factored()
        proved = L.scaled(1.0) if L.estimated else L  # without the label, which the result carries
        problem = read_limit(proved, min(rank, float(L.d)), self.goal.for_limit())
        try:
            return problem.upper_bound
        except NeedsDense:
            return math.inf


def read_problem(L: Any, sketch: Any) -> tuple[Smoothness, Sketch]:
    """Return L and a sketch of its size, which may be given by its text; raises TypeError or ValueError."""
    if not isinstance(sketch, str):
        read_sketch(sketch)
    smoothness = read_smoothness(L)
    if isinstance(sketch, str):
        return smoothness, parse_sketch(sketch, smoothness.d)
    if smoothness.d != sketch.d:
        msg = f"sketch is for d={sketch.d} but L is {smoothness.d}×{smoothness.d}"
        raise ValueError(msg)
    return smoothness, sketch
