"""Arguments of which no sketch can be made: the type of the error, and the argument that it names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepsize_opt import certify, optimal_stepsize
from stepsize_opt.sketches import (
    DiagonalBase,
    IndependentSampling,
    Sketch,
    parse_sketch,
)

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
