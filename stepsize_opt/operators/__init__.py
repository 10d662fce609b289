"""Smoothness matrices and stepsizes that are never formed: diagonal plus low rank, sparse without negative entries."""

from stepsize_opt.operators.descent import solve_descent as solve_descent, thin_metric as thin_metric
from stepsize_opt.operators.directions import (
    metric_of_inverse as metric_of_inverse,
    read_direction as read_direction,
    solve_direction as solve_direction,
)
from stepsize_opt.operators.gaussian import solve_gaussian as solve_gaussian
from stepsize_opt.operators.matrices import LowRankPlusDiagonal as LowRankPlusDiagonal
from stepsize_opt.operators.problems import (
    ANSWERS as ANSWERS,
    LargeProblem as LargeProblem,
    large_problem as large_problem,
)
from stepsize_opt.operators.solve import StructuredAnswer as StructuredAnswer, solve_structured as solve_structured
from stepsize_opt.operators.stepsizes import (
    BlockStepsize as BlockStepsize,
    DiagonalStepsize as DiagonalStepsize,
    InverseStepsize as InverseStepsize,
    LowRankStepsize as LowRankStepsize,
    StepsizeOperator as StepsizeOperator,
    stepsize_from_arrays as stepsize_from_arrays,
)
