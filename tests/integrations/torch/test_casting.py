"""A stepsize in a smaller dtype is proved for the numbers that are left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt import Identity, RandK, certify, optimal_stepsize
from stepsize_opt.torch import certified_cast
from stepsize_validation.data import random_smoothness


def test_a_cast_stepsize_is_proved_again() -> None:
    """Rounding alone leaves the condition in about half of all cases; what is returned never does."""
    broken = 0
    for seed in range(8):
        L, sketch = random_smoothness(np.random.default_rng(seed), 5, 1e3), RandK(5, 2)
        D = optimal_stepsize(L, sketch).D
        broken += not certify(D.astype(np.float32), L, sketch).feasible
        cast = certified_cast(D, L, sketch)
        assert cast.dtype == torch.float32
        assert certify(cast.numpy().astype(float), L, sketch).feasible
        np.testing.assert_allclose(cast.numpy(), D, rtol=1e-5, atol=1e-6 * D.max())
    assert broken > 0
    with pytest.raises(ValueError, match=r"no multiple of D rounded to torch\.bfloat16"):
        L = random_smoothness(np.random.default_rng(0), 5, 1e8)
        certified_cast(optimal_stepsize(L, RandK(5, 2)).D, L, RandK(5, 2), torch.bfloat16)
    with pytest.raises(ValueError, match="check that D is positive definite"):
        certified_cast(np.diag([1.0, -1.0]), np.eye(2), RandK(2, 1), torch.float64)


def test_a_cast_is_proved_for_its_goal() -> None:
    L, sketch = random_smoothness(np.random.default_rng(1), 6, 1e3), RandK(6, 3)
    result = optimal_stepsize(L, sketch, goal="descent")
    cast = certified_cast(result.D, L, sketch, goal="descent").double().numpy()
    check = certify(cast, L, sketch)
    assert not check.feasible and check.descent.feasible
    assert check.descent_rate == pytest.approx(result.rate, rel=1e-5)
    under_the_condition = certify(certified_cast(result.D, L, sketch).double().numpy(), L, sketch)
    assert under_the_condition.feasible and under_the_condition.descent_rate < 0.9 * result.rate
    with pytest.raises(ValueError, match=r"beyond the range of torch\.float16"):
        certified_cast(1e6 * np.eye(2), 1e-7 * np.eye(2), Identity(2), torch.float16)
    with pytest.raises(TypeError, match="D"):
        certified_cast(aslinearoperator(np.eye(2)), np.eye(2), Identity(2))
