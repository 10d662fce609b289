"""Methods: one update, one class."""

from stepsize_opt.methods.base import (
    Algorithm as Algorithm,
    Compress as Compress,
    Condition as Condition,
    DetCGD1 as DetCGD1,
    DetCGD2 as DetCGD2,
    Factors as Factors,
    Method as Method,
    SketchedGradient as SketchedGradient,
    get_method as get_method,
    is_scalar as is_scalar,
    method_names as method_names,
)
from stepsize_opt.methods.steps import (
    CompressedStep as CompressedStep,
    Compressor as Compressor,
    MomentumState as MomentumState,
    MomentumStep as MomentumStep,
    weight as weight,
)
from stepsize_opt.methods.feedback import (
    FLOOR as FLOOR,
    RUNNING as RUNNING,
    WORST_CASE_RATE as WORST_CASE_RATE,
    Feedback as Feedback,
    FeedbackClient as FeedbackClient,
    FeedbackMessage as FeedbackMessage,
    FeedbackServer as FeedbackServer,
    MeasuredStepsize as MeasuredStepsize,
    exchange as exchange,
    largest as largest,
)
from stepsize_opt.methods.subspace import SubspaceMethod as SubspaceMethod, optimal_method as optimal_method
