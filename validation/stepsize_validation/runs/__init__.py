"""Running the methods, and checking the rates that theorems promise."""

from stepsize_validation.runs.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
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
    "CheckpointError",
    "Divergence",
    "RateCheck",
    "Run",
    "check_distributed_rate",
    "check_rate",
    "distributed_lambda",
    "first_below",
    "log_steps",
    "observed_contraction",
    "read_checkpoint",
    "run",
    "write_checkpoint",
]
