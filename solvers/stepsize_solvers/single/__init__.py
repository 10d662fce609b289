"""The project's own methods for one constraint 𝒬(DBD) ⪯ D."""

from stepsize_solvers.single.schur import Gram, effective_beta
from stepsize_solvers.single.small import Coordinates, coordinates, map_matrix
from stepsize_solvers.single.solve import Report, closed_form, goes_in_stacks, solve_condition, solve_stack
from stepsize_solvers.single.starts import scaled, unit_diagonal

__all__ = [
    "Coordinates",
    "Gram",
    "Report",
    "closed_form",
    "coordinates",
    "effective_beta",
    "goes_in_stacks",
    "map_matrix",
    "scaled",
    "solve_condition",
    "solve_stack",
    "unit_diagonal",
]
