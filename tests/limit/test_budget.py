"""A budget below what probabilities can be."""

from __future__ import annotations

import numpy as np
import pytest

from stepsize_opt import optimal_method


@pytest.mark.parametrize("k", [1e-300, 5e-16, 1e-15])
def test_a_budget_below_the_grid_of_probabilities_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match=r"k must be at least 2\.7e-15 for d=5"):
        optimal_method(np.eye(5), k)
    assert optimal_method(np.eye(5), 2.7e-15).probabilities.min() > 0.0
