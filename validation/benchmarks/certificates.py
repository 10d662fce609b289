"""How long ``verify.py`` takes for a certificate: the numbers of docs/reliability.md.

PYTHONPATH=validation python -m benchmarks.certificates --output docs/results/certificates.csv
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Measured, main
from stepsize_opt import RandK, compression_limit, optimal_method, optimal_stepsize, write_certificate
from stepsize_opt.verify import verify
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import random_smoothness

MU = 1e-3
MOMENTUM: dict[str, Any] = {"goal": "linear", "strong_convexity": MU, "momentum": True}
CASES: dict[str, Callable[[Matrix, int], Any]] = {
    "paper": lambda L, k: optimal_stepsize(L, RandK(len(L), k)),
    "descent": lambda L, k: optimal_stepsize(L, RandK(len(L), k), goal="descent"),
    "euclidean": lambda L, k: optimal_stepsize(L, RandK(len(L), k), goal="euclidean"),
    "det-CGD2": lambda L, k: optimal_stepsize(L, RandK(len(L), k), algorithm="det-CGD2"),
    "momentum": lambda L, k: optimal_stepsize(L, RandK(len(L), k), **MOMENTUM),
    "limit": compression_limit,
    "method": optimal_method,
}


def certificates(quick: bool) -> Iterator[Measured]:
    """Verify files of rand-d/4, condition number 10³, in processor seconds."""
    for d in (10, 30) if quick else (30, 200):
        L = random_smoothness(np.random.default_rng(d), d, 1e3)
        for name, solve in CASES.items():
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "D.cert.json"
                M = MU if name == "momentum" else None
                write_certificate(solve(L, d // 4), L, path, strong_convexity=M)
                content = json.loads(path.read_text(encoding="utf-8"))
            start = time.process_time()
            verify(content)
            yield Measured("processor seconds", f"{name}, d = {d}", time.process_time() - start)


if __name__ == "__main__":
    sys.exit(main([certificates]))
