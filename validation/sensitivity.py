"""What happens when L is not known exactly: wrong by a factor, or estimated from some of the rows.

*A factor.*  Condition (3) is quadratic in D on the left and linear on the right, so D*(cL) = D*(L)/c: an L that is c
times too large costs c times the iterations and is safe; one that is too small gives a D outside the condition.

*An estimate.*  If L ⪯ cL̂, then E[SDLDS] ⪯ c E[SDL̂DS], so D*(L̂)/c is feasible for L.  The smallest such c,
λmax(L̂^{−½}LL̂^{−½}), is a margin that always suffices; the margin that D*(L̂) really needs, 1/(largest feasible scale),
is never larger and is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from stepsize_opt.api import certify, optimal_stepsize
from stepsize_opt.sketches import Sketch
from validation.datasets import Dataset
from validation.infimum import find_infimum
from validation.objectives import LogisticRegression
from validation.rates import check_rate
from validation.record import first_below
from validation.runner import run

FACTORS = (0.125, 0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
FRACTIONS = (0.05, 0.1, 0.2, 0.5)


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

    infeasible: share of the draws whose D*(L̂) violates the condition of L as it stands.
    margin_95: 95 % quantile of the factor by which D*(L̂) must shrink; spectral_95: that of the margin that suffices.
    relative_rate: median of det(D)^{1/d} after shrinking as needed, over that of D*(L).
    """

    data: str
    sketch: str
    fraction: float
    rows: int
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
                draws,
                float(np.mean(np.array(margins) > 1.0)),
                float(np.median(margins)),
                float(np.quantile(margins, 0.95)),
                float(np.quantile(spectral, 0.95)),
                float(np.median(rates)),
            )
        )
    return rows


def as_records(rows: Sequence[FactorRow] | Sequence[SubsampleRow]) -> list[dict[str, Any]]:
    """Plain dictionaries."""
    return [asdict(row) for row in rows]
