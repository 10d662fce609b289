"""Experiment (e): one node, k = d/4 floats per round, every method compared with the limit.

Gradient descent, CGD, det-CGD1 under its condition and in the descent metric, det-CGD2, and the subspace method for
each criterion, by what they send.  The ridge penalty makes f strongly convex, so that all criteria apply.
"""

from __future__ import annotations

from stepsize_opt.methods import optimal_method
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import Dataset, LogisticRegression, find_infimum
from stepsize_opt.sketches import Identity, RandK
from stepsize_validation.experiments.axes import EUCLIDEAN, NUMBERS, VALUES_SENT, WEIGHTED, Axes
from stepsize_validation.experiments.choices import Choice, Panel, cgd
from stepsize_validation.experiments.experiment import Experiment
from stepsize_validation.experiments.plan import Plan

_GRADIENT_DESCENT = "gradient descent"


def panel(data: Dataset, plan: Plan, parameter: int = 0) -> Panel:
    """The panel of one data set."""
    objective = LogisticRegression.from_dataset(data, plan.reg, "ridge")
    L, k, M = objective.smoothness(), max(1, data.d // 4), objective.hessian_lower_bound()
    sketch, whole = RandK(data.d, k), Identity(data.d)
    gradient_descent = optimal_stepsize(L, whole, algorithm="GD", structure="scalar")
    choices = (
        Choice.of(_GRADIENT_DESCENT, gradient_descent, whole),
        cgd(L, sketch),
        Choice.of("det-CGD2, optimal", optimal_stepsize(L, sketch, algorithm="det-CGD2"), sketch),
        Choice.of("det-CGD1, optimal", optimal_stepsize(L, sketch), sketch, ours=True),
        Choice.of("det-CGD1, optimal, descent", optimal_stepsize(L, sketch, guarantee="descent"), sketch, ours=True),
        Choice.subspace(optimal_method(L, k)),
        Choice.subspace(optimal_method(L, k, "euclidean")),
        Choice.subspace(optimal_method(L, k, "linear", lower=M)),
    )
    return Panel("e", data.name, f"k = {k}", objective, choices, find_infimum(objective), plan.epsilon2)


EXPERIMENT = Experiment(
    letter="e",
    title="(e) One node, k = d/4 floats per round: the limit",
    text="Every method by the numbers it sends; the subspace method reaches the limit of its criterion. Logistic "
    "regression with the ridge penalty. G_K is in the norm of each method's own guarantee, the plain mean of ‖∇f‖² for "
    "the criteria euclidean and linear. The bars are the guaranteed rate over the limit for as many floats per round: "
    "no method without memory exceeds 1.",
    panel=panel,
    iterations=1500,
    quick_iterations=300,
    settings=("reg", "epsilon2"),
    figures=(VALUES_SENT, Axes(NUMBERS, EUCLIDEAN), Axes(NUMBERS, WEIGHTED)),
    efficiency_bars=True,
    # Gradient descent sends d numbers a round: its rounds are not those of k numbers.
    comparable=lambda curve: curve.meta["label"] != _GRADIENT_DESCENT,
)
