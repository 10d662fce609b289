"""The same programs through cvxpy."""

from stepsize_solvers.conic.backends import (
    BACKENDS as BACKENDS,
    FINEST_ACCURACY as FINEST_ACCURACY,
    CvxpySolver as CvxpySolver,
    other_solver as other_solver,
)
from stepsize_solvers.conic.model import (
    Lift as Lift,
    Objective as Objective,
    choose_lift as choose_lift,
    conic_model as conic_model,
)
