"""One node: the optimal stepsize, its certificate and what it predicts."""

from stepsize_opt.node.api import optimal_stepsize, optimal_stepsize_path
from stepsize_opt.node.checks import StepsizeCheck, certify
from stepsize_opt.node.comparison import compare
from stepsize_opt.node.conic_form import CvxpyForm, to_cvxpy
from stepsize_opt.node.large import LargeStepsizeResult
from stepsize_opt.node.reductions import reduce_problem
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.node.table1 import CommunicationTable, communication_table

__all__ = [
    "CommunicationTable",
    "CvxpyForm",
    "LargeStepsizeResult",
    "StepsizeCheck",
    "StepsizeResult",
    "certify",
    "communication_table",
    "compare",
    "optimal_stepsize",
    "optimal_stepsize_path",
    "reduce_problem",
    "to_cvxpy",
]
