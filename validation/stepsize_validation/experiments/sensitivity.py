"""Sensitivity: what happens when L is not known exactly, wrong by a factor or estimated from some of the rows.

*A factor.*  Condition (3) is quadratic in D on the left and linear on the right, so D*(cL) = D*(L)/c: an L that is c
times too large costs c times the iterations and is safe; one that is too small gives a D outside the condition.

*An estimate.*  If L ⪯ cL̂, then E[SDLDS] ⪯ c E[SDL̂DS], so D*(L̂)/c is feasible for L.  The smallest such c,
λmax(L̂^{−½}LL̂^{−½}), is a margin that always suffices; the margin that D*(L̂) really needs, 1/(largest feasible scale),
is never larger and is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from stepsize_opt import RandK, Sketch
from stepsize_opt.node import StepsizeResult, certify, optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import Dataset, logistic_regression
from stepsize_validation.experiments.spec import Experiment, Plan, Tables
from stepsize_validation.runs import check_rate, run

FACTORS = (0.125, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
FRACTIONS = (0.05, 0.1, 0.2, 0.5)
# Bands of rows per coordinate for which a margin is recommended.
BANDS = (0.0, 2.0, 5.0, 10.0, 20.0, math.inf)
# The study solves 160 problems for each data set: minutes up to this d, an hour at the 300 of w1a.
_LARGEST_D = 150


def factor_study(
    data: Dataset, sketch: Sketch, plan: Plan, iterations: int, factors: Sequence[float] = FACTORS
) -> pd.DataFrame:
    """Take L as factor·L: is the D that comes out feasible, and what happens in a run?

    Returns one row for each factor; all runs share their random sketches.  ``verdict``: of the bound of Theorem 1, or
    ``diverged``.
    """
    objective = logistic_regression(data, plan.reg)
    L, infimum = objective.smoothness(), find_infimum(objective)
    best = optimal_stepsize(L, sketch)
    rows = []
    for factor in factors:
        D = best.D / factor
        record = run(
            objective, D, sketch, iterations=iterations, seeds=plan.seeds, seed=plan.seed, on_divergence="stop"
        )
        rows.append(
            {
                "sketch": str(sketch),
                "factor": factor,
                # D*(L) is proved feasible, and so is every smaller multiple; a larger one is checked.
                "feasible": factor >= 1.0 or certify(D, L, sketch, dual=best.dual).feasible,
                "verdict": check_rate(record, infimum).verdict if record.diverged_at is None else "diverged",
            }
        )
    return pd.DataFrame(rows)


def subsample_study(data: Dataset, sketch: Sketch, plan: Plan, fractions: Sequence[float] = FRACTIONS) -> pd.DataFrame:
    """Estimate L from a fraction of the rows, drawn without replacement from one generator, ``plan.draws`` times.

    Returns one row for each fraction, with the factor by which D*(L̂) must shrink in 95 % of the subsamples.
    """
    rng = np.random.default_rng(plan.seed)
    L = logistic_regression(data, plan.reg).smoothness()
    best = optimal_stepsize(L, sketch)
    rows = []
    for fraction in fractions:
        count = max(1, round(fraction * data.m))
        samples = (data.rows(rng.choice(data.m, size=count, replace=False)) for _ in range(plan.draws))
        margins = [_margin(sample, sketch, plan.reg, L, best) for sample in samples]
        rows.append(
            {
                "sketch": str(sketch),
                "fraction": fraction,
                "rows": count,
                "rows per coordinate": count / data.d,
                "subsamples": plan.draws,
                "margin, 95 %": np.quantile(margins, 0.95),
            }
        )
    return pd.DataFrame(rows)


def _margin(sample: Dataset, sketch: Sketch, reg: float, L: Matrix, best: StepsizeResult) -> float:
    """Return the factor by which the optimum for the L̂ of a subsample must shrink to be feasible for L."""
    estimate = optimal_stepsize(logistic_regression(sample, reg).smoothness(), sketch)
    return 1.0 / certify(estimate.D, L, sketch, dual=best.dual).largest_scale


def worst_margins(subsamples: pd.DataFrame) -> pd.DataFrame:
    """Return the largest margin that 95 % of the subsamples need in each band of rows per coordinate, and where."""
    bands = pd.cut(subsamples["rows per coordinate"], BANDS, right=False)
    worst = subsamples.groupby(bands, observed=True)["margin, 95 %"].idxmax()
    columns = ["margin, 95 %", "data", "sketch", "fraction"]
    return subsamples.loc[worst, columns].set_axis(worst.index.astype(str)).reset_index()


def _ks(data: Dataset, plan: Plan) -> list[int]:
    """Return k = 1 and k = d/2, where the solves are cheap."""
    return list(dict.fromkeys((1, max(1, data.d // 2)))) if data.d <= _LARGEST_D else []


def _measure(data: Dataset, plan: Plan, parameter: int) -> Tables:
    sketch = RandK(data.d, parameter)
    factors = factor_study(data, sketch, plan, EXPERIMENT.steps(plan))
    return {"factors": factors, "subsamples": subsample_study(data, sketch, plan)}


EXPERIMENT = Experiment(
    name="sensitivity",
    title="Sensitivity to L",
    settings=("reg", "draws"),
    parameters=_ks,
    measure=_measure,
    summarise=lambda tables: {"margins": worst_margins(tables["subsamples"])},
    iterations=1000,
    quick_iterations=300,
)
