"""Smoothness matrices and stepsizes that are never formed: diagonal plus low rank, sparse without negative entries."""

from stepsize_opt.operators.descent import solve_descent, thin_metric
from stepsize_opt.operators.directions import metric_of_inverse, read_direction, solve_direction
from stepsize_opt.operators.gaussian import solve_gaussian
from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.operators.problems import ANSWERS, LargeProblem, large_problem
from stepsize_opt.operators.solve import StructuredAnswer, solve_structured
from stepsize_opt.operators.stepsizes import (
    DiagonalStepsize,
    InverseStepsize,
    LowRankStepsize,
    StepsizeOperator,
    stepsize_from_arrays,
)

__all__ = [
    "ANSWERS",
    "DiagonalStepsize",
    "InverseStepsize",
    "LargeProblem",
    "LowRankPlusDiagonal",
    "LowRankStepsize",
    "StepsizeOperator",
    "StructuredAnswer",
    "large_problem",
    "metric_of_inverse",
    "read_direction",
    "solve_descent",
    "solve_direction",
    "solve_gaussian",
    "solve_structured",
    "stepsize_from_arrays",
    "thin_metric",
]
