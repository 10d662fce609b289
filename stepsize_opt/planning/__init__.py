"""Tables of methods: compared for one sketch, or planned for a problem, a budget and an accuracy."""

from stepsize_opt.planning.plans import plan as plan
from stepsize_opt.planning.comparisons import (
    ScalarStepsize as ScalarStepsize,
    compare as compare,
    compare_distributed as compare_distributed,
    dcgd_stepsize as dcgd_stepsize,
    power_of as power_of,
)
from stepsize_opt.planning.questions import Budget as Budget, check_known_bound as check_known_bound
