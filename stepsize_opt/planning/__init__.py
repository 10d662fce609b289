"""The planner: which method, which sketch and how many numbers a round, for a problem, a budget and an accuracy."""

from stepsize_opt.planning.api import plan
from stepsize_opt.planning.problem import check_known_bound
from stepsize_opt.planning.table import Budget, Plan, PlanRow

__all__ = ["Budget", "Plan", "PlanRow", "check_known_bound", "plan"]
