"""Random unbiased sketches: one law, one class."""

from stepsize_opt.sketches.base import (
    Sketch,
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
