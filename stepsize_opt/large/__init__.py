"""Stepsizes that are applied, not formed, and the problems of an L that is not made dense."""

from stepsize_opt.large.solve import (
    ANSWERS as ANSWERS,
    LargeProblem as LargeProblem,
    StructuredAnswer as StructuredAnswer,
    large_problem as large_problem,
    metric_of_inverse as metric_of_inverse,
    read_direction as read_direction,
    solve_descent as solve_descent,
    solve_direction as solve_direction,
    solve_gaussian as solve_gaussian,
    solve_structured as solve_structured,
    thin_metric as thin_metric,
)
from stepsize_opt.large.stepsizes import (
    BlockStepsize as BlockStepsize,
    DiagonalStepsize as DiagonalStepsize,
    InverseStepsize as InverseStepsize,
    LowRankStepsize as LowRankStepsize,
    StepsizeOperator as StepsizeOperator,
    check_stepsize as check_stepsize,
    stepsize_from_arrays as stepsize_from_arrays,
)
