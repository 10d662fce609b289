"""What is solved and what comes back: positive maps, patterns, programs, outcomes, the contract of a solver."""

from stepsize_solvers.programs.contract import Settings, Solver, SolverUnavailable, UnsupportedProgram, WarmStart
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    PositiveMap,
    ScaledPlusTrace,
    hadamard,
    is_identity,
)
from stepsize_solvers.programs.outcome import LowRankModel, Outcome, SolverStats, Status, ThinMultiplier
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Metric, Program
from stepsize_solvers.programs.types import (
    Indices,
    Matrix,
    Stack,
    Vector,
    add_to_diagonal,
    block_slices,
    connected_labels,
)

__all__ = [
    "CongruenceSum",
    "DiagonalPlusScaled",
    "Family",
    "Hadamard",
    "Indices",
    "Layered",
    "LowRankModel",
    "Matrix",
    "Metric",
    "Outcome",
    "Pattern",
    "PositiveMap",
    "Program",
    "ScaledPlusTrace",
    "Settings",
    "Solver",
    "SolverStats",
    "SolverUnavailable",
    "Stack",
    "Status",
    "ThinMultiplier",
    "UnsupportedProgram",
    "Vector",
    "WarmStart",
    "add_to_diagonal",
    "block_slices",
    "connected_labels",
    "hadamard",
    "is_identity",
]
