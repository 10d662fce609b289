"""The project's own methods for one constraint 𝒬(DBD) ⪯ D."""

from stepsize_solvers.single.closed_forms import (
    one_direction,
)
from stepsize_solvers.single.solver import (
    NativeSolver,
)

__all__ = [
    "NativeSolver",
    "one_direction",
]
