"""The same programs through cvxpy."""

from stepsize_solvers.conic.backends import (
    BACKENDS as BACKENDS,
    FINEST_ACCURACY as FINEST_ACCURACY,
    CvxpySolver as CvxpySolver,
)
from stepsize_solvers.conic.model import (
    Lift as Lift,
    Objective as Objective,
    forget_models as forget_models,
    fresh_model as fresh_model,
)
