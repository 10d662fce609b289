"""Sketches read from text and printed as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from numpy.testing import assert_array_equal

from shared.sketch_examples import EXAMPLES
from stepsize_opt.sketches import (
    BernQ,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
    parse_sketch,
)
from stepsize_validation.properties.strategies import sketches_up_to

TEXTS: list[tuple[str, int, Sketch]] = [
    ("identity", 4, Identity(4)),
    ("randk:8", 20, RandK(20, 8)),
    ("bernq:0.5", 7, BernQ(0.5, 7)),
    ("bernq:1", 2, BernQ(1.0, 2)),
    ("bernq:0.5@3,4", 7, BernQ(0.5, [3, 4])),
    ("bernq:0.5,0.25@3,4", 7, BernQ([0.5, 0.25], [3, 4])),
    ("independent:0.2", 3, IndependentSampling([0.2, 0.2, 0.2])),
    ("systematic:0.25", 3, SystematicSampling([0.25] * 3)),
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


@pytest.mark.slow
@given(
    sketch=sketches_up_to(6, "Identity", "RandK", "BernQ", "IndependentSampling", "SystematicSampling", "Gaussian"),
    other=sketches_up_to(4, "RandK", "BernQ", "IndependentSampling", "Gaussian"),
)
@settings(max_examples=150, deadline=None)
def test_text_round_trip(sketch: Sketch, other: Sketch) -> None:
    for original in (sketch, LayerWise([sketch, other])):
        again = parse_sketch(original.text, original.d)
        assert again == original
        assert type(again.map) is type(original.map)
        M = np.ones((original.d, original.d)) + np.eye(original.d)
        assert_array_equal(again.second_moment(M), original.second_moment(M))


def test_text_is_forgiving_about_blanks_and_case() -> None:
    assert parse_sketch(" RandK: 2 ", 5) == RandK(5, 2)
    assert parse_sketch("layers: 3 = randk:1 ; 4 = bernq:0.5 , 0.1 @ 1, 3", 7) == LayerWise(
        [RandK(3, 1), BernQ([0.5, 0.1], [1, 3])]
    )


@pytest.mark.parametrize(
    ("text", "d", "k"),
    [("randk:25%", 10, 2), ("randk:25%", 8, 2), ("randk:1%", 10, 1), ("randk:100%", 7, 7), ("randk:12.5%", 40, 5)],
)
def test_percentages(text: str, d: int, k: int) -> None:
    assert parse_sketch(text, d) == RandK(d, k)


@pytest.mark.parametrize("name", ["finite", "support", "layers, mixed"])
def test_a_description_is_no_text_form(name: str) -> None:
    sketch = EXAMPLES[name]
    with pytest.raises(ValueError, match="cannot be parsed"):
        parse_sketch(sketch.text, sketch.d)


def test_a_sketch_without_a_text_form_is_shown_by_its_description() -> None:
    assert repr(EXAMPLES["finite"]) == f"<{EXAMPLES['finite'].text}>" == "<finite(d=2, 2 matrices)>"
