"""What the descent metric is worth on real data: the table of docs/validation.md.

Three ratios in each cell, all of certified optima: the optimum of the descent metric over that of condition (3), over
that of det-CGD2, and the descent rate of the D of (3) over its own rate.
"""

from __future__ import annotations

import sys

import pandas as pd

from benchmarks.harness import at_hand
from stepsize_opt import RandK, optimal_stepsize
from stepsize_validation.data import load_dataset, logistic_regression


def gains(name: str, reg: float) -> dict[str, str]:
    """Return the row of one data set."""
    L = logistic_regression(load_dataset(name), reg).smoothness()
    d, gaps = len(L), []
    row = {"data, λ": f"{name}, {reg:g}"}
    for title, k in (("k = 1", 1), ("k = d/4", d // 4), ("k = d/2", d // 2)):
        sketch = RandK(d, k)
        first, second = optimal_stepsize(L, sketch), optimal_stepsize(L, sketch, algorithm="det-CGD2")
        free = optimal_stepsize(L, sketch, goal="descent")
        ratios = (free.rate / first.rate, free.rate / second.rate, first.descent_rate / first.rate)
        row[title] = " / ".join(f"{ratio:.3f}" for ratio in ratios)
        gaps.append(free.gap)
    return {**row, "largest gap": f"{max(gaps):.0e}"}


if __name__ == "__main__":
    names = sys.argv[1:] or ("a1a", "mushrooms", "phishing", "w1a", "australian_scale", "heart_scale")
    print(pd.DataFrame([gains(name, reg) for name in at_hand(*names) for reg in (0.1, 1e-3)]).to_markdown(index=False))
