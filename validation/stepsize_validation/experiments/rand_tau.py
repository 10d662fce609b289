"""Experiment (b): one node, rand-τ for τ = d/4, d/2, 3d/4.

CGD, CGD-mat, both methods with D₂* (the optimum of det-CGD2); and det-CGD1 with its own optima, under its condition and
in the descent metric.  D₂* need not satisfy det-CGD1's condition: whether it does is checked and recorded.
"""

from __future__ import annotations

from stepsize_opt import RandK
from stepsize_opt.node import certify, optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_validation.data import Dataset, logistic_regression
from stepsize_validation.experiments.spec import CURVES, Choice, Experiment, Panel, Plan, cgd


def taus(data: Dataset, plan: Plan) -> list[int]:
    """Return the integer parts of d/4, d/2 and 3d/4, without repetition."""
    return list(dict.fromkeys(max(1, n * data.d // 4) for n in (1, 2, 3)))


def panel(data: Dataset, plan: Plan, parameter: int) -> Panel:
    """Return the panel of one data set and τ, the parameter."""
    objective = logistic_regression(data, plan.reg)
    L, sketch = objective.smoothness(), RandK(data.d, parameter)
    scalar = optimal_stepsize(L, sketch, structure="scalar")
    second = optimal_stepsize(L, sketch, algorithm="det-CGD2")
    first = optimal_stepsize(L, sketch)
    check = certify(second.D, L, sketch, dual=first.dual)
    choices = (
        cgd(L, sketch),
        Choice.of("CGD-mat", scalar, sketch),
        Choice("det-CGD1, D₂*", "det-CGD1", second.D, sketch, second.rate, check.feasible),
        Choice.of("det-CGD2, optimal", second, sketch),
        Choice.of("det-CGD1, optimal", first, sketch, ours=True),
        Choice.of("det-CGD1, optimal, descent", optimal_stepsize(L, sketch, goal="descent"), sketch, ours=True),
    )
    return Panel(f"rand-{parameter}", objective, choices, find_infimum(objective), plan.epsilon2)


EXPERIMENT = Experiment(
    name="b",
    title="(b) One node, rand-τ with τ = d/4, d/2, 3d/4",
    settings=("reg", "epsilon2"),
    parameters=taus,
    panel=panel,
    figures=CURVES,
    iterations=1000,
    quick_iterations=300,
)
