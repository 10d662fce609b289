"""Each exact reduction against the unreduced problem, closed forms, and problems with many components."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import block_diag

from shared.goals import GOALS, arguments_of
from shared.reference_problems import random_smoothness
from shared.unreduced import optimal_unreduced
from stepsize_opt import (
    BernQ,
    Direction,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    optimal_stepsize,
)
from stepsize_opt.results import StepsizeResult
from stepsize_validation.properties.strategies import Matrix, partitions, problems, seeds, sketches, structures


@st.composite
def disconnected(draw: st.DrawFn) -> tuple[Matrix, Sketch, Any]:
    """An L with one or several components in shuffled order, a sketch and a structure."""
    d = draw(st.integers(2, 6))
    L = block_diag(*[random_smoothness(n, 50.0, draw(seeds)) for n in draw(partitions(d))])
    order = np.random.default_rng(draw(seeds)).permutation(d)
    return L[np.ix_(order, order)], draw(sketches(d)), draw(structures(d, 10.0))


@pytest.mark.parametrize("goal", GOALS)
@settings(max_examples=15)
@given(disconnected(), st.sampled_from(["det-CGD1", "det-CGD2"]))
def test_reduced_and_unreduced_agree(goal: str, problem: tuple[Matrix, Sketch, Any], algorithm: str) -> None:
    """Their certified intervals have a point in common, and are as short as the tolerance asks for."""
    L, sketch, structure = problem
    asked = {"structure": structure, "algorithm": algorithm, **arguments_of(goal, L)}
    reduced, whole = (solve(L, sketch, tol=1e-6, **asked) for solve in (optimal_stepsize, optimal_unreduced))
    assert reduced.status == whole.status == "optimal"
    assert not any("component" in note for note in whole.reductions)
    assert reduced.log_det <= whole.certificate.upper_bound
    assert whole.log_det <= reduced.certificate.upper_bound


def test_components_are_found_and_reported() -> None:
    L = block_diag(random_smoothness(3, 10, 0), random_smoothness(2, 10, 1), [[2.0]])
    result = optimal_stepsize(L, RandK(6, 2))
    assert "L splits into 3 connected components" in result.reductions
    assert np.all(result.D[:3, 3:] == 0.0)
    assert result.D[5, 5] == pytest.approx(1.0 / (3.0 * 2.0), rel=1e-12)
    assert optimal_stepsize(sparse.csr_matrix(L), RandK(6, 2)).log_det == pytest.approx(result.log_det, abs=1e-9)


def test_a_sketch_that_mixes_coordinates_joins_components() -> None:
    L = np.diag([1.0, 2.0, 3.0, 4.0])
    layered = LayerWise([RandK(2, 1), Gaussian(2, 1)])
    assert optimal_stepsize(L, Gaussian(4, 2)).reductions == ("diagonal scaling",)
    assert "L splits into 3 connected components" in optimal_stepsize(L, layered).reductions


class TestClosedForms:
    @pytest.mark.parametrize(
        ("sketch", "algorithm"),
        [
            (Identity(6), "det-CGD1"),
            (BernQ(0.25, 6), "det-CGD1"),
            (RandK(6, 6), "det-CGD1"),
            (RandK(6, 2), "det-CGD2"),
            (IndependentSampling(np.linspace(0.2, 1, 6)), "det-CGD2"),
            (Gaussian(6, 2), "det-CGD2"),
        ],
        ids=str,
    )
    def test_the_inverse_of_the_second_moment(self, sketch: Sketch, algorithm: str) -> None:
        L = random_smoothness(6, 1e3, 2)
        result = optimal_stepsize(L, sketch, algorithm=algorithm)
        np.testing.assert_allclose(result.D, np.linalg.inv(sketch.second_moment(L)), rtol=1e-9)
        assert result.gap < 1e-9
        assert result.solver_stats.solver_name == "closed form"

    def test_rand_1_diagonal(self) -> None:
        L = random_smoothness(7, 1e3, 5)
        result = optimal_stepsize(L, RandK(7, 1), structure="diagonal")
        np.testing.assert_allclose(result.D, np.diag(1.0 / (7.0 * np.diag(L))), rtol=1e-14)
        assert result.gap < 1e-13

    @given(problems(max_d=5))
    @settings(max_examples=20)
    def test_a_direction(self, problem: tuple[Matrix, Sketch]) -> None:
        """γ = 1/λmax(W^{−½} E[SWLWS] W^{−½})."""
        L, sketch = problem
        W = np.linalg.inv(L)
        W = 0.5 * (W + W.T)
        w, V = np.linalg.eigh(W)
        root = (V / np.sqrt(w)) @ V.T
        gamma = 1.0 / np.linalg.eigvalsh(root @ sketch.second_moment(W @ L @ W) @ root)[-1]
        result = optimal_stepsize(L, sketch, structure=Direction(W))
        np.testing.assert_allclose(result.D, gamma * W, rtol=1e-6)

    def test_theorem_2_layer_by_layer(self) -> None:
        """L, W and the sketch share their layers: each γᵢ comes from its own layer."""
        blocks = [random_smoothness(3, 20, 1), random_smoothness(4, 50, 2)]
        parts = [RandK(3, 1), RandK(4, 2)]
        W = block_diag(*[np.linalg.inv(B) for B in blocks])
        result = optimal_stepsize(block_diag(*blocks), LayerWise(parts), structure=Direction(W, (3, 4)))
        alone = [
            optimal_stepsize(B, sketch, structure=Direction(np.linalg.inv(B)))
            for B, sketch in zip(blocks, parts, strict=True)
        ]
        np.testing.assert_allclose(result.D, block_diag(*[r.D for r in alone]), rtol=1e-10)
        one = optimal_stepsize(block_diag(*blocks), LayerWise(parts), structure=Direction(W))
        assert result.log_det >= one.log_det
        assert result.gap < 1e-10

    @pytest.mark.parametrize(
        ("L", "k", "words"),
        [
            (np.eye(6) + 0.1, 1, "theorem A: the diagonal stepsize is best"),
            (np.ones((6, 6)) + 0.1 * np.eye(6), 3, "theorem B: one active direction, D is a matrix geometric mean"),
        ],
    )
    def test_the_theorems_are_used_and_named(self, L: Matrix, k: int, words: str) -> None:
        result = optimal_stepsize(L, RandK(6, k))
        assert words in result.reductions and result.gap < 1e-9
        iterated = optimal_stepsize(L, RandK(6, k), options={"closed_forms": False}, tol=1e-9)
        assert iterated.solver_stats.num_iters
        np.testing.assert_allclose(iterated.D, result.D, rtol=0, atol=1e-5 * np.linalg.norm(result.D, 2))


class TestManyBlocks:
    blocks = tuple(random_smoothness(6, 50.0, seed) for seed in range(16))

    def test_blocks_are_solved_one_by_one_and_in_processes(self) -> None:
        L = sparse.block_diag(self.blocks, format="csr")
        one, two = (optimal_stepsize(L, RandK(96, 24), n_jobs=jobs) for jobs in (1, 2))
        assert one.status == "optimal"
        assert len(one.blocks) == 16
        np.testing.assert_array_equal(one.D, two.D)

    def test_large_results_are_saved_by_blocks(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("stepsize_opt.node.result.LARGE", 10)
        result = optimal_stepsize(sparse.block_diag(self.blocks[:2], format="csr"), RandK(12, 3))
        path = result.save(tmp_path / "D.npz")
        with np.load(path) as data:
            assert "D" not in data
        np.testing.assert_array_equal(StepsizeResult.load(path).D, result.D)
