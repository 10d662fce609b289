"""Running the methods on real problems, and checking that the predicted rates hold.

Objectives, data sets and splits over clients are in ``stepsize_opt.problems``.
"""

from stepsize_validation.runs import (
    Divergence,
    RateCheck,
    Run,
    check_distributed_rate,
    check_rate,
    distributed_lambda,
    first_below,
    observed_contraction,
    run,
)

__all__ = [
    "Divergence",
    "RateCheck",
    "Run",
    "check_distributed_rate",
    "check_rate",
    "distributed_lambda",
    "first_below",
    "observed_contraction",
    "run",
]
