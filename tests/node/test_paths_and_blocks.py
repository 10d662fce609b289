"""Warm starts along a path, problems with many components, and the theorems that the result names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.reference_problems import random_smoothness
from shared.strategies import seeds
from stepsize_opt import RandK, StepsizeResult, optimal_stepsize


class TestPath:
    L = random_smoothness(15, 1e3, 0)

    def test_every_k(self) -> None:
        sketches = [RandK(15, k) for k in range(1, 16)]
        path: list[StepsizeResult] = []
        for sketch in sketches:
            path.append(optimal_stepsize(self.L, sketch, warm_start=path[-1] if path else None))
        cold = [optimal_stepsize(self.L, sketch) for sketch in sketches]
        for warm, plain in zip(path, cold, strict=True):
            assert warm.status == "optimal"
            assert warm.log_det == pytest.approx(plain.log_det, abs=2e-6 * 15)
        steps = [sum(r.solver_stats.num_iters or 0 for r in results) for results in (path, cold)]
        assert steps[0] < steps[1]

    def test_a_start_of_another_size_is_refused(self) -> None:
        small = optimal_stepsize(random_smoothness(4, 10, 0), RandK(4, 2))
        with pytest.raises(ValueError, match="warm_start is for d=4"):
            optimal_stepsize(self.L, RandK(15, 4), warm_start=small)

    def test_a_bad_start_does_no_harm(self) -> None:
        elsewhere = optimal_stepsize(random_smoothness(15, 1e6, 9), RandK(15, 14))
        result = optimal_stepsize(self.L, RandK(15, 2), warm_start=elsewhere)
        assert result.status == "optimal"


class TestManyBlocks:
    blocks = tuple(random_smoothness(6, 50.0, seed) for seed in range(40))

    def test_blocks_are_solved_one_by_one_and_in_processes(self) -> None:
        L = sparse.block_diag(self.blocks, format="csr")
        sketch = RandK(240, 60)
        one = optimal_stepsize(L, sketch)
        two = optimal_stepsize(L, sketch, n_jobs=2)
        assert one.status == "optimal"
        assert "L splits into 40 connected components" in one.reductions
        assert len(one.blocks) == 40
        np.testing.assert_array_equal(one.D, two.D)
        with pytest.raises(ValueError, match="n_jobs must not be 0"):
            optimal_stepsize(L, sketch, n_jobs=0)

    def test_large_results_are_saved_by_blocks(self, tmp_path, monkeypatch) -> None:
        monkeypatch.setattr("stepsize_opt.node.result.LARGE", 10)
        result = optimal_stepsize(sparse.block_diag(self.blocks[:2], format="csr"), RandK(12, 3))
        path = result.save(tmp_path / "D.npz")
        with np.load(path) as data:
            assert "D" not in data
        np.testing.assert_array_equal(StepsizeResult.load(path).D, result.D)


@settings(max_examples=20)
@given(seeds, st.integers(2, 8), st.floats(0.51, 0.99))
def test_theorem_a_is_named(seed: int, d: int, lowest: float) -> None:
    """λmin of the correlation matrix above ½: rand-1's best D is diagonal."""
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((d, d))
    S = G @ G.T
    S = S / np.sqrt(np.outer(np.diag(S), np.diag(S)))
    lam = np.linalg.eigvalsh(S)[0]
    weight = (1.0 - lowest) / (1.0 - lam)  # the correlation matrix weight·S + (1 − weight)·I has smallest value lowest
    scale = 2.0 ** rng.integers(-3, 4, d)
    L = scale[:, None] * (weight * S + (1.0 - weight) * np.eye(d)) * scale
    result = optimal_stepsize(L, RandK(d, 1))
    np.testing.assert_allclose(result.D, np.diag(1.0 / (d * np.diag(L))), rtol=1e-9, atol=1e-15)
    assert "theorem A: the diagonal stepsize is best" in result.reductions
    assert result.gap < 1e-10


def test_theorem_b_is_named_and_agrees_with_the_iteration() -> None:
    v = np.abs(np.random.default_rng(0).standard_normal(20)) + 0.5
    L = np.outer(v, v) + 0.1 * np.eye(20)
    result = optimal_stepsize(L, RandK(20, 10))
    assert "theorem B: one active direction, D is a matrix geometric mean" in result.reductions
    assert result.gap < 1e-9
    iterated = optimal_stepsize(L, RandK(20, 10), closed_forms=False, tol=1e-9)
    assert iterated.solver_stats.num_iters
    np.testing.assert_allclose(iterated.D, result.D, rtol=0, atol=1e-5 * np.linalg.norm(result.D, 2))
