"""Stepsizes that are applied, not formed, and the problems of an L that is never made dense."""

from stepsize_opt.large.solve import (
    ANSWERS as ANSWERS,
    LargeProblem as LargeProblem,
    StructuredAnswer as StructuredAnswer,
    large_problem as large_problem,
    solve_structured as solve_structured,
)
from stepsize_opt.large.stepsizes import (
    BlockStepsize as BlockStepsize,
    DiagonalStepsize as DiagonalStepsize,
    InverseStepsize as InverseStepsize,
    StepsizeOperator as StepsizeOperator,
    check_stepsize as check_stepsize,
    stepsize_from_arrays as stepsize_from_arrays,
)
