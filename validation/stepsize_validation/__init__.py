"""Running the methods on real problems, and checking that the predicted rates hold.

Objectives are in ``stepsize_opt.problems``, data sets and splits over clients in ``stepsize_validation.data``.
"""

from stepsize_validation.runs import (
    Divergence as Divergence,
    FeedbackRun as FeedbackRun,
    RateCheck as RateCheck,
    Run as Run,
    check_distributed_rate as check_distributed_rate,
    check_rate as check_rate,
    distributed_lambda as distributed_lambda,
    first_below as first_below,
    run as run,
    run_feedback as run_feedback,
)
from stepsize_validation.table1 import communication_table as communication_table
