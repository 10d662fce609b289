"""Which goal runs best?  The guarantee for the Euclidean gradient norm beside the mean of runs."""

import numpy as np

from stepsize_opt import RandK, optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_validation import run
from stepsize_validation.data import load_dataset, logistic_regression

ROUNDS = 500
f = logistic_regression(load_dataset("digits"), 0.01, "ridge")
L, sketch = f.smoothness(), RandK(f.d, 16)
least = find_infimum(f).found
gap = float(f.value(np.zeros((1, f.d)))[0]) - least

print(f"digits, d = {f.d}, rand-16, {ROUNDS} rounds, means of 3 seeds")
print("goal       structure  mean ‖∇f‖² guaranteed  observed  f − f* at the end")
for goal in ("euclidean", "paper", "descent"):
    for structure in ("scalar", "full"):
        result = optimal_stepsize(L, sketch, goal=goal, structure=structure)
        H = 2.0 * result.D - sketch.second_moment(result.D @ L @ result.D)  # the descent metric
        bound = 2.0 * gap / (ROUNDS * np.linalg.eigvalsh(H)[0])
        record = run(f, result, iterations=ROUNDS, seeds=3)
        end = record.values[:, -1].mean() - least
        print(f"{goal:<10} {structure:<10} {bound:21.1e} {record.euclidean.mean():9.1e} {end:18.1e}")
