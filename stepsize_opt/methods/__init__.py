"""Methods: one update, one class."""

from stepsize_opt.methods.base import (
    Algorithm,
    Compress,
    Condition,
    Factors,
    Method,
    get_method,
    is_scalar,
    method_names,
)
from stepsize_opt.methods.compressed import CompressedStep, Compressor
from stepsize_opt.methods.det_cgd import DetCGD1, DetCGD2, SketchedGradient
from stepsize_opt.methods.subspace import SubspaceMethod, optimal_method

__all__ = [
    "Algorithm",
    "Compress",
    "CompressedStep",
    "Compressor",
    "Condition",
    "DetCGD1",
    "DetCGD2",
    "Factors",
    "Method",
    "SketchedGradient",
    "SubspaceMethod",
    "get_method",
    "is_scalar",
    "method_names",
    "optimal_method",
]
