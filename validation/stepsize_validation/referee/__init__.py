"""Exact arithmetic and random problems for studies and tests."""

from stepsize_validation.referee.exact import (
    Rational,
    centred_second_moment,
    combine,
    condition_slack,
    definiteness,
    descent_metric,
    is_positive_semidefinite,
    log,
    log_det,
    moment,
    product,
    rational,
    second_moment,
    transpose,
)
from stepsize_validation.referee.random_problems import KINDS, random_problem, random_sketch

__all__ = [
    "KINDS",
    "Rational",
    "centred_second_moment",
    "combine",
    "condition_slack",
    "definiteness",
    "descent_metric",
    "is_positive_semidefinite",
    "log",
    "log_det",
    "moment",
    "product",
    "random_problem",
    "random_sketch",
    "rational",
    "second_moment",
    "transpose",
]
