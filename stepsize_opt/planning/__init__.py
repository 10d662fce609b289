"""The planner: which method, which sketch and how many numbers a round, for a problem, a budget and an accuracy."""

from stepsize_opt.planning.api import plan as plan
from stepsize_opt.planning.problem import check_known_lower as check_known_lower
from stepsize_opt.planning.table import Budget as Budget, Plan as Plan, PlanRow as PlanRow
