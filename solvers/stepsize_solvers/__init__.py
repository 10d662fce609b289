"""Log-det programs and the methods that solve them: programs in, points and multipliers out."""

from stepsize_solvers.closed_forms import closed_form as closed_form
from stepsize_solvers.registry import (
    Availability as Availability,
    SolverChoice as SolverChoice,
    available_solvers as available_solvers,
    check_solver as check_solver,
    choose_solver as choose_solver,
    get_solver as get_solver,
)
