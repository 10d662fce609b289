"""Random unbiased sketches: one law, one class."""

from stepsize_opt.sketches.general import (
    DiagonalSketch as DiagonalSketch,
    FiniteSketch as FiniteSketch,
    Gaussian as Gaussian,
    LayerWise as LayerWise,
)
from stepsize_opt.sketches.base import (
    DiagonalBase as DiagonalBase,
    Sketch as Sketch,
    parse_sketch as parse_sketch,
    plain_sketch as plain_sketch,
    read_sketch as read_sketch,
    sketch_forms as sketch_forms,
    sketch_of_each as sketch_of_each,
    sketch_of_plain as sketch_of_plain,
)
from stepsize_opt.sketches.diagonal import (
    BernQ as BernQ,
    Identity as Identity,
    IndependentSampling as IndependentSampling,
    RandK as RandK,
    SystematicSampling as SystematicSampling,
    rounded_to_budget as rounded_to_budget,
)
from stepsize_opt.sketches.draws import (
    CoordinatesDraw as CoordinatesDraw,
    Draw as Draw,
    FactorDraw as FactorDraw,
    LayersDraw as LayersDraw,
    generators as generators,
)
