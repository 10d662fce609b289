"""Smoothness matrices of common losses from the data alone, without a d×d matrix."""

from stepsize_opt.smoothness.losses import (
    least_squares as least_squares,
    logistic as logistic,
    of as of,
    poisson as poisson,
    softmax as softmax,
)
from stepsize_opt.smoothness.truncation import gram_plus_diagonal as gram_plus_diagonal
