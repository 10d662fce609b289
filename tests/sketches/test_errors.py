"""Arguments of which no sketch can be made: the type of the error, and the argument that it names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepsize_opt import certify, optimal_stepsize
from stepsize_opt.sketches import (
    BernQ,
    DiagonalBase,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
    parse_sketch,
)

GENERATOR = np.random.default_rng(0)
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
MASKED: Any = np.ma.array(np.eye(2), mask=[[0, 1], [1, 0]])


CALLS: list[tuple[type[Exception], str, Callable[[], Any]]] = [
    (ValueError, "d", lambda: Identity(0)),
    (TypeError, "d", lambda: Identity("3")),
    (TypeError, "d", lambda: Identity(True)),
    (ValueError, "k", lambda: RandK(10, 11)),
    (ValueError, "k", lambda: RandK(10, 2.5)),
    (ValueError, "k", lambda: RandK(10, float("nan"))),
    (TypeError, "k", lambda: RandK(10, np.True_)),
    (TypeError, "k", lambda: Gaussian(3, 1j)),
    (ValueError, "q", lambda: BernQ(0.0, 3)),
    (ValueError, "q", lambda: BernQ([0.5, 0.5], [1, 2, 3])),
    (TypeError, "q", lambda: BernQ(True, 3)),
    (ValueError, "sizes", lambda: BernQ(0.5, [2, 0])),
    (ValueError, "sizes", lambda: BernQ(0.5, [])),
    (TypeError, "sizes", lambda: BernQ(0.5, "abc")),
    (ValueError, "p", lambda: IndependentSampling([0.5, -0.1])),
    (ValueError, "p", lambda: SystematicSampling([0.5, 0.0])),
    (ValueError, "p", lambda: IndependentSampling(0.5)),
    (ValueError, "p", lambda: IndependentSampling([0.5, np.inf])),
    (TypeError, "p", lambda: IndependentSampling([0.5j])),
    (ValueError, "vectors", lambda: DiagonalSketch([1.0, 1.0], [1.0])),
    (ValueError, "vectors", lambda: DiagonalSketch([[1.0, 2.0], [1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[3.0], [-1.0]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch([[2.0], [0.5]], [0.5, 0.5])),
    (ValueError, "vectors", lambda: DiagonalSketch(MASKED, [0.5, 0.5])),
    (ValueError, "use 0 instead", lambda: DiagonalSketch([[2.0, 1e-200], [0.0, 2.0]], [0.5, 0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [1.0])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [1.5, -0.5])),
    (ValueError, "weights", lambda: DiagonalSketch([[1.0], [1.0]], [0.5, 0.4])),
    (TypeError, "weights", lambda: DiagonalSketch([[1.0]], ["a"])),
    (ValueError, "matrices", lambda: FiniteSketch(np.eye(2), [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([[[1.0, 0.1], [0.0, 1.0]]], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([np.eye(2), INDEFINITE], [0.5, 0.5])),
    (ValueError, "matrices", lambda: FiniteSketch([2.0 * np.eye(2)], [1.0])),
    (ValueError, "matrices", lambda: FiniteSketch([MASKED], [1.0])),
    (ValueError, "weights", lambda: FiniteSketch([np.eye(2)], [0.5, 0.5])),
    (ValueError, "layers", lambda: LayerWise([])),
    (TypeError, "layers", lambda: LayerWise([RandK(3, 1), 4])),
    (ValueError, "outcomes", lambda: RandK(30, 15).support()),
    (ValueError, "outcomes", lambda: BernQ(0.5, [1] * 2000).support()),
    (ValueError, "outcomes", lambda: IndependentSampling([0.5] * 17).support()),
    (ValueError, "outcomes", lambda: LayerWise([RandK(10, 5)] * 3).support()),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).support()),
    (ValueError, "gaussian:1", lambda: Gaussian(3, 1).second_moment_matrix),
    (ValueError, "gaussian:1", lambda: LayerWise([Identity(1), Gaussian(3, 1)]).sample_diagonal(GENERATOR, 2)),
    (ValueError, "size", lambda: RandK(3, 1).sample_diagonal(GENERATOR, -1)),
    (TypeError, "rng", lambda: RandK(3, 1).sample(None)),
    (ValueError, "x", lambda: RandK(3, 1).apply(np.ones((1, 1, 3)), GENERATOR)),
    (TypeError, "x", lambda: RandK(3, 1).apply([1j, 0, 0], GENERATOR)),
    (ValueError, "M", lambda: RandK(3, 1).second_moment(np.eye(4))),
    (ValueError, "M", lambda: RandK(2, 1).second_moment([[1, 2], [3, 4]])),
    (ValueError, "M", lambda: RandK(2, 1).centered_second_moment(MASKED)),
    (ValueError, "Z", lambda: RandK(3, 1).adjoint(np.ones(3))),
    (TypeError, "text", lambda: parse_sketch(8, 10)),
    (ValueError, "d", lambda: parse_sketch("randk:1", 0)),
]  # fmt: skip

# What the error names, for a text and a dimension.
TEXTS: list[tuple[str, int, str]] = [
    ("top:3", 5, "top"),
    ("top-k:3", 5, "biased"),
    ("natural", 5, "linear"),
    ("rand-k:3", 5, "did you mean"),
    ("", 5, "unknown name"),
    ("identity:3", 5, "identity"),
    ("randk", 5, "k"),
    ("randk:11", 10, "k"),
    ("randk:101%", 10, "percentage"),
    ("randk:x%", 10, "percentage"),
    ("bernq:1.5", 4, "q"),
    ("bernq:0.5@3,4", 10, "layer sizes"),
    ("bernq:0.5@3,x", 10, "layer size"),
    ("independent:0.1,0.2", 3, "p"),
    ("gaussian:0", 3, "k"),
    ("layers:3", 3, "layer"),
    ("layers:3=randk:4", 3, "randk:4"),
    ("layers:3=randk:1;2=identity", 4, "layer sizes"),
    ("layers:2=" * 500 + "randk:1", 2, "layer"),
    ("finite(d=4, 3 matrices)", 4, "describes"),
]


@pytest.mark.parametrize(("error", "argument", "call"), CALLS, ids=[argument for _, argument, _ in CALLS])
def test_the_error_names_the_argument(error: type[Exception], argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises(error, match=rf"\b{argument}\b"):
        call()


@pytest.mark.parametrize(("text", "d", "part"), TEXTS, ids=[text[:20] for text, _, _ in TEXTS])
def test_the_error_names_the_part_of_a_text(text: str, d: int, part: str) -> None:
    with pytest.raises(ValueError, match=rf"sketch '.*\b{part}\b"):
        parse_sketch(text, d)


@pytest.mark.parametrize("kind", [Sketch, DiagonalBase])
def test_the_general_classes_cannot_be_built_directly(kind: Any) -> None:
    with pytest.raises(TypeError, match="abstract"):
        kind(3)


@pytest.mark.parametrize("p", [1e-11, 1e-13])
def test_a_rare_coordinate_is_solved(p: float) -> None:
    L = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.2], [0.1, 0.2, 3.0]])
    result = optimal_stepsize(L, IndependentSampling([p, 0.5, 0.5]))
    assert result.status == "optimal" and certify(result, L).feasible


def test_a_coordinate_that_is_too_rare_is_refused_by_the_sketch() -> None:
    with pytest.raises(ValueError, match="the sketch has second moments"):
        optimal_stepsize(np.eye(3) + 0.1, IndependentSampling([1e-30, 0.5, 0.5]))
