"""Sketches: their distributions by enumeration and by sampling, their maps, their values."""

from __future__ import annotations

import inspect
import pickle
from fractions import Fraction
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import example, find, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from shared.moments import listed
from shared.reference_problems import random_smoothness
from shared.sketch_examples import EXAMPLES
from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
    certify,
    optimal_stepsize,
    parse_sketch,
)
from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.duals import Multiplier
from stepsize_opt.proofs.maps import coefficient_roundings, image
from stepsize_opt.proofs.roundings import twice_gamma
from stepsize_opt.sketches.base import sketch_forms
from stepsize_solvers.programs import Pattern
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    Hadamard,
    Layered,
    hadamard,
    is_identity,
)
from stepsize_validation.properties import check_sketch
from stepsize_validation.properties.exact import is_positive_definite, rational, satisfies_condition, second_moment
from stepsize_validation.properties.strategies import DIAGONAL, LISTABLE, SKETCHES, seeds, sketches_up_to

WITHOUT_SUPPORT = ("gaussian", "layers, gaussian")
every_example = pytest.mark.parametrize("sketch", EXAMPLES.values(), ids=EXAMPLES.keys())
with_support = {name: sketch for name, sketch in EXAMPLES.items() if name not in WITHOUT_SUPPORT}
every_listed = pytest.mark.parametrize("sketch", with_support.values(), ids=with_support.keys())
listable = sketches_up_to(5, *LISTABLE)
layers = st.lists(sketches_up_to(2, *LISTABLE), min_size=2, max_size=3).map(LayerWise)


def symmetric(d: int, seed: int = 0) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((d, d))
    return A + A.T


def assert_mean(draws: np.ndarray, expected: np.ndarray) -> None:
    """The mean over the first axis is within five standard errors of what is expected, entry by entry."""
    error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(axis=0) - expected) <= 5.0 * error + 1e-12)


# ---------------------------------------------------------------- the distribution, by enumeration


@given(sketch=sketches_up_to(5), seed=seeds)
@example(sketch=Gaussian(4, 2), seed=0)
@settings(max_examples=150)
def test_a_sketch_is_what_it_says(sketch: Sketch, seed: int) -> None:
    """Beyond ``check_sketch``: sums of several messages, and never more floats than coordinates."""
    check_sketch(sketch, samples=10, seed=seed)
    X, draw = np.random.default_rng(13).standard_normal((3, sketch.d)), sketch.draw(np.random.default_rng(seed))
    S, numbers = sketch.sample(np.random.default_rng(seed)), draw.encode(X)
    assert numbers.shape == (3, draw.size) and draw.size <= sketch.d
    # The factor of S that a FiniteSketch sends by comes from an eigendecomposition.
    close: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-11 * np.abs(S).max()}
    assert_allclose(draw.decode(numbers), X @ S, **close)
    assert_allclose(draw.decode(numbers.sum(axis=0)), X.sum(axis=0) @ S, **close)
    if isinstance(sketch, RandK | Gaussian):
        assert draw.size == sketch.k


@given(sketch=listable | layers, seed=seeds)
def test_numbers_of_a_law_by_enumeration(sketch: Sketch, seed: int) -> None:
    weights, S = listed(sketch)
    assert np.all(weights >= 0.0) and abs(weights.sum() - 1.0) <= 1e-12
    M, Id = symmetric(sketch.d, seed), np.eye(sketch.d)
    size = np.einsum("r,rij->ij", weights, np.abs(S) @ np.abs(M) @ np.abs(S)).max()
    moments = ((sketch.second_moment, S), (sketch.adjoint, S), (sketch.centered_second_moment, S - Id))
    for found, V in moments:
        expected = np.einsum("r,rij->ij", weights, V @ M @ V)
        assert_allclose(found(M), expected, rtol=0.0, atol=1e-12 * (1.0 + size))
    second = np.tensordot(weights, S @ S, axes=1)
    assert sketch.omega == pytest.approx(np.linalg.eigvalsh(second)[-1] - 1.0, rel=1e-9, abs=1e-9)
    ranks = np.array([np.linalg.matrix_rank(A, tol=1e-8 * np.abs(A).max(), hermitian=True) for A in S])
    assert sketch.expected_nonzeros == pytest.approx(weights @ ranks, rel=1e-12)


@given(sketch=sketches_up_to(5, "RandK", "BernQ", "IndependentSampling", "SystematicSampling"))
def test_sampling_probabilities_by_enumeration(sketch: Sketch) -> None:
    weights, diagonals = sketch.support()
    expected = np.unique((weights @ (diagonals > 0.0)).round(12))
    assert_allclose(np.unique(sketch.sampling_probabilities.round(12)), expected, atol=2e-12)


def test_sampling_probabilities_of_listed_outcomes_are_those_of_the_rare_ones() -> None:
    """A coordinate that is always sent, but carries half of its mean in one sample of a hundred."""
    rare = DiagonalSketch([[50.0, 1.0], [0.5 / 0.99, 1.0], [3.0, 3.0]], [0.01, 0.99, 0.0])
    assert_allclose(rare.sampling_probabilities, [0.01])
    ones = np.ones((2, 2))
    finite = FiniteSketch([ones, 2.0 * np.eye(2) - ones, 7.0 * ones], [0.5, 0.5, 0.0])
    assert_allclose(LayerWise([rare, finite, Identity(1)]).sampling_probabilities, [0.01, 0.5, 0.5, 1.0])


@given(sketch=sketches_up_to(5))
def test_no_sketch_samples_a_direction_more_often_than_its_second_moments_allow(sketch: Sketch) -> None:
    found = sketch.sampling_probabilities
    assert np.all((found > 0.0) & (found <= 1.0))
    assert found.min(initial=1.0) <= (1.0 + 1e-12) / (1.0 + sketch.omega)


def test_support_sizes() -> None:
    assert len(RandK(8, 3).support()[0]) == comb(8, 3)
    assert len(IndependentSampling([0.5] * 3 + [1.0] * 97).support()[0]) == 8  # a sure coin has one side


def test_numbers_of_sketches_that_cannot_be_listed() -> None:
    assert Gaussian(7, 2).omega == pytest.approx(4.0)
    assert LayerWise([Gaussian(7, 2), BernQ(0.1, 3)]).omega == pytest.approx(9.0)
    assert Gaussian(7, 2).expected_nonzeros == 2.0


@pytest.mark.parametrize(
    ("sketch", "kind"),
    [
        (BernQ(0.5, [1, 2]), Hadamard),
        (EXAMPLES["support"], Hadamard),
        (LayerWise([RandK(3, 1), Identity(2)]), Hadamard),
        (LayerWise([RandK(3, 1), Gaussian(2, 1)]), Layered),
        (EXAMPLES["finite"], CongruenceSum),
    ],
    ids=str,
)
def test_the_map_takes_its_cheapest_form(sketch: Sketch, kind: type) -> None:
    assert type(sketch.map) is kind and sketch.map is sketch.map


def test_trivial_parameters_give_the_identity() -> None:
    M = symmetric(4)
    for sketch in (RandK(4, 4), BernQ(1.0, 4), BernQ(1.0, [1, 3]), IndependentSampling(np.ones(4))):
        assert_allclose(sketch.second_moment(M), M, rtol=1e-15)
        assert sketch.omega == 0.0
        assert_array_equal(sketch.apply(M, np.random.default_rng(0)), M)


# ---------------------------------------------------------------- sampling


@given(sketch=sketches_up_to(5), seed=seeds)
@settings(max_examples=150)
def test_apply_is_a_sampled_matrix_times_x(sketch: Sketch, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(sketch.d)
    S = sketch.sample(np.random.default_rng(seed))
    assert_array_equal(S, S.T)
    out = sketch.apply(x, np.random.default_rng(seed))
    assert out.shape == x.shape
    assert_allclose(out, S @ x, atol=1e-12 * (1.0 + np.abs(S).max() * np.abs(x).max()) * sketch.d)
    assert_array_equal(out, sketch.apply(x[None], np.random.default_rng(seed))[0])
    assert sketch.apply(np.empty((0, sketch.d)), np.random.default_rng(0)).shape == (0, sketch.d)
    if sketch.is_diagonal:
        assert_array_equal(S, np.diag(sketch.sample_diagonal(np.random.default_rng(seed), 1)[0]))


@every_example
def test_apply_has_the_right_moments_and_independent_rows(sketch: Sketch) -> None:
    x = np.random.default_rng(1).standard_normal(sketch.d)
    draws = sketch.apply(np.tile(x, (20_000, 1)), np.random.default_rng(2))
    assert_mean(draws, x)
    assert_mean(draws[:, :, None] * draws[:, None, :], sketch.second_moment(np.outer(x, x)))
    assert_mean(draws[0::2, :, None] * draws[1::2, None, :], np.outer(x, x))
    # A shared S would make all rows equal.
    assert sketch.omega == 0.0 or len(np.unique(draws[:50], axis=0)) > 1


@every_listed
def test_every_output_comes_from_the_support_with_its_frequency(sketch: Sketch) -> None:
    weights, S = listed(sketch)
    x = np.random.default_rng(5).standard_normal(sketch.d)
    outcomes = S @ x  # all different, since x is generic
    draws = sketch.apply(np.tile(x, (10_000, 1)), np.random.default_rng(6))
    hits = np.abs(draws[:, None, :] - outcomes).max(axis=2) <= 1e-12
    assert np.all(hits.sum(axis=1) == 1)
    assert_mean(hits.astype(float), weights)


def test_randk_is_uniform_where_partial_sorting_is_not_full_sorting() -> None:
    sketch = RandK(300, 90)
    diagonals = sketch.sample_diagonal(np.random.default_rng(0), 5_000)
    assert_array_equal(np.count_nonzero(diagonals, axis=1), 90)
    assert_mean(diagonals, np.ones(300))
    assert_mean(diagonals[:, :-1] * diagonals[:, 1:], np.full(299, sketch.second_moment_matrix[0, 1]))


@given(sketch=sketches_up_to(5, *DIAGONAL), seed=seeds)
def test_diagonals_do_not_depend_on_how_many_are_drawn_at_once(sketch: Sketch, seed: int) -> None:
    together, single = (np.random.default_rng(seed) for _ in range(2))
    rows = [sketch.sample_diagonal(single, count) for count in (1, 3, 1, 4)]
    assert_array_equal(sketch.sample_diagonal(together, 9), np.vstack(rows))


# ---------------------------------------------------------------- values: copies, equality, conversions


@pytest.mark.parametrize(
    ("build", "array", "kept"),
    [
        (IndependentSampling, [0.5, 0.2], lambda s: s.p),
        (lambda q: BernQ(q, [1, 1]), [0.5, 0.5], lambda s: s.q),
        (lambda v: DiagonalSketch(v, [0.5, 0.5]), [[2.0, 0.0], [0.0, 2.0]], lambda s: s.vectors),
        (lambda w: DiagonalSketch(2.0 * np.eye(2), w), [0.5, 0.5], lambda s: s.weights),
        (lambda m: FiniteSketch(m, [1.0]), [[[1.0, 0.0], [0.0, 1.0]]], lambda s: s.matrices),
    ],
    ids=["p", "q", "vectors", "weights", "matrices"],
)
def test_arrays_are_copied_and_read_only(build: Any, array: Any, kept: Any) -> None:
    given = np.array(array)
    sketch = build(given)
    assert_array_equal(given, array)
    given[...] = 9.0
    assert_array_equal(kept(sketch), array)
    assert not kept(sketch).flags.writeable


@every_example
def test_sketches_are_values_and_leave_arguments_alone(sketch: Sketch) -> None:
    again = pickle.loads(pickle.dumps(sketch))
    assert again == sketch and hash(again) == hash(sketch)
    assert sketch not in [other for other in EXAMPLES.values() if other is not sketch]
    with pytest.raises(AttributeError):
        sketch.d = 3  # type: ignore[misc]
    M, rng = symmetric(sketch.d), np.random.default_rng(0)
    M.setflags(write=False)
    moments = (sketch.second_moment(M), sketch.centered_second_moment(M), sketch.adjoint(M))
    for own in (*moments, sketch.apply(M, rng), sketch.sample(rng)):
        own[...] = 0.0


def test_numbers_of_every_kind_are_accepted() -> None:
    assert RandK(np.int64(6), np.int32(2)) == RandK(6, 2) == RandK(6.0, 2.0)  # type: ignore[arg-type]
    assert type(RandK(6.0, 2.0).k) is int  # type: ignore[arg-type]
    assert BernQ(np.float32(0.5), np.array([1, 2])) == BernQ([0.5, 0.5], (1, 2))  # type: ignore[arg-type]
    assert IndependentSampling(np.array([1, 1])) == IndependentSampling([1.0, 1.0])
    assert_array_equal(Identity(2).apply(np.array([1, 2], dtype=np.int8), np.random.default_rng(0)), [1.0, 2.0])
    assert_array_equal(Identity(2).second_moment([[1, 2], [2, 1]]), [[1.0, 2.0], [2.0, 1.0]])


def test_matrices_symmetric_up_to_rounding_are_accepted() -> None:
    noisy = np.array([np.eye(2)])
    noisy[0, 0, 1] += 1e-14
    _, S = FiniteSketch(noisy, [1.0]).support()
    assert_array_equal(S, S.transpose(0, 2, 1))


def test_nested_layers_are_flattened() -> None:
    a, b, c = RandK(2, 1), BernQ(0.5, 3), Identity(1)
    assert LayerWise([LayerWise([a, b]), c]) == LayerWise([a, b, c])


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


# ---------------------------------------------------------------- sketches read from text and printed as text


TEXTS: list[tuple[str, int, Sketch]] = [
    ("identity", 4, Identity(4)),
    ("randk:8", 20, RandK(20, 8)),
    ("bernq:0.5", 7, BernQ(0.5, 7)),
    ("bernq:0.5@3,4", 7, BernQ(0.5, [3, 4])),
    ("bernq:0.5,0.25@3,4", 7, BernQ([0.5, 0.25], [3, 4])),
    ("independent:0.2", 3, IndependentSampling([0.2, 0.2, 0.2])),
    ("systematic:0.5,0.75,1", 3, SystematicSampling([0.5, 0.75, 1.0])),
    ("independent:0.1,0.2,1e-05", 3, IndependentSampling([0.1, 0.2, 1e-5])),
    ("gaussian:4", 5, Gaussian(5, 4)),
    ("layers:3=randk:1;4=bernq:0.5", 7, LayerWise([RandK(3, 1), BernQ(0.5, 4)])),
    ("layers:3=bernq:0.5,0.1@1,2;2=independent:0.1,0.3", 5,
     LayerWise([BernQ([0.5, 0.1], [1, 2]), IndependentSampling([0.1, 0.3])])),
]  # fmt: skip


@pytest.mark.parametrize(("text", "d", "sketch"), TEXTS, ids=[t for t, _, _ in TEXTS])
def test_text_reads_and_prints(text: str, d: int, sketch: Sketch) -> None:
    assert parse_sketch(text, d) == sketch
    assert sketch.text == str(sketch) == text


@given(sketch=sketches_up_to(6, "BernQ", "IndependentSampling", "SystematicSampling"), other=sketches_up_to(4, "BernQ"))
def test_text_keeps_every_float(sketch: Sketch, other: Sketch) -> None:
    for original in (sketch, LayerWise([sketch, other])):
        assert parse_sketch(original.text, original.d) == original


@pytest.mark.parametrize(
    ("text", "d", "sketch"),
    [
        (" RandK: 2 ", 5, RandK(5, 2)),
        ("layers: 3 = randk:1 ; 4 = bernq:0.5 , 0.1 @ 1, 3", 7, LayerWise([RandK(3, 1), BernQ([0.5, 0.1], [1, 3])])),
        ("randk:25%", 10, RandK(10, 2)),
        ("randk:1%", 10, RandK(10, 1)),
        ("randk:12.5%", 40, RandK(40, 5)),
    ],
)
def test_text_is_forgiving(text: str, d: int, sketch: Sketch) -> None:
    assert parse_sketch(text, d) == sketch


@pytest.mark.parametrize("name", ["finite", "support", "layers, mixed"])
def test_a_description_is_no_text_form(name: str) -> None:
    sketch = EXAMPLES[name]
    assert repr(sketch) == (f"<{sketch.text}>" if name != "layers, mixed" else f"LayerWise(layers={sketch.layers})")
    with pytest.raises(ValueError, match="cannot be parsed"):
        parse_sketch(sketch.text, sketch.d)


# ----------------------------------------------------------------
# arguments of which no sketch can be made: the type of the error, and the argument that it names


# What the error names, for a text and a dimension.
WRONG_TEXTS: list[tuple[str, int, str]] = [
    ("top-k:3", 5, "biased"),
    ("natural", 5, "linear"),
    ("rand-k:3", 5, "did you mean"),
    ("", 5, "unknown name"),
    ("identity:3", 5, "identity"),
    ("randk", 5, "k"),
    ("randk:101%", 10, "percentage"),
    ("randk:x%", 10, "percentage"),
    ("bernq:1.5", 4, "q"),
    ("bernq:0.5@3,4", 10, "layer sizes"),
    ("bernq:0.5@3,x", 10, "layer size"),
    ("independent:0.1,0.2", 3, "p"),
    ("layers:3", 3, "layer"),
    ("layers:3=randk:1;2=identity", 4, "layer sizes"),
    ("layers:2=" * 500 + "randk:1", 2, "layer"),
    ("finite(d=4, 3 matrices)", 4, "describes"),
]


@pytest.mark.parametrize(("text", "d", "part"), WRONG_TEXTS, ids=[text[:20] for text, _, _ in WRONG_TEXTS])
def test_the_error_names_the_part_of_a_text(text: str, d: int, part: str) -> None:
    with pytest.raises(ValueError, match=rf"sketch '.*\b{part}\b"):
        parse_sketch(text, d)


@pytest.mark.parametrize("p", [1e-11, 1e-13])
def test_a_rare_coordinate_is_solved(p: float) -> None:
    L = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 3.0]])
    result = optimal_stepsize(L, IndependentSampling([p, 0.5, 0.5]))
    assert result.status == "optimal" and certify(result, L).feasible


# ----------------------------------------------------------------
# certificates hold for the distribution as documented: sums are enclosed, nothing is equal by rounding alone


def _outcomes(seed: int, count: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Diagonals that average to one up to rounding, with equal weights that do not add up to exactly one."""
    weights = np.full(count, 1.0 / count)
    vectors = np.random.default_rng(seed).uniform(0.5, 1.5, (count, d))
    return vectors / (weights @ vectors), weights


@pytest.fixture(params=["support", "finite"])
def rounded(request: pytest.FixtureRequest) -> Sketch:
    """A thousand outcomes, of which every partial sum is rounded."""
    vectors, weights = _outcomes(1, 1000, 2)
    if request.param == "support":
        return DiagonalSketch(vectors, weights)
    return FiniteSketch(vectors[:, :, None] * np.eye(2), weights)


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([1, 2, 7, 100, 1000]))
def test_second_moments_of_a_support_are_within_their_roundings(seed: int, count: int) -> None:
    sketch = DiagonalSketch(*_outcomes(seed, count, 2))
    exact = second_moment(sketch, [[Fraction(1)] * 2] * 2)
    P, bound = sketch.second_moment_matrix, Fraction(twice_gamma(coefficient_roundings(sketch.map)))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert abs(Fraction(float(P[i, j])) - exact[i][j]) <= bound * exact[i][j]


@pytest.mark.parametrize("arithmetic", [Enclosed, Pair])
def test_image_encloses_the_sum_over_all_outcomes(rounded: Sketch, arithmetic: Any) -> None:
    """Every term pushes the sum the same way: 1/3 and 1/1000 are rounded, and so is each partial sum."""
    M = np.full((2, 2), 1.0 / 3.0)
    found = image(rounded.map, Enclosed(M, np.zeros((2, 2))), arithmetic)
    exact = second_moment(rounded, rational(M))
    for i, j in ((0, 0), (0, 1), (1, 1)):
        assert abs(Fraction(float(found.value[i, j])) - exact[i][j]) <= Fraction(float(found.error[i, j]))


@pytest.mark.parametrize("bias", [-9e-10, 9e-10])
def test_a_biased_support_is_divided_by_its_exact_mean(bias: float) -> None:
    """P = E[ssᵀ] of the exact quotients has E[s] = 1 and lies within the roundings of the map."""
    vectors, weights = _outcomes(0, 7, 2)
    sketch = DiagonalSketch((1.0 + bias) * vectors, (1.0 - bias) * weights)
    w, stored = sketch.support()
    np.testing.assert_allclose(w @ stored / w.sum(), 1.0, rtol=0.0, atol=1e-15)
    total = sum(map(Fraction, w))
    m = [sum(Fraction(a) * Fraction(x) for a, x in zip(w, column, strict=True)) / total for column in stored.T]
    exact = sum(
        Fraction(a) / total * Fraction(x) * Fraction(y) / (m[0] * m[1]) for a, (x, y) in zip(w, stored, strict=True)
    )
    bound = Fraction(twice_gamma(coefficient_roundings(sketch.map)))
    assert abs(Fraction(float(sketch.second_moment_matrix[0, 1])) - exact) <= bound * exact
    assert second_moment(sketch, [[Fraction(1)] * 2] * 2)[0][1] == exact


def test_weights_off_one_by_rounding_are_not_the_identity() -> None:
    """Ten times 0.1 exceeds one: S = I by division, but the coefficients of its map are rounded."""
    sketch = DiagonalSketch(np.ones((10, 2)), np.full(10, 0.1))
    assert is_identity(Identity(2).map) and is_identity(BernQ(1.0, 2).map)
    assert is_identity(IndependentSampling([1.0, 1.0]).map)
    assert not is_identity(sketch.map)
    L = random_smoothness(2, 10.0, 0)
    result = optimal_stepsize(L, sketch)
    assert satisfies_condition(result.D, L, sketch, "det-CGD1")


def test_columns_that_are_equal_by_rounding_alone_do_not_commute() -> None:
    """s₁ and s₂ differ by one ulp in one outcome: P shows nothing of it, but S is no multiple of the identity."""
    vectors, weights = _outcomes(0, 50, 1)
    twice = np.repeat(vectors, 2, axis=1)
    full = Pattern.full(2)
    assert full.commutes_with(DiagonalSketch(twice, weights).map)
    twice[3, 1] = np.nextafter(twice[3, 1], 2.0)
    sketch = DiagonalSketch(twice, weights)
    assert not full.commutes_with(sketch.map)
    L = random_smoothness(2, 1e2, 0)
    result = optimal_stepsize(L, sketch)
    assert result.status == "optimal"
    assert satisfies_condition(result.D, L, sketch, "det-CGD1")


def test_a_map_that_rounding_has_made_indefinite_still_gives_a_convex_bound() -> None:
    """P has the eigenvalue −5e-10, and so has the image of Z = vvᵀ, v = (1, −1)."""
    P = np.array([[1.0, 1.0 + 5e-10], [1.0 + 5e-10, 1.0]])
    found = Multiplier.near(hadamard(P, 0), np.array([[1.0, -1.0], [-1.0, 1.0]]), Pair)
    assert found is not None
    R = found.R.rounded()
    assert is_positive_definite(rational(R.value - np.diag(R.error.sum(axis=1))))
