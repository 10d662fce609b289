"""The project's own methods for one constraint 𝒬(DBD) ⪯ D."""

from stepsize_solvers.single.solve import solve_condition

__all__ = ["solve_condition"]
