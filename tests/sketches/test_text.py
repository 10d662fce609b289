"""Sketches read from text and printed as text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from shared.sketch_examples import EXAMPLES, MOMENTS, symmetric
from shared.strategies import sketches_up_to
from stepsize_opt.sketches import (
    BernQ,
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
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_text_round_trip(sketch: Sketch, data: st.DataObject) -> None:
    other = data.draw(sketches_up_to(4, "RandK", "BernQ", "IndependentSampling", "Gaussian"))
    for original in (sketch, LayerWise([sketch, other])):
        again = parse_sketch(original.text, original.d)
        assert again == original
        assert type(again.map) is type(original.map)
        M = symmetric(original.d)
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


def test_descriptions_of_sketches_without_a_text_form() -> None:
    assert EXAMPLES["finite"].text == "finite(d=2, 2 matrices)"
    assert FiniteSketch([np.eye(2)], [1.0]).text == "finite(d=2, 1 matrix)"
    assert EXAMPLES["support"].text == "diagonal(d=3, 3 vectors)"
    assert MOMENTS.text == "diagonal(d=3, given moments)"
    for sketch in (EXAMPLES["finite"], EXAMPLES["support"], MOMENTS, LayerWise([EXAMPLES["finite"], Identity(1)])):
        with pytest.raises(ValueError, match="cannot be parsed"):
            parse_sketch(sketch.text, sketch.d)


@pytest.mark.parametrize(
    ("text", "d", "message"),
    [
        ("top:3", 5, r"sketch 'top:3': unknown name 'top'; the known forms are identity, randk:8 or randk:25%, bernq"),
        ("", 5, "unknown name ''"),
        ("identity:3", 5, "identity takes nothing after it, got '3'"),
        ("randk", 5, "k must be a number, got ''"),
        ("randk:x", 5, "sketch 'randk:x': k must be a number, got 'x'"),
        ("randk:11", 10, "sketch 'randk:11': k must be a whole number from 1 to d=10, got 11"),
        ("randk:2.5", 10, "k must be a whole number from 1 to d=10, got 2.5"),
        ("randk:nan", 10, "k must be a whole number from 1 to d=10, got nan"),
        ("randk:0%", 10, r"the percentage must be in \(0, 100\], got 0"),
        ("randk:101%", 10, r"the percentage must be in \(0, 100\], got 101"),
        ("randk:x%", 10, "the percentage must be a number, got 'x'"),
        ("bernq:1.5", 4, r"q\[0\] must be in \(0, 1\], got 1.5"),
        ("bernq:0.5,0.5", 4, "q must be one number or one for each of the 1 layers, got 2 numbers"),
        ("bernq:0.5@3,4", 10, "the layer sizes 3, 4 add up to 7, but d=10"),
        ("bernq:0.5@3,x", 10, "a layer size must be a number, got 'x'"),
        ("bernq:0.5@0,4", 4, "a layer size must be a whole number of at least 1, got 0"),
        ("independent:0.1,0.2", 3, "p must be one number or d=3 numbers, got 2"),
        ("independent:", 3, "p must be a number, got ''"),
        ("gaussian:0", 3, "k must be a whole number from 1 to d=3, got 0"),
        ("layers:3", 3, "each layer must read size=sketch, got '3'"),
        ("layers:3=randk:4", 3, "sketch 'layers:3=randk:4': sketch 'randk:4': k must be a whole number from 1 to d=3"),
        ("layers:3=randk:1;x=identity", 3, "a layer size must be a number, got 'x'"),
        ("layers:3=randk:1;2=identity", 4, "the layer sizes 3, 2 add up to 5, but d=4"),
        ("layers:2=layers:2=randk:1", 2, "a layer cannot be layers itself; write all layers in one list, such as"),
        pytest.param("layers:2=" * 500 + "randk:1", 2, "a layer cannot be layers itself", id="500 layers"),
        ("finite(d=4, 3 matrices)", 4, "this only describes a sketch and cannot be parsed"),
        ("randk:1", 0, "d must be a whole number of at least 1, got 0"),
    ],
)
def test_text_errors(text: str, d: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_sketch(text, d)


def test_text_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="text must be a string such as 'randk:8', got 8"):
        parse_sketch(8, 10)  # type: ignore[arg-type]
