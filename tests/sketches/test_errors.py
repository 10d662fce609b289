"""What no sketch can be made of: the errors name the argument and the remedy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from shared.sketch_examples import MOMENTS
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
    SystematicSampling,
)

GENERATOR = np.random.default_rng(0)
NO_COVARIANCE = [[0.9, 0.5], [0.5, 0.9]]  # P ⪰ 0, but P − 11ᵀ has the eigenvalue −0.6


def from_moments(P: object, sampler: object = lambda rng, n: np.ones((n, 2)), sent: object = None) -> Sketch:
    return DiagonalSketch.from_moments(P, sampler, sent)  # type: ignore[arg-type]


def from_support(vectors: object, weights: object) -> Sketch:
    return DiagonalSketch.from_support(vectors, weights)  # type: ignore[arg-type]


VALUE_ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: Identity(0), "d must be a whole number of at least 1, got 0"),
    (lambda: Identity(2.5), "d must be a whole number of at least 1, got 2.5"),
    (lambda: RandK(10, 11), "k must be a whole number from 1 to d=10, got 11"),
    (lambda: RandK(10, 0), "k must be a whole number from 1 to d=10, got 0"),
    (lambda: RandK(10, 2.5), "k must be a whole number from 1 to d=10, got 2.5"),
    (lambda: RandK(10, float("nan")), "k must be a whole number from 1 to d=10, got nan"),
    (lambda: RandK(10, float("inf")), "k must be a whole number from 1 to d=10, got inf"),
    (lambda: Gaussian(3, 4), "k must be a whole number from 1 to d=3, got 4"),
    (lambda: BernQ(0.0, 3), r"q must be in \(0, 1\], got 0"),
    (lambda: BernQ([0.5, 1.5], [1, 2]), r"q\[1\] must be in \(0, 1\], got 1.5"),
    (lambda: BernQ(float("nan"), 3), "q must be finite, got NaN or infinity"),
    (lambda: BernQ([0.5, 0.5], [1, 2, 3]), "q must be one number or one for each of the 3 layers, got 2 numbers"),
    (lambda: BernQ([], 3), r"q must be a number or a list of numbers in \(0, 1\], got shape \(0,\)"),
    (lambda: BernQ(0.5, 0), "sizes must be a whole number of at least 1, got 0"),
    (lambda: BernQ(0.5, [2, 0]), r"sizes\[1\] must be a whole number of at least 1, got 0"),
    (lambda: BernQ(0.5, [2, 1.5]), r"sizes\[1\] must be a whole number of at least 1, got 1.5"),
    (lambda: BernQ(0.5, []), "sizes must not be empty"),
    (lambda: IndependentSampling([0.5, 0.0]), r"p\[1\] must be in \(0, 1\], got 0"),
    (lambda: IndependentSampling([0.5, -0.1]), r"p\[1\] must be in \(0, 1\], got -0.1"),
    (lambda: SystematicSampling([0.5, 0.0]), r"p\[1\] must be in \(0, 1\], got 0"),
    (lambda: IndependentSampling(0.5), r"p must be a list of numbers in \(0, 1\], got shape \(\)"),
    (lambda: IndependentSampling([]), r"p must be a list of numbers in \(0, 1\], got shape \(0,\)"),
    (lambda: IndependentSampling([0.5, np.inf]), "p must be finite"),
    (lambda: from_support([1.0, 1.0], [1.0]), r"vectors must have shape \(R, d\) with R and d at least 1, got \(2,\)"),
    (lambda: from_support([[1.0, 2.0], [1.0]], [0.5, 0.5]), "vectors must be an array of numbers: .*inhomogeneous"),
    (lambda: from_support([[3.0], [-1.0]], [0.5, 0.5]), "vectors must be nonnegative, .* got an entry -1"),
    (lambda: from_support([[np.nan]], [1.0]), "vectors must be finite"),
    (lambda: from_support([[2.0], [0.5]], [0.5, 0.5]), r"vectors must average to the identity \(E.* off by 0.25"),
    (lambda: from_support([[1.0], [1.0]], [1.0]), r"weights must have one .* of the 2 vectors, got shape \(1,\)"),
    (lambda: from_support([[1.0], [1.0]], [1.5, -0.5]), "weights must be nonnegative, got -0.5"),
    (lambda: from_support([[1.0], [1.0]], [0.5, 0.4]), "weights must add up to 1, got 0.9"),
    (lambda: from_support([[1.0], [1.0]], [0.5, np.nan]), "weights must be finite"),
    (lambda: from_moments([[1.0, 1.0]]), r"P must be a square matrix, got shape \(1, 2\)"),
    (lambda: from_moments([[2.0, 1.0], [0.5, 2.0]]), "P must be symmetric, .* differ from their mirror images by 0.5"),
    (lambda: from_moments([[3.0, -1.0], [-1.0, 3.0]]), "P must have nonnegative entries, .* got an entry -1"),
    (lambda: from_moments(NO_COVARIANCE), "P − 11ᵀ must be positive semidefinite, .* got an eigenvalue -0.6"),
    (lambda: from_moments([[np.inf]]), "P must be finite"),
    (lambda: from_moments(np.ones((2, 2)), sent=3.0), r"expected_nonzeros must be in \(0, d=2\], got 3.0"),
    (
        lambda: from_moments(np.ones((2, 2)), lambda rng, n: np.ones(2)).sample(GENERATOR),
        r"sampler\(rng, size\) must return nonnegative numbers of shape \(1, 2\), got shape \(2,\)",
    ),
    (
        lambda: from_moments(np.ones((2, 2)), lambda rng, n: -np.ones((n, 2))).sample(GENERATOR),
        "must return nonnegative numbers .* got an entry -1",
    ),
    (lambda: FiniteSketch(np.eye(2), [1.0]), r"matrices must have shape \(R, d, d\) with .* got \(2, 2\)"),
    (lambda: FiniteSketch(np.empty((0, 2, 2)), []), r"matrices must have shape .* got \(0, 2, 2\)"),
    (lambda: FiniteSketch([[[1.0, 0.1], [0.0, 1.0]]], [1.0]), r"matrices\[0\] must be symmetric, .* by 0.1"),
    (
        lambda: FiniteSketch([np.eye(2), [[1.0, 2.0], [2.0, 1.0]]], [0.5, 0.5]),
        r"matrices\[1\] must be positive semidefinite, got an eigenvalue -1",
    ),
    (lambda: FiniteSketch([2.0 * np.eye(2)], [1.0]), "matrices must average to the identity .* off by 1"),
    (lambda: FiniteSketch([np.eye(2)], [0.5, 0.5]), "weights must have one entry for each of the 1 matrices"),
    (lambda: LayerWise([]), "layers must not be empty"),
    (lambda: RandK(30, 15).support(), "the law of randk:15 with d=30 has more than the 100000 outcomes"),
    (lambda: BernQ(0.5, [1] * 2000).support(), "more than the 100000 outcomes"),
    (lambda: IndependentSampling([0.5] * 17).support(), "independent:0.5 with d=17 has more than the 100000"),
    (lambda: LayerWise([RandK(10, 5)] * 3).support(), "more than the 100000 outcomes"),
    (lambda: Gaussian(3, 1).support(), "gaussian:1 has no finite support to list"),
    (lambda: MOMENTS.support(), "has no finite support to list"),
    (lambda: LayerWise([Identity(1), Gaussian(3, 1)]).support(), "gaussian:1 has no finite support to list"),
    (lambda: Gaussian(3, 1).second_moment_matrix, "gaussian:1 is not diagonal"),
    (lambda: LayerWise([Identity(1), Gaussian(3, 1)]).sample_diagonal(GENERATOR, 2), "gaussian:1 is not diagonal"),
    (lambda: RandK(3, 1).sample_diagonal(GENERATOR, -1), "size must be a whole number of at least 0, got -1"),
    (lambda: RandK(3, 1).apply(np.ones(4), GENERATOR), r"x must have shape \(3,\) or \(m, 3\), got \(4,\)"),
    (lambda: RandK(3, 1).apply(1.0, GENERATOR), r"x must have shape \(3,\) or \(m, 3\), got \(\)"),
    (lambda: RandK(3, 1).apply(np.ones((1, 1, 3)), GENERATOR), r"x must have shape .* got \(1, 1, 3\)"),
    (lambda: RandK(3, 1).second_moment(np.eye(4)), r"M must have shape \(3, 3\), as randk:1 has d=3; got \(4, 4\)"),
    (lambda: RandK(2, 1).second_moment([[1, 2], [3, 4]]), "M must be symmetric"),
    (lambda: RandK(2, 1).centered_second_moment([[1, np.nan], [np.nan, 4]]), "M must be finite"),
    (lambda: RandK(3, 1).adjoint(np.ones(3)), r"Z must have shape \(3, 3\)"),
]  # fmt: skip

TYPE_ERRORS: list[tuple[Callable[[], object], str]] = [
    (lambda: Identity("3"), "d must be a whole number of at least 1, got '3'"),
    (lambda: Identity(True), "d must be a whole number of at least 1, got True"),
    (lambda: RandK(10, None), "k must be a whole number from 1 to d=10, got None"),
    (lambda: RandK(10, True), "k must be a whole number from 1 to d=10, got True"),
    (lambda: RandK(10, np.True_), "k must be a whole number from 1 to d=10, got np.True_"),
    (lambda: Gaussian(3, 1j), "k must be a whole number from 1 to d=3, got 1j"),
    (lambda: BernQ("half", 3), "q must hold real numbers, got an array of <U4"),
    (lambda: BernQ(True, 3), "q must hold real numbers, got an array of bool"),
    (lambda: BernQ(0.5, "abc"), "sizes must be a whole number of at least 1, got 'abc'"),
    (lambda: BernQ(0.5, [True]), r"sizes\[0\] must be a whole number of at least 1, got True"),
    (lambda: IndependentSampling([0.5, None]), "p must hold real numbers, got an array of object"),
    (lambda: IndependentSampling([0.5j]), "p must hold real numbers, got an array of complex128"),
    (lambda: from_support([["a"]], [1.0]), "vectors must hold real numbers"),
    (lambda: from_support([[1.0]], ["a"]), "weights must hold real numbers"),
    (lambda: from_moments(np.ones((2, 2)), 3), r"sampler must be a function \(rng, size\) -> array .* got 3"),
    (lambda: from_moments(np.ones((2, 2)), sent="1"), "expected_nonzeros must be a number, got '1'"),
    (lambda: FiniteSketch("abc", [1.0]), "matrices must hold real numbers"),
    (lambda: LayerWise([RandK(3, 1), 4]), r"layers\[1\] must be a Sketch, got 4"),
    (lambda: LayerWise(RandK(3, 1)), r"layers must be a list, got RandK\(d=3, k=1\)"),
    (lambda: RandK(3, 1).apply(np.ones(3), 0), "rng must be a numpy Generator, .* got 0"),
    (lambda: RandK(3, 1).sample(None), "rng must be a numpy Generator, .* got None"),
    (lambda: RandK(3, 1).apply([1j, 0, 0], GENERATOR), "x must hold real numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("build", "message"), VALUE_ERRORS, ids=[m for _, m in VALUE_ERRORS])
def test_value_errors(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(("build", "message"), TYPE_ERRORS, ids=[m for _, m in TYPE_ERRORS])
def test_type_errors(build: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def test_the_general_classes_cannot_be_built_directly() -> None:
    for kind in (Sketch, DiagonalSketch):
        with pytest.raises(TypeError, match="abstract"):
            kind(3)  # type: ignore[abstract]
