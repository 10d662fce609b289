"""n clients: shared seeds, conditions (12) and (12′), and the smallest number of iterations that they allow."""

from stepsize_opt.clients.api import optimal_distributed_stepsize as optimal_distributed_stepsize
from stepsize_opt.clients.check import DistributedCheck as DistributedCheck, certify_distributed as certify_distributed
from stepsize_opt.clients.comparison import (
    ScalarStepsize as ScalarStepsize,
    compare_distributed as compare_distributed,
    dcgd_stepsize as dcgd_stepsize,
)
from stepsize_opt.clients.result import DistributedResult as DistributedResult
from stepsize_opt.clients.api import SEEDS as SEEDS
