"""The project's own method for many matrix inequalities."""

from stepsize_solvers.families.program import (
    Family,
    MaxDetOutcome,
    MaxDetProgram,
    Stack,
)
from stepsize_solvers.families.solver import (
    solve_maxdet,
)

__all__ = [
    "Family",
    "MaxDetOutcome",
    "MaxDetProgram",
    "Stack",
    "solve_maxdet",
]
