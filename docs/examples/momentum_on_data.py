"""What momentum gains on data: floats per nat of the guarantee, and floats until f − f* ≤ 1e-6 in runs.

    python docs/examples/momentum_on_data.py        the data set in the package
    python docs/examples/momentum_on_data.py a1a    files in the folder STEPSIZE_OPT_DATA, all of them in one call

Prints two tables in Markdown for logistic regression with the ridge (λ/2)‖x‖², M = λI.  A nat is a factor e of f − f*.
"""

import statistics
import sys

import numpy as np

from stepsize_opt import RandK, compression_limit, optimal_method, optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_validation.data import load_dataset, logistic_regression

LEVEL = 1e-6
SEEDS = 3


def floats_per_nat(name, reg):
    """One row for each k: k/t of rand-k and of the limit with its formula, without memory and with momentum."""
    L = logistic_regression(load_dataset(name), reg, "ridge").smoothness()
    eigenvalues = np.linalg.eigvalsh(L) / reg  # of LM⁻¹
    rows = []
    for k in (1, len(L) // 4):
        cells = []
        for momentum in (False, True):
            asked = {"goal": "linear", "strong_convexity": reg, "momentum": momentum}
            result = optimal_stepsize(L, RandK(len(L), k), **asked)
            assert result.status == "optimal"
            powers = eigenvalues**0.5 if momentum else eigenvalues
            formula = max(powers.sum(), k * powers[-1])
            cells += [f"{k / result.rate:.0f} | {k / compression_limit(L, k, **asked).value:.0f} | {formula:.0f}"]
        rows.append(f"| {name} | {len(L)} | {reg:g} | {k} | {' | '.join(cells)} |")
    return rows


def run_until(f, least, method, seed):
    """Floats that the subspace method sends until f − f* ≤ LEVEL."""
    rng, sent = np.random.default_rng(seed), 0
    state = method.start(np.zeros(f.d))
    while float(f.value(state.x[None])[0]) - least > LEVEL:
        draw = method.draw(rng)
        numbers = method.encode(f.gradient(method.point(state)[None])[0], draw)
        sent += numbers.size
        state = method.advance(state, numbers, draw)
    return sent


def nesterov(f, least, reg):
    """Floats of Nesterov's method with the step 1/λmax(L), which sends whole gradients."""
    top = float(np.linalg.eigvalsh(f.smoothness())[-1])
    root = (reg / top) ** 0.5
    x = y = np.zeros(f.d)
    rounds = 0
    while float(f.value(x[None])[0]) - least > LEVEL:
        after = y - f.gradient(y[None])[0] / top
        y = after + (1.0 - root) / (1.0 + root) * (after - x)
        x, rounds = after, rounds + 1
    return rounds * f.d


def runs(name, reg):
    """One row: floats of the subspace method with k = 1, median run and guarantee, and of Nesterov's method."""
    f = logistic_regression(load_dataset(name), reg, "ridge")
    least = find_infimum(f, iterations=20000).found
    gap = float(f.value(np.zeros((1, f.d)))[0]) - least
    cells = []
    for momentum in (False, True):
        method = optimal_method(f.smoothness(), 1, goal="linear", strong_convexity=reg, momentum=momentum)
        seen = statistics.median(run_until(f, least, method, seed) for seed in range(SEEDS))
        cells.append(f"{seen:.0f} / {method.iterations(accuracy=LEVEL, initial_gap=gap)}")
    return f"| {name} | {reg:g} | {' | '.join(cells)} | {nesterov(f, least, reg)} |"


if __name__ == "__main__":
    names, quick = sys.argv[1:] or ["breast_cancer"], len(sys.argv) == 1
    print("| data | d | λ | k | rand-k | limit | formula | rand-k, momentum | limit | formula |\n|" + "---|" * 10)
    for name in names:
        for reg in (0.1,) if quick else (0.1, 1e-2, 1e-3):
            print("\n".join(floats_per_nat(name, reg)), flush=True)
    print("\n| data | λ | without memory: run / guarantee | momentum: run / guarantee | Nesterov |\n|" + "---|" * 5)
    for name in names:
        for reg in (0.1,) if quick else (0.1, 1e-3):
            print(runs(name, reg), flush=True)
