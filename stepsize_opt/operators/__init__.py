"""Smoothness matrices and stepsizes that are never formed: diagonal plus low rank, sparse without negative entries."""

from stepsize_opt.operators.matrices import LowRankPlusDiagonal
from stepsize_opt.operators.problems import ANSWERS, LargeProblem, large_problem
from stepsize_opt.operators.solve import StructuredAnswer, solve_structured
from stepsize_opt.operators.stepsizes import DiagonalStepsize, InverseStepsize, StepsizeOperator, stepsize_from_arrays

__all__ = [
    "ANSWERS",
    "DiagonalStepsize",
    "InverseStepsize",
    "LargeProblem",
    "LowRankPlusDiagonal",
    "StepsizeOperator",
    "StructuredAnswer",
    "large_problem",
    "solve_structured",
    "stepsize_from_arrays",
]
