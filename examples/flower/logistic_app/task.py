"""The problem, and the plan that server and clients share."""

from functools import lru_cache
from typing import Any

import numpy as np

from stepsize_opt import Feedback
from stepsize_opt.problems import Federated
from stepsize_opt.results import StepsizeResult, SubspaceMethod
from stepsize_validation.data import Dataset, federated_logistic, load_dataset, split

D, REG = 500, 1e-3


@lru_cache
def problem(clients: int) -> Federated:
    """One logistic regression for each client.  A client of its own would load its own data and nothing else."""
    parts = split(random_features(load_dataset("breast_cancer")), clients, np.random.default_rng(0))
    return federated_logistic(parts, REG, "ridge")


def random_features(data: Dataset) -> Dataset:
    """D random Fourier features of each row: √(2/D) cos(W a + φ), which stand for a Gaussian kernel."""
    rng = np.random.default_rng(1)
    W, phase = rng.standard_normal((data.d, D)), rng.uniform(0.0, 2.0 * np.pi, D)
    rows = np.asarray(data.A) / np.linalg.norm(data.A, axis=1, keepdims=True)
    return Dataset(data.name, np.sqrt(2.0 / D) * np.cos(rows @ W + phase), data.b)


@lru_cache
def method(name: str, plan: str) -> Any:
    """The method of a plan, as ``logistic_app.plan`` wrote it."""
    if name == "feedback":
        with np.load(plan) as saved:
            return Feedback(saved["L"], int(saved["k"]), clients=int(saved["clients"]))
    return StepsizeResult.load(plan).compressor() if name == "sketch" else SubspaceMethod.load(plan)
