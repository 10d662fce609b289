"""Methods: one update, one class."""

from stepsize_opt.methods.base import (
    Algorithm as Algorithm,
    Condition as Condition,
    DetCGD1 as DetCGD1,
    DetCGD2 as DetCGD2,
    Factors as Factors,
    Method as Method,
    get_method as get_method,
    method_names as method_names,
)
from stepsize_opt.methods.steps import (
    Compress as Compress,
    CompressedStep as CompressedStep,
    Compressor as Compressor,
    Momentum as Momentum,
    State as State,
    read_compressor as read_compressor,
    read_vectors as read_vectors,
    weight as weight,
)
from stepsize_opt.methods.feedback import (
    FLOOR as FLOOR,
    RUNNING as RUNNING,
    Feedback as Feedback,
    FeedbackClient as FeedbackClient,
    FeedbackMessage as FeedbackMessage,
    FeedbackServer as FeedbackServer,
    MeasuredStepsize as MeasuredStepsize,
    default_floats as default_floats,
    exchange as exchange,
    largest as largest,
)
