"""The project's own method for a metric aD − 𝒬(DBD): the largest log det, or the largest t above a floor."""

from stepsize_solvers.metric.solve import solve_metric

__all__ = ["solve_metric"]
