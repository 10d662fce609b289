"""How far from the limit are det-CGD1 and det-CGD2 on data, and in which basis does the subspace method run best?

    python docs/examples/limit_on_data.py        the data set in the package
    python docs/examples/limit_on_data.py a1a    files in the folder STEPSIZE_OPT_DATA, all of them in one call

Prints two tables in Markdown: limit/rate of the certified optima, so how many times the iterations of the limit they
need, under the paper's condition and by the descent metric of the same D; and the end of runs.
"""

import sys

from stepsize_opt import RandK, compression_limit, optimal_method, optimal_stepsize
from stepsize_validation import run
from stepsize_validation.data import load_dataset, logistic_regression

BASES = ("eigenvectors", "root")


def efficiencies(name: str, reg: float) -> list[str]:
    """One row for each k: limit/rate of det-CGD1 and of det-CGD2."""
    L = logistic_regression(load_dataset(name), reg).smoothness()
    rows = []
    for k in (1, len(L) // 4, len(L) // 2):
        limit, cells = compression_limit(L, k).upper, []
        for algorithm in ("det-CGD1", "det-CGD2"):
            result = optimal_stepsize(L, RandK(len(L), k), algorithm=algorithm)
            assert result.certificate.feasible and result.efficiency <= 1.0
            cells += [f"{limit / result.rate:.2f}", f"{limit / result.guaranteed_rate:.2f}"]
        rows.append(f"| {name} | {len(L)} | {reg:g} | {k} | {' | '.join(cells)} |")
    return rows


def runs(name: str, reg: float, iterations: int) -> str:
    """f at the end and the mean of ‖∇f‖², averaged over the seeds, for each method with k = d/4."""
    f = logistic_regression(load_dataset(name), reg)
    L, k = f.smoothness(), f.d // 4
    cells = []
    for basis in BASES:
        method = optimal_method(L, k, basis=basis)
        cells.append(_end(run(f, method, iterations=iterations)))
    method = optimal_method(L, k, goal="euclidean")
    cells.append(_end(run(f, method, iterations=iterations)))
    for algorithm in ("det-CGD1", "det-CGD2"):
        sketch = RandK(f.d, k)
        D = optimal_stepsize(L, sketch, algorithm=algorithm).D
        cells.append(_end(run(f, D, sketch, algorithm=algorithm, iterations=iterations)))
    return f"| {name} | {reg:g} | {' | '.join(cells)} |"


def _end(record) -> str:
    return f"{record.values[:, -1].mean():.4g}, {record.euclidean.mean():.2g}"


if __name__ == "__main__":
    names, quick = sys.argv[1:] or ["breast_cancer"], len(sys.argv) == 1
    print("| data | d | λ | k | det-CGD1, condition | descent | det-CGD2, condition | descent |\n|" + "---|" * 8)
    for name in names:
        for reg in (0.1,) if quick else (0.1, 1e-3):
            print("\n".join(efficiencies(name, reg)), flush=True)
    print(f"\n| data | λ | {' | '.join(BASES)} | euclidean | det-CGD1 | det-CGD2 |\n|" + "---|" * 7)
    for name in names:
        for reg in (0.1,) if quick else (0.1, 1e-3):
            print(runs(name, reg, 200 if quick else 1500), flush=True)
