"""One node: the optimal stepsize, its certificate and what it predicts."""

from stepsize_opt.node.api import optimal_stepsize as optimal_stepsize
from stepsize_opt.node.checks import StepsizeCheck as StepsizeCheck, certify as certify
from stepsize_opt.node.comparison import compare as compare, inverse_of as inverse_of, power_of as power_of
from stepsize_opt.node.api import CvxpyForm as CvxpyForm, to_cvxpy as to_cvxpy
from stepsize_opt.node.reductions import reduce_problem as reduce_problem
from stepsize_opt.node.result import StepsizeResult as StepsizeResult
