"""The project's own methods for one constraint 𝒬(DBD) ⪯ D."""

from stepsize_solvers.single.solve import Report, closed_form, solve_condition

__all__ = ["Report", "closed_form", "solve_condition"]
