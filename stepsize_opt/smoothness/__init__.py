"""Smoothness matrices L: read once, or made from data without a d×d matrix."""

from stepsize_opt.smoothness.spectrum import (
    BASES as BASES,
    LimitBounds as LimitBounds,
    ProvedDirections as ProvedDirections,
    ThinDirections as ThinDirections,
)
from stepsize_opt.smoothness.losses import (
    gram_plus_diagonal as gram_plus_diagonal,
    least_squares as least_squares,
    logistic as logistic,
    of as of,
    poisson as poisson,
    softmax as softmax,
)
from stepsize_opt.smoothness.matrices import (
    LowRankPlusDiagonal as LowRankPlusDiagonal,
    MatrixSmoothness as MatrixSmoothness,
    NeedsDense as NeedsDense,
    Smoothness as Smoothness,
    inverse_of as inverse_of,
    proved_smoothness as proved_smoothness,
    read_smoothness as read_smoothness,
)

# What users call; the other names are for the packages of the library.
__all__ = [
    "Smoothness",
    "gram_plus_diagonal",
    "least_squares",
    "logistic",
    "of",
    "poisson",
    "read_smoothness",
    "softmax",
]
