"""The subspace method of a LowRankPlusDiagonal: law and rate of the dense one, directions that are applied."""

from __future__ import annotations

import numpy as np
import pytest

from stepsize_opt import LowRankPlusDiagonal, optimal_method
from stepsize_opt.methods import LargeSubspaceMethod


def large(d: int, r: int) -> LowRankPlusDiagonal:
    rng = np.random.default_rng(d)
    return LowRankPlusDiagonal(rng.standard_normal((d, r)), rng.uniform(0.1, 1.0, d))


@pytest.mark.parametrize(("d", "r", "k"), [(1, 1, 1), (7, 1, 2), (12, 5, 3.5), (9, 9, 9)])
def test_directions_are_orthonormal_in_the_norm_of_l_and_the_rate_is_the_limit(d: int, r: int, k: float) -> None:
    L = large(d, r)
    method = optimal_method(L, k)
    assert isinstance(method, LargeSubspaceMethod)
    everything = np.arange(d)
    A = np.column_stack([method.decode(row, everything) for row in np.eye(d)])
    np.testing.assert_allclose(A.T @ L.todense() @ A, np.eye(d), atol=1e-12)
    np.testing.assert_allclose(np.array([method.encode(row, everything) for row in np.eye(d)]), A, atol=1e-13)
    assert method.rate == pytest.approx(optimal_method(L.todense(), k).rate, rel=1e-9)
    draw = method.draw(np.random.default_rng(0))
    assert len(draw) in (int(np.floor(k)), int(np.ceil(k)))
    g = np.linspace(-1.0, 1.0, d)
    np.testing.assert_allclose(method.encode(g, draw), A[:, draw].T @ g, atol=1e-12)
    assert "not proved" in repr(method)


def test_a_round_lowers_a_quadratic_by_what_the_metric_says() -> None:
    L = large(2000, 8)
    method, rng = optimal_method(L, 500), np.random.default_rng(1)
    assert isinstance(method, LargeSubspaceMethod)
    x = method.decode(np.ones(2000), np.arange(2000))
    draw = method.draw(rng)
    moved = x - method.decode(method.encode(L @ x, draw), draw)
    # f = ½‖y‖² for x = Ay: a round deletes the coordinates of y that were drawn.
    assert moved @ (L @ moved) == pytest.approx(0.75 * (x @ (L @ x)))


def test_bad_arguments_are_named() -> None:
    L = large(6, 2)
    with pytest.raises(ValueError, match="k must be at most d=6"):
        optimal_method(L, 7)
    with pytest.raises(ValueError, match="criterion='det'"):
        optimal_method(L, 2, "euclidean")
    method = optimal_method(L, 2)
    with pytest.raises(ValueError, match="gradient must have shape"):
        method.encode(np.ones(5), np.arange(2))
