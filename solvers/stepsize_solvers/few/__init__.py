"""Central paths of a few positive unknowns: a diagonal D, or one factor for each of several given directions."""

from stepsize_solvers.few.diagonal import solve_diagonal as solve_diagonal
from stepsize_solvers.few.layers import (
    MOST_STEPS as MOST_STEPS,
    LayeredProblem as LayeredProblem,
    solve_layers as solve_layers,
)
