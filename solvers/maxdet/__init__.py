"""Max-det problems with many matrix inequalities: the programs, their cvxpy form and the project's own solver."""

from solvers.maxdet.cvxpy_form import solve_with_cvxpy
from solvers.maxdet.program import Family, MaxDetOutcome, MaxDetProgram
from solvers.maxdet.solver import solve_maxdet

__all__ = ["Family", "MaxDetOutcome", "MaxDetProgram", "solve_maxdet", "solve_with_cvxpy"]
