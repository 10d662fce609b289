"""A run on sparse data with a stepsize that is an operator, with a checkpoint; as a program it is a process to kill.

cd tests; python -m shared.large_run ALGORITHM CHECKPOINT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt import RandK, optimal_stepsize, smoothness
from stepsize_opt.problems import LogisticRegression
from stepsize_validation import Run, run

ROWS, FEATURES, STEPS, EVERY = 300, 4000, 600, 20


def large_run(algorithm: str, checkpoint: Path | None = None) -> Run:
    """det-CGD1 with a diagonal D, or det-CGD2 with D = (diagonal plus low rank)⁻¹; nothing of size d×d is formed."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, FEATURES, 10 * ROWS)
    X = sparse.csr_array((np.ones(10 * ROWS), (np.repeat(np.arange(ROWS), 10), columns)), shape=(ROWS, FEATURES))
    f = LogisticRegression(X, np.where(rng.random(ROWS) < 0.5, 1.0, -1.0), 1e-2)
    sketch = RandK(FEATURES, FEATURES // 10)
    if algorithm == "det-CGD1":
        result: Any = optimal_stepsize(smoothness.of(f), sketch, structure="diagonal")
    else:
        result = optimal_stepsize(smoothness.logistic(X, 1e-2, rank=8), sketch, algorithm=algorithm)
    return run(
        f,
        result.D,
        sketch,
        algorithm=algorithm,
        iterations=STEPS,
        seeds=2,
        start=np.ones(FEATURES),
        checkpoint=checkpoint,
        checkpoint_every=EVERY,
    )


if __name__ == "__main__":
    large_run(sys.argv[1], Path(sys.argv[2]))
