"""n clients: the optimal stepsize and the smallest number of rounds under the distributed conditions."""

from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.check import DistributedCheck, certify_distributed
from stepsize_opt.clients.comparison import DistributedComparison, ScalarStepsize, compare_distributed, dcgd_stepsize
from stepsize_opt.clients.result import DistributedCertificate, DistributedResult
from stepsize_opt.clients.shared import SEEDS

__all__ = [
    "SEEDS",
    "DistributedCertificate",
    "DistributedCheck",
    "DistributedComparison",
    "DistributedResult",
    "ScalarStepsize",
    "certify_distributed",
    "compare_distributed",
    "dcgd_stepsize",
    "optimal_distributed_stepsize",
]
