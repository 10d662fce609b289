"""Compare the certified optima of det-CGD1 and det-CGD2 on data: docs/results/gains.csv.

PYTHONPATH=validation python -m benchmarks.descent_gain > docs/results/gains.csv
"""

from __future__ import annotations

import sys

import pandas as pd

from benchmarks.harness import at_hand
from stepsize_opt import RandK, optimal_stepsize
from stepsize_validation.data import load_dataset, logistic_regression
from stepsize_validation.origin import origin

SMALL = "breast_cancer digits heart_scale australian_scale ionosphere_scale"
DATA = f"{SMALL} phishing mushrooms a1a a9a w1a".split()
SHARES = {"1": lambda d: 1, "d/4": lambda d: d // 4, "d/2": lambda d: d // 2, "3d/4": lambda d: 3 * d // 4}


def gains(name: str, reg: float) -> list[dict[str, object]]:
    """Return the rates of one data set, a row for each k."""
    L = logistic_regression(load_dataset(name), reg).smoothness()
    rows = []
    for share, size in SHARES.items():
        sketch = RandK(len(L), size(len(L)))
        paper = optimal_stepsize(L, sketch)
        second = optimal_stepsize(L, sketch, algorithm="det-CGD2")
        descent = optimal_stepsize(L, sketch, goal="descent")
        rates = {"paper": paper.rate, "paper D, descent": paper.descent_rate, "det-CGD2": second.rate}
        gap = max(paper.gap, second.gap, descent.gap)
        rows.append({"data": name, "λ": reg, "share": share, **rates, "descent": descent.rate, "gap": gap})
    return rows


if __name__ == "__main__":
    found = [row for name in at_hand(*(sys.argv[1:] or DATA)) for reg in (0.1, 1e-3) for row in gains(name, reg)]
    print(origin("PYTHONPATH=validation python -m benchmarks.descent_gain"))
    pd.DataFrame(found).to_csv(sys.stdout, index=False, float_format="%.8g")
