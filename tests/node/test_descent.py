"""The descent metric H = 2D − T(D) in the public functions: its rate, its optimum, its criteria."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stepsize_opt import Method, RandK, Sketch, StepsizeResult, optimal_stepsize
from stepsize_opt.problems import random_smoothness
from stepsize_validation.referee import (
    Rational,
    combine,
    log_det,
    moment,
    random_problem,
    rational,
    second_moment,
)

Matrix = NDArray[np.float64]
L = random_smoothness(np.random.default_rng(3), 6, 1e3)
SKETCH = RandK(6, 2)


def exact_metric(D: Matrix, L: Matrix, sketch: Sketch, algorithm: str | Method = "det-CGD1") -> Rational:
    """2D − T(D) without rounding."""
    exact = rational(D)
    return combine((2, exact), (-1, moment(algorithm, exact, rational(L), partial(second_moment, sketch))))


def structures(d: int) -> list[Any]:
    return ["full", "diagonal", "scalar"]


class TestRate:
    @pytest.mark.parametrize("seed", range(4))
    def test_is_proved_from_below_and_tight(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(6):
            problem = random_problem(rng, 5, 1e5)
            algorithm = str(rng.choice(["det-CGD1", "det-CGD2"]))
            for structure in structures(len(problem.L)):
                r = optimal_stepsize(problem.L, problem.sketch, structure=structure, algorithm=algorithm)
                exact = log_det(exact_metric(r.D, problem.L, problem.sketch, algorithm))
                assert r.descent_log_det <= exact
                assert r.descent_log_det == pytest.approx(float(exact), abs=1e-7 * r.d)
                assert Fraction(r.descent_rate) ** r.d <= Fraction(math.exp(float(exact))) * (1 + Fraction(1, 10**12))
                assert r.descent_rate >= r.rate * (1 - 1e-14)  # H ⪰ D under the condition

    def test_components_and_coordinates_alone_add_up(self) -> None:
        whole = np.zeros((9, 9))
        whole[:4, :4], whole[4:6, 4:6] = L[:4, :4], L[4:, 4:]
        whole[6:, 6:] = np.diag([1.0, 1e-30, 1e30])
        r = optimal_stepsize(whole, RandK(9, 3))
        assert len(r.blocks) == 3
        exact = log_det(exact_metric(r.D, whole, RandK(9, 3)))
        assert r.descent_log_det <= exact
        assert r.descent_log_det == pytest.approx(float(exact), abs=1e-8)

    def test_is_saved_shown_and_used(self, tmp_path) -> None:
        r = optimal_stepsize(L, SKETCH)
        assert r.descent_rate > 1.1 * r.rate
        assert StepsizeResult.load(r.save(tmp_path / "r")).summary() == r.summary()
        assert r.summary()["descent_rate"] == r.descent_rate
        rows = dict(r.rows())
        assert f"{r.descent_rate:.9g}" in rows["descent rate det(H)^(1/d)"]
        assert rows["guarantee used"].startswith("descent")
        assert r.iterations(1e-3, 1.0) == math.ceil(2 / (Fraction(r.descent_rate) * Fraction(1e-3)))
        # H = D for det-CGD2's optimum, so nothing is won there.
        second = optimal_stepsize(L, SKETCH, algorithm="det-CGD2")
        assert second.descent_rate == pytest.approx(second.rate, rel=1e-9)
