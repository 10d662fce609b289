"""Stepsizes that are applied, not formed, and the problems of an L that is never made dense."""

from stepsize_opt.large.solve import (
    LargeAnswer as LargeAnswer,
    LargeProblem as LargeProblem,
    LargeQuestion as LargeQuestion,
    large_problem as large_problem,
    needs_dense as needs_dense,
    read_direction as read_direction,
    solve_large as solve_large,
)
from stepsize_opt.large.stepsizes import (
    BlockStepsize as BlockStepsize,
    DiagonalStepsize as DiagonalStepsize,
    InverseStepsize as InverseStepsize,
    StepsizeOperator as StepsizeOperator,
    check_stepsize as check_stepsize,
    stepsize_from_arrays as stepsize_from_arrays,
)
