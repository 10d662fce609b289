"""Logistic regression on breast cancer data: what the optimal stepsize saves, predicted and seen."""

from stepsize_opt import RandK, compare
from stepsize_validation import check_rate, run
from stepsize_validation.data import load_dataset, logistic_regression

objective = logistic_regression(load_dataset("breast_cancer"), reg=0.01)
sketch = RandK(objective.d, 8)  # 8 of 30 coordinates a round
table = compare(objective.smoothness(), sketch)
print(table)

for row in table.rows:
    if not row.result.satisfies_condition:  # Theorem 1 is about stepsizes that satisfy the condition
        continue
    record = run(objective, row.result.D, sketch, algorithm=row.method, iterations=500, seeds=8, seed=0)
    check = check_rate(record)
    print(f"{row.method} {row.stepsize:<12} {check.bound:.3e} predicted, {check.observed:.3e} seen: {check.verdict}")
