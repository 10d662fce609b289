"""Log-det programs and the methods that solve them: programs in, points and multipliers out."""

from stepsize_solvers.closed_forms import closed_form
from stepsize_solvers.registry import (
    Availability,
    SolverChoice,
    available_solvers,
    check_solver,
    choose_solver,
    get_solver,
)

__all__ = [
    "Availability",
    "SolverChoice",
    "available_solvers",
    "check_solver",
    "choose_solver",
    "closed_form",
    "get_solver",
]
