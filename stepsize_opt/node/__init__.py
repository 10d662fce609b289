"""One node: the optimal stepsize, its certificate and what it predicts."""

from stepsize_opt.node.api import optimal_stepsize
from stepsize_opt.node.checks import StepsizeCheck, certify
from stepsize_opt.node.comparison import Comparison, ComparisonRow, compare
from stepsize_opt.node.complexity import coordinates_sent, iterations_needed, linear_iterations
from stepsize_opt.node.conic_form import CvxpyForm, to_cvxpy
from stepsize_opt.node.goals import CRITERIA, GUARANTEES, Guarantee
from stepsize_opt.node.large import LargeStepsizeResult
from stepsize_opt.node.powers import inverse_of, power_of
from stepsize_opt.node.reductions import reduce_problem
from stepsize_opt.node.result import StepsizeResult

__all__ = [
    "CRITERIA",
    "GUARANTEES",
    "Comparison",
    "ComparisonRow",
    "CvxpyForm",
    "Guarantee",
    "LargeStepsizeResult",
    "StepsizeCheck",
    "StepsizeResult",
    "certify",
    "compare",
    "coordinates_sent",
    "inverse_of",
    "iterations_needed",
    "linear_iterations",
    "optimal_stepsize",
    "power_of",
    "reduce_problem",
    "to_cvxpy",
]
