"""Slow: the certified gap on many random problems, on real data and on hard spectra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from shared.reference_problems import DATASETS, smoothness_of
from stepsize_opt import RandK, Sketch, optimal_stepsize
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import with_spectrum
from stepsize_validation.properties.strategies import problems

pytestmark = pytest.mark.slow


@given(problems(max_d=60, max_condition=1e6))
@settings(max_examples=300)
def test_random_problems_are_optimal(problem: tuple[Matrix, Sketch]) -> None:
    """Every sketch, d ≤ 60."""
    L, sketch = problem
    result = optimal_stepsize(L, sketch)
    assert result.status == "optimal" and result.gap <= 1e-6


def check_every_k(L: Matrix) -> None:
    d = len(L)
    for k in {1, max(1, d // 4), max(1, 3 * d // 4)}:
        result = optimal_stepsize(L, RandK(d, k))
        assert result.status == "optimal" and result.gap <= 1e-6, k


@pytest.mark.parametrize("reg", [0.1, 1e-3])
@pytest.mark.parametrize("name", DATASETS)
def test_real_data(name: str, reg: float) -> None:
    check_every_k(smoothness_of(name, reg))


@pytest.mark.parametrize("condition", [1e1, 1e3, 1e5, 1e8])
@pytest.mark.parametrize("d", [10, 40, 100])
def test_spectra(d: int, condition: float) -> None:
    check_every_k(with_spectrum(np.random.default_rng(0), np.geomspace(1.0, condition, d)))
