"""Experiment (e): one node, k = d/4 floats per round, every method against the limit.

Gradient descent, CGD, det-CGD1 under its condition and in the descent metric, det-CGD2, and the subspace method for
each goal, by the floats they send.  The ridge penalty makes f strongly convex, so that all goals apply.
"""

from __future__ import annotations

from stepsize_opt import Identity, RandK
from stepsize_opt.limit import optimal_method
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_validation.data import Dataset, logistic_regression
from stepsize_validation.experiments.spec import Choice, Experiment, Panel, Plan, cgd, curves

_GRADIENT_DESCENT = "gradient descent"


def panel(data: Dataset, plan: Plan, parameter: int = 0) -> Panel:
    """Return the panel of one data set."""
    objective = logistic_regression(data, plan.reg, "ridge")
    L, k, M = objective.smoothness(), max(1, data.d // 4), objective.strong_convexity()
    sketch, whole = RandK(data.d, k), Identity(data.d)
    gradient_descent = optimal_stepsize(L, whole, structure="scalar")
    choices = (
        Choice.of(_GRADIENT_DESCENT, gradient_descent, whole),
        cgd(L, sketch),
        Choice.of("det-CGD2, optimal", optimal_stepsize(L, sketch, algorithm="det-CGD2"), sketch),
        Choice.of("det-CGD1, optimal", optimal_stepsize(L, sketch), sketch, ours=True),
        Choice.of("det-CGD1, optimal, descent", optimal_stepsize(L, sketch, goal="descent"), sketch, ours=True),
        Choice.subspace(optimal_method(L, k)),
        Choice.subspace(optimal_method(L, k, goal="euclidean")),
        Choice.subspace(optimal_method(L, k, goal="linear", strong_convexity=M)),
    )
    return Panel(f"k = {k}", objective, choices, find_infimum(objective), plan.epsilon2)


EXPERIMENT = Experiment(
    name="e",
    title="(e) One node, k = d/4 floats per round: the limit",
    settings=("reg", "epsilon2"),
    panel=panel,
    figures=(curves("floats", "excess"), curves("floats", "euclidean"), curves("floats", "weighted")),
    iterations=1500,
    quick_iterations=300,
    # Gradient descent sends d floats per round: its rounds are not those of k floats.
    comparable=lambda run: run.method != _GRADIENT_DESCENT,
)
