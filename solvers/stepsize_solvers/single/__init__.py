"""The project's own methods for one constraint 𝒬(DBD) ⪯ D."""

from stepsize_solvers.single.schur import Gram as Gram, effective_beta as effective_beta
from stepsize_solvers.single.small import (
    Coordinates as Coordinates,
    coordinates as coordinates,
    map_matrix as map_matrix,
)
from stepsize_solvers.single.solve import (
    Report as Report,
    closed_form as closed_form,
    goes_in_stacks as goes_in_stacks,
    solve_condition as solve_condition,
    solve_stack as solve_stack,
)
from stepsize_solvers.single.starts import scaled as scaled, unit_diagonal as unit_diagonal
