"""What an experiment is: one object that knows its panels, its figures and how its curves are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepsize_opt.problems import Dataset
from stepsize_validation.experiments.axes import Axes
from stepsize_validation.experiments.choices import Panel
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.plan import Plan


@dataclass(frozen=True)
class Experiment:
    """One experiment.  A new one is a file with such an object, and its name in ``catalogue``.

    letter, title, text: as in the report.
    panel: the panel of a data set, a plan and a parameter; parameters: the parameters that a data set gets.
    iterations, quick_iterations: steps of each run, unless the plan says otherwise.
    settings: fields of the plan that the curves depend on, beside the seeds and the number of steps.
    figures: what is drawn; efficiency_bars: whether the shares of the limit are drawn as bars, too.
    comparable: which of the paper's curves, among those that satisfy their condition, compete with the optimal D.
    level_reached: compare at the smallest level that both rivals reach rather than at the ε² of the panel.
    """

    letter: str
    title: str
    text: str
    panel: Callable[[Dataset, Plan, int], Panel]
    iterations: int
    quick_iterations: int
    settings: tuple[str, ...]
    figures: tuple[Axes, ...]
    parameters: Callable[[Dataset, Plan], Sequence[int]] = lambda data, plan: (0,)
    comparable: Callable[[Curve], bool] = lambda curve: True
    level_reached: bool = False
    efficiency_bars: bool = False

    def steps(self, plan: Plan) -> int:
        """K of its runs under a plan."""
        return plan.iterations.get(self.letter, self.quick_iterations if plan.short else self.iterations)
