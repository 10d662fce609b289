"""The same programs through cvxpy."""

from stepsize_solvers.conic.backends import BACKENDS, FINEST_ACCURACY, CvxpySolver
from stepsize_solvers.conic.model import Lift, Objective, forget_models, fresh_model

__all__ = ["BACKENDS", "FINEST_ACCURACY", "CvxpySolver", "Lift", "Objective", "forget_models", "fresh_model"]
