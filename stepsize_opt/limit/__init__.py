"""The limit: the best guarantee of a method without memory that sends k floats per round."""

from stepsize_opt.limit.bounds import LimitBounds
from stepsize_opt.limit.budgets import read_budget
from stepsize_opt.limit.large import LargeLimit
from stepsize_opt.limit.limit import LARGEST_LOSS, CompressionLimit, LimitProblem, compression_limit
from stepsize_opt.limit.spectrum import Spectrum, equal_probabilities, floor_probabilities

__all__ = [
    "LARGEST_LOSS",
    "CompressionLimit",
    "LargeLimit",
    "LimitBounds",
    "LimitProblem",
    "Spectrum",
    "compression_limit",
    "equal_probabilities",
    "floor_probabilities",
    "read_budget",
]
