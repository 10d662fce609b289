"""Objectives with known smoothness matrices, clients that share them, bounds on their infima."""

from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.infimum import FederatedInfimum, Infimum, find_federated_infimum, find_infimum
from stepsize_opt.problems.objectives import (
    Layered,
    LeastSquares,
    LogisticRegression,
    Objective,
    Quadratic,
)
from stepsize_opt.problems.penalties import read_penalty
from stepsize_opt.problems.softmax import SoftmaxRegression, softmax_curvature

__all__ = [
    "Federated",
    "FederatedInfimum",
    "Infimum",
    "Layered",
    "LeastSquares",
    "LogisticRegression",
    "Objective",
    "Quadratic",
    "SoftmaxRegression",
    "find_federated_infimum",
    "find_infimum",
    "read_penalty",
    "softmax_curvature",
]
