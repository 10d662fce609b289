"""Globally optimal, certified matrix stepsizes for compressed gradient descent.

>>> import numpy as np
>>> from stepsize_opt import RandK, optimal_stepsize
>>> L = np.array([[2.0, 1.0], [1.0, 3.0]])
>>> optimal_stepsize(L, RandK(2, 1)).status
'optimal'
"""

from solvers.base import SolverUnavailable
from solvers.registry import available_solvers
from stepsize_opt.api import StepsizeCheck, certify, optimal_stepsize, optimal_stepsize_path
from stepsize_opt.certificate import Certificate
from stepsize_opt.compare import Comparison, compare
from stepsize_opt.distributed import DistributedResult, optimal_distributed_stepsize
from stepsize_opt.distributed_compare import compare_distributed
from stepsize_opt.result import StepsizeResult
from stepsize_opt.sketch_text import parse_sketch
from stepsize_opt.sketches import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
)
from stepsize_opt.structures import BlockDiagonal, Direction
from stepsize_opt.table1 import CommunicationTable, communication_table

__version__ = "0.1.0"

__all__ = [
    "BernQ",
    "BlockDiagonal",
    "Certificate",
    "CommunicationTable",
    "Comparison",
    "DiagonalSketch",
    "Direction",
    "DistributedResult",
    "FiniteSketch",
    "Gaussian",
    "Identity",
    "IndependentSampling",
    "LayerWise",
    "RandK",
    "Sketch",
    "SolverUnavailable",
    "StepsizeCheck",
    "StepsizeResult",
    "available_solvers",
    "certify",
    "communication_table",
    "compare",
    "compare_distributed",
    "optimal_distributed_stepsize",
    "optimal_stepsize",
    "optimal_stepsize_path",
    "parse_sketch",
]
