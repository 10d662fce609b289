"""Globally optimal, certified matrix stepsizes for compressed gradient descent.

>>> import numpy as np
>>> from stepsize_opt import RandK, optimal_stepsize
>>> L = np.array([[2.0, 1.0], [1.0, 3.0]])
>>> optimal_stepsize(L, RandK(2, 1)).status
'optimal'

The classes of what the functions return and raise are in ``stepsize_opt.results``.
"""

from stepsize_opt.certificates import write_certificate
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.inputs.matrices import EstimatedSmoothness
from stepsize_opt.inputs.structures import BlockDiagonal, Direction
from stepsize_opt.limit import compression_limit, optimal_method
from stepsize_opt.methods import CompressedStep, Feedback, Method
from stepsize_opt.node import certify, optimal_stepsize, to_cvxpy
from stepsize_opt.planning import Budget, compare, compare_distributed, plan
from stepsize_opt.sketches.base import Sketch, parse_sketch
from stepsize_opt.sketches.diagonal import BernQ, Identity, IndependentSampling, RandK, SystematicSampling
from stepsize_opt.sketches.general import DiagonalSketch, FiniteSketch, Gaussian, LayerWise
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_solvers import available_solvers

__version__ = "1.0.0rc1"

__all__ = [
    "BernQ",
    "BlockDiagonal",
    "Budget",
    "CompressedStep",
    "DiagonalSketch",
    "Direction",
    "EstimatedSmoothness",
    "Feedback",
    "FiniteSketch",
    "Gaussian",
    "Identity",
    "IndependentSampling",
    "LayerWise",
    "LowRankPlusDiagonal",
    "Method",
    "RandK",
    "Sketch",
    "SystematicSampling",
    "available_solvers",
    "certify",
    "compare",
    "compare_distributed",
    "compression_limit",
    "optimal_distributed_stepsize",
    "optimal_method",
    "optimal_stepsize",
    "parse_sketch",
    "plan",
    "to_cvxpy",
    "write_certificate",
]
