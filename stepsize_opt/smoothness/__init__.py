"""Smoothness matrices of common losses from the data alone, without a d×d matrix."""

from stepsize_opt.smoothness.losses import least_squares, logistic, of, poisson, softmax
from stepsize_opt.smoothness.truncation import gram_plus_diagonal

__all__ = ["gram_plus_diagonal", "least_squares", "logistic", "of", "poisson", "softmax"]
