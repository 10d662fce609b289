"""The planner: which method, which sketch and how many floats per round, for a problem, a budget and an accuracy."""

from stepsize_opt.planning.api import plan as plan
from stepsize_opt.planning.problem import Budget as Budget, check_known_bound as check_known_bound
