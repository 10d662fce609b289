"""Running the methods, and checking the rates that theorems promise."""

from stepsize_validation.runs.feedback import FeedbackRun as FeedbackRun, run_feedback as run_feedback
from stepsize_validation.runs.metric import distributed_lambda as distributed_lambda
from stepsize_validation.runs.rates import (
    LEVEL as LEVEL,
    RateCheck as RateCheck,
    check_distributed_rate as check_distributed_rate,
    check_rate as check_rate,
)
from stepsize_validation.runs.record import (
    Run as Run,
    first_below as first_below,
    log_steps as log_steps,
)
from stepsize_validation.runs.runner import Divergence as Divergence, run as run
