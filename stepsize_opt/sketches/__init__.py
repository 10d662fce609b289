"""Random unbiased sketches: one law, one class."""

from stepsize_opt.sketches.any_diagonal import DiagonalSketch as DiagonalSketch
from stepsize_opt.sketches.base import (
    DiagonalBase as DiagonalBase,
    Sketch as Sketch,
    read_sketch as read_sketch,
    sketch_of_each as sketch_of_each,
)
from stepsize_opt.sketches.bits import BITS_NOTE as BITS_NOTE, BITS_PER_NUMBER as BITS_PER_NUMBER
from stepsize_opt.sketches.diagonal import (
    BernQ as BernQ,
    Identity as Identity,
    IndependentSampling as IndependentSampling,
    RandK as RandK,
)
from stepsize_opt.sketches.draws import (
    CoordinatesDraw as CoordinatesDraw,
    Draw as Draw,
    FactorDraw as FactorDraw,
    LayersDraw as LayersDraw,
    generators as generators,
)
from stepsize_opt.sketches.general import FiniteSketch as FiniteSketch, Gaussian as Gaussian, LayerWise as LayerWise
from stepsize_opt.sketches.plain import plain_sketch as plain_sketch, sketch_of_plain as sketch_of_plain
from stepsize_opt.sketches.systematic import (
    SystematicSampling as SystematicSampling,
    rounded_to_budget as rounded_to_budget,
)
from stepsize_opt.sketches.text import parse_sketch as parse_sketch, sketch_forms as sketch_forms
