"""The problem, and the plan that server and clients share."""

from functools import lru_cache
from typing import Any

import numpy as np

from stepsize_opt import Feedback
from stepsize_opt.problems import Federated
from stepsize_opt.results import StepsizeResult, SubspaceMethod
from stepsize_validation.data import federated_logistic, load_dataset, split

REG = 0.1


@lru_cache
def problem(clients: int) -> Federated:
    """One logistic regression for each client.  A client of its own would load its own data and nothing else."""
    return federated_logistic(split(load_dataset("breast_cancer"), clients, np.random.default_rng(0)), REG, "ridge")


@lru_cache
def method(name: str, plan: str) -> Any:
    """The method of a plan, as ``logistic_app.plan`` wrote it."""
    if name == "feedback":
        with np.load(plan) as saved:
            return Feedback(saved["L"], int(saved["k"]), clients=int(saved["clients"]))
    return (StepsizeResult if name == "sketch" else SubspaceMethod).load(plan).compressor()
