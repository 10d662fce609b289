"""Random unbiased sketches: one law, one class."""

from stepsize_opt.sketches.any_diagonal import DiagonalSketch
from stepsize_opt.sketches.base import DiagonalBase, Sketch, read_sketch, sketch_of_each
from stepsize_opt.sketches.bits import BITS_NOTE, BITS_PER_NUMBER
from stepsize_opt.sketches.diagonal import BernQ, Identity, IndependentSampling, RandK
from stepsize_opt.sketches.draws import Draw, generators
from stepsize_opt.sketches.general import FiniteSketch, Gaussian, LayerWise
from stepsize_opt.sketches.systematic import SystematicSampling, rounded_to_budget
from stepsize_opt.sketches.text import parse_sketch, sketch_forms

__all__ = [
    "BITS_NOTE",
    "BITS_PER_NUMBER",
    "BernQ",
    "DiagonalBase",
    "DiagonalSketch",
    "Draw",
    "FiniteSketch",
    "Gaussian",
    "Identity",
    "IndependentSampling",
    "LayerWise",
    "RandK",
    "Sketch",
    "SystematicSampling",
    "generators",
    "parse_sketch",
    "read_sketch",
    "rounded_to_budget",
    "sketch_forms",
    "sketch_of_each",
]
