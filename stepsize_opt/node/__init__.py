"""One node: the optimal stepsize, its certificate and what it predicts."""

from stepsize_opt.node.optimal import (
    CvxpyForm as CvxpyForm,
    optimal_stepsize as optimal_stepsize,
    to_cvxpy as to_cvxpy,
)
from stepsize_opt.node.certifying import StepsizeCheck as StepsizeCheck, certify as certify
from stepsize_opt.node.question import read_problem as read_problem
from stepsize_opt.node.reductions import scaled_program as scaled_program
from stepsize_opt.node.result import StepsizeResult as StepsizeResult
