"""Statements proved about floats: enclosures, feasibility, bounds, certificates.

Arithmetic: ``roundings`` (error-free sums and products), ``intervals`` (numbers), ``arithmetic`` (vectors and
matrices), ``thin`` (thin matrices), ``cholesky`` (definiteness), ``maps`` (the positive maps of sketches).  Rounding
is counted here; the other modules write formulas.

One stepsize: ``evaluation`` (the paper's condition), ``basis`` (the same to the last digits), ``descent`` (the other
goals); ``duals``, ``quadratics`` and ``inverses`` for their bounds, ``repairs`` for the precision of a proof and a
feasible point, ``certificate`` for the result, ``stationary`` for the multipliers of its file.
Clients: ``conditions``, ``multipliers``.
Large L: ``low_rank``, ``nonnegative``, ``roots``.

No solver is called; ``quadratics`` takes a reference point from ``stepsize_solvers.numerics``, which any other may
replace.
"""

from stepsize_opt.proofs.arithmetic import (
    PRECISIONS as PRECISIONS,
    Approximate as Approximate,
    Enclosed as Enclosed,
    Pair as Pair,
    sandwich as sandwich,
)
from stepsize_opt.proofs.basis import InBasis as InBasis
from stepsize_opt.proofs.certificate import (
    Certificate as Certificate,
    Unproved as Unproved,
    first_proved as first_proved,
    log_det_power as log_det_power,
    losses as losses,
)
from stepsize_opt.proofs.cholesky import (
    dominating_factor as dominating_factor,
    is_proved_definite as is_proved_definite,
    log_det_from_below as log_det_from_below,
)
from stepsize_opt.proofs.conditions import (
    AtStepsize as AtStepsize,
    CentredMap as CentredMap,
    ClientGroup as ClientGroup,
    Conditions as Conditions,
    mean_above as mean_above,
    mean_of as mean_of,
)
from stepsize_opt.proofs.descent import Descent as Descent
from stepsize_opt.proofs.evaluation import Evaluation as Evaluation
from stepsize_opt.proofs.intervals import LOG_2 as LOG_2, Interval as Interval
from stepsize_opt.proofs.inverses import (
    largest_floor as largest_floor,
    proved_inverse as proved_inverse,
    weight_from_below as weight_from_below,
)
from stepsize_opt.proofs.low_rank import LowRankCondition as LowRankCondition
from stepsize_opt.proofs.maps import (
    coefficient_roundings as coefficient_roundings,
    image as image,
)
from stepsize_opt.proofs.multipliers import (
    Bound as Bound,
    Multipliers as Multipliers,
    metric_bound as metric_bound,
    tangent_bound as tangent_bound,
)
from stepsize_opt.proofs.nonnegative import (
    NonnegativeCondition as NonnegativeCondition,
    prove_diagonal as prove_diagonal,
)
from stepsize_opt.proofs.repairs import (
    closest as closest,
    finest as finest,
    is_feasible as is_feasible,
    narrowest as narrowest,
    repair as repair,
    repair_in_basis as repair_in_basis,
    repaired as repaired,
    unrepaired as unrepaired,
)
from stepsize_opt.proofs.roots import (
    ThinBasis as ThinBasis,
    eigenvector_basis as eigenvector_basis,
    root_basis as root_basis,
)
from stepsize_opt.proofs.roundings import (
    LARGEST_COEFFICIENT as LARGEST_COEFFICIENT,
    SMALLEST_NORMAL as SMALLEST_NORMAL,
    UNIT as UNIT,
    exp_down as exp_down,
    exp_up as exp_up,
    is_held as is_held,
    power_of_two_scaling as power_of_two_scaling,
    rounded_down as rounded_down,
    rounded_up as rounded_up,
    sum_below as sum_below,
    twice_gamma as twice_gamma,
)
from stepsize_opt.proofs.stationary import (
    Answer as Answer,
    Stationary as Stationary,
    inverse_of as inverse_of,
    limit_multipliers as limit_multipliers,
)
from stepsize_opt.proofs.thin import (
    ProvedDiagonal as ProvedDiagonal,
    chunks as chunks,
    eigenvalue_bounds as eigenvalue_bounds,
    weighted_gram as weighted_gram,
)
