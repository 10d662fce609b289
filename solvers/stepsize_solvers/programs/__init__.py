"""What is solved and what comes back: positive maps, patterns, programs, outcomes, the contract of a solver."""

from stepsize_solvers.programs.contract import (
    Outcome as Outcome,
    Settings as Settings,
    Solver as Solver,
    SolverStats as SolverStats,
    SolverUnavailable as SolverUnavailable,
    Status as Status,
    UnsupportedProgram as UnsupportedProgram,
    WarmStart as WarmStart,
)
from stepsize_solvers.programs.maps import (
    CongruenceSum as CongruenceSum,
    DiagonalPlusScaled as DiagonalPlusScaled,
    Hadamard as Hadamard,
    Indices as Indices,
    Layered as Layered,
    Matrix as Matrix,
    PositiveMap as PositiveMap,
    ScaledPlusTrace as ScaledPlusTrace,
    Stack as Stack,
    Vector as Vector,
    add_to_diagonal as add_to_diagonal,
    block_slices as block_slices,
    connected_labels as connected_labels,
    exponent_above as exponent_above,
    hadamard as hadamard,
    is_identity as is_identity,
)
from stepsize_solvers.programs.program import (
    Family as Family,
    Metric as Metric,
    Pattern as Pattern,
    Program as Program,
)
from stepsize_solvers.programs.shown import (
    Shown as Shown,
    Tabled as Tabled,
    html_row as html_row,
    html_table as html_table,
    plain_rows as plain_rows,
)
