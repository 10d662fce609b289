"""The limit: the best guarantee of a method without memory that sends k floats per round."""

from stepsize_opt.limit.limit import (
    CompressionLimit as CompressionLimit,
    compression_limit as compression_limit,
    read_limit as read_limit,
)
from stepsize_opt.limit.problem import floor_probabilities as floor_probabilities
