"""Statements proved about floats: enclosures, feasibility, bounds, certificates.  Nothing here calls a solver."""

from stepsize_opt.proofs.arithmetic import (
    LARGEST_COEFFICIENT,
    SMALLEST_NORMAL,
    UNIT,
    Enclosed,
    Pair,
    Plain,
    gamma,
    inner_from_above,
    log_det_from_below,
    proved_cholesky,
    sandwich,
)
from stepsize_opt.proofs.certificate import (
    Certificate,
    certify_point,
    log_det_conjugate,
)
from stepsize_opt.proofs.descent import (
    Descent,
    DescentBounds,
    certify_descent,
    certify_floor,
)
from stepsize_opt.proofs.evaluation import (
    Evaluation,
)
from stepsize_opt.proofs.maps import (
    coefficient_roundings,
    image,
)
from stepsize_opt.proofs.repairs import (
    repair,
)

__all__ = [
    "LARGEST_COEFFICIENT",
    "SMALLEST_NORMAL",
    "UNIT",
    "Certificate",
    "Descent",
    "DescentBounds",
    "Enclosed",
    "Evaluation",
    "Pair",
    "Plain",
    "certify_descent",
    "certify_floor",
    "certify_point",
    "coefficient_roundings",
    "gamma",
    "image",
    "inner_from_above",
    "log_det_conjugate",
    "log_det_from_below",
    "proved_cholesky",
    "repair",
    "sandwich",
]
