"""What happens when L is not known exactly: wrong by a factor, or estimated from some of the rows.

*A factor.*  Condition (3) is quadratic in D on the left and linear on the right, so D*(cL) = D*(L)/c: an L that is c
times too large costs c times the iterations and is safe; one that is too small gives a D outside the condition.

*An estimate.*  If L ⪯ cL̂, then E[SDLDS] ⪯ c E[SDL̂DS], so D*(L̂)/c is feasible for L.  The smallest such c,
λmax(L̂^{−½}LL̂^{−½}), is a margin that always suffices; the margin that D*(L̂) really needs, 1/(largest feasible scale),
is never larger and is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import eigh

from stepsize_opt.node import certify, optimal_stepsize
from stepsize_opt.problems import Dataset, LogisticRegression, find_infimum, load_dataset
from stepsize_opt.sketches import RandK, Sketch
from stepsize_validation.experiments.cache import kept
from stepsize_validation.experiments.processes import in_processes
from stepsize_validation.runs import check_rate, first_below, run

FACTORS = (0.125, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
FRACTIONS = (0.05, 0.1, 0.2, 0.5)
# Rows for each coordinate by which margins are recommended: the least of each band.
BANDS = (0, 2, 5, 10, 20)


@dataclass(frozen=True)
class FactorRow:
    """L taken as factor·L: is the D that comes out feasible, what does it guarantee, what happens in a run?

    relative_rate: det(D)^{1/d} over that of the right L (a promise only if feasible); iterations: steps of the run
    until G_K ≤ ε², None if not reached; verdict: of the bound of Theorem 1, or ``diverged``.
    """

    data: str
    sketch: str
    factor: float
    feasible: bool
    relative_rate: float
    iterations: int | None
    verdict: str


@dataclass(frozen=True)
class SubsampleRow:
    """L̂ from a fraction of the rows, over several draws: medians and the margin that 95 % of the draws need.

    rows_per_coordinate: rows/d, on which the margins depend more than on the fraction.
    infeasible: share of the draws whose D*(L̂) violates the condition of L as it stands.
    margin_95: 95 % quantile of the factor by which D*(L̂) must shrink; spectral_95: that of the margin that suffices.
    relative_rate: median of det(D)^{1/d} after shrinking as needed, over that of D*(L).
    """

    data: str
    sketch: str
    fraction: float
    rows: int
    rows_per_coordinate: float
    draws: int
    infeasible: float
    margin_median: float
    margin_95: float
    spectral_95: float
    relative_rate: float


def factor_study(
    data: Dataset,
    sketch: Sketch,
    reg: float,
    *,
    factors: Sequence[float] = FACTORS,
    iterations: int = 2000,
    seeds: int = 16,
    seed: int = 0,
    epsilon2: float = 1e-3,
) -> list[FactorRow]:
    """One row for each factor; all runs share their random sketches."""
    objective = LogisticRegression.from_dataset(data, reg)
    L = objective.smoothness()
    best = optimal_stepsize(L, sketch)
    infimum = find_infimum(objective)
    rows = []
    for factor in factors:
        D = best.D / factor
        record = run(objective, D, sketch, iterations=iterations, seeds=seeds, seed=seed, on_divergence="stop")
        verdict = check_rate(record, infimum).verdict if record.diverged_at is None else "diverged"
        reached = first_below(record.weighted_means().mean(axis=0), epsilon2)
        # D*(L) is proved feasible, and so is every smaller multiple; a larger one is checked.
        feasible = factor >= 1.0 or certify(D, L, sketch, dual=best.dual).feasible
        rows.append(FactorRow(data.name, str(sketch), factor, feasible, 1.0 / factor, reached, verdict))
    return rows


def subsample_study(
    data: Dataset,
    sketch: Sketch,
    reg: float,
    *,
    fractions: Sequence[float] = FRACTIONS,
    draws: int = 20,
    seed: int = 0,
) -> list[SubsampleRow]:
    """One row for each fraction; rows are drawn without replacement from one generator."""
    rng = np.random.default_rng(seed)
    L = LogisticRegression.from_dataset(data, reg).smoothness()
    best = optimal_stepsize(L, sketch)
    rows = []
    for fraction in fractions:
        count = max(1, round(fraction * data.m))
        margins, spectral, rates = [], [], []
        for _ in range(draws):
            part = data.rows(rng.choice(data.m, size=count, replace=False))
            guess = LogisticRegression.from_dataset(part, reg).smoothness()
            result = optimal_stepsize(guess, sketch)
            scale = certify(result.D, L, sketch, dual=best.dual).largest_scale
            margins.append(1.0 / scale)
            spectral.append(float(eigh(L, guess, eigvals_only=True)[-1]))
            rates.append(result.rate * min(1.0, scale) / best.rate)
        rows.append(
            SubsampleRow(
                data.name,
                str(sketch),
                fraction,
                count,
                count / data.d,
                draws,
                float(np.mean(np.array(margins) > 1.0)),
                float(np.median(margins)),
                float(np.quantile(margins, 0.95)),
                float(np.quantile(spectral, 0.95)),
                float(np.median(rates)),
            )
        )
    return rows


@dataclass(frozen=True)
class Task:
    """Both studies for rand-k on one data set, and what their numbers depend on."""

    data: str
    k: int
    reg: float
    iterations: int
    seeds: int
    epsilon2: float
    draws: int

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """``factors`` and ``subsamples``, one record for each row."""
        data = load_dataset(self.data)
        sketch = RandK(data.d, self.k)
        factors = factor_study(
            data, sketch, self.reg, iterations=self.iterations, seeds=self.seeds, epsilon2=self.epsilon2
        )
        subsamples = subsample_study(data, sketch, self.reg, draws=self.draws)
        return {"factors": [asdict(row) for row in factors], "subsamples": [asdict(row) for row in subsamples]}

    def kept_rows(self, folder: Path) -> dict[str, list[dict[str, Any]]]:
        """What ``run`` gives, from a file in the folder if it was run before."""
        path = folder / f"{Path(self.data).name.replace(':', '-')}-rand-{self.k}.npz"
        rows: dict[str, list[dict[str, Any]]] = kept(path, asdict(self), self.run)
        return rows


def tasks_of(
    names: Sequence[str], reg: float, *, iterations: int, seeds: int, epsilon2: float, draws: int
) -> list[Task]:
    """rand-1 and rand-(d/2) on each data set."""
    out = []
    for name in names:
        d = load_dataset(name).d
        ks = dict.fromkeys((1, max(1, d // 2)))
        out += [Task(name, k, reg, iterations, seeds, epsilon2, draws) for k in ks]
    return out


def run_tasks(
    tasks: Sequence[Task], folder: Path, *, workers: int = 1, say: Callable[[str], None] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The rows of all tasks, in their order.  Each task leaves a file in ``folder``, which a second call reads.

    ``say`` receives one line for each task that ends.
    """
    rows: dict[Task, dict[str, list[dict[str, Any]]]] = {}
    for task, found in in_processes(partial(Task.kept_rows, folder=folder), tasks, workers):
        rows[task] = found
        if say is not None:
            say(f"sensitivity: {task.data}, rand-{task.k}")
    return {kind: [row for task in tasks for row in rows[task][kind]] for kind in ("factors", "subsamples")}


def worst_margins(subsamples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By rows for each coordinate: the largest margin that 95 % of the draws need on any data set, and where it was."""
    out = []
    for low, high in pairwise((*BANDS, math.inf)):
        rows = [row for row in subsamples if low <= row["rows_per_coordinate"] < high]
        if rows:
            worst = max(rows, key=lambda row: float(row["margin_95"]))
            kept = {name: worst[name] for name in ("margin_95", "data", "sketch", "fraction")}
            out.append({"rows_per_coordinate": f"{low} to {high}" if high < math.inf else f"from {low}", **kept})
    return out
