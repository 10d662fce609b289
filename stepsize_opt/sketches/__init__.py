"""Random unbiased sketches: one law, one class."""

from stepsize_opt.sketches.base import (
    Sketch,
)
from stepsize_opt.sketches.bits import (
    BITS_NOTE,
    BITS_PER_NUMBER,
)
from stepsize_opt.sketches.laws import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
)
from stepsize_opt.sketches.text import (
    parse_sketch,
)

__all__ = [
    "BITS_NOTE",
    "BITS_PER_NUMBER",
    "BernQ",
    "DiagonalSketch",
    "FiniteSketch",
    "Gaussian",
    "Identity",
    "IndependentSampling",
    "LayerWise",
    "RandK",
    "Sketch",
    "parse_sketch",
]
