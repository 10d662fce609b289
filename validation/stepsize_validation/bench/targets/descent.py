"""What the descent metric is worth on real data: its optimum beside those of conditions (3) and (4)."""

from __future__ import annotations

from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import LogisticRegression, load_dataset
from stepsize_opt.sketches import RandK
from stepsize_validation.bench.targets.harness import GAP, Found, Study, Target, at_hand

DATASETS = ("a1a", "mushrooms", "phishing", "w1a", "australian_scale", "heart_scale")
REGS = (1e-1, 1e-3)
# H ⪰ D under the condition, so its optimum is no better, up to the gap of the other.
GAIN = Target("descent: optimum over that of (3)", "×", at_least=1.0 - 2.0 * GAP)
KEPT = Target("descent: rate of the D of (3) over its det(D)^{1/d}", "×", at_least=1.0 - 2.0 * GAP)
SECOND = Target("descent: optimum over that of det-CGD2", "×")
CERTIFIED = Target("descent: certified gap", at_most=GAP)


def gains(quick: bool) -> Found:
    """rand-k with k = 1, d/4, d/2, λ = 0.1, 10⁻³: the best det(H)^{1/d} over the best det(D)^{1/d} of both methods."""
    names, missing = at_hand(("breast_cancer",) if quick else DATASETS)
    yield from missing
    for name in names:
        data = load_dataset(name)
        for reg in REGS:
            L = LogisticRegression.from_dataset(data, reg).smoothness()
            for k in dict.fromkeys((1, max(1, data.d // 4), max(1, data.d // 2))):
                case, sketch = f"{name}, λ = {reg:g}, k = {k}", RandK(data.d, k)
                first, second = optimal_stepsize(L, sketch), optimal_stepsize(L, sketch, algorithm="det-CGD2")
                free = optimal_stepsize(L, sketch, guarantee="descent")
                yield GAIN.of(case, free.rate / first.rate, rate=free.rate)
                yield KEPT.of(case, first.descent_rate / first.rate)
                yield SECOND.of(case, free.rate / second.rate)
                yield CERTIFIED.of(case, free.gap, status=free.status)


STUDIES = (Study("descent.gains", gains),)
