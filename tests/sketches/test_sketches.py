"""Sketches: their laws by enumeration and by sampling, their formulas, their values."""

from __future__ import annotations

import copy
import inspect
import pickle
from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from shared.sketch_examples import EXAMPLES, MOMENTS, PROJECTIONS, VECTORS, WEIGHTS, symmetric
from shared.strategies import SKETCHES, problems, seeds, sketches_up_to
from stepsize_opt.sketches import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    parse_sketch,
    sketch_forms,
)
from stepsize_solvers.programs.maps import CongruenceSum, DiagonalPlusScaled, Hadamard, Layered, ScaledPlusTrace

FINITE = (
    "Identity",
    "RandK",
    "BernQ",
    "IndependentSampling",
    "SystematicSampling",
    "DiagonalSketch.from_support",
    "FiniteSketch",
)

WITHOUT_SUPPORT = ("moments", "gaussian", "layers, gaussian")
every_sketch = pytest.mark.parametrize("sketch", EXAMPLES.values(), ids=EXAMPLES.keys())
every_listable = pytest.mark.parametrize(
    "sketch",
    [s for n, s in EXAMPLES.items() if n not in WITHOUT_SUPPORT],
    ids=[n for n in EXAMPLES if n not in WITHOUT_SUPPORT],
)
every_random = pytest.mark.parametrize(
    "sketch", [s for s in EXAMPLES.values() if s.omega > 0.0], ids=[n for n, s in EXAMPLES.items() if s.omega > 0.0]
)


def law(sketch: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """Weights and matrices of the support."""
    weights, values = sketch.support()
    return weights, values if values.ndim == 3 else values[:, :, None] * np.eye(sketch.d)


def assert_mean(draws: np.ndarray, expected: np.ndarray) -> None:
    """The mean over the first axis is within five standard errors of what is expected, entry by entry."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= 5.0 * error + 1e-12)


# ---------------------------------------------------------------- the law, by enumeration


@given(sketch=sketches_up_to(5, *FINITE), seed=seeds)
@settings(max_examples=150, deadline=None)
def test_second_moments_equal_the_enumeration(sketch: Sketch, seed: int) -> None:
    weights, S = law(sketch)
    M, Id = symmetric(sketch.d, seed), np.eye(sketch.d)
    size = np.einsum("r,rij->ij", weights, np.abs(S) @ np.abs(M) @ np.abs(S)).max()
    close = {"rtol": 0.0, "atol": 1e-12 * (1.0 + size)}
    assert_allclose(sketch.second_moment(M), np.einsum("r,rij->ij", weights, S @ M @ S), **close)
    assert_allclose(sketch.centered_second_moment(M), np.einsum("r,rij->ij", weights, (S - Id) @ M @ (S - Id)), **close)


@every_listable
def test_second_moments_of_the_examples_equal_the_enumeration(sketch: Sketch) -> None:
    weights, S = law(sketch)
    M = symmetric(sketch.d, 3)
    assert_allclose(sketch.second_moment(M), np.einsum("r,rij->ij", weights, S @ M @ S), atol=1e-12)


@given(sketch=sketches_up_to(5, *FINITE))
@settings(max_examples=100, deadline=None)
def test_support_is_an_unbiased_law_of_positive_matrices(sketch: Sketch) -> None:
    weights, S = law(sketch)
    assert np.all(weights >= 0.0)
    assert abs(weights.sum() - 1.0) <= 1e-12
    assert_allclose(np.tensordot(weights, S, axes=1), np.eye(sketch.d), atol=1e-9)
    assert np.all(np.linalg.eigvalsh(S) >= -1e-9 * (1.0 + np.abs(S).max()))


@given(sketch=sketches_up_to(5, *FINITE))
@settings(max_examples=100, deadline=None)
def test_numbers_sent_by_enumeration(sketch: Sketch) -> None:
    weights, S = law(sketch)
    ranks = np.array([np.linalg.matrix_rank(A, tol=1e-8 * np.abs(A).max(), hermitian=True) for A in S])
    assert sketch.expected_nonzeros == pytest.approx(weights @ ranks, rel=1e-12)


@given(sketch=sketches_up_to(5, *FINITE))
@settings(max_examples=100, deadline=None)
def test_omega_by_enumeration(sketch: Sketch) -> None:
    weights, S = law(sketch)
    second = np.tensordot(weights, S @ S, axes=1)
    assert sketch.omega == pytest.approx(np.linalg.eigvalsh(second)[-1] - 1.0, rel=1e-9, abs=1e-9)


@given(sketch=sketches_up_to(5, "RandK", "BernQ", "IndependentSampling", "SystematicSampling"))
@settings(max_examples=100, deadline=None)
def test_sampling_probabilities_by_enumeration(sketch: Sketch) -> None:
    weights, diagonals = sketch.support()
    expected = np.unique((weights @ (diagonals > 0.0)).round(12))
    assert_allclose(np.unique(sketch.sampling_probabilities.round(12)), expected, atol=2e-12)


def test_sampling_probabilities_of_listed_outcomes_are_those_of_the_rare_ones() -> None:
    """A coordinate that is always sent, but carries half of its mean in one draw of a hundred."""
    rare = DiagonalSketch.from_support([[50.0, 1.0], [0.5 / 0.99, 1.0], [3.0, 3.0]], [0.01, 0.99, 0.0])
    assert_allclose(rare.sampling_probabilities, [0.01])
    ones = np.ones((2, 2))
    finite = FiniteSketch([ones, 2.0 * np.eye(2) - ones, 7.0 * ones], [0.5, 0.5, 0.0])
    assert_allclose(LayerWise([rare, finite, Identity(1)]).sampling_probabilities, [0.01, 0.5, 0.5, 1.0])


@every_sketch
def test_no_sketch_samples_a_direction_more_often_than_its_second_moments_allow(sketch: Sketch) -> None:
    found = sketch.sampling_probabilities
    assert np.all((found > 0.0) & (found <= 1.0))
    assert found.min(initial=1.0) <= (1.0 + 1e-12) / (1.0 + sketch.omega)


def test_support_of_layers_is_the_product() -> None:
    weights, diagonals = LayerWise([RandK(2, 1), BernQ(0.25, 1)]).support()
    assert_allclose(weights, [0.125, 0.375, 0.125, 0.375])
    assert_allclose(diagonals, [[2, 0, 4], [2, 0, 0], [0, 2, 4], [0, 2, 0]])


def test_support_sizes() -> None:
    assert len(RandK(8, 3).support()[0]) == comb(8, 3)
    assert len(BernQ(0.5, [1, 2, 3]).support()[0]) == 8
    assert len(IndependentSampling([0.5] * 6).support()[0]) == 64
    assert len(IndependentSampling([0.5] * 3 + [1.0] * 97).support()[0]) == 8  # a sure coin has one side


# ---------------------------------------------------------------- the map


@given(problem=problems(), seed=seeds)
@settings(max_examples=100, deadline=None)
def test_the_map_is_self_adjoint_and_positive(problem: tuple[np.ndarray, Sketch], seed: int) -> None:
    L, sketch = problem
    Z = symmetric(sketch.d, seed)
    image = sketch.second_moment(L)
    assert np.sum(image * Z) == pytest.approx(np.sum(L * sketch.adjoint(Z)), rel=1e-10, abs=1e-10 * np.abs(image).max())
    for psd in (image, sketch.centered_second_moment(L)):
        assert np.linalg.eigvalsh(psd)[0] >= -1e-12 * sketch.d * (1.0 + np.abs(image).max())
    assert_allclose(sketch.centered_second_moment(L), image - L, atol=1e-12 * (1.0 + np.abs(image).max()))


@given(sketch=sketches_up_to(5))
@settings(max_examples=100, deadline=None)
def test_second_moment_matrix_dominates_the_ones(sketch: Sketch) -> None:
    if not sketch.is_diagonal:
        with pytest.raises(ValueError, match="is not diagonal"):
            _ = sketch.second_moment_matrix
        return
    P = sketch.second_moment_matrix
    assert np.linalg.eigvalsh(P - 1.0)[0] >= -1e-9 * np.abs(P).max()
    M = symmetric(sketch.d)
    assert_allclose(sketch.second_moment(M), P * M, atol=1e-12 * np.abs(P).max() * np.abs(M).max())


@given(st.integers(2, 30).flatmap(lambda d: st.tuples(st.just(d), st.integers(1, d))))
def test_randk_formulas(dk: tuple[int, int]) -> None:
    d, k = dk
    P = RandK(d, k).second_moment_matrix
    off = ~np.eye(d, dtype=bool)
    assert_allclose(np.diag(P), d / k, rtol=1e-14)
    assert_allclose(P[off], d * (k - 1) / (k * (d - 1)), rtol=1e-14)
    assert_allclose(P.sum(axis=1), d, rtol=1e-13)  # exactly k coordinates of d/k each: s ᵀ1 = d always
    assert RandK(d, k).omega == pytest.approx(d / k - 1.0, abs=1e-13)


def test_moments_of_the_other_diagonal_sketches() -> None:
    assert_array_equal(Identity(3).second_moment_matrix, np.ones((3, 3)))
    assert_allclose(BernQ(0.25, 2).second_moment_matrix, np.full((2, 2), 4.0))
    assert_allclose(BernQ([0.5, 0.25], [2, 1]).second_moment_matrix, [[2, 2, 1], [2, 2, 1], [1, 1, 4]])
    assert_allclose(IndependentSampling([0.5, 0.2]).second_moment_matrix, [[2, 1], [1, 5]])
    assert_allclose(LayerWise([RandK(2, 1), Identity(1)]).second_moment_matrix, [[2, 0, 1], [0, 2, 1], [1, 1, 1]])
    assert_allclose(EXAMPLES["support"].second_moment_matrix, np.einsum("r,ri,rj->ij", WEIGHTS, VECTORS, VECTORS))


def test_omega_and_numbers_sent() -> None:
    assert Identity(4).omega == 0.0
    assert BernQ([0.5, 0.25], [2, 3]).omega == pytest.approx(3.0)
    assert IndependentSampling([0.5, 0.1]).omega == pytest.approx(9.0)
    assert Gaussian(7, 2).omega == pytest.approx(4.0)
    assert LayerWise([Gaussian(7, 2), BernQ(0.1, 3)]).omega == pytest.approx(9.0)
    assert EXAMPLES["finite"].omega == pytest.approx(1.0)
    sent = {n: EXAMPLES[n].expected_nonzeros for n in ("identity", "randk", "bernq, layers", "independent", "support")}
    assert sent == pytest.approx({"identity": 3, "randk": 2, "bernq, layers": 1.75, "independent": 1.7, "support": 2.5})
    assert EXAMPLES["finite"].expected_nonzeros == pytest.approx(1.0)
    assert EXAMPLES["gaussian"].expected_nonzeros == 2.0
    assert EXAMPLES["layers, mixed"].expected_nonzeros == pytest.approx(2.0)
    assert MOMENTS.expected_nonzeros == pytest.approx(2.1)
    assert DiagonalSketch.from_moments(np.ones((2, 2)), lambda rng, n: np.ones((n, 2))).expected_nonzeros == 2.0


@pytest.mark.parametrize(
    ("sketch", "kind"),
    [
        (Identity(3), DiagonalPlusScaled),
        (RandK(5, 2), DiagonalPlusScaled),
        (RandK(1, 1), DiagonalPlusScaled),
        (BernQ(0.5, 3), DiagonalPlusScaled),
        (BernQ(0.5, [1, 2]), Hadamard),
        (IndependentSampling([0.5, 0.2, 0.1]), DiagonalPlusScaled),
        (EXAMPLES["support"], Hadamard),
        (MOMENTS, Hadamard),
        (LayerWise([RandK(3, 1), Identity(2)]), Hadamard),
        (LayerWise([RandK(3, 1), Gaussian(2, 1)]), Layered),
        (EXAMPLES["finite"], CongruenceSum),
        (Gaussian(3, 2), ScaledPlusTrace),
    ],
    ids=str,
)
def test_the_map_takes_its_cheapest_form(sketch: Sketch, kind: type) -> None:
    assert type(sketch.map) is kind
    assert sketch.map is sketch.map
    assert sketch.map.d == sketch.d


def test_trivial_parameters_give_the_identity() -> None:
    M = symmetric(4)
    for sketch in (RandK(4, 4), BernQ(1.0, 4), BernQ(1.0, [1, 3]), IndependentSampling(np.ones(4))):
        assert_allclose(sketch.second_moment(M), M, rtol=1e-15)
        assert sketch.omega == 0.0
        assert_array_equal(sketch.apply(M, np.random.default_rng(0)), M)


@given(sketch=sketches_up_to(1), seed=seeds)
@settings(max_examples=60, deadline=None)
def test_one_dimension(sketch: Sketch, seed: int) -> None:
    assert sketch.d == 1
    assert sketch.sample(np.random.default_rng(seed)).shape == (1, 1)
    assert sketch.apply([2.0], np.random.default_rng(seed)).shape == (1,)
    assert sketch.second_moment([[3.0]])[0, 0] == pytest.approx(3.0 * (1.0 + sketch.omega))
    assert sketch.expected_nonzeros <= 1.0 + 1e-12


# ---------------------------------------------------------------- sampling


@given(sketch=sketches_up_to(5), seed=seeds)
@settings(max_examples=150, deadline=None)
def test_apply_is_a_sampled_matrix_times_x(sketch: Sketch, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(sketch.d)
    S = sketch.sample(np.random.default_rng(seed))
    assert_array_equal(S, S.T)
    out = sketch.apply(x, np.random.default_rng(seed))
    assert out.shape == x.shape
    assert_allclose(out, S @ x, atol=1e-12 * (1.0 + np.abs(S).max() * np.abs(x).max()) * sketch.d)
    assert_array_equal(out, sketch.apply(x[None], np.random.default_rng(seed))[0])
    if sketch.is_diagonal:
        assert_array_equal(S, np.diag(sketch.sample_diagonal(np.random.default_rng(seed), 1)[0]))


@every_sketch
def test_apply_has_the_right_first_and_second_moments(sketch: Sketch) -> None:
    x = np.random.default_rng(1).standard_normal(sketch.d)
    draws = sketch.apply(np.tile(x, (20_000, 1)), np.random.default_rng(2))
    assert_mean(draws, x)
    assert_mean(draws[:, :, None] * draws[:, None, :], sketch.second_moment(np.outer(x, x)))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_SUPPORT)
def test_second_moment_by_monte_carlo(name: str) -> None:
    sketch, rng = EXAMPLES[name], np.random.default_rng(3)
    M = symmetric(sketch.d, 4)
    S = np.array([sketch.sample(rng) for _ in range(10_000)])
    assert_mean(S, np.eye(sketch.d))
    assert_mean(S @ M @ S, sketch.second_moment(M))
    assert_mean((S - np.eye(sketch.d)) @ M @ (S - np.eye(sketch.d)), sketch.centered_second_moment(M))


@every_listable
def test_every_output_comes_from_the_support_with_its_frequency(sketch: Sketch) -> None:
    weights, S = law(sketch)
    x = np.random.default_rng(5).standard_normal(sketch.d)
    outcomes = S @ x  # all different, since x is generic
    draws = sketch.apply(np.tile(x, (10_000, 1)), np.random.default_rng(6))
    hits = np.abs(draws[:, None, :] - outcomes).max(axis=2) <= 1e-12
    assert np.all(hits.sum(axis=1) == 1)
    assert_mean(hits.astype(float), weights)


@every_random
def test_rows_of_a_batch_are_independent(sketch: Sketch) -> None:
    x = np.random.default_rng(7).standard_normal(sketch.d)
    draws = sketch.apply(np.tile(x, (20_000, 1)), np.random.default_rng(8))
    first, second = draws[0::2], draws[1::2]
    assert_mean(first[:, :, None] * second[:, None, :], np.outer(x, x))
    # A shared S would make all rows equal.
    assert len(np.unique(draws[:50], axis=0)) > 1


@every_sketch
def test_equal_seeds_give_equal_numbers(sketch: Sketch) -> None:
    X = symmetric(sketch.d)
    a, b = (np.random.default_rng(11) for _ in range(2))
    assert_array_equal(sketch.apply(X, a), sketch.apply(X, b))
    assert_array_equal(sketch.sample(a), sketch.sample(b))
    if sketch.is_diagonal:
        assert_array_equal(sketch.sample_diagonal(a, 4), sketch.sample_diagonal(b, 4))


@every_sketch
def test_diagonals_do_not_depend_on_how_many_are_drawn_at_once(sketch: Sketch) -> None:
    if sketch.is_diagonal:
        together, single = (np.random.default_rng(12) for _ in range(2))
        rows = [sketch.sample_diagonal(single, count) for count in (1, 3, 1, 4)]
        assert_array_equal(sketch.sample_diagonal(together, 9), np.vstack(rows))


@every_sketch
def test_messages_decode_to_what_the_sketch_makes(sketch: Sketch) -> None:
    """S x from the numbers sent, S Σxᵢ from the sum of several messages, never more numbers than coordinates."""
    X, sizes = np.random.default_rng(13).standard_normal((3, sketch.d)), []
    for seed in range(20):
        draw, S = (make(np.random.default_rng(seed)) for make in (sketch.draw, sketch.sample))
        numbers = draw.encode(X)
        assert numbers.shape == (3, draw.size)
        # The factor of S that a FiniteSketch sends by comes from an eigendecomposition.
        assert_allclose(draw.decode(numbers), X @ S, rtol=1e-12, atol=1e-12 * np.abs(S).max())
        summed = draw.decode(numbers.sum(axis=0))
        assert_allclose(summed, X.sum(axis=0) @ S, rtol=1e-12, atol=1e-11 * np.abs(S).max())
        sizes.append(draw.size)
    assert max(sizes) <= sketch.d
    if isinstance(sketch, RandK | Gaussian):
        assert set(sizes) == {sketch.k}


@every_sketch
def test_empty_batch(sketch: Sketch) -> None:
    assert sketch.apply(np.empty((0, sketch.d)), np.random.default_rng(0)).shape == (0, sketch.d)


def test_diagonals_of_randk_have_k_entries() -> None:
    diagonals = RandK(9, 4).sample_diagonal(np.random.default_rng(0), 500)
    assert diagonals.shape == (500, 9)
    assert_array_equal(np.count_nonzero(diagonals, axis=1), 4)
    assert set(np.unique(diagonals)) == {0.0, 9 / 4}
    assert {tuple(np.flatnonzero(s)) for s in RandK(4, 2).sample_diagonal(np.random.default_rng(0), 500)} == set(
        combinations(range(4), 2)
    )


def test_randk_is_uniform_where_partial_sorting_is_not_full_sorting() -> None:
    sketch = RandK(300, 90)
    diagonals = sketch.sample_diagonal(np.random.default_rng(0), 5_000)
    assert_array_equal(np.count_nonzero(diagonals, axis=1), 90)
    assert_mean(diagonals, np.ones(300))
    assert_mean(diagonals[:, :-1] * diagonals[:, 1:], np.full(299, sketch.second_moment_matrix[0, 1]))


def test_sample_diagonal_of_layers_is_side_by_side() -> None:
    sketch = LayerWise([RandK(3, 1), BernQ(0.5, 2)])
    diagonals = sketch.sample_diagonal(np.random.default_rng(0), 200)
    assert_array_equal(np.count_nonzero(diagonals[:, :3], axis=1), 1)
    assert_array_equal(diagonals[:, 3], diagonals[:, 4])


# ---------------------------------------------------------------- values: copies, equality, conversions


def test_arrays_are_copied_and_read_only() -> None:
    vectors, weights, p, matrices, P = (
        VECTORS.copy(),
        WEIGHTS.copy(),
        np.array([0.5, 0.2]),
        PROJECTIONS.copy(),
        2 * np.eye(2),
    )
    P += 0.5
    before = copy.deepcopy((vectors, weights, p, matrices, P))
    support = DiagonalSketch.from_support(vectors, weights)
    independent = IndependentSampling(p)
    finite = FiniteSketch(matrices, [0.5, 0.5])
    moments = DiagonalSketch.from_moments(P, lambda rng, n: np.ones((n, 2)))
    kept = [*support.support(), independent.p, *finite.support(), BernQ([0.5, 0.5], [1, 1]).q]
    for array in [*kept, moments.second_moment_matrix, support.second_moment_matrix]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0
    for now, then in zip((vectors, weights, p, matrices, P), before, strict=True):
        assert_array_equal(now, then)
        assert now.flags.writeable
        now[...] = 9.0
    assert_array_equal(independent.p, before[2])
    assert_array_equal(finite.support()[1], before[3])
    assert_array_equal(moments.second_moment_matrix, before[4])


@every_sketch
def test_arguments_are_left_alone(sketch: Sketch) -> None:
    M = symmetric(sketch.d)
    M.setflags(write=False)
    sketch.second_moment(M)[...] = 0.0
    sketch.centered_second_moment(M)[...] = 0.0
    sketch.adjoint(M)[...] = 0.0
    sketch.apply(M, np.random.default_rng(0))[...] = 0.0
    sketch.sample(np.random.default_rng(0))[...] = 0.0


@every_sketch
def test_equality_hash_pickle_and_immutability(sketch: Sketch) -> None:
    again = pickle.loads(pickle.dumps(sketch))
    assert again == sketch
    assert hash(again) == hash(sketch)
    assert sketch not in [other for other in EXAMPLES.values() if other is not sketch]
    with pytest.raises(AttributeError):
        sketch.d = 3  # type: ignore[misc]


def test_numbers_of_every_kind_are_accepted() -> None:
    assert RandK(np.int64(6), np.int32(2)) == RandK(6, 2) == RandK(6.0, 2.0)  # type: ignore[arg-type]
    assert type(RandK(6.0, 2.0).k) is int  # type: ignore[arg-type]
    assert BernQ(np.float32(0.5), np.array([1, 2])) == BernQ([0.5, 0.5], (1, 2))  # type: ignore[arg-type]
    assert BernQ(1, 3) == BernQ(1.0, [3])
    assert IndependentSampling(np.array([1, 1])) == IndependentSampling([1.0, 1.0])
    assert_array_equal(Identity(2).apply(np.array([1, 2], dtype=np.int8), np.random.default_rng(0)), [1.0, 2.0])
    assert_array_equal(Identity(2).second_moment([[1, 2], [2, 1]]), [[1.0, 2.0], [2.0, 1.0]])


def test_matrices_symmetric_up_to_rounding_are_accepted() -> None:
    noisy = PROJECTIONS.copy()
    noisy[0, 0, 1] += 1e-14
    _, S = FiniteSketch(noisy, [0.5, 0.5]).support()
    assert_array_equal(S, S.transpose(0, 2, 1))


def test_nested_layers_are_flattened() -> None:
    a, b, c = RandK(2, 1), BernQ(0.5, 3), Identity(1)
    assert LayerWise([LayerWise([a, b]), c]) == LayerWise([a, b, c])


def test_repr() -> None:
    assert repr(RandK(5, 2)) == "RandK(d=5, k=2)"
    assert repr(BernQ(0.5, [1, 2])) == "BernQ(q=array([0.5, 0.5]), sizes=(1, 2))"
    assert repr(EXAMPLES["finite"]) == "<finite(d=2, 2 matrices)>"


def concrete(kind: type[Sketch]) -> set[type[Sketch]]:
    below = {found for sub in kind.__subclasses__() for found in concrete(sub)}
    return below if inspect.isabstract(kind) else below | {kind}


def test_every_sketch_of_the_library_is_drawn_and_one_with_a_text_form_reads_its_own() -> None:
    library = {kind for kind in concrete(Sketch) if kind.__module__.startswith("stepsize_opt.")}
    drawn = [find(row(3), lambda _: True) for row in SKETCHES.values()]
    assert {type(sketch) for sketch in drawn} == library
    for sketch in drawn:
        if sketch.form:
            assert parse_sketch(sketch.text, sketch.d) == sketch
            assert sketch.form in sketch_forms()
