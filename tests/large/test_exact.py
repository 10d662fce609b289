"""What is proved of stepsizes that are never formed, judged in rational arithmetic for their very floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.goals import GOALS
from stepsize_opt import (
    Direction,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    optimal_stepsize,
)
from stepsize_opt.large import LowRankStepsize
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.properties import exact

CASES: list[tuple[Sketch, dict[str, Any]]] = [
    (RandK(5, 2), {**GOALS["descent"]}),
    (RandK(5, 1), {**GOALS["descent"]}),
    (IndependentSampling([0.2, 0.4, 0.5, 0.7, 0.9]), {**GOALS["descent"]}),
    (Gaussian(5, 2), {**GOALS["descent"]}),
    (Gaussian(5, 2), {}),
    (Gaussian(5, 1), {}),
    (RandK(5, 2), {"structure": "of low rank"}),
    (RandK(5, 3), {"structure": "of low rank", "algorithm": "det-CGD2"}),
]


def plus_low_rank(a: Vector, V: Matrix, sign: int) -> Any:
    """Diag(a) ± VVᵀ in rational arithmetic."""
    factor = exact.rational(V)
    return exact.combine((1, exact.rational(np.diag(a))), (sign, exact.product(factor, exact.transpose(factor))))


@pytest.mark.parametrize(("size", "unit"), [(0.1, 1.0), (3.0, 1.0), (1e3, 1.0), (3.0, 1e-150), (3.0, 1e150)])
@pytest.mark.parametrize(("sketch", "call"), CASES, ids=[f"{s} {c}" for s, c in CASES])
def test_the_ends_hold_in_exact_arithmetic(sketch: Sketch, call: dict[str, Any], size: float, unit: float) -> None:
    """L is of size unit²."""
    rng = np.random.default_rng(7)
    diagonal = np.full(5, 0.3) if isinstance(sketch, Gaussian) else rng.uniform(0.1, 1.0, 5)
    L = LowRankPlusDiagonal(size * unit * rng.standard_normal((5, 2)), unit**2 * diagonal)
    if "structure" in call:
        call = {**call, "structure": Direction(LowRankPlusDiagonal(rng.standard_normal((5, 1)), rng.random(5) + 0.1))}
    result = optimal_stepsize(L, sketch, **call)
    operator = result.D
    assert isinstance(operator, LowRankStepsize)
    D, smoothness = plus_low_rank(operator.a, operator.V, int(operator.sign)), plus_low_rank(L.shift, L.U, 1)
    algorithm = call.get("algorithm", "det-CGD1")
    H = exact.descent_metric(D, smoothness, sketch, algorithm)
    assert exact.is_positive_definite(H) and exact.is_positive_definite(D)
    assert result.descent_log_det <= exact.log_det(H)
    of_the_guarantee = exact.log_det(H if call == GOALS["descent"] else D)
    assert result.certificate.log_det <= of_the_guarantee <= result.certificate.upper_bound
    if result.satisfies_condition:
        assert exact.is_positive_semidefinite(exact.condition_slack(D, smoothness, sketch, algorithm))
