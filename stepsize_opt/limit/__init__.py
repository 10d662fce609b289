"""The limit: the best guarantee of k floats per round, and the method that attains it."""

from stepsize_opt.limit.answers import CompressionLimit as CompressionLimit, SubspaceMethod as SubspaceMethod
from stepsize_opt.limit.limit import (
    compression_limit as compression_limit,
    optimal_method as optimal_method,
    read_limit as read_limit,
)
from stepsize_opt.limit.problem import floor_probabilities as floor_probabilities
