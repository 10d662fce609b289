"""How far det-CGD1 and det-CGD2 are from the best rate of any method without memory."""

import numpy as np

from stepsize_opt import RandK, compression_limit, optimal_method, optimal_stepsize
from stepsize_validation.data import load_dataset, logistic_regression

L = logistic_regression(load_dataset("breast_cancer"), reg=0.1).smoothness()
d = len(L)
root = np.exp(np.linalg.slogdet(L)[1] / d)  # det(L)^{1/d}

print(" k  formula  compression_limit  subspace method  det-CGD2  det-CGD1")
for k in (1, d // 4, d // 2):
    limit, method = compression_limit(L, k), optimal_method(L, k)
    rates = [
        optimal_stepsize(L, RandK(d, k), algorithm=algorithm, goal="descent").rate
        for algorithm in ("det-CGD2", "det-CGD1")
    ]
    print(f"{k:2}  {k / d / root:.5f}  {limit.value:17.5f}  {method.rate:15.5f}  {rates[0]:.6f}  {rates[1]:.6f}")
