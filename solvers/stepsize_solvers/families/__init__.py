"""The project's own method for families of matrix inequalities."""

from stepsize_solvers.families.solve import solve_families

__all__ = ["solve_families"]
