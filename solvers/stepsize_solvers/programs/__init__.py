"""What is solved and what comes back: positive maps, patterns, programs, outcomes, the contract of a solver."""

from stepsize_solvers.programs.contract import (
    Settings,
    Solver,
    SolverUnavailable,
    UnsupportedProgram,
)
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Indices,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Vector,
    block_slices,
    connected_labels,
    hadamard,
    is_identity,
)
from stepsize_solvers.programs.outcome import (
    Outcome,
    SolverStats,
    Status,
)
from stepsize_solvers.programs.program import (
    BlockPattern,
    Constraint,
    LogDetProgram,
    Pattern,
    ScaledPattern,
)

__all__ = [
    "BlockPattern",
    "CongruenceSum",
    "Constraint",
    "DiagonalPlusScaled",
    "Hadamard",
    "Indices",
    "Layered",
    "LogDetProgram",
    "Matrix",
    "Outcome",
    "Pattern",
    "PositiveMap",
    "ScaledPattern",
    "ScaledPlusTrace",
    "Settings",
    "Solver",
    "SolverStats",
    "SolverUnavailable",
    "Status",
    "UnsupportedProgram",
    "Vector",
    "block_slices",
    "connected_labels",
    "hadamard",
    "is_identity",
]
