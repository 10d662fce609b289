"""The project's own method for families of matrix inequalities."""

from stepsize_solvers.families.solve import solve_families as solve_families
