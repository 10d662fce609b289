"""The project's own method for a metric aD − 𝒬(DBD): the largest log det, or t of G(D) ⪰ tE or D ⪰ tE."""

from stepsize_solvers.metric.solve import solve_metric as solve_metric
