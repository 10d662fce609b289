"""Running the methods, and checking the rates that theorems promise."""

from stepsize_validation.runs.rates import (
    LEVEL,
    RateCheck,
    check_distributed_rate,
    check_rate,
    distributed_lambda,
    observed_contraction,
)
from stepsize_validation.runs.record import Run, first_below, log_steps
from stepsize_validation.runs.runner import Divergence, run

__all__ = [
    "LEVEL",
    "Divergence",
    "RateCheck",
    "Run",
    "check_distributed_rate",
    "check_rate",
    "distributed_lambda",
    "first_below",
    "log_steps",
    "observed_contraction",
    "run",
]
