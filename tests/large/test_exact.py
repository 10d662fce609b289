"""What is proved of stepsizes that are never formed, judged in rational arithmetic for their very floats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepsize_opt import Direction, Gaussian, IndependentSampling, LowRankPlusDiagonal, RandK, Sketch, optimal_stepsize
from stepsize_opt.large.stepsizes import DiagonalStepsize, InverseStepsize
from stepsize_validation.properties import exact

DET_CGD2 = {"algorithm": "det-CGD2"}
CASES: list[tuple[Sketch, dict[str, Any]]] = [
    (RandK(5, 2), DET_CGD2),
    (RandK(5, 2), {**DET_CGD2, "goal": "descent"}),
    (IndependentSampling([0.2, 0.4, 0.5, 0.7, 0.9]), DET_CGD2),
    (Gaussian(5, 2), DET_CGD2),
    (RandK(5, 2), {"structure": "diagonal"}),
    (IndependentSampling([0.2, 0.4, 0.5, 0.7, 0.9]), {"structure": "diagonal"}),
    (Gaussian(5, 1), {"structure": "scalar"}),
    (RandK(5, 3), {"structure": Direction(np.linspace(0.5, 2.0, 5))}),
]


def plus_low_rank(L: LowRankPlusDiagonal) -> Any:
    """UUᵀ + Diag(a) in rational arithmetic."""
    factor = exact.rational(L.U)
    return exact.combine((1, exact.rational(np.diag(L.shift))), (1, exact.product(factor, exact.transpose(factor))))


def formed(D: DiagonalStepsize | InverseStepsize) -> Any:
    """D in rational arithmetic."""
    if isinstance(D, DiagonalStepsize):
        return exact.rational(np.diag(D.x))
    P, C = exact.rational(np.diag(D.p)), exact.rational(D.C)
    PU = exact.product(P, exact.rational(D.U))
    inner = exact.inverse(exact.product(C, exact.transpose(C)))
    return exact.combine((1, P), (-1, exact.product(exact.product(PU, inner), exact.transpose(PU))))


@pytest.mark.parametrize(("size", "unit"), [(0.1, 1.0), (3.0, 1.0), (1e3, 1.0), (3.0, 1e-150), (3.0, 1e150)])
@pytest.mark.parametrize(("sketch", "call"), CASES, ids=[f"{s} {c}" for s, c in CASES])
def test_the_ends_hold_in_exact_arithmetic(sketch: Sketch, call: dict[str, Any], size: float, unit: float) -> None:
    """L is of size unit²."""
    rng = np.random.default_rng(7)
    L = LowRankPlusDiagonal(size * unit * rng.standard_normal((5, 2)), unit**2 * rng.uniform(0.1, 1.0, 5))
    result = optimal_stepsize(L, sketch, **call)
    D, smoothness = formed(result.D), plus_low_rank(L)
    algorithm = call.get("algorithm", "det-CGD1")
    H = exact.descent_metric(D, smoothness, sketch, algorithm)
    assert exact.is_positive_definite(H) and exact.is_positive_definite(D)
    assert result.descent_log_det <= exact.log_det(H)
    of_the_guarantee = exact.log_det(H if result.goal == "descent" else D)
    assert result.certificate.log_det <= of_the_guarantee <= result.certificate.upper_bound
    assert exact.is_positive_semidefinite(exact.condition_slack(D, smoothness, sketch, algorithm))
