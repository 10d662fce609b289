"""The limit: the best guarantee of a method without memory that sends k floats per round."""

from stepsize_opt.limit.bounds import LimitBounds as LimitBounds
from stepsize_opt.limit.budgets import read_budget as read_budget
from stepsize_opt.limit.large import LargeLimit as LargeLimit
from stepsize_opt.limit.limit import (
    LARGEST_LOSS as LARGEST_LOSS,
    CompressionLimit as CompressionLimit,
    LimitProblem as LimitProblem,
    compression_limit as compression_limit,
)
from stepsize_opt.limit.spectrum import (
    Spectrum as Spectrum,
    equal_probabilities as equal_probabilities,
    floor_probabilities as floor_probabilities,
)
