"""Each exact reduction against the unreduced problem, and what the result says of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.linalg import block_diag

from shared.reference_problems import random_smoothness
from shared.strategies import partitions, problems, seeds, sketches
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    Direction,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    optimal_stepsize,
)
from stepsize_opt.inputs.matrices import power_of_two_scaling
from stepsize_opt.node.reductions import _block

STRUCTURES = ["full", "diagonal", "scalar"]


def _overlap(a, b) -> bool:
    """Whether two certified intervals [log det D, upper bound] have a point in common."""
    return a.log_det <= b.certificate.upper_bound and b.log_det <= a.certificate.upper_bound


def _same(a, b, tol: float = 3e-6) -> bool:
    return _overlap(a, b) and abs(a.log_det - b.log_det) <= tol * a.d


@st.composite
def disconnected(draw: st.DrawFn):
    """An L with several components in shuffled order, and a sketch."""
    d = draw(st.integers(2, 6))
    sizes = draw(partitions(d))
    L = block_diag(*[random_smoothness(n, 50.0, draw(seeds)) for n in sizes])
    order = np.random.default_rng(draw(seeds)).permutation(d)
    return L[np.ix_(order, order)], draw(sketches(d))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, d=st.integers(1, 12))
def test_blocks_of_a_sparse_matrix_are_those_of_the_array(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    M = np.where(rng.random((d, d)) < 0.3, rng.standard_normal((d, d)), 0.0)
    indices = np.flatnonzero(rng.random(d) < 0.6)
    if indices.size:
        np.testing.assert_array_equal(_block(sparse.csr_array(M), indices), M[np.ix_(indices, indices)])


@settings(max_examples=15)
@given(disconnected(), st.sampled_from(STRUCTURES), st.sampled_from(["det-CGD1", "det-CGD2"]))
def test_reduced_and_unreduced_agree(problem, structure: str, algorithm: str) -> None:
    L, sketch = problem
    reduced = optimal_stepsize(L, sketch, structure=structure, algorithm=algorithm)
    whole = optimal_stepsize(
        L, sketch, structure=structure, algorithm=algorithm, reduce=False, solver="clarabel", tol=1e-5
    )
    assert reduced.status == "optimal"
    assert _same(reduced, whole, 1e-5)


@settings(max_examples=10)
@given(problems(max_d=5, max_condition=1e3), st.data())
def test_blocks_and_directions_agree_unreduced(problem, data) -> None:
    L, sketch = problem
    sizes = tuple(data.draw(partitions(len(L))))
    W = block_diag(*[random_smoothness(n, 10.0, n) for n in sizes])
    for structure in (BlockDiagonal(sizes), Direction(W), Direction(W, sizes)):
        reduced = optimal_stepsize(L, sketch, structure=structure, tol=1e-5)
        whole = optimal_stepsize(L, sketch, structure=structure, reduce=False, solver="clarabel", tol=1e-5)
        assert reduced.status == "optimal"
        assert _same(reduced, whole, 2e-5)


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


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=8))
def test_power_of_two_scaling(values: list[float]) -> None:
    scale = power_of_two_scaling(np.array(values))
    assert np.all(np.frexp(scale)[0] == 0.5)
    assert np.all((scale**2 * values >= 0.5) & (scale**2 * values <= 2.0))


@settings(max_examples=20)
@given(problems(max_d=5), seeds)
def test_power_of_two_scaling_changes_nothing_but_the_scale(problem, seed: int) -> None:
    """D(ΛLΛ) = Λ⁻¹D(L)Λ⁻¹ for a diagonal sketch; a power of two gives the same bits."""
    L, sketch = problem
    if not sketch.is_diagonal:
        return
    scale = 4.0 ** np.random.default_rng(seed).integers(-10, 11, len(L))
    plain = optimal_stepsize(L, sketch)
    scaled = optimal_stepsize(scale[:, None] * L * scale, sketch)
    np.testing.assert_array_equal(scaled.D * scale[:, None] * scale, plain.D)


@pytest.mark.parametrize(("sketch", "factor"), [(Identity(5), 1.0), (BernQ(0.25, 5), 0.25), (RandK(5, 5), 1.0)])
def test_scalar_sketches_have_the_inverse_as_optimum(sketch, factor: float) -> None:
    L = random_smoothness(5, 1e3, 2)
    result = optimal_stepsize(L, sketch)
    np.testing.assert_allclose(result.D, factor * np.linalg.inv(L), rtol=1e-9)
    assert result.gap < 1e-9
    assert result.solver_stats.solver_name == "closed form"
    assert "closed form D = (E[SLS])⁻¹" in result.reductions


def test_det_cgd2_has_the_closed_form() -> None:
    L = random_smoothness(6, 1e3, 4)
    for sketch in (RandK(6, 2), IndependentSampling(np.linspace(0.2, 1, 6)), Gaussian(6, 2)):
        result = optimal_stepsize(L, sketch, algorithm="det-CGD2")
        np.testing.assert_allclose(result.D, np.linalg.inv(sketch.second_moment(L)), rtol=1e-9)
        assert result.gap < 1e-9


def test_rand_1_diagonal() -> None:
    L = random_smoothness(7, 1e3, 5)
    result = optimal_stepsize(L, RandK(7, 1), structure="diagonal")
    np.testing.assert_allclose(result.D, np.diag(1.0 / (7.0 * np.diag(L))), rtol=1e-14)
    assert result.gap < 1e-13


@given(problems(max_d=5))
@settings(max_examples=20)
def test_direction_formula(problem) -> None:
    """γ = 1/λmax(W^{−½} E[SWLWS] W^{−½})."""
    L, sketch = problem
    W = np.linalg.inv(L)
    W = 0.5 * (W + W.T)
    w, V = np.linalg.eigh(W)
    root = (V / np.sqrt(w)) @ V.T
    gamma = 1.0 / np.linalg.eigvalsh(root @ sketch.second_moment(W @ L @ W) @ root)[-1]
    result = optimal_stepsize(L, sketch, structure=Direction(W))
    np.testing.assert_allclose(result.D, gamma * W, rtol=1e-6)


def test_theorem_2_layer_by_layer() -> None:
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


def test_unreduced_problem_reports_no_components() -> None:
    L = block_diag(random_smoothness(2, 10, 0), random_smoothness(2, 10, 1))
    result = optimal_stepsize(L, RandK(4, 1), reduce=False)
    assert not any("component" in note for note in result.reductions)
