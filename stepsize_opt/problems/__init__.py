"""Objectives with known smoothness matrices, clients that share them, bounds on their infima."""

from stepsize_opt.problems.federated import Federated as Federated
from stepsize_opt.problems.infimum import (
    FederatedInfimum as FederatedInfimum,
    Infimum as Infimum,
    find_federated_infimum as find_federated_infimum,
    find_infimum as find_infimum,
)
from stepsize_opt.problems.objectives import (
    Layered as Layered,
    LeastSquares as LeastSquares,
    LogisticRegression as LogisticRegression,
    Objective as Objective,
    Quadratic as Quadratic,
    SoftmaxRegression as SoftmaxRegression,
    read_penalty as read_penalty,
    linear_smoothness as linear_smoothness,
    softmax_curvature as softmax_curvature,
)
