"""The project's own interior-point solver for log-det stepsize programs."""

from solvers.native.solver import NativeSolver as NativeSolver

__all__ = ["NativeSolver"]
