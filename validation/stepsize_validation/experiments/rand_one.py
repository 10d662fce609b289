"""Experiment (a): one node, rand-1.

CGD, CGD-mat, det-CGD1 with γ₁diag⁻¹(L), γ₂L⁻¹, γ₃L^{−½}, det-CGD2 with its optimum; and det-CGD1 with its own optima,
which the paper could not compute: that of condition (3), and that of the descent metric.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from stepsize_opt import RandK
from stepsize_opt.planning import compare
from stepsize_opt.problems import find_infimum
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import Dataset, logistic_regression
from stepsize_validation.experiments.spec import CURVES, Choice, Experiment, Panel, Plan, Tables, cgd
from stepsize_validation.table1 import communication_table

# Table 1 has 19 rows for each data set, and tells the same of each: the smallest ones are enough.
_TABLE_1_D = 30
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
    """Return the stepsizes for a smoothness matrix; the last two are this project's."""
    sketch = RandK(len(L), 1)
    rows = {(row.method, row.stepsize): row.result for row in compare(L, sketch).rows}
    named = (Choice.of(label, rows[key], sketch, ours=label in (_OURS, _DESCENT)) for label, key in _LABELS.items())
    return (cgd(L, sketch), *named)


def panel(data: Dataset, plan: Plan, parameter: int = 0) -> Panel:
    """Return the panel of one data set."""
    objective = logistic_regression(data, plan.reg)
    found = choices(objective.smoothness())
    return Panel("rand-1", objective, found, find_infimum(objective), plan.epsilon2)


def table_1(data: Dataset, plan: Plan, parameter: int = 0) -> Tables:
    """Return Table 1 of the paper for a small d."""
    if data.d > _TABLE_1_D:
        return {}
    L = logistic_regression(data, plan.reg).smoothness()
    columns = ["row", "goal", "method", "sketch", "stepsize", "floats", "descent", "printed", "differs", "note"]
    table: Any = pd.DataFrame(communication_table(L).to_records())
    return {"table 1": table[columns]}


EXPERIMENT = Experiment(
    name="a",
    title="(a) One node, rand-1",
    settings=("reg", "epsilon2"),
    panel=panel,
    measure=table_1,
    figures=CURVES,
    iterations=3000,
    quick_iterations=600,
)
