"""Statements proved about floats: enclosures, feasibility, bounds, certificates.  Nothing here calls a solver."""

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, Plain, sandwich
from stepsize_opt.proofs.basis import InBasis
from stepsize_opt.proofs.certificate import Certificate, Unproved, certify_point, log_det_power
from stepsize_opt.proofs.cholesky import log_det_from_below, proved_cholesky
from stepsize_opt.proofs.conditions import (
    AtStepsize,
    CentredMap,
    ClientGroup,
    Conditions,
    dominating_factor,
    exp_down,
    exp_up,
    exponent_above,
)
from stepsize_opt.proofs.convex import ConvexStep, norm_from_above
from stepsize_opt.proofs.descent import Descent, DescentBounds, descent_of, metric_at
from stepsize_opt.proofs.diagonal import prove_diagonal
from stepsize_opt.proofs.evaluation import Evaluation
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_opt.proofs.floors import largest_floor, weight_from_below
from stepsize_opt.proofs.inverses import proved_inverse
from stepsize_opt.proofs.low_rank import LowRankCondition, ProvedInverse
from stepsize_opt.proofs.maps import (
    adjoint_below,
    centred_above,
    centred_image,
    coefficient_roundings,
    image,
    image_above,
    lowers_to_positive,
)
from stepsize_opt.proofs.means import mean_above, mean_of, sum_below
from stepsize_opt.proofs.multipliers import Bound, Multipliers, rate_bound
from stepsize_opt.proofs.nonnegative import NonnegativeCondition
from stepsize_opt.proofs.refutations import lambda_from_below, log_rate_from_above, refutes
from stepsize_opt.proofs.repairs import repair, repair_in_basis
from stepsize_opt.proofs.roots import ThinBasis, eigenvector_basis, root_basis
from stepsize_opt.proofs.roundings import (
    LARGEST_COEFFICIENT,
    SMALLEST_NORMAL,
    UNIT,
    gamma,
    power_of_two_scaling,
    rounded_down,
    rounded_up,
    sum_from_below,
)
from stepsize_opt.proofs.spectral import (
    eigenvalue_bounds,
    eigenvalues_from_below,
    spectral_condition_bound,
    spectral_metric_bound,
)
from stepsize_opt.proofs.thin import ProvedDiagonal, bound_of_multiples, chunks, sum_of_logs, vanishing, weighted_gram
from stepsize_opt.proofs.thin_metric import ThinMetric, ThinStepsize

__all__ = [
    "LARGEST_COEFFICIENT",
    "SMALLEST_NORMAL",
    "UNIT",
    "Approximate",
    "AtStepsize",
    "Bound",
    "CentredMap",
    "Certificate",
    "ClientGroup",
    "Conditions",
    "ConvexStep",
    "Descent",
    "DescentBounds",
    "Enclosed",
    "Evaluation",
    "InBasis",
    "LowRankCondition",
    "Multipliers",
    "NonnegativeCondition",
    "Pair",
    "Plain",
    "ProvedDiagonal",
    "ProvedInverse",
    "ThinBasis",
    "ThinMetric",
    "ThinStepsize",
    "Unproved",
    "adjoint_below",
    "bound_of_multiples",
    "centred_above",
    "centred_image",
    "certify_point",
    "chunks",
    "coefficient_roundings",
    "descent_of",
    "dominating_factor",
    "eigenvalue_bounds",
    "eigenvalues_from_below",
    "eigenvector_basis",
    "exp_down",
    "exp_up",
    "exponent_above",
    "first_proved",
    "gamma",
    "image",
    "image_above",
    "lambda_from_below",
    "largest_floor",
    "log_det_from_below",
    "log_det_power",
    "log_rate_from_above",
    "losses",
    "lowers_to_positive",
    "mean_above",
    "mean_of",
    "metric_at",
    "norm_from_above",
    "power_of_two_scaling",
    "prove_diagonal",
    "proved_cholesky",
    "proved_inverse",
    "rate_bound",
    "refutes",
    "repair",
    "repair_in_basis",
    "root_basis",
    "rounded_down",
    "rounded_up",
    "sandwich",
    "spectral_condition_bound",
    "spectral_metric_bound",
    "sum_below",
    "sum_from_below",
    "sum_of_logs",
    "vanishing",
    "weight_from_below",
    "weighted_gram",
]
