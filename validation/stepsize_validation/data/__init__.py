"""Data sets, their rows over clients, objectives of them, and random matrices with a given spectrum."""

from stepsize_validation.data.datasets import (
    DATA_VARIABLE as DATA_VARIABLE,
    Dataset as Dataset,
    available_datasets as available_datasets,
    load_dataset as load_dataset,
    split as split,
)
from stepsize_validation.data.objectives import (
    federated_logistic as federated_logistic,
    layered_logistic as layered_logistic,
    logistic_regression as logistic_regression,
    random_quadratic as random_quadratic,
    random_smoothness as random_smoothness,
    with_spectrum as with_spectrum,
)
