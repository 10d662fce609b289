"""Statements proved about floats: enclosures, feasibility, bounds, certificates.  Nothing here calls a solver."""

from stepsize_opt.proofs.arithmetic import (
    LARGEST_COEFFICIENT,
    SMALLEST_NORMAL,
    UNIT,
    Approximate,
    Enclosed,
    Pair,
    Plain,
    gamma,
    inner_from_above,
    log_det_from_below,
    proved_cholesky,
    sandwich,
)
from stepsize_opt.proofs.basis import (
    InBasis,
)
from stepsize_opt.proofs.certificate import (
    Certificate,
    certify_point,
)
from stepsize_opt.proofs.evaluation import (
    Evaluation,
    log_det_conjugate,
)
from stepsize_opt.proofs.maps import (
    adjoint_below,
    coefficient_roundings,
    image,
    image_above,
    lowers_to_positive,
)
from stepsize_opt.proofs.repairs import (
    repair,
    repair_in_basis,
)

__all__ = [
    "LARGEST_COEFFICIENT",
    "SMALLEST_NORMAL",
    "UNIT",
    "Approximate",
    "Certificate",
    "Enclosed",
    "Evaluation",
    "InBasis",
    "Pair",
    "Plain",
    "adjoint_below",
    "certify_point",
    "coefficient_roundings",
    "gamma",
    "image",
    "image_above",
    "inner_from_above",
    "log_det_conjugate",
    "log_det_from_below",
    "lowers_to_positive",
    "proved_cholesky",
    "repair",
    "repair_in_basis",
    "sandwich",
]
