"""n clients: shared seeds, conditions (12) and (12′), and the smallest number of iterations that they allow."""

from stepsize_opt.clients.api import (
    SEEDS as SEEDS,
    Seeds as Seeds,
    optimal_distributed_stepsize as optimal_distributed_stepsize,
)
from stepsize_opt.clients.problem import (
    Clients as Clients,
    Targets as Targets,
    log_fraction as log_fraction,
    read_clients as read_clients,
)
from stepsize_opt.clients.result import DistributedResult as DistributedResult
