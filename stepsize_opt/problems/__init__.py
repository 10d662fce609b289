"""Objectives with known smoothness matrices, data sets, splits over clients, bounds on their infima."""

from stepsize_opt.problems.constructors import (
    federated_logistic,
    layered_logistic,
    logistic_regression,
    random_quadratic,
)
from stepsize_opt.problems.data import DATA_VARIABLE, Dataset, available_datasets, load_dataset
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
from stepsize_opt.problems.spectra import random_smoothness, with_spectrum
from stepsize_opt.problems.splits import split

__all__ = [
    "DATA_VARIABLE",
    "Dataset",
    "Federated",
    "FederatedInfimum",
    "Infimum",
    "Layered",
    "LeastSquares",
    "LogisticRegression",
    "Objective",
    "Quadratic",
    "SoftmaxRegression",
    "available_datasets",
    "federated_logistic",
    "find_federated_infimum",
    "find_infimum",
    "layered_logistic",
    "load_dataset",
    "logistic_regression",
    "random_quadratic",
    "random_smoothness",
    "read_penalty",
    "softmax_curvature",
    "split",
    "with_spectrum",
]
