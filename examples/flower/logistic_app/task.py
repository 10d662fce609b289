"""The problem, and the plan that server and clients share."""

from functools import lru_cache

import numpy as np

from stepsize_opt.methods import Compressor
from stepsize_opt.problems import Federated
from stepsize_opt.results import StepsizeResult, SubspaceMethod
from stepsize_validation.data import federated_logistic, load_dataset, split

REG = 0.1


@lru_cache
def problem(clients: int) -> Federated:
    """One logistic regression for each client.  A client of its own would load its own data and nothing else."""
    return federated_logistic(split(load_dataset("breast_cancer"), clients, np.random.default_rng(0)), REG)


@lru_cache
def compressor(method: str, plan: str) -> Compressor:
    """What a plan says: the subspace method, or det-CGD1 or det-CGD2 with the stepsize and sketch of a saved result."""
    if method == "subspace":
        return SubspaceMethod.load(plan)
    return StepsizeResult.load(plan).compressor()
