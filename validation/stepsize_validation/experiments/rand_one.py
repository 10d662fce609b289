"""Experiment (a): one node, rand-1.

CGD, CGD-mat, det-CGD1 with γ₁diag⁻¹(L), γ₂L⁻¹, γ₃L^{−½}, det-CGD2 with its optimum; and det-CGD1 with its own optima,
which the paper could not compute: that of condition (3), and that of the descent metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepsize_opt.node import compare
from stepsize_opt.problems import Dataset, LogisticRegression, find_infimum, load_dataset
from stepsize_opt.sketches import RandK
from stepsize_solvers.programs import Matrix
from stepsize_validation.experiments.axes import BITS, ITERATIONS, VALUES, WEIGHTED, Axes
from stepsize_validation.experiments.choices import Choice, Panel, cgd
from stepsize_validation.experiments.experiment import Experiment
from stepsize_validation.experiments.plan import Plan

_OURS = "det-CGD1, optimal"
_DESCENT = "det-CGD1, optimal, descent"
_LABELS = {
    "CGD-mat": ("det-CGD1", "γ I"),
    "det-CGD1, γ₁ diag⁻¹(L)": ("det-CGD1", "γ diag⁻¹(L)"),
    "det-CGD1, γ₂ L⁻¹": ("det-CGD1", "γ L⁻¹"),
    "det-CGD1, γ₃ L^(−1/2)": ("det-CGD1", "γ L^(-1/2)"),
    "det-CGD2, optimal": ("det-CGD2", "optimal"),
    _OURS: ("det-CGD1", "optimal"),
    _DESCENT: ("det-CGD1", "optimal, descent"),
}


def choices(L: Matrix) -> tuple[Choice, ...]:
    """The stepsizes for a smoothness matrix; the last two are this project's."""
    sketch = RandK(len(L), 1)
    rows = {(row.method, row.stepsize): row.result for row in compare(L, sketch).rows}
    named = (Choice.of(label, rows[key], sketch, ours=label in (_OURS, _DESCENT)) for label, key in _LABELS.items())
    return (cgd(L, sketch), *named)


def panel(data: Dataset, plan: Plan, parameter: int = 0) -> Panel:
    """The panel of one data set."""
    objective = LogisticRegression.from_dataset(data, plan.reg)
    found = choices(objective.smoothness())
    return Panel("a", data.name, "rand-1", objective, found, find_infimum(objective), plan.epsilon2)


def predicted_savings(datasets: Sequence[str], regs: Sequence[float] = (1e-3, 1e-1)) -> list[dict[str, Any]]:
    """Rates alone, without runs: the best of the paper's choices against both optima of det-CGD1."""
    rows = []
    for name in datasets:
        data = load_dataset(name)
        for reg in regs:
            L = LogisticRegression.from_dataset(data, reg).smoothness()
            *paper, ours, free = choices(L)
            best = max(paper, key=lambda choice: choice.rate)
            scale = 1.0 / np.sqrt(np.diagonal(L))
            rows.append(
                {
                    "dataset": name,
                    "reg": reg,
                    "paper": best.label,
                    "saving": ours.rate / best.rate,
                    "saving, descent": free.rate / best.rate,
                    "gap": ours.gap,
                    "smallest_correlation_eigenvalue": float(np.linalg.eigvalsh(scale[:, None] * L * scale)[0]),
                }
            )
    return rows


EXPERIMENT = Experiment(
    letter="a",
    title="(a) One node, rand-1",
    text="With rand-1 every method sends one number a round, so both axes order the curves alike. Each curve is in the "
    "norm of its own D, scaled to determinant 1, as in the paper; that of “optimal, descent” is in the norm of its "
    "descent metric H.",
    panel=panel,
    iterations=3000,
    quick_iterations=600,
    settings=("reg", "epsilon2"),
    figures=(Axes(ITERATIONS, WEIGHTED), Axes(BITS, WEIGHTED), VALUES),
)
